/** Functions. */

import { checked } from "./check.js";
import { PandaStackError, RequestTimeout } from "./errors.js";
import { serverEvents } from "./exec-stream.js";
import { packPath, streamOf } from "./local-tree.js";
import { type JsonObject, withCamelCase, type WireRecord } from "./models.js";
import { importBuiltin } from "./runtime.js";
import { eventPayload } from "./sse.js";
import type { Transport } from "./transport.js";
import { del, FILE_MS_MAX, get, given, PLAIN_EXEC_SECONDS_MAX, post, segment, STREAM_IDLE_MS_MAX } from "./wire.js";

/** Paths that no function needs: histories, caches, and dependencies that the deployment installs again. */
const LEFT_OUT: ReadonlySet<string> = new Set([".git", "node_modules", "__pycache__", ".venv", "venv", ".DS_Store"]);
/** Suffixes of files that are bundles already. */
const BUNDLES = [".zip", ".tar.gz", ".tgz"];
/** Between two looks at a deploy or a queued call. */
const LOOK_EVERY_MS = 250;

/** A function. Unknown fields are kept. */
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
  workspace?: string;
  /** Bytes of the deployed bundle. */
  code_size?: number;
  /** Names that stand for versions. */
  aliases?: Record<string, JsonObject>;
  timeout_seconds?: number;
  concurrency?: number;
  max_instances?: number;
  queue_max?: number;
  idle_seconds?: number;
  /** `reuse` or `fresh`. */
  isolation?: string;
  retries?: number;
  max_age_seconds?: number;
  /** Absent where they are the template's. */
  cpu?: number;
  memory_mb?: number;
  dead_letter_url?: string;
  created_at?: string;
  updated_at?: string;
}>;

/** A call of a function. */
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
  /** The schedule that made it. */
  schedule_id?: string;
  /** `sync`, `async`, `http`, `schedule` or `recorded`. */
  kind?: string;
  /** Time that is counted as used, of all attempts. */
  billed_ms?: number;
  /** Time until a machine was there. */
  wait_ms?: number;
  memory_peak_mb?: number;
  /** Number of notifications of `dead_letter_url`. */
  notices?: number;
  next_attempt_at?: string;
  started_at?: string;
  ended_at?: string;
}>;

/** A deployed version. Unknown fields are kept. */
export type FunctionVersion = WireRecord<{
  version: number;
  status: string;
  code_size?: number;
  created_at?: string;
  error?: string;
  entrypoint?: string;
  /** SHA-256 of the bundle, in hex. */
  code_sha256?: string;
  /** Duration of the deploy. */
  build_ms?: number;
  /** Whether its dependencies were reused from an earlier deployment. */
  dependencies_reused?: boolean;
}>;

/** Duration percentiles and error rates of calls. */
export type FunctionMetrics = WireRecord<{
  period: number;
  total: number;
  errors: number;
  error_rate: number;
  p50_ms: number;
  p95_ms: number;
  p99_ms: number;
  cold_start_rate: number;
  billed_ms: number;
  /** Machines that run now. */
  instances: number;
  /** Calls that wait for a machine now. */
  waiting: number;
}>;

/** Options for a new function. */
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
  /** vCPUs and memory in MiB per instance. Default: from the template. */
  cpu?: number;
  memoryMb?: number;
  /** Called for every queued call that was given up. */
  deadLetterUrl?: string;
}

/** `client.functions`. Functions are named by id or name. */
export class FunctionsAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** List functions by name. */
  async list(): Promise<FunctionInfo[]> {
    return (await this.#transport.send(get("/functions"))).records("items").map(functionOf);
  }

  /** Get a function. */
  async get(name: string): Promise<FunctionInfo> {
    return functionOf((await this.#transport.send(get(pathOf(name)))).record());
  }

  /** Create a function. With `code`, deploy it and wait until it can be called. */
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
   * Deploy a local directory, file or bundle (`.zip`, `.tar.gz`), creating the function if needed, and wait
   * until it can be called.
   */
  async deploy(name: string, localPath: string, options: Omit<FunctionOptions, "code"> = {}): Promise<FunctionInfo> {
    const { bundle, file } = await bundleOf(localPath);
    const entrypoint = options.entrypoint ?? file;
    if (!(await this.list()).some((known) => known.name === name)) {
      await this.create(name, { ...options, ...(entrypoint === undefined ? {} : { entrypoint }) });
    } else if (entrypoint !== undefined && (await this.get(name)).entrypoint !== entrypoint) {
      await this.update(name, { entrypoint });
    }
    return await this.deployBundle(name, bundle);
  }

  /** Deploy a gzip-compressed tar archive or a zip archive and wait until it can be called. */
  async deployBundle(name: string, bundle: Uint8Array): Promise<FunctionInfo> {
    const call = { method: "POST", path: pathOf(name, "/deploy"), body: bundle, contentType: "application/octet-stream" };
    await this.#transport.send({ ...call, msMax: FILE_MS_MAX, isOnce: true });
    return this.waitUntilReady(name);
  }

  /** Wait until the newest deployment ends; throws if it failed. */
  async waitUntilReady(name: string, options: { timeoutMs?: number } = {}): Promise<FunctionInfo> {
    const deadline = Date.now() + (options.timeoutMs ?? 1_200_000);
    for (;;) {
      const found = await this.get(name);
      if (found.deploy_status === "failed") {
        throw new PandaStackError(`${found.name} failed to deploy: ${found.deploy_error ?? ""}`);
      }
      if (found.deploy_status !== "building") return found;
      if (Date.now() > deadline) throw new RequestTimeout(`the deployment of ${found.name} timed out`);
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    }
  }

  /** Update a function. Options that are left out stay unchanged. */
  async update(name: string, changes: Omit<FunctionOptions, "code" | "runtime"> & { name?: string }): Promise<FunctionInfo> {
    const { timeoutSeconds, maxInstances, ...rest } = changes;
    const body = given({ ...rest, timeout_seconds: timeoutSeconds, max_instances: maxInstances });
    return functionOf((await this.#transport.send({ ...post(pathOf(name), body, FILE_MS_MAX), method: "PATCH" })).record());
  }

  /** Call a function and return its run; `output` is what the handler returned. */
  async invoke(name: string, input: unknown = null, options: { qualifier?: string; wait?: boolean } = {}): Promise<FunctionRun> {
    const body = { input, async: options.wait === false } as JsonObject;
    const call = post(pathOf(name, "/invoke"), body, PLAIN_EXEC_SECONDS_MAX * 1000);
    const query: Record<string, string> = options.qualifier === undefined ? {} : { qualifier: options.qualifier };
    return runOf((await this.#transport.send({ ...call, query })).record());
  }

  /** List runs, newest first. */
  async runs(name: string): Promise<FunctionRun[]> {
    return (await this.#transport.send(get(pathOf(name, "/runs")))).records("items").map(runOf);
  }

  /** List dead-lettered calls, newest first. */
  async deadLetters(name: string): Promise<FunctionRun[]> {
    const call = { ...get(pathOf(name, "/runs")), query: { dead_letter: "true" } };
    return (await this.#transport.send(call)).records("items").map(runOf);
  }

  /** Queue a dead-lettered call again, or up to 1,000 of them. Returns how many. */
  async redrive(name: string, run?: string): Promise<number> {
    const one = run === undefined ? "" : `/runs/${segment(run, "run id")}`;
    const answer = (await this.#transport.send(post(pathOf(name, `${one}/redrive`), {}))).record();
    return typeof answer["redriven"] === "number" ? answer["redriven"] : 1;
  }

  /** Get a run. */
  async getRun(name: string, run: string): Promise<FunctionRun> {
    return runOf((await this.#transport.send(get(pathOf(name, `/runs/${segment(run, "run id")}`)))).record());
  }

  /** Wait until a queued call has ended. */
  async waitForRun(name: string, run: string, options: { timeoutMs?: number } = {}): Promise<FunctionRun> {
    const deadline = Date.now() + (options.timeoutMs ?? 3_600_000);
    for (;;) {
      const found = await this.getRun(name, run);
      if (found.status !== "queued" && found.status !== "running") return found;
      if (Date.now() > deadline) throw new RequestTimeout(`run ${run} timed out`);
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    }
  }

  /** List versions, newest first. */
  async versions(name: string): Promise<FunctionVersion[]> {
    const records = (await this.#transport.send(get(pathOf(name, "/versions")))).records("items");
    return records.map((record) => withCamelCase(record) as unknown as FunctionVersion);
  }

  /** Point an alias to a version, or to two versions by weight. */
  async setAlias(
    name: string,
    alias: string,
    version: number,
    canary: { version?: number; percent?: number } = {},
  ): Promise<FunctionInfo> {
    const body = { version, canary_percent: canary.percent ?? 0, ...given({ canary_version: canary.version }) };
    const call = { ...post(pathOf(name, `/aliases/${segment(alias, "alias")}`), body), method: "PUT" };
    return functionOf((await this.#transport.send(call)).record());
  }

  /** Get duration percentiles and error rates of calls. */
  async metrics(name: string, periodHours = 24): Promise<FunctionMetrics> {
    const call = get(pathOf(name, "/metrics"), { period: String(periodHours) });
    return withCamelCase((await this.#transport.send(call)).record()) as unknown as FunctionMetrics;
  }

  /** Stream new output. */
  async *followLogs(name: string): AsyncGenerator<{ stream: "stdout" | "stderr"; text: string }> {
    const call = { ...get(pathOf(name, "/logs"), { follow: "1" }), accept: "text/event-stream" };
    const stream = await this.#transport.openStream(call, STREAM_IDLE_MS_MAX);
    try {
      for await (const event of serverEvents(stream)) {
        if (event.name !== "stdout" && event.name !== "stderr") continue;
        yield { stream: event.name, text: String(eventPayload(event)?.text ?? "") };
      }
    } finally {
      stream.close();
    }
  }

  /** Roll back to an earlier version: the previous one by default. */
  async rollback(name: string, version?: number): Promise<FunctionInfo> {
    return functionOf((await this.#transport.send(post(pathOf(name, "/rollback"), { version }))).record());
  }

  /** Delete a function with its versions, machines and runs. */
  async delete(name: string): Promise<void> {
    await this.#transport.send(del(pathOf(name)));
  }
}

checked({ FunctionsAPI });

function pathOf(name: string, rest = ""): string {
  return `/functions/${segment(name, "function")}${rest}`;
}

/** A local file or directory as a bundle; of a file also its name, which is the default entry point. */
async function bundleOf(localPath: string): Promise<{ bundle: Uint8Array; file?: string }> {
  if (BUNDLES.some((end) => localPath.toLowerCase().endsWith(end))) {
    return { bundle: await (await importBuiltin("fs/promises")).readFile(localPath) };
  }
  const { pieces, file } = await packPath(localPath, LEFT_OUT);
  const packed = streamOf(pieces).pipeThrough(new CompressionStream("gzip") as unknown as TransformStream<Uint8Array, Uint8Array>);
  const bundle = new Uint8Array(await new Response(packed).arrayBuffer());
  return file === undefined ? { bundle } : { bundle, file };
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
