/** A file or a directory as a function's bundle: a gzip-compressed tar archive. Needs Node's file system. */

import { PandaStackError } from "./errors.js";
import { importBuiltin } from "./runtime.js";

/** What no function needs: histories, caches, and what the deploy installs anew. */
const LEFT_OUT = new Set([".git", "node_modules", "__pycache__", ".venv", "venv", ".DS_Store"]);
/** How names of files end that are bundles already. */
const BUNDLES = [".zip", ".tar.gz", ".tgz"];
/** Bytes of a block of a tar archive. */
const BLOCK = 512;
/** Longest name that a plain header holds. */
const NAME_BYTES_MAX = 100;

/** Packs a directory, or one file; a bundle is taken as it is. */
export async function pack(source: string): Promise<Uint8Array> {
  const { readFile, stat } = await importBuiltin("fs/promises");
  const { basename } = await importBuiltin("path");
  const { gzipSync } = await importBuiltin("zlib");
  const found = await stat(source);
  if (found.isFile() && BUNDLES.some((end) => source.toLowerCase().endsWith(end))) return readFile(source);
  const blocks: Uint8Array[] = [];
  if (found.isFile()) append(blocks, basename(source), await readFile(source), found.mode);
  else await walk(blocks, source, "");
  blocks.push(new Uint8Array(2 * BLOCK));
  return gzipSync(concat(blocks));
}

async function walk(blocks: Uint8Array[], directory: string, prefix: string): Promise<void> {
  const { readdir, readFile, stat } = await importBuiltin("fs/promises");
  const { join } = await importBuiltin("path");
  // The same files are the same bundle.
  for (const name of (await readdir(directory)).sort()) {
    if (LEFT_OUT.has(name)) continue;
    const path = join(directory, name);
    const found = await stat(path);
    if (found.isDirectory()) await walk(blocks, path, `${prefix}${name}/`);
    else if (found.isFile()) append(blocks, prefix + name, await readFile(path), found.mode);
  }
}

function append(blocks: Uint8Array[], name: string, content: Uint8Array, mode: number): void {
  const bytes = new TextEncoder().encode(name);
  // A longer name goes before its file, as GNU tar does it.
  if (bytes.length > NAME_BYTES_MAX) {
    blocks.push(header(new TextEncoder().encode("././@LongLink"), bytes.length + 1, 0o644, "L"), padded(bytes, 1));
  }
  if (content.length >= 8 ** 11) throw new PandaStackError(`${name} is too large for a bundle`);
  blocks.push(header(bytes.slice(0, NAME_BYTES_MAX), content.length, mode & 0o777, "0"), padded(content, 0));
}

function header(name: Uint8Array, size: number, mode: number, kind: string): Uint8Array {
  const block = new Uint8Array(BLOCK);
  const put = (at: number, text: string): void => block.set(new TextEncoder().encode(text), at);
  const octal = (value: number, digits: number): string => `${value.toString(8).padStart(digits, "0")}\0`;
  block.set(name, 0);
  put(100, octal(mode, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  put(124, octal(size, 11));
  put(136, octal(0, 11));
  put(148, "        ");
  put(156, kind);
  put(257, "ustar  \0");
  const sum = block.reduce((total, byte) => total + byte, 0);
  put(148, `${sum.toString(8).padStart(6, "0")}\0 `);
  return block;
}

/** Content up to the end of its last block, after at least `least` zeros. */
function padded(content: Uint8Array, least: number): Uint8Array {
  const whole = new Uint8Array(Math.ceil((content.length + least) / BLOCK) * BLOCK);
  whole.set(content);
  return whole;
}

function concat(parts: Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
