/** Commands that are run to their end. If the caller aborts first, they are killed. */

import { abandon, killTagged, uniqueTag } from "./cancel.js";
import { CommandError } from "./errors.js";
import { ExecStream } from "./exec-stream.js";
import { type ExecResult, parseExecResult } from "./models.js";
import type { Transport } from "./transport.js";
import {
  type Call,
  type Command,
  commandLine,
  execCall,
  type ExecOptions,
  PLAIN_EXEC_SECONDS_MAX,
  sandboxPath,
} from "./wire.js";

const STDERR_CHARS_SHOWN_MAX = 2000;

/** Options of `exec`. */
export interface SandboxExecOptions extends ExecOptions {
  /** Throw {@link CommandError} on a non-zero exit. */
  check?: boolean;
}

/** Run a command in a sandbox to its end. */
export async function runCommand(
  transport: Transport,
  sandboxId: string,
  cmd: Command,
  options: SandboxExecOptions,
): Promise<ExecResult> {
  const isLong = (options.timeoutSeconds ?? 0) > PLAIN_EXEC_SECONDS_MAX;
  const result = await (isLong ? runLong : runPlain)(transport, sandboxId, cmd, options);
  if (options.check && result.exit_code !== 0) throw commandError(cmd, result);
  return result;
}

/** Run a command in a sandbox and stream its output. */
export async function streamCommand(
  transport: Transport,
  sandboxId: string,
  cmd: Command,
  options: ExecOptions,
): Promise<ExecStream> {
  const started = execCall(sandboxPath(sandboxId, "/exec/stream"), cmd, options);
  const call = { ...started, accept: "text/event-stream" };
  if (options.timeoutSeconds === undefined) call.msMax = undefined;
  const processes = sandboxPath(sandboxId, "/processes");
  const isKilled = options.killOnAbort !== false;
  return await tagged(transport, processes, call, isKilled, (sent) => {
    return ExecStream.open(transport, sent, processes, isKilled);
  });
}

async function runPlain(
  transport: Transport,
  sandboxId: string,
  cmd: Command,
  options: ExecOptions,
): Promise<ExecResult> {
  const call = execCall(sandboxPath(sandboxId, "/exec"), cmd, options);
  const isKilled = options.killOnAbort !== false;
  return await tagged(transport, sandboxPath(sandboxId, "/processes"), call, isKilled, async (sent) => {
    return parseExecResult((await transport.send(sent)).record());
  });
}

/** Over the stream, whose keep-alives hold a connection open that a plain call would lose. */
async function runLong(
  transport: Transport,
  sandboxId: string,
  cmd: Command,
  options: ExecOptions,
): Promise<ExecResult> {
  const output = { stdout: "", stderr: "" };
  const startedAt = performance.now();
  const stream = await streamCommand(transport, sandboxId, cmd, options);
  for await (const chunk of stream) output[chunk.stream] += chunk.text;
  const duration_ms = Math.round(performance.now() - startedAt);
  return parseExecResult({ ...output, exit_code: stream.exitCode, duration_ms });
}

/** Send a call that starts a command, by whose tag it is found and killed if its caller aborts. */
async function tagged<T>(
  transport: Transport,
  processes: string,
  call: Call,
  isKilled: boolean,
  send: (call: Call) => Promise<T>,
): Promise<T> {
  const { signal } = call;
  if (!signal || !isKilled) return await send(call);
  if (signal.aborted) throw signal.reason;
  const tag = uniqueTag();
  try {
    return await send({ ...call, query: { tag } });
  } catch (error) {
    if (signal.aborted) await abandon(() => killTagged(transport, processes, tag));
    throw error;
  }
}

function commandError(cmd: Command, result: ExecResult): CommandError {
  const shown = result.stderr.trim().slice(-STDERR_CHARS_SHOWN_MAX);
  const { exit_code, stdout, stderr } = result;
  const reason = `${JSON.stringify(commandLine(cmd))} exited with ${exit_code}${shown ? `: ${shown}` : ""}`;
  return new CommandError(reason, exit_code, stdout, stderr);
}
