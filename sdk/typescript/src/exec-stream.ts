/**
 * A running command whose output is read as it comes.
 *
 *     stdout | stderr   {"chunk": text}      output, in order
 *     exit              {"exit_code": n}     the end
 *     error             {"error": text}      the end, without an exit code
 *
 * Other events are skipped, so that servers may add some. A stream that ends without `exit` is an
 * interruption, never a success.
 */

import { ExecInterrupted, isTimeoutMessage, NetworkError, PandaStackError, SandboxTimeout, ServerError } from "./errors.js";
import type { ExecChunk } from "./models.js";
import { asyncDispose } from "./runtime.js";
import { EventParser, eventPayload, type ServerEvent } from "./sse.js";
import type { ByteStream } from "./transport.js";

/** The end of each stream's output that an interruption reports. */
const PARTIAL_OUTPUT_CHARS_MAX = 1024 * 1024;

/** The events of an open answer. */
export async function* serverEvents(stream: ByteStream): AsyncGenerator<ServerEvent, void, undefined> {
  const parser = new EventParser();
  for await (const chunk of stream.chunks()) yield* parser.feed(chunk);
}

/** What callbacks get. */
export interface OutputCallbacks {
  /** Gets stdout as it arrives. */
  onStdout?: ((text: string) => unknown) | undefined;
  /** Gets stderr as it arrives. */
  onStderr?: ((text: string) => unknown) | undefined;
}

/**
 * Iterate for {@link ExecChunk}; afterwards `exitCode` is set.
 *
 * Throws {@link ExecInterrupted} when the stream ends without an exit code, {@link SandboxTimeout} when
 * the command ran out of time.
 */
export class ExecStream implements AsyncIterable<ExecChunk> {
  readonly #stream: ByteStream;
  readonly #chunks: AsyncGenerator<ExecChunk, void, undefined>;
  readonly #tails = { stdout: "", stderr: "" };
  #exitCode: number | undefined;

  /** @internal */
  constructor(stream: ByteStream) {
    this.#stream = stream;
    this.#chunks = this.#read();
  }

  /** The command's exit code; `undefined` until all output has been read. */
  get exitCode(): number | undefined {
    return this.#exitCode;
  }

  /** Read to the end, handing output to the callbacks; resolves to the exit code. */
  async wait(callbacks: OutputCallbacks = {}): Promise<number> {
    for await (const chunk of this.#chunks) {
      await (chunk.stream === "stdout" ? callbacks.onStdout : callbacks.onStderr)?.(chunk.text);
    }
    if (this.#exitCode === undefined) throw this.#interrupted("the stream was closed here");
    return this.#exitCode;
  }

  /** Stop reading. What becomes of the command is the server's decision. */
  close(): void {
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
    try {
      for await (const event of serverEvents(this.#stream)) {
        const chunk = this.#take(event);
        if (chunk) yield chunk;
        if (this.#exitCode !== undefined) return;
      }
      throw this.#interrupted("the server closed it");
    } catch (error) {
      const isBreak = error instanceof NetworkError || error instanceof ServerError;
      throw isBreak ? this.#interrupted(error.reason, error) : error;
    } finally {
      this.close();
    }
  }

  #take(event: ServerEvent): ExecChunk | undefined {
    const payload = eventPayload(event);
    if (!payload) return undefined;
    if (event.name === "error") throw this.#reported(payload.error, payload.code);
    if (event.name === "exit") {
      if (typeof payload.exit_code !== "number") throw new ServerError("the server's exit event has no 'exit_code'");
      this.#exitCode = payload.exit_code;
      return undefined;
    }
    const text = payload.chunk;
    if ((event.name !== "stdout" && event.name !== "stderr") || typeof text !== "string" || !text) return undefined;
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
