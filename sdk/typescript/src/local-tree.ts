/**
 * Local directories as archives, and archives as local directories.
 *
 * An archive that a sandbox made is not to be trusted: nothing of it lands outside of the directory it is unpacked into,
 * neither by its name nor through a link.
 */

import { BadRequestError } from "./errors.js";
import type { ByteSource } from "./globals.js";
import { Ignore } from "./ignore.js";
import { type Builtins, importBuiltin } from "./runtime.js";
import { entries, type Entry, type EntryKind, header, padding, trailer } from "./tar.js";

/**
 * An archive of a directory, in order of names, without entries named in `leftOut`. Throws at once if the
 * path is not a directory.
 */
export async function packTree(localPath: string, leftOut: ReadonlySet<string> = new Set()): Promise<AsyncGenerator<Uint8Array>> {
  const fs = await importBuiltin("fs");
  const path = await importBuiltin("path");
  await checkDirectory(fs, localPath);
  return pack(fs, path, localPath, leftOut, new Ignore());
}

/** An archive of a build directory, without files that its `.dockerignore` excludes. */
export async function packContext(localPath: string): Promise<AsyncGenerator<Uint8Array>> {
  const fs = await importBuiltin("fs");
  const path = await importBuiltin("path");
  await checkDirectory(fs, localPath);
  const text = await fs.promises.readFile(path.join(localPath, ".dockerignore"), "utf8").catch((error: { code?: string }) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  return pack(fs, path, localPath, new Set(), new Ignore(text));
}

async function checkDirectory(fs: Builtins["fs"], localPath: string): Promise<void> {
  if (!(await fs.promises.lstat(await fs.promises.realpath(localPath))).isDirectory()) {
    throw new BadRequestError(`${JSON.stringify(localPath)} is not a directory`);
  }
}

async function* pack(
  fs: Builtins["fs"],
  path: Builtins["path"],
  localPath: string,
  leftOut: ReadonlySet<string>,
  ignore: Ignore,
): AsyncGenerator<Uint8Array> {
  const pending = [""];
  for (let below = pending.pop(); below !== undefined; below = pending.pop()) {
    for (const child of (await fs.promises.readdir(path.join(localPath, below))).sort()) {
      if (leftOut.has(child)) continue;
      const name = below ? `${below}/${child}` : child;
      const entry = await entryOf(fs.promises, path.join(localPath, name), name);
      if (!entry) continue;
      const excluded = ignore.excludes(name);
      if (entry.kind === "directory" && (!excluded || ignore.mayKeepBelow)) pending.push(name);
      if (excluded) continue;
      yield header(entry);
      if (entry.kind === "file") yield* content(fs, path.join(localPath, name), entry.size);
    }
  }
  yield trailer();
}

/** An archive of a directory's content, or of one file; of a file also its name. */
export async function packPath(
  localPath: string,
  leftOut: ReadonlySet<string>,
): Promise<{ pieces: AsyncGenerator<Uint8Array>; file?: string }> {
  const fs = await importBuiltin("fs");
  const file = (await importBuiltin("path")).basename(localPath);
  const entry = await entryOf(fs.promises, await fs.promises.realpath(localPath), file);
  if (entry?.kind !== "file") return { pieces: await packTree(localPath, leftOut) };
  const pieces = async function* (): AsyncGenerator<Uint8Array> {
    yield header(entry);
    yield* content(fs, localPath, entry.size);
    yield trailer();
  };
  return { pieces: pieces(), file };
}

/** Pieces as a stream for the body of a request. */
export function streamOf(pieces: AsyncIterable<Uint8Array>): ByteSource {
  const iterator = pieces[Symbol.asyncIterator]();
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await iterator.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await iterator.return?.();
    },
  });
}

/** An archive being sent, with errors of its files, which the sender would see as a lost connection. */
export interface Watched {
  /** Its pieces, once. */
  pieces(): AsyncGenerator<Uint8Array>;
  /** Bytes that were read so far. */
  readonly size: number;
  /**
   * The result of `send`; if a file could not be read, that error is thrown instead of the send
   * error that it causes.
   */
  orElse<T>(send: () => Promise<T>): Promise<T>;
}

/** Watches an archive while it is sent. */
export function watched(packed: AsyncIterable<Uint8Array>): Watched {
  let size = 0;
  let failure: unknown;
  return {
    async *pieces() {
      try {
        for await (const piece of packed) {
          size += piece.length;
          yield piece;
        }
      } catch (error) {
        failure = error;
        throw error;
      }
    },
    get size() {
      return size;
    },
    async orElse(send) {
      try {
        return await send();
      } catch (error) {
        throw failure ?? error;
      }
    },
  };
}

/** Kind of a local path; sockets and such are left out. */
async function entryOf(fs: Builtins["fs/promises"], at: string, name: string): Promise<Entry | undefined> {
  const found = await fs.lstat(at);
  const kind: EntryKind | undefined = found.isFile()
    ? "file"
    : found.isDirectory()
      ? "directory"
      : found.isSymbolicLink()
        ? "symlink"
        : undefined;
  if (!kind) return undefined;
  const target = kind === "symlink" ? await fs.readlink(at) : "";
  const size = kind === "file" ? found.size : 0;
  return { name, kind, mode: found.mode & 0o7777, size, mtime: found.mtimeMs / 1000, target };
}

/**
 * A file's content, padded to a full block: as long as its header says, even if the file grows
 * during the read.
 */
async function* content(fs: Builtins["fs"], at: string, size: number): AsyncGenerator<Uint8Array> {
  let left = size;
  if (size > 0) {
    for await (const chunk of fs.createReadStream(at, { end: size - 1 })) {
      left -= chunk.length;
      yield chunk;
    }
  }
  if (left !== 0) throw new BadRequestError(`${JSON.stringify(at)} became shorter while it was read`);
  yield new Uint8Array(padding(size));
}

/** Unpack an archive into a directory, which is made if need be. */
export async function unpackTree(chunks: AsyncIterable<Uint8Array>, localPath: string): Promise<void> {
  const fs = await importBuiltin("fs/promises");
  await fs.mkdir(localPath, { recursive: true });
  const target = new Target(fs, await importBuiltin("path"), await fs.realpath(localPath));
  try {
    for await (const piece of entries(chunks)) {
      if ("entry" in piece) await target.begin(piece.entry);
      else await target.write(piece.content);
    }
  } finally {
    await target.end();
  }
  await target.settle();
}

/** A directory that is being filled. */
class Target {
  readonly #fs: Builtins["fs/promises"];
  readonly #path: Builtins["path"];
  readonly #root: string;
  #open: { file: Awaited<ReturnType<Builtins["fs/promises"]["open"]>>; entry: Entry; at: string } | undefined;
  /** Modes of directories: set last, since one may forbid to write into it. */
  readonly #modes: Array<[string, number]> = [];

  constructor(fs: Builtins["fs/promises"], path: Builtins["path"], root: string) {
    this.#fs = fs;
    this.#path = path;
    this.#root = root;
  }

  async begin(entry: Entry): Promise<void> {
    await this.end();
    const at = await this.#place(entry.name);
    if (at === undefined) return;
    if (entry.kind === "directory") {
      await this.#fs.mkdir(at, { recursive: true });
      this.#modes.push([at, entry.mode]);
      return;
    }
    // An existing entry is replaced, not written through.
    await this.#fs.rm(at, { force: true });
    if (entry.kind === "file") this.#open = { file: await this.#fs.open(at, "wx"), entry, at };
    else if (entry.kind === "symlink") await this.#link(entry, at);
    else await this.#fs.link(await this.#inside(entry.target, entry.name), at);
  }

  async write(content: Uint8Array): Promise<void> {
    await this.#open?.file.writeFile(content);
  }

  /** Closes the file in progress. */
  async end(): Promise<void> {
    const open = this.#open;
    this.#open = undefined;
    if (!open) return;
    await open.file.close();
    await this.#fs.chmod(open.at, open.entry.mode & 0o755);
    await this.#fs.utimes(open.at, open.entry.mtime, open.entry.mtime);
  }

  async settle(): Promise<void> {
    for (const [at, mode] of this.#modes.reverse()) await this.#fs.chmod(at, (mode & 0o755) | 0o700);
  }

  async #link(entry: Entry, at: string): Promise<void> {
    const leads = this.#path.resolve(this.#path.dirname(at), entry.target);
    if (this.#path.isAbsolute(entry.target) || !this.#contains(leads)) throw outside(entry.name);
    await this.#fs.symlink(entry.target, at);
  }

  /** Local path of an entry; `undefined` for the directory itself. Its parents exist then, and are inside. */
  async #place(name: string): Promise<string | undefined> {
    const parts = name.split("/").filter((part) => part !== "" && part !== ".");
    if (name.startsWith("/") || parts.includes("..")) throw outside(name);
    const last = parts.pop();
    if (last === undefined) return undefined;
    const parent = this.#path.join(this.#root, ...parts);
    await this.#fs.mkdir(parent, { recursive: true });
    const real = await this.#fs.realpath(parent);
    if (!this.#contains(real)) throw outside(name);
    return this.#path.join(real, last);
  }

  /** A file that was unpacked before, to be linked to. */
  async #inside(target: string, name: string): Promise<string> {
    const at = await this.#place(target);
    if (at === undefined || !this.#contains(await this.#fs.realpath(at))) throw outside(name);
    return at;
  }

  #contains(at: string): boolean {
    return at === this.#root || at.startsWith(this.#root.replace(/\/$/, "") + "/");
  }
}

function outside(name: string): BadRequestError {
  return new BadRequestError(`${JSON.stringify(name)} would land outside of the directory`, {
    hint: "look at it with downloadArchive",
  });
}
