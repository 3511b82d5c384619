/** Files of a sandbox. Paths are absolute; a missing one is a `NotFoundError`. */

import { BadRequestError, NotFoundError } from "./errors.js";
import { type FileInfo, parseFile, type WriteResult } from "./models.js";
import { importBuiltin } from "./runtime.js";
import type { Transport } from "./transport.js";
import {
  type Answer,
  type Call,
  del,
  FILE_BODY_BYTES_MAX,
  FILE_MS_MAX,
  get,
  post,
  sandboxPath,
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

/** `sandbox.filesystem`. */
export class SandboxFilesystem {
  readonly #transport: Transport;
  readonly #sandboxId: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string) {
    this.#transport = transport;
    this.#sandboxId = sandboxId;
  }

  /** The whole file as UTF-8 text, or as bytes with `{ format: "bytes" }`. */
  async read(path: string, options: { format: "bytes" }): Promise<Uint8Array>;
  async read(path: string, options?: { format?: "text" }): Promise<string>;
  async read(path: string, options: { format?: "text" | "bytes" } = {}): Promise<string | Uint8Array> {
    const call = { ...this.#get("/fs", path), accept: "application/octet-stream", msMax: FILE_MS_MAX };
    const answer = await this.#transport.send({ ...call, bodyBytesMax: FILE_BODY_BYTES_MAX });
    return options.format === "bytes" ? answer.body : answer.text();
  }

  /** The whole file as bytes. */
  async readBytes(path: string): Promise<Uint8Array> {
    return await this.read(path, { format: "bytes" });
  }

  /** Replace a file's content, making it and its parent directories if need be. */
  async write(path: string, content: string | Uint8Array | ArrayBuffer): Promise<WriteResult> {
    const body = content instanceof ArrayBuffer ? new Uint8Array(content) : content;
    const size = typeof body === "string" ? new TextEncoder().encode(body).length : body.length;
    return written(await this.#transport.send({ ...this.#put(path), body, msMax: FILE_MS_MAX }), path, size);
  }

  /** Copy a local file into the sandbox without holding it in memory. */
  async upload(localPath: string, remotePath: string): Promise<WriteResult> {
    const fs = await importBuiltin("fs");
    const { size } = await fs.promises.stat(localPath);
    // A blob of a file tells its length beforehand; where there is none, the body is sent chunked.
    const body: Blob | ReadableStream<Uint8Array> = fs.openAsBlob
      ? await fs.openAsBlob(localPath)
      : fileStream(fs.createReadStream(localPath));
    return written(await this.#transport.send({ ...this.#put(remotePath), body, msMax: UPLOAD_MS_MAX }), remotePath, size);
  }

  /** Copy a file of the sandbox to a local path, which appears only once it is complete. */
  async download(remotePath: string, localPath: string, options: DownloadOptions = {}): Promise<void> {
    const fs = await importBuiltin("fs/promises");
    const call = { ...this.#get("/fs", remotePath), accept: "application/octet-stream" };
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

  /** The entries of a directory. */
  async list(path = "/"): Promise<FileInfo[]> {
    const answer = await this.#transport.send(this.#get("/fs/dir", path));
    return answer.records("entries").map((entry) => parseFile(entry, path));
  }

  /** One file or directory. */
  async stat(path: string): Promise<FileInfo> {
    const record = (await this.#transport.send(this.#get("/fs/stat", path))).record();
    return parseFile({ path, ...record }, "");
  }

  /** Whether there is something at `path`. A sandbox that is gone throws instead. */
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

  /** Make a directory and its parents; one that exists already is fine. */
  async mkdir(path: string): Promise<void> {
    await this.#transport.send({ ...post(this.#path("/fs/mkdir")), query: query(path) });
  }

  /** Delete a file, or a directory with all that is in it. */
  async remove(path: string): Promise<void> {
    await this.#transport.send(del(this.#path("/fs"), query(path)));
  }

  /** Move a file or directory within the sandbox. */
  async rename(oldPath: string, newPath: string): Promise<void> {
    const body = { from: query(oldPath).path, to: query(newPath).path };
    await this.#transport.send(post(this.#path("/fs/rename"), body));
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

  #get(rest: string, path: string): Call {
    return get(this.#path(rest), query(path));
  }

  #put(path: string): Call {
    return { method: "PUT", path: this.#path("/fs"), query: query(path), contentType: "application/octet-stream" };
  }

  #path(rest: string): string {
    return sandboxPath(this.#sandboxId, rest);
  }
}

function query(path: string): { path: string } {
  if (typeof path === "string" && path.startsWith("/")) return { path };
  throw new BadRequestError(`sandbox paths are absolute, got ${JSON.stringify(path)}`, { hint: "begin the path with /" });
}

function written(answer: Answer, path: string, size: number): WriteResult {
  const record = answer.record();
  return {
    path: typeof record.path === "string" ? record.path : path,
    bytes: typeof record.bytes === "number" ? record.bytes : size,
  };
}

function fileStream(file: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const pieces = file[Symbol.asyncIterator]();
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await pieces.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await pieces.return?.();
    },
  });
}
