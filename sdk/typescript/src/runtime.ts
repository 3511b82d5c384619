/**
 * Differences between runtimes: Node's built-in modules, disposal symbols, random ids.
 *
 * The rest of the package needs `fetch` and web streams only.
 */

import { BadRequestError } from "./errors.js";
import type { AsyncDispose, Blob } from "./globals.js";

// Only the parts of the built-in modules that are used here, so that programs for other runtimes
// compile against this package without Node's type declarations.
interface FsPromises {
  readFile(path: string, encoding: "utf8"): Promise<string>;
  readFile(path: string): Promise<Uint8Array>;
  open(path: string, flags: string): Promise<{ writeFile(data: Uint8Array): Promise<void>; close(): Promise<void> }>;
  rename(from: string, to: string): Promise<void>;
  rm(path: string, options: { force: boolean }): Promise<void>;
  stat(path: string): Promise<{ size: number }>;
  lstat(path: string): Promise<FileStat>;
  readdir(path: string): Promise<string[]>;
  readlink(path: string): Promise<string>;
  realpath(path: string): Promise<string>;
  mkdir(path: string, options: { recursive: boolean }): Promise<unknown>;
  symlink(target: string, path: string): Promise<void>;
  link(existing: string, path: string): Promise<void>;
  chmod(path: string, mode: number): Promise<void>;
  utimes(path: string, atime: number, mtime: number): Promise<void>;
}

interface FileStat {
  size: number;
  mode: number;
  mtimeMs: number;
  isFile(): boolean;
  isDirectory(): boolean;
  isSymbolicLink(): boolean;
}

/** Built-in modules that are used. */
export interface Builtins {
  "fs/promises": FsPromises;
  fs: {
    promises: FsPromises;
    /** Node 19.8 and later. */
    openAsBlob?: (path: string) => Promise<Blob>;
    createReadStream(path: string, options?: { end: number }): AsyncIterable<Uint8Array>;
  };
  os: { homedir(): string };
  path: {
    join(...parts: string[]): string;
    resolve(...parts: string[]): string;
    dirname(path: string): string;
    basename(path: string): string;
    isAbsolute(path: string): boolean;
  };
}

/** The process's environment; empty in runtimes without one. */
export function environment(): Record<string, string | undefined> {
  return (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env ?? {};
}

/** A built-in module of Node (Bun and Deno have them too), loaded when first needed. */
export async function importBuiltin<Name extends keyof Builtins>(name: Name): Promise<Builtins[Name]> {
  // Not a literal, so that bundlers for runtimes without these modules ignore it.
  const specifier = `node:${name}`;
  try {
    return (await import(specifier)) as Builtins[Name];
  } catch (cause) {
    throw new BadRequestError(`this runtime has no local files (${specifier} is missing)`, {
      hint: "use filesystem.read and filesystem.write with content in memory",
      cause,
    });
  }
}

/** `Symbol.asyncDispose`, also where the runtime is older than it. */
export const asyncDispose: AsyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as AsyncDispose);

/** A key that no other call has. Unique, not secret. */
export function uniqueKey(): string {
  const part = (): string => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0");
  return globalThis.crypto?.randomUUID?.() ?? part() + part() + part() + part();
}
