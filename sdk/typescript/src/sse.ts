/**
 * Server-sent events from bytes, without any I/O.
 *
 * Feed chunks as they come, cut anywhere; complete events come out. The decoder keeps a character that
 * is cut across chunks until it is whole. Comments (keep-alive lines) and unknown fields are dropped.
 */

import { ServerError } from "./errors.js";

/** A longer event is refused: the server cuts output into chunks far below this. */
export const EVENT_CHARS_MAX = 32 * 1024 * 1024;

/** One event: its name (`message` if unnamed) and its data. */
export interface ServerEvent {
  name: string;
  data: string;
  /** Id from which a stream can be resumed, if the server gives one. */
  id?: string;
}

/** The data of an event as a JSON object, or `undefined` if it is anything else. */
export function eventPayload(event: ServerEvent): Record<string, unknown> | undefined {
  try {
    const parsed: unknown = JSON.parse(event.data);
    return typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)
      ? (parsed as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

/** Incremental parser of one event stream. */
export class EventParser {
  readonly #decoder = new TextDecoder("utf-8"); // drops a byte order mark
  readonly #charsMax: number;
  #pending = "";
  #scanned = 0;
  #skipLf = false;
  #name = "";
  #id = "";
  #data: string[] = [];
  #dataChars = 0;

  constructor(charsMax: number = EVENT_CHARS_MAX) {
    this.#charsMax = charsMax;
  }

  /** Take one chunk; returns the events it completes. */
  feed(chunk: Uint8Array): ServerEvent[] {
    this.#pending += this.#decoder.decode(chunk, { stream: true });
    const events: ServerEvent[] = [];
    let start = 0;
    for (;;) {
      if (this.#skipLf && start < this.#pending.length) {
        if (this.#pending[start] === "\n") start += 1;
        this.#skipLf = false;
      }
      const end = lineEnd(this.#pending, Math.max(start, this.#scanned));
      if (end < 0) break;
      const event = this.#line(this.#pending.slice(start, end));
      if (event) events.push(event);
      this.#skipLf = this.#pending[end] === "\r";
      start = end + 1;
    }
    this.#pending = this.#pending.slice(start);
    this.#scanned = this.#pending.length;
    if (this.#pending.length + this.#dataChars > this.#charsMax) {
      throw new ServerError(`the server sent an event longer than ${this.#charsMax} characters`);
    }
    return events;
  }

  #line(line: string): ServerEvent | undefined {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#name = value;
    else if (name === "id") this.#id = value;
    else if (name === "data") {
      this.#data.push(value);
      this.#dataChars += value.length + 1;
    }
    return undefined; // also for a comment (empty name) and for fields we do not use
  }

  #dispatch(): ServerEvent | undefined {
    const event = this.#data.length
      ? { name: this.#name || "message", data: this.#data.join("\n"), ...(this.#id ? { id: this.#id } : {}) }
      : undefined;
    this.#name = "";
    this.#data = [];
    this.#dataChars = 0;
    return event;
  }
}

/** End of the next line (at LF, CRLF or CR), or -1. */
function lineEnd(text: string, start: number): number {
  const lf = text.indexOf("\n", start);
  const cr = text.slice(start, lf < 0 ? undefined : lf).indexOf("\r");
  return cr < 0 ? lf : start + cr;
}
