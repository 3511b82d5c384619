/**
 * Calls as data: requests and the parsing of responses, without I/O.
 *
 * Owns paths, time limits, body limits and the reading of JSON answers. The transport does the I/O.
 */

import { BadRequestError, ServerError } from "./errors.js";
import type { AbortSignal, Blob, ByteSource } from "./globals.js";
import type { JsonObject } from "./models.js";
import { uniqueKey } from "./runtime.js";

/** Whole-call limit unless the client or the call has another. */
export const CALL_MS_DEFAULT = 30_000;
/** Creates: the server holds one up to 25 s while its template is being baked. */
export const CREATE_MS_MAX = 60_000;
/** Calls that move a machine's memory: snapshot, fork, hibernate, wake. */
export const MACHINE_MS_MAX = 180_000;
/** Moving one file's bytes in one piece. */
export const FILE_MS_MAX = 300_000;
/** An upload, whose progress fetch does not tell: the largest file at a slow megabyte a second fits. */
export const UPLOAD_MS_MAX = 6 * 3600 * 1000;
/** A command that was given no limit; the server's own ends it first. */
export const EXEC_MS_MAX = 900_000;
/** Added to a command's own limit, so that the server's answer about it arrives first. */
export const EXEC_GRACE_MS = 15_000;
/** Node's fetch gives up on an answer after 300 s without a byte; longer commands are streamed instead. */
export const PLAIN_EXEC_SECONDS_MAX = 240;
/** The server sends a comment every 15 s on an idle stream; this much silence means it is dead. */
export const STREAM_IDLE_MS_MAX = 90_000;
/** A file upload or download of any length: no progress for this long means it is dead. */
export const TRANSFER_IDLE_MS_MAX = 60_000;
/** Largest JSON answer: two full output streams of 16 MiB, every byte escaped. */
export const JSON_BODY_BYTES_MAX = 256 * 1024 * 1024;
/** Largest file read into memory; `download` has no limit. */
export const FILE_BODY_BYTES_MAX = 1024 * 1024 * 1024;
/** A longer error body is cut. */
export const ERROR_BODY_BYTES_MAX = 1024 * 1024;

/** A command: a line for the shell, or a program and its arguments. */
export type Command = string | readonly string[];

/** Options of a command. */
export interface ExecOptions {
  /** End the command after so many seconds ({@link SandboxTimeout}). */
  timeoutSeconds?: number | undefined;
  /** Working directory. */
  cwd?: string | undefined;
  /** Additional environment variables. */
  env?: Record<string, string> | undefined;
  /** User to run as; the server's default is root. */
  user?: string | undefined;
  /** All of its standard input. */
  stdin?: string | undefined;
  /** Limits of the command and all it starts. */
  limits?: { memory_mb?: number; pids?: number; cpu?: number } | undefined;
  /** Stop waiting when this fires. `exec` and `execStream` then also kill the command. */
  signal?: AbortSignal | undefined;
  /** With `false`, the command keeps running after `signal` fires (true). */
  killOnAbort?: boolean | undefined;
}

/** One request, ready to be sent, as often as need be. */
export interface Call {
  method: string;
  path: string;
  query?: Record<string, string>;
  body?: string | Uint8Array | Blob | ByteSource;
  contentType?: string;
  accept?: string;
  msMax?: number | undefined;
  bodyBytesMax?: number;
  /** Whether a refusal for capacity is sent again. */
  isCreate?: boolean;
  /** Whether a timeout in the answer is the command's own. */
  isCommand?: boolean;
  idempotencyKey?: string;
  /** Headers besides those of every call. */
  extra?: Record<string, string>;
  /** Whether a repeat would apply the call twice, even if its method is idempotent. */
  isOnce?: boolean;
  signal?: AbortSignal | undefined;
}

/** Name of a call in errors. */
export function whatOf(call: Call): string {
  return `${call.method} /v1${call.path}`;
}

/** Whether a call can be repeated after a lost connection without doing anything twice. */
export function isResendable(call: Call): boolean {
  const isOneShot = typeof ReadableStream !== "undefined" && call.body instanceof ReadableStream;
  return ["GET", "HEAD", "PUT", "DELETE"].includes(call.method) && !isOneShot && !call.isOnce;
}

/** A plain read. */
export function get(path: string, query: Record<string, string> = {}): Call {
  return { method: "GET", path, query };
}

/** A delete. */
export function del(path: string, query: Record<string, string> = {}): Call {
  return { method: "DELETE", path, query, msMax: CREATE_MS_MAX };
}

/** A JSON call; without `body` nothing is sent, which servers read as `{}`. */
export function post(path: string, body?: JsonObject, msMax?: number): Call {
  const call: Call = { method: "POST", path, msMax };
  return body === undefined ? call : { ...call, body: encodeJson(body), contentType: "application/json" };
}

/** A call that makes something: repeated on refusal, under one idempotency key. */
export function create(path: string, body: JsonObject | undefined, msMax: number): Call {
  return { ...post(path, body, msMax), isCreate: true, idempotencyKey: uniqueKey() };
}

/** A command. */
export function execCall(path: string, command: Command, options: ExecOptions): Call {
  const seconds = options.timeoutSeconds;
  const msMax = seconds === undefined ? EXEC_MS_MAX : seconds * 1000 + EXEC_GRACE_MS;
  return { ...post(path, execBody(command, options), msMax), isCommand: true, signal: options.signal };
}

/** The JSON of a command; what was not given is left to the server. */
export function execBody(command: Command, options: ExecOptions): JsonObject {
  const { timeoutSeconds, cwd, env, user, stdin, limits } = options;
  if (timeoutSeconds !== undefined && !(timeoutSeconds > 0 && Number.isFinite(timeoutSeconds))) {
    throw new BadRequestError(`timeoutSeconds must be more than 0, got ${timeoutSeconds}`);
  }
  return {
    cmd: commandLine(command),
    // The wire has whole seconds; rounding up keeps the promise of "at least".
    ...given({ timeout_seconds: timeoutSeconds === undefined ? undefined : Math.ceil(timeoutSeconds) }),
    ...given({ cwd, env, user, stdin, limits }),
  };
}

/** The options that are not `undefined`: the others are left to the server. */
export function given(options: JsonObject): JsonObject {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

/** The shell line of a command; arguments of a list are quoted. */
export function commandLine(command: Command): string {
  const line = typeof command === "string" ? command : command.map(quoteArgument).join(" ");
  if (!line.trim()) throw new BadRequestError("the command is empty");
  return line;
}

function quoteArgument(argument: string): string {
  return /^[\w@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", `'"'"'`)}'`;
}

/** One path segment. An empty or dotted one would silently address something else. */
export function segment(name: string, what: string): string {
  if (typeof name !== "string" || ["", ".", ".."].includes(name)) {
    throw new BadRequestError(`${JSON.stringify(name)} is not a valid ${what}`);
  }
  return encodeURIComponent(name);
}

/** Path of a sandbox or of something below it. */
export function sandboxPath(id: string, rest = ""): string {
  return `/sandboxes/${segment(id, "sandbox id")}${rest}`;
}

function encodeJson(body: JsonObject): string {
  try {
    return JSON.stringify(body);
  } catch (cause) {
    throw new BadRequestError("the request cannot be encoded as JSON", { cause });
  }
}

/** A complete 2xx answer. */
export class Answer {
  constructor(
    private readonly what: string,
    readonly body: Uint8Array,
  ) {}

  /** The body as UTF-8 text. */
  text(): string {
    return new TextDecoder().decode(this.body);
  }

  /** The answer as an object; an empty body is an empty object. */
  record(): JsonObject {
    const parsed = this.json() ?? {};
    if (typeof parsed !== "object" || Array.isArray(parsed)) {
      throw new ServerError(`${this.what}: the response is not a JSON object`);
    }
    return parsed as JsonObject;
  }

  /** The answer as a list, bare or under the first of `names` (or `items`) present. */
  entries(...names: string[]): unknown[] {
    let parsed: unknown = this.json() ?? [];
    if (typeof parsed === "object" && parsed !== null && !Array.isArray(parsed)) {
      const wrapper = parsed as JsonObject;
      const name = [...names, "items"].find((candidate) => wrapper[candidate] != null);
      parsed = name === undefined ? [] : wrapper[name];
    }
    if (!Array.isArray(parsed)) throw new ServerError(`${this.what}: the response is not a list`);
    return parsed;
  }

  /** The objects of {@link entries}. */
  records(...names: string[]): JsonObject[] {
    return this.entries(...names).filter((entry): entry is JsonObject => typeof entry === "object" && entry !== null);
  }

  /** The children of a fork or fork-tree answer, in order; bare ids become records. */
  forkChildren(): JsonObject[] {
    const parsed = this.json();
    const record = typeof parsed === "object" && parsed !== null && !Array.isArray(parsed) ? (parsed as JsonObject) : {};
    if (typeof record.sandbox === "object" && record.sandbox !== null) return [record.sandbox as JsonObject];
    if (record.id != null) return [record];
    const children = this.entries("children", "sandboxes")
      .map((child) => (typeof child === "string" ? { id: child } : child))
      .filter((child): child is JsonObject => typeof child === "object" && child !== null);
    if (!children.length) throw new ServerError(`${this.what}: the response has no child`);
    return children;
  }

  private json(): unknown {
    const text = this.text();
    if (!text.trim()) return undefined;
    try {
      return JSON.parse(text);
    } catch (cause) {
      throw new ServerError(`${this.what}: the response is not JSON`, {
        hint: "check that the base URL is a PandaStack server",
        cause,
      });
    }
  }
}
