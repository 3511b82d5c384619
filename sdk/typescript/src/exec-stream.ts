/**
 * A running command whose output is read as it comes.
 *
 *     stdout | stderr   {"chunk": text, "end": n}             output, in order, up to that byte
 *     gap               {"stream", "from": n, "to": n}        output that is gone
 *     exit              {"exit_code": n, "timed_out": bool}   the end
 *     error             {"error": text}                       the end, without an exit code
 *
 * Other events are skipped, so that servers may add some. A stream that ends without `exit` is an
 * interruption, never a success.
 */

import { abandon, killProcess } from "./cancel.js";
import { checked } from "./check.js";
import { ExecInterrupted, isTimeoutMessage, NetworkError, PandaStackError, SandboxTimeout, ServerError } from "./errors.js";
import type { AbortSignal } from "./globals.js";
import type { ExecChunk } from "./models.js";
import { printed } from "./printed.js";
import { asyncDispose } from "./runtime.js";
import { EventParser, eventPayload, type ServerEvent } from "./sse.js";
import { Reconnect } from "./reconnect.js";
import type { ByteStream, Transport } from "./transport.js";
import { type Call, get, STREAM_IDLE_MS_MAX } from "./wire.js";

/** The end of each stream's output that an interruption reports. */
const PARTIAL_OUTPUT_CHARS_MAX = 1024 * 1024;

/** The events of an open answer. */
export async function* serverEvents(stream: ByteStream): AsyncGenerator<ServerEvent, void, undefined> {
  const parser = new EventParser();
  for await (const chunk of stream.chunks()) yield* parser.feed(chunk);
}

/** Callbacks for output. */
export interface OutputCallbacks {
  /** Gets stdout as it arrives. */
  onStdout?: ((text: string) => unknown) | undefined;
  /** Gets stderr as it arrives. */
  onStderr?: ((text: string) => unknown) | undefined;
}

/** Output that was dropped before it was read: bytes `from` up to, not including, `to`. */
export interface OutputGap {
  stream: "stdout" | "stderr";
  from: number;
  to: number;
}

/** Source of a stream. */
interface StreamDetails {
  path?: string | undefined;
  ends?: { stdout: number; stderr: number };
  msMax?: number | undefined;
  signal?: AbortSignal | undefined;
  /** Whether the command is killed when the signal fires. */
  isKilled?: boolean;
}

/** Names the process of a stream. */
const PROCESS_HEADER = "x-pandastack-process";

/**
 * Iterate for {@link ExecChunk}; afterwards `exitCode` is set.
 *
 * If the connection breaks, the stream resumes where it broke; the process keeps running. Throws
 * {@link ExecInterrupted} when the stream cannot be taken up and ends without an exit code,
 * {@link SandboxTimeout} when the command ran out of time.
 */
export class ExecStream implements AsyncIterable<ExecChunk> {
  /** Output that was dropped before it was read. */
  readonly gaps: OutputGap[] = [];
  readonly #transport: Transport;
  readonly #path: string | undefined;
  readonly #ends: { stdout: number; stderr: number };
  readonly #deadline: number | undefined;
  readonly #signal: AbortSignal | undefined;
  /** Kills the command, once: its caller aborted. */
  readonly #kill = (): void => {
    const path = this.#path;
    if (path !== undefined) this.#killed ??= abandon(() => killProcess(this.#transport, path));
  };
  #killed: Promise<void> | undefined;
  #stream: ByteStream;
  readonly #chunks: AsyncGenerator<ExecChunk, void, undefined>;
  readonly #tails = { stdout: "", stderr: "" };
  #exitCode: number | undefined;

  /** @internal */
  constructor(transport: Transport, stream: ByteStream, more: StreamDetails) {
    this.#transport = transport;
    this.#stream = stream;
    this.#path = more.path;
    this.#ends = { ...(more.ends ?? { stdout: 0, stderr: 0 }) };
    this.#deadline = more.msMax === undefined ? undefined : Date.now() + more.msMax;
    this.#signal = more.signal;
    this.#chunks = this.#read();
    if (!more.isKilled) return;
    this.#signal?.addEventListener("abort", this.#kill);
    if (this.#signal?.aborted) this.#kill();
  }

  /** @internal Start a command. `processes` is the path under which its process can be found again. */
  static async open(
    transport: Transport,
    call: Call,
    processes: string,
    isKilled: boolean,
  ): Promise<ExecStream> {
    const stream = await transport.openStream(call, STREAM_IDLE_MS_MAX);
    const process = stream.headers.get(PROCESS_HEADER) ?? "";
    const path = /^\d+$/.test(process) ? `${processes}/${process}` : undefined;
    return new ExecStream(transport, stream, { path, msMax: call.msMax, signal: call.signal, isKilled });
  }

  /** @internal Stream a process's output from two byte offsets. */
  static async attach(transport: Transport, path: string, ends: { stdout: number; stderr: number }): Promise<ExecStream> {
    const stream = await transport.openStream(outputCall(path, ends, undefined), STREAM_IDLE_MS_MAX);
    return new ExecStream(transport, stream, { path, ends });
  }

  /** The process's id, for `sandbox.process(id)`; `undefined` if the server does not report it. */
  get processId(): number | undefined {
    return this.#path === undefined ? undefined : Number(this.#path.slice(this.#path.lastIndexOf("/") + 1));
  }

  /** Bytes of standard output and standard error received so far: where to resume. */
  get offsets(): { stdout: number; stderr: number } {
    return { ...this.#ends };
  }

  /** The command's exit code; `undefined` until all output has been read. */
  get exitCode(): number | undefined {
    return this.#exitCode;
  }

  /** Read to the end and pass output to the callbacks; resolves to the exit code. */
  async wait(callbacks: OutputCallbacks = {}): Promise<number> {
    for await (const chunk of this.#chunks) {
      await (chunk.stream === "stdout" ? callbacks.onStdout : callbacks.onStderr)?.(chunk.text);
    }
    if (this.#exitCode === undefined) throw this.#interrupted("the stream was closed here");
    return this.#exitCode;
  }

  /** Stop reading. The command keeps running; `processId` finds it again. */
  close(): void {
    this.#signal?.removeEventListener("abort", this.#kill);
    this.#stream.close();
  }

  [Symbol.asyncIterator](): AsyncIterator<ExecChunk, void, undefined> {
    return this.#chunks;
  }

  /** For `await using`: the same as {@link close}. */
  async [asyncDispose](): Promise<void> {
    this.close();
  }

  async *#read(): AsyncGenerator<ExecChunk, void, undefined> {
    const retry = new Reconnect();
    try {
      for (;;) {
        let lost: NetworkError | ServerError | undefined;
        try {
          for await (const event of serverEvents(this.#stream)) {
            retry.succeeded();
            const chunk = this.#take(event);
            if (chunk) yield chunk;
            if (this.#exitCode !== undefined) return;
          }
        } catch (error) {
          await this.#killed;
          if (!(error instanceof NetworkError || error instanceof ServerError)) throw error;
          lost = error;
        }
        await this.#takeUp(retry, lost);
      }
    } finally {
      this.close();
    }
  }

  /** Open the stream again where it broke, or throw why not. */
  async #takeUp(retry: Reconnect, first: NetworkError | ServerError | undefined): Promise<void> {
    for (let lost = first; ; ) {
      if (this.#path === undefined || !(await retry.pause(lost))) {
        throw this.#interrupted(lost?.reason ?? "the server closed it", lost);
      }
      const left = this.#deadline === undefined ? undefined : Math.max(this.#deadline - Date.now(), 1);
      try {
        const call = { ...outputCall(this.#path, this.#ends, left), signal: this.#signal };
        this.#stream = await this.#transport.openStream(call, STREAM_IDLE_MS_MAX);
        return;
      } catch (error) {
        if (!(error instanceof NetworkError || error instanceof ServerError)) throw error;
        lost = error;
      }
    }
  }

  #take(event: ServerEvent): ExecChunk | undefined {
    const payload = eventPayload(event);
    if (!payload) return undefined;
    if (event.name === "error") throw this.#reported(payload.error, payload.code);
    if (event.name === "exit") {
      if (typeof payload.exit_code !== "number") throw new ServerError("the server's exit event has no 'exit_code'");
      if (payload.timed_out === true) throw this.#reported("the command was killed by its timeout", "exec_timeout");
      this.#exitCode = payload.exit_code;
      return undefined;
    }
    if (event.name === "gap") {
      const stream = payload.stream === "stderr" ? "stderr" : "stdout";
      this.gaps.push({ stream, from: Number(payload.from), to: Number(payload.to) });
      this.#ends[stream] = Number(payload.to);
      return undefined;
    }
    const text = payload.chunk;
    if ((event.name !== "stdout" && event.name !== "stderr") || typeof text !== "string") return undefined;
    if (typeof payload.end === "number") this.#ends[event.name] = payload.end;
    if (!text) return undefined;
    this.#tails[event.name] = (this.#tails[event.name] + text).slice(-PARTIAL_OUTPUT_CHARS_MAX);
    return { stream: event.name, text };
  }

  #reported(error: unknown, code: unknown): PandaStackError {
    const message = typeof error === "string" && error ? error : "the server gave no reason";
    if (code !== "exec_timeout" && !isTimeoutMessage(message)) return this.#interrupted(message);
    return new SandboxTimeout(message, { hint: "raise timeoutSeconds, or run the command in the background" });
  }

  #interrupted(why: string, cause?: unknown): ExecInterrupted {
    return new ExecInterrupted(`the command's stream ended before its exit code: ${why}`, this.#tails, cause);
  }
}

checked({ ExecStream });
printed(ExecStream, "ExecStream", ["processId", "exitCode"]);

/** Call that asks for the output not seen yet. */
function outputCall(path: string, ends: { stdout: number; stderr: number }, msMax: number | undefined): Call {
  const query = { stdout_offset: String(ends.stdout), stderr_offset: String(ends.stderr) };
  return { ...get(`${path}/output`, query), accept: "text/event-stream", msMax, isCommand: true };
}
