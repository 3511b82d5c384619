/** Functions. */

import { pack } from "./bundle.js";
import { PandaStackError, RequestTimeout } from "./errors.js";
import { type JsonObject, withCamelCase, type WireRecord } from "./models.js";
import type { Transport } from "./transport.js";
import { del, FILE_MS_MAX, get, PLAIN_EXEC_SECONDS_MAX, post, segment } from "./wire.js";

/** Between two looks at a deploy or a queued call. */
const LOOK_EVERY_MS = 250;

/** A function; fields a server adds are kept. */
export type FunctionInfo = WireRecord<{
  id: string;
  name: string;
  runtime?: string;
  entrypoint?: string;
  template?: string;
  env?: Record<string, string>;
  secrets?: string[];
  public?: boolean;
  url?: string;
  version: number;
  is_ready: boolean;
  deploy_status?: string;
  deploy_error?: string;
}>;

/** One call of a function. */
export type FunctionRun = WireRecord<{
  id: string;
  function_id: string;
  sandbox_id?: string;
  status: string;
  exit_code: number;
  stdout: string;
  stderr: string;
  output?: unknown;
  error?: string;
  duration_ms: number;
  cold?: boolean;
  version?: number;
  attempt?: number;
  dead_letter?: boolean;
}>;

/** How a function is made. */
export interface FunctionOptions {
  runtime?: string;
  entrypoint?: string;
  template?: string;
  public?: boolean;
  env?: Record<string, string>;
  secrets?: Record<string, string>;
  /** The entrypoint's source, deployed at once. */
  code?: string;
  timeoutSeconds?: number;
  concurrency?: number;
  maxInstances?: number;
  isolation?: "reuse" | "fresh";
  retries?: number;
  /** Processors and memory in MiB of its machines; those of the template when absent. */
  cpu?: number;
  memoryMb?: number;
  /** Told of every queued call that was given up. */
  deadLetterUrl?: string;
}

/** `client.functions`. Functions are named by id or name. */
export class FunctionsAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Every function, by name. */
  async list(): Promise<FunctionInfo[]> {
    return (await this.#transport.send(get("/functions"))).records("items").map(functionOf);
  }

  /** One function. */
  async get(name: string): Promise<FunctionInfo> {
    return functionOf((await this.#transport.send(get(pathOf(name)))).record());
  }

  /** Make a function; with `code`, deploy it and wait until it can be called. */
  async create(name: string, options: FunctionOptions = {}): Promise<FunctionInfo> {
    const body: JsonObject = {
      name,
      runtime: options.runtime ?? "nodejs",
      entrypoint: options.entrypoint,
      template: options.template,
      public: options.public ?? false,
      env: options.env,
      secrets: options.secrets,
      code: options.code === undefined ? undefined : toBase64(options.code),
      timeout_seconds: options.timeoutSeconds,
      concurrency: options.concurrency,
      max_instances: options.maxInstances,
      isolation: options.isolation,
      retries: options.retries,
      cpu: options.cpu,
      memory_mb: options.memoryMb,
      dead_letter_url: options.deadLetterUrl,
    };
    const made = functionOf((await this.#transport.send(post("/functions", body, FILE_MS_MAX))).record());
    return options.code === undefined ? made : this.waitUntilReady(made.id);
  }

  /**
   * Deploy a directory, a file or a bundle (`.zip`, `.tar.gz`), making the function if there is none, and wait until it can
   * be called. Needs Node's file system.
   */
  async deploy(name: string, path: string, options: FunctionOptions = {}): Promise<FunctionInfo> {
    const bundle = await pack(path);
    const known = (await this.list()).some((found) => found.name === name);
    if (!known) await this.create(name, options);
    return this.deployBundle(name, bundle);
  }

  /** Deploy a gzip-compressed tar archive or a zip archive and wait until it can be called. */
  async deployBundle(name: string, bundle: Uint8Array): Promise<FunctionInfo> {
    const call = { method: "POST", path: pathOf(name, "/deploy"), body: bundle, contentType: "application/octet-stream" };
    await this.#transport.send({ ...call, msMax: FILE_MS_MAX, isOnce: true });
    return this.waitUntilReady(name);
  }

  /** Wait until the newest deploy is over; throws if it failed. */
  async waitUntilReady(name: string, options: { timeoutMs?: number } = {}): Promise<FunctionInfo> {
    const deadline = Date.now() + (options.timeoutMs ?? 1_200_000);
    for (;;) {
      const found = await this.get(name);
      if (found.deploy_status === "failed") {
        throw new PandaStackError(`${found.name} was not deployed: ${found.deploy_error ?? ""}`);
      }
      if (found.deploy_status !== "building") return found;
      if (Date.now() > deadline) throw new RequestTimeout(`the deploy of ${found.name} took too long`);
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    }
  }

  /** Call a function and return its run; `output` is what the handler returned. */
  async invoke(name: string, input: unknown = null, options: { qualifier?: string; wait?: boolean } = {}): Promise<FunctionRun> {
    const body = { input, async: options.wait === false } as JsonObject;
    const call = post(pathOf(name, "/invoke"), body, PLAIN_EXEC_SECONDS_MAX * 1000);
    const query: Record<string, string> = options.qualifier === undefined ? {} : { qualifier: options.qualifier };
    return runOf((await this.#transport.send({ ...call, query })).record());
  }

  /** Calls, newest first. */
  async runs(name: string): Promise<FunctionRun[]> {
    return (await this.#transport.send(get(pathOf(name, "/runs")))).records("items").map(runOf);
  }

  /** Queued calls that were given up, newest first. */
  async deadLetters(name: string): Promise<FunctionRun[]> {
    const call = { ...get(pathOf(name, "/runs")), query: { dead_letter: "true" } };
    return (await this.#transport.send(call)).records("items").map(runOf);
  }

  /** Queue a call that was given up again, or up to 1,000 of them; how many. */
  async redrive(name: string, run?: string): Promise<number> {
    const one = run === undefined ? "" : `/runs/${segment(run, "run id")}`;
    const answer = (await this.#transport.send(post(pathOf(name, `${one}/redrive`), {}))).record();
    return typeof answer["redriven"] === "number" ? answer["redriven"] : 1;
  }

  /** One call. */
  async getRun(name: string, run: string): Promise<FunctionRun> {
    return runOf((await this.#transport.send(get(pathOf(name, `/runs/${segment(run, "run id")}`)))).record());
  }

  /** Call an earlier version from now on; the one before the present unless said. */
  async rollback(name: string, version?: number): Promise<FunctionInfo> {
    return functionOf((await this.#transport.send(post(pathOf(name, "/rollback"), { version }))).record());
  }

  /** Delete a function with its versions, machines and runs. */
  async delete(name: string): Promise<void> {
    await this.#transport.send(del(pathOf(name)));
  }
}

function pathOf(name: string, rest = ""): string {
  return `/functions/${segment(name, "function")}${rest}`;
}

function toBase64(text: string): string {
  let binary = "";
  for (const byte of new TextEncoder().encode(text)) binary += String.fromCharCode(byte);
  return btoa(binary);
}

function functionOf(record: JsonObject): FunctionInfo {
  return withCamelCase(record) as unknown as FunctionInfo;
}

function runOf(record: JsonObject): FunctionRun {
  return withCamelCase(record) as unknown as FunctionRun;
}
