/**
 * Tar archives as bytes: headers written and read. No files and no network here.
 *
 * Writes the old Unix form with GNU's extensions for long names and large files, which everything reads; reads that, and
 * the names and sizes of PAX headers.
 */

import { BadRequestError } from "./errors.js";

/** Headers and contents fill whole blocks. */
export const BLOCK = 512;
/** Longest name in a header; a longer one is stored in a separate entry before it. */
const NAME_BYTES_MAX = 100;
/** Largest size in octal digits; a larger one is written in binary. */
const OCTAL_SIZE_MAX = 0o77777777777;
/** Longest name or PAX header that is read: far beyond what a file system has. */
const META_BYTES_MAX = 1024 * 1024;

/** Kind of an entry; others are devices and such, which are not transferred. */
export type EntryKind = "file" | "directory" | "symlink" | "hardlink";

/** An entry of an archive, without its content. */
export interface Entry {
  name: string;
  kind: EntryKind;
  mode: number;
  size: number;
  /** Seconds since 1970. */
  mtime: number;
  /** Target of a link. */
  target: string;
}

const KINDS: Record<string, EntryKind> = { "0": "file", "\0": "file", "5": "directory", "2": "symlink", "1": "hardlink" };
const FLAGS: Record<EntryKind, string> = { file: "0", directory: "5", symlink: "2", hardlink: "1" };

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** The header of an entry, preceded by blocks for long names. */
export function header(entry: Entry): Uint8Array {
  const name = encoder.encode(entry.kind === "directory" ? `${entry.name}/` : entry.name);
  const target = encoder.encode(entry.target);
  const blocks = [...longName("L", name), ...longName("K", target), block(name, FLAGS[entry.kind], entry, target)];
  return concat(blocks);
}

/** Number of padding bytes after a content of that size. */
export function padding(size: number): number {
  return (BLOCK - (size % BLOCK)) % BLOCK;
}

/** The end of an archive. */
export function trailer(): Uint8Array {
  return new Uint8Array(2 * BLOCK);
}

function longName(flag: string, bytes: Uint8Array): Uint8Array[] {
  if (bytes.length <= NAME_BYTES_MAX) return [];
  const size = bytes.length + 1;
  const content = new Uint8Array(size + padding(size));
  content.set(bytes);
  const meta = { name: "", kind: "file" as const, mode: 0o644, size, mtime: 0, target: "" };
  return [block(encoder.encode("././@LongLink"), flag, meta, new Uint8Array()), content];
}

function block(name: Uint8Array, flag: string, entry: Entry, target: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(BLOCK);
  const text = (value: string, at: number): void => bytes.set(encoder.encode(value), at);
  bytes.set(name.subarray(0, NAME_BYTES_MAX), 0);
  text(`${octal(entry.mode & 0o7777, 7)}\0${octal(0, 7)}\0${octal(0, 7)}\0`, 100);
  if (entry.size <= OCTAL_SIZE_MAX) text(`${octal(entry.size, 11)}\0`, 124);
  else binarySize(bytes, entry.size);
  text(`${octal(Math.max(0, Math.floor(entry.mtime)), 11)}\0`, 136);
  text("        ", 148);
  text(flag, 156);
  bytes.set(target.subarray(0, NAME_BYTES_MAX), 157);
  text("ustar  \0", 257);
  text(`${octal(checksum(bytes), 6)}\0 `, 148);
  return bytes;
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, "0");
}

function binarySize(bytes: Uint8Array, size: number): void {
  const view = new DataView(bytes.buffer, 124, 12);
  view.setUint8(0, 0x80);
  view.setBigUint64(4, BigInt(size));
}

function checksum(bytes: Uint8Array): number {
  return bytes.reduce((sum, byte, at) => sum + (at >= 148 && at < 156 ? 0x20 : byte), 0);
}

/** Pieces of an archive: an entry's header, then its content. */
export type Piece = { entry: Entry } | { content: Uint8Array };

/** Reads an archive as it arrives. Skips unsupported entries and their contents. */
export async function* entries(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Piece> {
  const reader = new Reader(chunks);
  let long: Partial<Entry> = {};
  for (let head = await reader.exactly(BLOCK); head && !isEmpty(head); head = await reader.exactly(BLOCK)) {
    if (number(head, 148, 8) !== checksum(head)) throw broken("a header's checksum is wrong");
    const flag = String.fromCharCode(head[156] ?? 0);
    const size = long.size ?? number(head, 124, 12);
    if (flag === "L" || flag === "K" || flag === "x" || flag === "g") {
      if (flag !== "g") long = { ...long, ...meta(flag, await reader.small(size)) };
      else await reader.skip(size + padding(size));
      continue;
    }
    const kind = KINDS[flag];
    if (kind) yield { entry: { ...plain(head), ...long, kind, size: kind === "file" ? size : 0 } };
    for await (const content of reader.upTo(size)) if (kind === "file") yield { content };
    await reader.skip(padding(size));
    long = {};
  }
}

function plain(head: Uint8Array): Omit<Entry, "kind" | "size"> {
  const prefix = text(head, 257, 6) === "ustar" ? text(head, 345, 155) : "";
  const name = prefix ? `${prefix}/${text(head, 0, 100)}` : text(head, 0, 100);
  return { name, mode: number(head, 100, 8) & 0o7777, mtime: number(head, 136, 12), target: text(head, 157, 100) };
}

function meta(flag: string, bytes: Uint8Array): Partial<Entry> {
  if (flag === "L") return { name: text(bytes, 0, bytes.length) };
  if (flag === "K") return { target: text(bytes, 0, bytes.length) };
  const found: Partial<Entry> = {};
  for (let at = 0; at < bytes.length; ) {
    const space = bytes.indexOf(0x20, at);
    const length = space < 0 ? Number.NaN : Number(decoder.decode(bytes.subarray(at, space)));
    if (!(length > space - at)) throw broken("a PAX header is malformed");
    const [key, ...rest] = decoder.decode(bytes.subarray(space + 1, at + length - 1)).split("=");
    const value = rest.join("=");
    if (key === "path") found.name = value;
    if (key === "linkpath") found.target = value;
    if (key === "size") found.size = Number(value);
    at += length;
  }
  return found;
}

function text(bytes: Uint8Array, at: number, length: number): string {
  const field = bytes.subarray(at, at + length);
  const end = field.indexOf(0);
  return decoder.decode(end < 0 ? field : field.subarray(0, end));
}

function number(bytes: Uint8Array, at: number, length: number): number {
  if (((bytes[at] ?? 0) & 0x80) !== 0) return Number(new DataView(bytes.buffer, bytes.byteOffset + at + length - 8, 8).getBigUint64(0));
  const value = parseInt(text(bytes, at, length).trim() || "0", 8);
  if (!Number.isSafeInteger(value)) throw broken("a header has an invalid number");
  return value;
}

function isEmpty(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0);
}

function broken(why: string): BadRequestError {
  return new BadRequestError(`the archive cannot be read: ${why}`);
}

function concat(parts: Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Bytes by number out of chunks of any length. */
class Reader {
  readonly #chunks: AsyncIterator<Uint8Array>;
  #rest = new Uint8Array();

  constructor(chunks: AsyncIterable<Uint8Array>) {
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** At most `count` bytes, in pieces. */
  async *upTo(count: number): AsyncGenerator<Uint8Array> {
    for (let left = count; left > 0; ) {
      if (this.#rest.length === 0) {
        const { done, value } = await this.#chunks.next();
        if (done) throw broken("it is truncated");
        this.#rest = new Uint8Array(value);
      }
      const piece = this.#rest.subarray(0, left);
      this.#rest = this.#rest.subarray(piece.length);
      left -= piece.length;
      yield piece;
    }
  }

  async skip(count: number): Promise<void> {
    for await (const _ of this.upTo(count)) void _;
  }

  /** Exactly `count` bytes, or `undefined` at the end of the archive. */
  async exactly(count: number): Promise<Uint8Array | undefined> {
    if (this.#rest.length === 0) {
      const { done, value } = await this.#chunks.next();
      if (done) return undefined;
      this.#rest = new Uint8Array(value);
    }
    const parts: Uint8Array[] = [];
    for await (const piece of this.upTo(count)) parts.push(piece);
    return concat(parts);
  }

  /** Reads a content into memory, and skips its padding. */
  async small(size: number): Promise<Uint8Array> {
    if (size > META_BYTES_MAX) throw broken("a name is too long");
    const bytes = (await this.exactly(size)) ?? new Uint8Array();
    await this.skip(padding(size));
    return bytes;
  }
}
