/**
 * A terminal in a sandbox, over a WebSocket.
 *
 * A connection that breaks is opened again at the byte where it broke, so that no output is lost and none is shown
 * twice. The process belongs to the sandbox: it keeps running when no client is connected, and `process` finds it
 * again.
 */

import { checked } from "./check.js";
import { NetworkError } from "./errors.js";
import { Reconnect } from "./reconnect.js";
import type { TerminalSize } from "./process.js";
import type { Transport } from "./transport.js";

/** Input typed while there is no connection; beyond it the oldest is dropped. */
const INPUT_QUEUE_MAX = 1024;

/** Options for opening a terminal. */
export interface TerminalOptions extends TerminalSize {
  /** User whose shell it is; the server's default is root. */
  user?: string;
  /** Attach to this process instead of starting a shell. */
  process?: number;
  /** Offset in its output at which to begin. */
  offset?: number;
  /** Gets output as it arrives. */
  onData: (bytes: Uint8Array) => void;
  /** Called when the connection opens, is lost and reconnects, or closes. */
  onState?: (state: "connecting" | "open" | "closed", reason?: string) => void;
  /** Called once when the process has exited. */
  onExit?: (exitCode: number | undefined) => void;
}

/** A connected terminal. */
export class Terminal {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #options: TerminalOptions;
  readonly #retry = new Reconnect();
  #size: TerminalSize;
  #socket: WebSocket | undefined;
  #process: number | undefined;
  #offset: number;
  #isOver = false;
  #queue: Uint8Array[] = [];

  /** @internal Made by `sandbox.terminal`. */
  constructor(transport: Transport, path: string, options: TerminalOptions) {
    this.#transport = transport;
    this.#path = path;
    this.#options = options;
    this.#size = { rows: options.rows, cols: options.cols };
    this.#process = options.process;
    this.#offset = options.offset ?? 0;
    this.#connect().catch((error: unknown) => this.#end(String(error)));
  }

  /** Process ID of the shell, once known, for `sandbox.process(id)`. */
  get process(): number | undefined {
    return this.#process;
  }

  /** Bytes of output seen so far. */
  get offset(): number {
    return this.#offset;
  }

  /** Send input. Input that is written while disconnected is sent after reconnecting. */
  write(data: string | Uint8Array): void {
    if (this.#isOver) return;
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    if (this.#socket?.readyState === 1 && this.#process !== undefined)
      this.#socket.send(bytes as Uint8Array<ArrayBuffer>);
    else this.#queue = [...this.#queue, bytes].slice(-INPUT_QUEUE_MAX);
  }

  /** Change its size. */
  resize(size: TerminalSize): void {
    this.#size = { rows: size.rows, cols: size.cols };
    if (this.#socket?.readyState === 1) this.#socket.send(JSON.stringify({ resize: this.#size }));
  }

  /** Disconnect. The shell keeps running in the sandbox. */
  close(): void {
    this.#end("closed here");
  }

  async #connect(): Promise<void> {
    this.#options.onState?.("connecting");
    const query: Record<string, string> = { rows: String(this.#size.rows), cols: String(this.#size.cols) };
    if (this.#options.user !== undefined) query.user = this.#options.user;
    if (this.#process !== undefined)
      Object.assign(query, { process: String(this.#process), offset: String(this.#offset) });
    const address = await this.#transport.socketUrl(this.#path, query);
    if (this.#isOver) return;
    const socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    socket.onmessage = (event: MessageEvent<string | ArrayBuffer>) => this.#take(socket, event.data);
    socket.onclose = () => void this.#again();
  }

  #take(socket: WebSocket, data: string | ArrayBuffer): void {
    this.#retry.succeeded();
    if (typeof data !== "string") {
      this.#offset += data.byteLength;
      this.#options.onData(new Uint8Array(data));
      return;
    }
    const said = JSON.parse(data) as {
      process?: number;
      offset?: number;
      exit?: number;
      error?: string;
      gap?: { to: number };
    };
    if (said.process !== undefined) {
      this.#process = said.process;
      this.#offset = said.offset ?? this.#offset;
      this.#options.onState?.("open");
      for (const bytes of this.#queue.splice(0)) socket.send(bytes as Uint8Array<ArrayBuffer>);
    }
    if (said.gap) this.#offset = said.gap.to;
    if ("exit" in said) {
      this.#end("the process has ended");
      this.#options.onExit?.(said.exit);
    }
    if (said.error !== undefined) this.#end(said.error);
  }

  async #again(): Promise<void> {
    if (this.#isOver) return;
    this.#options.onState?.("connecting");
    if (!(await this.#retry.pause(new NetworkError("the terminal's connection broke")))) {
      return this.#end("the connection was lost and could not be made again");
    }
    if (!this.#isOver) await this.#connect();
  }

  #end(reason: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#socket?.close();
    this.#options.onState?.("closed", reason);
  }
}

checked({ Terminal });
