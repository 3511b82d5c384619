/** Kills commands whose caller aborts. */

import { uniqueKey } from "./runtime.js";
import type { Transport } from "./transport.js";
import { get, post } from "./wire.js";

/** Longest time for an aborted call to kill its command. */
const KILL_MS_MAX = 5000;
/** Waits between checks for a command that the server may be starting at this moment. */
const LOOK_AGAIN_MS = [50, 100, 200, 400, 800, 0];

/** A tag by which a command can be found before its process number is known. */
export function uniqueTag(): string {
  return `exec-${uniqueKey()}`;
}

/** Kill for a bounded time. Errors are dropped: the caller gets its abort reason. */
export async function abandon(kill: () => Promise<void>): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeUp = new Promise<void>((resolve) => (timer = setTimeout(resolve, KILL_MS_MAX)));
  await Promise.race([kill().catch(() => undefined), timeUp]);
  clearTimeout(timer);
}

/** Kill a process and everything it started. */
export async function killProcess(transport: Transport, path: string): Promise<void> {
  await transport.send(post(`${path}/signal`, { signal: "KILL" }, KILL_MS_MAX));
}

/** Kill the process with this tag, which may be about to start. Ended ones stay listed for a while. */
export async function killTagged(transport: Transport, processes: string, tag: string): Promise<void> {
  for (const ms of LOOK_AGAIN_MS) {
    const records = (await transport.send({ ...get(processes), msMax: KILL_MS_MAX })).records("processes");
    const found = records.find((record) => record.tag === tag);
    if (found) return await killProcess(transport, `${processes}/${String(found.id)}`);
    await new Promise((resolve) => setTimeout(resolve, ms));
  }
}
