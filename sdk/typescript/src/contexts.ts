/** Code contexts: interpreters in a sandbox that keep their state between runs, and the result of a run. */

import { checked } from "./check.js";
import type { AbortSignal } from "./globals.js";
import { type JsonObject, needText } from "./models.js";
import { printed } from "./printed.js";
import { asyncDispose } from "./runtime.js";
import type { Transport } from "./transport.js";
import { del, EXEC_GRACE_MS, given, post, sandboxPath, segment } from "./wire.js";

/** Time of a run that names none; the server's own ends it first. */
const RUN_SECONDS_DEFAULT = 30;

/** A value that the code displayed, in one or more formats. */
export interface Result {
  /** Every representation by media type; pictures are in base64. */
  data: Record<string, string>;
  /** Plain text. */
  text?: string;
  /** HTML, as of a table. */
  html?: string;
  /** Markdown. */
  markdown?: string;
  /** A PNG picture in base64. */
  png?: string;
  /** A JPEG picture in base64. */
  jpeg?: string;
  /** An SVG picture. */
  svg?: string;
  /** Parsed JSON. */
  json?: unknown;
  /** The first picture that there is. */
  chart?: string;
}

/** The result of a run. If the code raised an exception, see `error`. */
export interface Execution {
  results: Result[];
  stdout: string;
  stderr: string;
  /** The exception with its traceback. */
  error?: string;
  exit_code: number;
  duration_ms: number;
  /** Text of the first result that has one. */
  text?: string;
  /** The first PNG picture. */
  png?: string;
  /** Output or results were more than an answer holds. */
  truncated: boolean;
  /** Number of runs in the context, this one included. */
  execution_count: number;
}

/** Options of a run. */
export interface RunCodeOptions {
  /** After so long the code is interrupted ({@link SandboxTimeout}); its context stays. */
  timeoutSeconds?: number | undefined;
  /** Environment variables of this run only. */
  env?: Record<string, string> | undefined;
  /** Stop waiting, and interrupt the code, when this fires. */
  signal?: AbortSignal | undefined;
}

/** An interpreter in a sandbox. Variables and imports are kept between runs, including after sleep and in forks. */
export class CodeContext {
  readonly id: string;
  readonly language: string;
  readonly cwd: string;
  readonly #transport: Transport;
  readonly #path: string;

  /** @internal */
  constructor(transport: Transport, sandboxId: string, record: JsonObject) {
    this.id = needText(record, "id", "a code context");
    this.language = typeof record.language === "string" ? record.language : "python";
    this.cwd = typeof record.cwd === "string" ? record.cwd : "";
    this.#transport = transport;
    this.#path = `${sandboxPath(sandboxId)}/repl/sessions/${segment(this.id, "context id")}`;
  }

  /** Run code. The results include the value of its last expression. */
  async runCode(code: string, options: RunCodeOptions = {}): Promise<Execution> {
    const { timeoutSeconds, env, signal } = options;
    const timeout_ms = timeoutSeconds === undefined ? undefined : Math.ceil(timeoutSeconds * 1000);
    const msMax = (timeoutSeconds ?? RUN_SECONDS_DEFAULT) * 1000 + EXEC_GRACE_MS;
    const call = { ...post(`${this.#path}/run`, { code, ...given({ timeout_ms, env }) }, msMax), isCommand: true, signal };
    return executionOf((await this.#transport.send(call)).record());
  }

  /** Restart the interpreter. Its variables are lost. */
  async restart(): Promise<void> {
    await this.#transport.send(post(`${this.#path}/restart`));
  }

  /** Delete the context. */
  async close(): Promise<void> {
    await this.#transport.send(del(this.#path));
  }

  /** For `await using`. */
  async [asyncDispose](): Promise<void> {
    await this.close();
  }
}

checked({ CodeContext });
printed(CodeContext, "CodeContext", ["id", "language"]);

function executionOf(record: JsonObject): Execution {
  const text = (name: string): string => (typeof record[name] === "string" ? (record[name] as string) : "");
  const number = (name: string): number => (typeof record[name] === "number" ? (record[name] as number) : 0);
  const results = (Array.isArray(record.results) ? record.results : []).map(resultOf);
  const execution: Execution = {
    results,
    stdout: text("stdout"),
    stderr: text("stderr"),
    exit_code: number("exit") || number("exit_code"),
    duration_ms: number("duration_ms"),
    truncated: record.truncated === true,
    execution_count: number("execution_count"),
  };
  const first = (name: "text" | "png"): string | undefined => results.find((result) => result[name] !== undefined)?.[name];
  const extra = given({ error: text("error") || undefined, text: first("text"), png: first("png") });
  return Object.assign(execution, extra);
}

function resultOf(item: unknown): Result {
  const record = (typeof item === "object" && item !== null ? item : {}) as JsonObject;
  // One server answers `{type, data}`, another a map of media types.
  const pairs = typeof record.type === "string" ? [[record.type, record.data]] : Object.entries(record);
  const data = Object.fromEntries(pairs.map(([kind, value]) => [String(kind), String(value)])) as Record<string, string>;
  const [png, jpeg, svg] = [data["image/png"], data["image/jpeg"], data["image/svg+xml"]];
  const others = { text: data["text/plain"], html: data["text/html"], markdown: data["text/markdown"] };
  const json = data["application/json"] === undefined ? undefined : parsed(data["application/json"]);
  return { data, ...given({ ...others, png, jpeg, svg, json, chart: png ?? jpeg ?? svg }) };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
