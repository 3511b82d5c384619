/** Files of a sandbox. Paths are absolute; a missing one is a `NotFoundError`. */

import { checked } from "./check.js";
import { BadRequestError, NotFoundError, ServerError } from "./errors.js";
import { serverEvents } from "./exec-stream.js";
import type { AbortSignal, Blob, ByteSource } from "./globals.js";
import { packTree, streamOf, unpackTree, watched } from "./local-tree.js";
import { type FileChange, type FileInfo, type GrepMatch, parseFile, type WriteResult } from "./models.js";
import { importBuiltin } from "./runtime.js";
import { eventPayload } from "./sse.js";
import type { Transport } from "./transport.js";
import {
  type Answer,
  type Call,
  del,
  FILE_BODY_BYTES_MAX,
  FILE_MS_MAX,
  get,
  given,
  post,
  sandboxPath,
  STREAM_IDLE_MS_MAX,
  TRANSFER_IDLE_MS_MAX,
  UPLOAD_MS_MAX,
} from "./wire.js";

/** Depth at which `walk` stops, should a tree contain itself. */
const WALK_DEPTH_MAX = 128;

/** Options of `download`. */
export interface DownloadOptions {
  /** Called with the bytes moved so far and the total, if the server told it. */
  onProgress?: (doneBytes: number, totalBytes: number | undefined) => void;
}

/** A part of a file. */
export interface ReadRange {
  /** First byte. */
  offset?: number;
  /** Number of bytes. Default: to the end. */
  length?: number;
}

/** Options for writing a file. */
export interface WriteOptions {
  /** Add to the file instead of replacing it. */
  append?: boolean;
  /** Permissions, such as `0o644`. */
  mode?: number;
  /** Owner of a file that is new. */
  user?: string;
}

/** `sandbox.filesystem`. */
export class SandboxFilesystem {
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
  }

  /** Read a file as UTF-8 text, or as bytes with `{ format: "bytes" }`. */
  async read(path: string, options: { format: "bytes" } & ReadRange): Promise<Uint8Array>;
  async read(path: string, options?: { format?: "text" } & ReadRange): Promise<string>;
  async read(path: string, options: { format?: "text" | "bytes" } & ReadRange = {}): Promise<string | Uint8Array> {
    const call = { ...this.#get("/fs", path), accept: "application/octet-stream", msMax: FILE_MS_MAX };
    const answer = await this.#transport.send({ ...call, bodyBytesMax: FILE_BODY_BYTES_MAX, extra: range(options) });
    return options.format === "bytes" ? answer.body : answer.text();
  }

  /** Read a file as bytes. */
  async readBytes(path: string): Promise<Uint8Array> {
    return await this.read(path, { format: "bytes" });
  }

  /** Write a file. Creates it and its parent directories if needed. */
  async write(
    path: string,
    content: string | Uint8Array | ArrayBuffer,
    options: WriteOptions = {},
  ): Promise<WriteResult> {
    const body = content instanceof ArrayBuffer ? new Uint8Array(content) : content;
    const size = typeof body === "string" ? new TextEncoder().encode(body).length : body.length;
    const call = this.#put(path);
    const { append, mode, user } = options;
    const how = given({ write: append ? "append" : undefined, mode: octal(mode), user });
    const query = { ...call.query, ...(how as Record<string, string>) };
    const answer = await this.#transport.send({ ...call, query, body, msMax: FILE_MS_MAX, isOnce: append === true });
    return written(answer, path, size);
  }

  /** Upload a local file in chunks. */
  async upload(localPath: string, remotePath: string): Promise<WriteResult> {
    const fs = await importBuiltin("fs");
    const { size } = await fs.promises.stat(localPath);
    // A file's blob has a known length; without blobs, the body is sent chunked.
    const body: Blob | ByteSource = fs.openAsBlob
      ? await fs.openAsBlob(localPath)
      : streamOf(fs.createReadStream(localPath));
    return written(await this.#transport.send({ ...this.#put(remotePath), body, msMax: UPLOAD_MS_MAX }), remotePath, size);
  }

  /** Download a file. The local path appears when the download is complete. */
  async download(remotePath: string, localPath: string, options: DownloadOptions = {}): Promise<void> {
    const call = { ...this.#get("/fs", remotePath), accept: "application/octet-stream" };
    await this.#save(call, localPath, options);
  }

  async #save(call: Call, localPath: string, options: DownloadOptions): Promise<void> {
    const fs = await importBuiltin("fs/promises");
    const stream = await this.#transport.openStream(call, TRANSFER_IDLE_MS_MAX);
    const partial = `${localPath}.part`;
    const length = stream.headers.get("content-length");
    const total = length === null ? undefined : Number(length);
    try {
      const file = await fs.open(partial, "w");
      try {
        let done = 0;
        for await (const chunk of stream.chunks()) {
          await file.writeFile(chunk);
          done += chunk.length;
          options.onProgress?.(done, total);
        }
      } finally {
        await file.close();
      }
      await fs.rename(partial, localPath);
    } catch (error) {
      await fs.rm(partial, { force: true });
      throw error;
    } finally {
      stream.close();
    }
  }

  /** List a directory. With `recursive` or `depth`, include subdirectories. */
  async list(path = "/", options: { recursive?: boolean; depth?: number; limit?: number } = {}): Promise<FileInfo[]> {
    const { recursive, depth, limit } = options;
    const answer = await this.#transport.send(this.#get("/fs/dir", path, { recursive, depth, limit }));
    return answer.records("entries").map((entry) => parseFile(entry, path));
  }

  /** Get the attributes of a file or directory. */
  async stat(path: string): Promise<FileInfo> {
    const record = (await this.#transport.send(this.#get("/fs/stat", path))).record();
    return parseFile({ path, ...record }, "");
  }

  /** Check whether `path` exists. Throws if the sandbox does not. */
  async exists(path: string): Promise<boolean> {
    try {
      await this.stat(path);
      return true;
    } catch (error) {
      const isAboutPath = error instanceof NotFoundError && (error.code ?? "file_not_found") === "file_not_found";
      if (isAboutPath) return false;
      throw error;
    }
  }

  /** Create a directory and its parents. Has no effect if it exists. */
  async mkdir(path: string): Promise<void> {
    await this.#transport.send({ ...post(this.#path("/fs/mkdir")), query: query(path) });
  }

  /** Delete a file, or a directory with its contents. */
  async remove(path: string): Promise<void> {
    await this.#transport.send(del(this.#path("/fs"), query(path)));
  }

  /** Move a file or directory within the sandbox. */
  async rename(oldPath: string, newPath: string, options: { makeParents?: boolean } = {}): Promise<void> {
    const paths = { from: query(oldPath).path, to: query(newPath).path };
    const body = options.makeParents ? { ...paths, make_parents: true } : paths;
    await this.#transport.send(post(this.#path("/fs/rename"), body, FILE_MS_MAX));
  }

  /** Copy a file or a whole tree within the sandbox, with permissions and owners. */
  async copy(path: string, newPath: string): Promise<void> {
    const body = { from: query(path).path, to: query(newPath).path };
    await this.#transport.send(post(this.#path("/fs/copy"), body, FILE_MS_MAX));
  }

  /** Set permissions, such as `0o644`. */
  async chmod(path: string, mode: number, options: { recursive?: boolean } = {}): Promise<FileInfo> {
    return await this.#change(path, { mode: octal(mode), recursive: options.recursive === true });
  }

  /** Set owner and group, each by name or number. */
  async chown(path: string, options: { user?: string; group?: string; recursive?: boolean }): Promise<FileInfo> {
    const { user, group, recursive } = options;
    return await this.#change(path, { ...given({ user, group }), recursive: recursive === true });
  }

  /** Find files below a directory: `*.ts` matches names, `src/**\/*.ts` paths relative to it. */
  async find(path: string, options: { glob?: string; depth?: number; limit?: number } = {}): Promise<FileInfo[]> {
    const { glob, depth, limit } = options;
    const answer = await this.#transport.send(this.#get("/fs/find", path, { glob, depth, limit }));
    return answer.records("entries").map((entry) => parseFile(entry, path));
  }

  /** Search text files by regular expression, or by plain text with `fixed`. */
  async grep(
    pattern: string,
    path = "/",
    options: { glob?: string; ignoreCase?: boolean; fixed?: boolean; limit?: number } = {},
  ): Promise<GrepMatch[]> {
    const { glob, ignoreCase, fixed, limit } = options;
    const call = this.#get("/fs/grep", path, { pattern, glob, ignore_case: ignoreCase, fixed, limit });
    const matches = (await this.#transport.send(call)).records("matches");
    return matches.map(({ path, line, text }) => ({ path: String(path), line: Number(line), text: String(text) }));
  }

  /** Unpack a local tar archive into a directory of the sandbox. */
  async uploadArchive(localPath: string, remotePath: string): Promise<WriteResult> {
    const fs = await importBuiltin("fs");
    const { size } = await fs.promises.stat(localPath);
    const body = fs.openAsBlob ? await fs.openAsBlob(localPath) : streamOf(fs.createReadStream(localPath));
    const call = { ...this.#put(remotePath), path: this.#path("/fs/tar"), contentType: "application/x-tar" };
    return written(await this.#transport.send({ ...call, body, msMax: UPLOAD_MS_MAX }), remotePath, size);
  }

  /** Download a directory as a tar archive. */
  async downloadArchive(remotePath: string, localPath: string): Promise<void> {
    await this.#save({ ...this.#get("/fs/tar", remotePath), accept: "application/x-tar" }, localPath, {});
  }

  /** Upload the contents of a local directory in one call. */
  async uploadDir(localPath: string, remotePath: string): Promise<WriteResult> {
    const call = { ...this.#put(remotePath), path: this.#path("/fs/tar"), contentType: "application/x-tar" };
    const packed = watched(await packTree(localPath));
    return await packed.orElse(async () => {
      const answer = await this.#transport.send({ ...call, body: streamOf(packed.pieces()), msMax: UPLOAD_MS_MAX });
      return written(answer, remotePath, packed.size);
    });
  }

  /** Download the contents of a directory into a local one. Nothing is written outside of it. */
  async downloadDir(remotePath: string, localPath: string): Promise<void> {
    const call = { ...this.#get("/fs/tar", remotePath), accept: "application/x-tar" };
    const stream = await this.#transport.openStream(call, TRANSFER_IDLE_MS_MAX);
    try {
      await unpackTree(stream.chunks(), localPath);
    } finally {
      stream.close();
    }
  }

  /**
   * Watch a file or directory for changes, until the caller stops or it is deleted.
   *
   * `resume` is the `id` of the last change that was seen: what happened since comes first. If that is no longer
   * known, the first change is an `overflow`. A watched sandbox does not go to sleep.
   */
  async *watch(
    path: string,
    options: { recursive?: boolean; resume?: string; signal?: AbortSignal } = {},
  ): AsyncGenerator<FileChange> {
    const { recursive = true, resume, signal } = options;
    const call = { ...this.#get("/fs/watch", path, { recursive }), accept: "text/event-stream", signal };
    const extra: Record<string, string> = resume === undefined ? {} : { "Last-Event-ID": resume };
    const stream = await this.#transport.openStream({ ...call, extra }, STREAM_IDLE_MS_MAX);
    try {
      for await (const event of serverEvents(stream)) {
        const payload = eventPayload(event) ?? {};
        if (event.name === "error") throw new ServerError(`the watch of ${path} ended: ${String(payload.error)}`);
        if (event.name === "change") yield changeOf(event.id ?? "", payload);
        else if (event.name === "watching" && resume !== undefined && payload.resumed !== true) {
          yield { id: event.id ?? "", kind: "overflow", path, isDir: false, sequence: 0 };
        }
      }
    } finally {
      stream.close();
    }
  }

  /**
   * Create a temporary URL that reads (`GET`) or writes (`PUT`) one file without a key. It stops working when it
   * expires or when this client's key is revoked.
   */
  async signedUrl(path: string, options: { method?: "GET" | "PUT"; expiresInSeconds?: number } = {}): Promise<string> {
    const { method = "GET", expiresInSeconds } = options;
    const body = { ...query(path), method, ...given({ expires_in_seconds: expiresInSeconds }) };
    const record = (await this.#transport.send(post(this.#path("/fs/sign"), body))).record();
    return `${this.#transport.baseUrl}${String(record.target)}`;
  }

  /** Yield each directory with its directories and files, from the top down. */
  async *walk(path = "/"): AsyncGenerator<{ dir: string; dirs: FileInfo[]; files: FileInfo[] }> {
    const pending = [{ dir: path, depth: 0 }];
    for (let next = pending.pop(); next; next = pending.pop()) {
      const { dir, depth } = next;
      const entries = await this.list(dir);
      const dirs = entries.filter((entry) => entry.is_dir);
      yield { dir, dirs, files: entries.filter((entry) => !entry.is_dir) };
      if (depth >= WALK_DEPTH_MAX) continue;
      pending.push(...dirs.map((entry) => ({ dir: entry.path, depth: depth + 1 })).reverse());
    }
  }

  async #change(path: string, body: Record<string, unknown>): Promise<FileInfo> {
    const call = { ...post(this.#path("/fs"), body, FILE_MS_MAX), method: "PATCH", query: query(path) };
    return parseFile({ path, ...(await this.#transport.send(call)).record() }, "");
  }

  #get(rest: string, path: string, options: Record<string, string | number | boolean | undefined> = {}): Call {
    const wanted = Object.entries(options).filter(([, value]) => value !== undefined);
    const texts = wanted.map(([name, value]) => [name, typeof value === "boolean" ? (value ? "1" : "0") : String(value)]);
    return get(this.#path(rest), { ...query(path), ...(Object.fromEntries(texts) as Record<string, string>) });
  }

  #put(path: string): Call {
    return { method: "PUT", path: this.#path("/fs"), query: query(path), contentType: "application/octet-stream" };
  }

  #path(rest: string): string {
    return sandboxPath(this.#sandboxId, rest);
  }
}

checked({ SandboxFilesystem });

function query(path: string): { path: string } {
  if (typeof path === "string" && path.startsWith("/")) return { path };
  throw new BadRequestError(`sandbox paths are absolute, got ${JSON.stringify(path)}`, { hint: "begin the path with /" });
}

function range(part: ReadRange): Record<string, string> {
  const { offset = 0, length } = part;
  if (offset === 0 && length === undefined) return {};
  if (offset < 0 || (length !== undefined && length < 1)) {
    throw new BadRequestError(`offset ${offset} and length ${length} are not a valid range`);
  }
  return { Range: `bytes=${offset}-${length === undefined ? "" : offset + length - 1}` };
}

function octal(mode: number | undefined): string | undefined {
  return mode?.toString(8).padStart(4, "0");
}

function changeOf(id: string, payload: Record<string, unknown>): FileChange {
  const change: FileChange = {
    id,
    kind: String(payload.kind),
    path: String(payload.path),
    isDir: payload.is_dir === true,
    sequence: typeof payload.sequence === "number" ? payload.sequence : 0,
  };
  return typeof payload.to === "string" ? { ...change, to: payload.to } : change;
}

function written(answer: Answer, path: string, size: number): WriteResult {
  const record = answer.record();
  return {
    path: typeof record.path === "string" ? record.path : path,
    bytes: typeof record.bytes === "number" ? record.bytes : size,
  };
}
