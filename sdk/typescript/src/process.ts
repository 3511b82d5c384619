/**
 * A process of a sandbox: started, followed, written to and ended by id.
 *
 * The process belongs to the sandbox, not to this client: it outlives connections, restarts of the servers and
 * sleep. A handle can be made again at any time with `sandbox.process(id)`.
 */

import { checked } from "./check.js";
import { BadRequestError } from "./errors.js";
import { ExecStream, type OutputCallbacks } from "./exec-stream.js";
import type { JsonObject } from "./models.js";
import { printed } from "./printed.js";
import { Reconnect } from "./reconnect.js";
import type { Transport } from "./transport.js";
import { type Call, type Command, execBody, type ExecOptions, get, given } from "./wire.js";
import { MACHINE_MS_MAX, post, sandboxPath } from "./wire.js";

/** Duration of one long poll, repeated until the process has ended. */
const WAIT_SECONDS = 25;
/** One write to a process's input lasts as long as the process takes to read it. */
const STDIN_MS_MAX = 300_000;

/** Size of a terminal, in characters. */
export interface TerminalSize {
  rows: number;
  cols: number;
}

/** Options for starting a process. */
export interface StartOptions extends ExecOptions {
  /** Leave its input open for {@link Process.write}. */
  stdinOpen?: boolean;
  /** Give it a terminal; without a command that runs the user's shell. */
  pty?: TerminalSize;
  /** A name of your own, shown in listings. */
  tag?: string;
}

/** The server's record of a process, with its JSON names. Offsets count bytes from its start. */
export interface ProcessInfo extends JsonObject {
  id: number;
  pid: number;
  command: string;
  state: "running" | "exited";
  exit_code?: number;
  signal?: number;
  timed_out: boolean;
  lingering: boolean;
  duration_ms: number;
  stdout_start: number;
  stdout_end: number;
  stderr_start: number;
  stderr_end: number;
  stdin_offset: number;
  tag?: string;
  pty?: TerminalSize;
}

/** @internal The call that starts a process. */
export function startCall(path: string, cmd: Command | undefined, options: StartOptions): Call {
  const { stdinOpen, pty, tag } = options;
  const more = given({ stdin_open: stdinOpen, pty, tag });
  const { user, cwd, env, limits } = options;
  const body = cmd === undefined ? given({ user, cwd, env, limits }) : execBody(cmd, options);
  return { ...post(path, { ...body, ...more }, MACHINE_MS_MAX), signal: options.signal };
}

/** A handle for one process. */
export class Process {
  readonly #transport: Transport;
  readonly #sandboxId: string;
  #info: ProcessInfo;

  /** @internal Made by `sandbox.start` and `sandbox.process`. */
  constructor(transport: Transport, sandboxId: string, info: JsonObject) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
    this.#info = info as ProcessInfo;
  }

  /** The server's last response. */
  get info(): ProcessInfo {
    return this.#info;
  }
  /** Process ID in this sandbox, and in forks created while it existed. */
  get id(): number {
    return this.#info.id;
  }
  /** Process ID in the sandbox's kernel. */
  get pid(): number {
    return this.#info.pid;
  }

  /** `running` or `exited`, as of the last response. */
  get state(): ProcessInfo["state"] {
    return this.#info.state;
  }
  /** The exit code, once it has ended: 128 + signal when killed by one. */
  get exitCode(): number | undefined {
    return this.#info.exit_code;
  }

  /** Refresh this object with the server's current state. */
  async refresh(): Promise<this> {
    this.#info = (await this.#transport.send(get(this.#path()))).record() as ProcessInfo;
    return this;
  }

  /**
   * Stream its output from two byte offsets. The stream reconnects after a lost connection.
   * Output is kept up to a limit; `stream.gaps` lists what was dropped.
   */
  async output(from: { stdoutOffset?: number; stderrOffset?: number } = {}): Promise<ExecStream> {
    const offsets = { stdout: from.stdoutOffset ?? 0, stderr: from.stderrOffset ?? 0 };
    return await ExecStream.attach(this.#transport, this.#path(), offsets);
  }

  /** Wait for it to end. A callback receives the output that was kept. Resolves to the exit code. */
  async wait(callbacks: OutputCallbacks = {}): Promise<number> {
    if (callbacks.onStdout || callbacks.onStderr) return await (await this.output()).wait(callbacks);
    const retry = new Reconnect();
    while (this.#info.exit_code === undefined) {
      const call = get(this.#path("/wait"), { timeout_seconds: String(WAIT_SECONDS) });
      await this.#tryAgain(retry, async () => {
        this.#info = (await this.#transport.send(call)).record() as ProcessInfo;
        retry.succeeded();
      });
    }
    return this.#info.exit_code;
  }

  /** Write to its standard input. Resolves when all bytes are in the pipe. */
  async write(data: string | Uint8Array): Promise<void> {
    await this.#sendInput(typeof data === "string" ? new TextEncoder().encode(data) : data, false);
  }

  /** Close its standard input. On a terminal, sends Ctrl-D. */
  async closeStdin(): Promise<void> {
    await this.#sendInput(new Uint8Array(), true);
  }

  /** Send a signal, such as `"INT"`. `"KILL"` also kills all processes that the process started. */
  async signal(signal: string | number): Promise<void> {
    await this.#transport.send(post(this.#path("/signal"), { signal }));
  }

  /** Kill it and every process it started. */
  async kill(): Promise<void> {
    await this.signal("KILL");
  }

  /** Resize its terminal. */
  async resize(size: TerminalSize): Promise<void> {
    await this.#transport.send(post(this.#path("/resize"), { rows: size.rows, cols: size.cols }));
  }

  // Bytes that were taken before a connection broke are not sent again: the server counts them.
  async #sendInput(data: Uint8Array, close: boolean): Promise<void> {
    const start = this.#info.stdin_offset;
    const retry = new Reconnect();
    let rest = data;
    for (let wasRepeated = false; ; wasRepeated = true) {
      try {
        const query: Record<string, string> = close ? { close: "true" } : {};
        const contentType = "application/octet-stream";
        const call = { ...post(this.#path("/stdin"), undefined, STDIN_MS_MAX), query, body: rest, contentType };
        const { offset } = (await this.#transport.send(call)).record();
        this.#info = { ...this.#info, stdin_offset: Number(offset) };
        return;
      } catch (error) {
        // Closed by the attempt whose answer was lost.
        if (error instanceof BadRequestError && wasRepeated && close && rest.length === 0) return;
        if (!(await retry.pause(error))) throw error;
      }
      await this.#tryAgain(retry, async () => void (await this.refresh()));
      const taken = Math.max(this.#info.stdin_offset - start, 0);
      rest = data.subarray(Math.min(taken, data.length));
    }
  }

  async #tryAgain(retry: Reconnect, work: () => Promise<void>): Promise<void> {
    for (;;) {
      try {
        return await work();
      } catch (error) {
        if (!(await retry.pause(error))) throw error;
      }
    }
  }

  #path(rest = ""): string {
    return sandboxPath(this.#sandboxId, `/processes/${this.#info.id}${rest}`);
  }
}

checked({ Process });
printed(Process, "Process", ["id", "state", "exitCode"]);
