/** The client: one server, and what it offers. */

import type { AuditEntry, AuditVerification, OutdatedList } from "./audit.js";
import { addressGiven, BASE_URL_DEFAULT, normalizeBaseUrl, resolveConfig } from "./config.js";
import { BadRequestError } from "./errors.js";
import type { Checkpoints, Egress, JsonObject, MeInfo, NetworkPolicy, OnTimeout } from "./models.js";
import type { PromoteResult, RequiredIsolation, RunResult, SandboxEvent } from "./models.js";
import type { Usage, Visibility } from "./models.js";
import { checkpointsOf, networkOf, parseExecResult, parseSandbox, withCamelCase } from "./models.js";
import { FunctionsAPI } from "./functions.js";
import { AppsAPI } from "./apps.js";
import { checked, checkNew } from "./check.js";
import { ConsoleAPI } from "./console.js";
import { serverEvents } from "./exec-stream.js";
import { DatabasesAPI } from "./databases.js";
import type { AbortSignal, Fetch } from "./globals.js";
import { MembersAPI } from "./members.js";
import { printed } from "./printed.js";
import { quotaBody, type QuotaLimits } from "./resources.js";
import { SnapshotsAPI, TemplatesAPI, TokensAPI, WorkspacesAPI } from "./resources.js";
import { VolumesAPI } from "./volumes.js";
import { WebhooksAPI } from "./webhooks.js";
import { type CreateRetryEvent, parseBudget } from "./retry.js";
import { environment } from "./runtime.js";
import { Sandbox } from "./sandbox.js";
import { SchedulesAPI } from "./schedules.js";
import { eventPayload } from "./sse.js";
import { Transport } from "./transport.js";
import {
  CALL_MS_DEFAULT,
  type Command,
  create,
  CREATE_MS_MAX,
  del,
  EXEC_MS_MAX,
  execBody,
  type ExecOptions,
  get,
  given,
  MACHINE_MS_MAX,
  post,
  sandboxPath,
  STREAM_IDLE_MS_MAX,
} from "./wire.js";

/** Template of a sandbox when none is named. */
const TEMPLATE_DEFAULT = "ubuntu-24.04";

/** Connection to a server. Absent options come from the environment, then from the config file. */
export interface PandaStackOptions {
  /** The server's address: `PANDASTACK_API`, `PANDASTACK_API_URL`, config `api_url`, `http://127.0.0.1:8080`. */
  baseUrl?: string | undefined;
  /** Alias of `baseUrl`. */
  apiUrl?: string | undefined;
  /** The key (`pds_...`): `PANDASTACK_API_KEY`, `PANDASTACK_TOKEN`, config `token`. */
  apiKey?: string | undefined;
  /** Alias of `apiKey`. */
  token?: string | undefined;
  /** Use the browser's console session instead of a key; for pages that the server itself serves. */
  session?: boolean | undefined;
  /** Limit of a plain call as a whole (30 s); calls that move memory or files have longer ones. */
  timeoutMs?: number | undefined;
  /** Seconds for which creates refused for lack of capacity are retried; 0 = never (60). */
  maxCreateRetrySeconds?: number | undefined;
  /** Called before each retry. */
  onCreateRetry?: ((event: CreateRetryEvent) => void) | undefined;
  /** Host suffix of previews, when it is not the API's own: `PANDASTACK_PREVIEW_HOST`. */
  previewHost?: string | undefined;
  /** Used instead of the global `fetch`. */
  fetch?: Fetch | undefined;
}

/** A volume for a new sandbox, mounted at `path`, or at `/volumes/<name>`. */
export interface AttachVolume {
  name: string;
  path?: string;
  readOnly?: boolean;
  read_only?: boolean;
}

/** Options for a new sandbox. */
export interface SandboxCreateOptions {
  /** Template to start from. */
  template?: string;
  /** Unique in the workspace; can be used instead of the ID. */
  name?: string;
  /** Seconds to live. */
  ttlSeconds?: number;
  /** No time limit: it hibernates when idle. */
  persistent?: boolean;
  /** Strings to find it by. */
  metadata?: Record<string, string>;
  /** Start from a snapshot: its id. */
  fromSnapshot?: string;
  /** Environment of every command. */
  env?: Record<string, string>;
  /** Idle seconds after which a persistent sandbox sleeps. */
  idleTimeoutSeconds?: number;
  /** Action at the end of its lifetime: delete it (`kill`) or put it to sleep. */
  onTimeout?: OnTimeout;
  /** Snapshots that the platform takes by itself, to `rollback` to. */
  checkpoints?: Checkpoints;
  /** Network policy: `none`, `all`, or lists such as `{ allow: ["*.example.com"] }`. */
  network?: NetworkPolicy | Egress;
  /** Visibility of its ports. */
  visibility?: Visibility;
  /** `Host` header that programs on its ports see, such as `localhost:${PORT}`. Default: the client's. */
  hostHeader?: string;
  /** Isolation that it needs: `hardware` refuses hosts that emulate processors. */
  isolation?: RequiredIsolation;
  /** Volumes to attach. */
  volumes?: AttachVolume[];
  /** Virtual processors, when not the template's; the first sandbox of a size waits until that is baked. */
  cpu?: number;
  /** Memory in MiB, in steps of 128, when not the template's. */
  memoryMb?: number;
  /** Alias of `ttlSeconds`. */
  ttl_seconds?: number;
  /** Alias of `fromSnapshot`. */
  from_snapshot?: string;
  /** Alias of `memoryMb`. */
  memory_mb?: number;
}

/** Options of `client.run`. */
export interface RunOptions extends ExecOptions {
  /** Template to run in; the server has a default. */
  template?: string;
}

/** A PandaStack server. */
export class PandaStack {
  /** Sandboxes. */
  readonly sandboxes: SandboxesAPI;
  /** Snapshots. */
  readonly snapshots: SnapshotsAPI;
  /** Durable disks that outlive sandboxes. */
  readonly volumes: VolumesAPI;
  /** Functions. */
  readonly functions: FunctionsAPI;
  /** Templates. */
  readonly templates: TemplatesAPI;
  /** Apps. */
  readonly apps: AppsAPI;
  /** Databases. */
  readonly databases: DatabasesAPI;
  /** API keys. */
  readonly tokens: TokensAPI;
  /** Sessions of the web console. */
  readonly console: ConsoleAPI;
  /** Members of the workspace and their sessions. */
  readonly members: MembersAPI;
  /** Webhooks, which receive events of the workspace. */
  readonly webhooks: WebhooksAPI;
  /** Workspaces, for operators. */
  readonly workspaces: WorkspacesAPI;
  /** Schedules. */
  readonly schedules: SchedulesAPI;
  /** Host suffix of previews, when it is not the API's own. */
  previewHost: string | undefined;
  readonly #transport: Transport;
  readonly #addressGiven: string | undefined;

  constructor(options: PandaStackOptions = {}) {
    checkNew("PandaStack", options);
    const env = environment();
    const baseUrl = options.baseUrl || options.apiUrl || undefined;
    this.#addressGiven = addressGiven(baseUrl, env);
    this.previewHost = options.previewHost || env.PANDASTACK_PREVIEW_HOST || undefined;
    this.#transport = new Transport({
      config: async () => {
        const own = normalizeBaseUrl(baseUrl ?? BASE_URL_DEFAULT);
        if (options.session) return { baseUrl: own, apiKey: undefined };
        return await resolveConfig({ baseUrl, apiKey: options.apiKey || options.token || undefined });
      },
      callMsMax: options.timeoutMs ?? CALL_MS_DEFAULT,
      createRetrySeconds: options.maxCreateRetrySeconds ?? parseBudget(env.PANDASTACK_MAX_CREATE_RETRY_SECONDS),
      onCreateRetry: options.onCreateRetry,
      fetch: options.fetch ?? ((input, init) => fetch(input, init)),
    });
    this.sandboxes = new SandboxesAPI(this, this.#transport);
    this.snapshots = new SnapshotsAPI(this.#transport);
    this.functions = new FunctionsAPI(this.#transport);
    this.apps = new AppsAPI(this.#transport);
    this.volumes = new VolumesAPI(this.#transport);
    this.templates = new TemplatesAPI(this.#transport);
    this.databases = new DatabasesAPI(this.#transport);
    this.tokens = new TokensAPI(this.#transport);
    this.console = new ConsoleAPI(this.#transport);
    this.members = new MembersAPI(this.#transport);
    this.webhooks = new WebhooksAPI(this.#transport);
    this.workspaces = new WorkspacesAPI(this.#transport);
    this.schedules = new SchedulesAPI(this.#transport);
  }

  /** The server's address. If it comes from the config file, it is known after the first call. */
  get baseUrl(): string {
    return this.#transport.baseUrl ?? this.#addressGiven ?? BASE_URL_DEFAULT;
  }

  /** Alias of `baseUrl`. */
  get apiUrl(): string {
    return this.baseUrl;
  }

  /** Get the workspace and role of the API key. */
  async me(): Promise<MeInfo> {
    return (await this.#transport.send(get("/me"))).record();
  }

  /** Get usage in total and by sandbox. Times are RFC 3339; the default is the last 30 days. */
  async usage(options: { since?: string; until?: string } = {}): Promise<Usage> {
    const query = given({ from: options.since, to: options.until }) as Record<string, string>;
    return (await this.#transport.send(get("/usage", query))).record() as Usage;
  }

  /** List the audit log, newest first. Requires an owner key. */
  async audit(options: { sandboxId?: string; before?: number; limit?: number } = {}): Promise<AuditEntry[]> {
    const { sandboxId, before, limit } = options;
    const query = given({ sandbox_id: sandboxId, before: before?.toString(), limit: limit?.toString() });
    return (await this.#transport.send(get("/audit", query as Record<string, string>))).records("entries") as AuditEntry[];
  }

  /**
   * Verify the hash chain of the installation's audit log. Requires an operator key.
   *
   * A long log takes several calls: pass `next` of a result as `after`.
   */
  async verifyAudit(options: { after?: number } = {}): Promise<AuditVerification> {
    const query = given({ after: options.after?.toString() }) as Record<string, string>;
    return (await this.#transport.send(get("/audit/verify", query))).record() as AuditVerification;
  }

  /** List events of the workspace's sandboxes, oldest first: the last `tail` of them. */
  async events(options: { tail?: number } = {}): Promise<SandboxEvent[]> {
    const query = given({ tail: options.tail?.toString() }) as Record<string, string>;
    return (await this.#transport.send(get("/events", query))).records("events") as SandboxEvent[];
  }

  /**
   * Stream events of all sandboxes: after the one with id `after`, or from now on. Ends with the connection;
   * call it again with the last id to continue.
   */
  async *followEvents(options: { after?: number; signal?: AbortSignal } = {}): AsyncGenerator<SandboxEvent> {
    const { after, signal } = options;
    const extra: Record<string, string> = after === undefined ? {} : { "Last-Event-ID": String(after) };
    const query = { follow: "1", tail: "0" };
    const call = { ...get("/events", query), accept: "text/event-stream", extra, signal };
    for await (const event of serverEvents(await this.#transport.openStream(call, STREAM_IDLE_MS_MAX))) {
      const payload = eventPayload(event);
      if (payload) yield payload as SandboxEvent;
    }
  }

  /** List the installation's hosts. Requires an operator key. */
  async hosts(): Promise<JsonObject[]> {
    return (await this.#transport.send(get("/hosts"))).records("items");
  }

  /** List sleeping sandboxes, snapshots and templates that are outdated; `all` needs an operator key. */
  async outdated(options: { all?: boolean } = {}): Promise<OutdatedList> {
    const call = get("/outdated", options.all ? { all: "true" } : undefined);
    return (await this.#transport.send(call)).record() as unknown as OutdatedList;
  }

  /** Get workspace quotas (`quota`) and current usage (`used`). */
  async quota(): Promise<JsonObject> {
    return (await this.#transport.send(get("/me/quota"))).record();
  }

  /** Set workspace quotas; for omitted quotas, the platform's limits apply. Requires an operator key. */
  async setQuota(limits: QuotaLimits): Promise<JsonObject> {
    return (await this.#transport.send({ ...post("/me/quota", quotaBody(limits)), method: "PUT" })).record();
  }

  /** Get the workspace's `id` and its defaults for new sandboxes: `default_visibility`. */
  async workspace(): Promise<JsonObject> {
    return (await this.#transport.send(get("/me/workspace"))).record();
  }

  /** Set the workspace's defaults for new sandboxes. Requires an owner key. */
  async setWorkspace(settings: { defaultVisibility?: Visibility }): Promise<JsonObject> {
    const body = given({ default_visibility: settings.defaultVisibility });
    return (await this.#transport.send({ ...post("/me/workspace", body), method: "PATCH" })).record();
  }

  /** Create a sandbox, run one command in it and delete it, in one round trip. */
  async run(cmd: Command, options: RunOptions = {}): Promise<RunResult> {
    const body = { ...execBody(cmd, options), ...given({ template: options.template }) };
    const seconds = options.timeoutSeconds;
    const msMax = seconds === undefined ? EXEC_MS_MAX : seconds * 1000 + CREATE_MS_MAX;
    const call = { ...create("/run", body, msMax), isCommand: true, signal: options.signal };
    return withCamelCase(parseExecResult((await this.#transport.send(call)).record()));
  }
}

checked({ PandaStack });
printed(PandaStack, "PandaStack", ["baseUrl"]);

/** `client.sandboxes`. */
export class SandboxesAPI {
  readonly #client: PandaStack;
  readonly #transport: Transport;

  /** @internal */
  constructor(client: PandaStack, transport: Transport) {
    this.#client = client;
    this.#transport = transport;
  }

  /** Create a sandbox. It is ready when this resolves. With `await using` it is deleted at the end of the block. */
  async create(options: SandboxCreateOptions = {}): Promise<Sandbox> {
    const call = create("/sandboxes", createBody(options), CREATE_MS_MAX);
    const record = (await this.#transport.send(call)).record();
    return this.#sandbox({ ...(options.persistent ? { persistent: true } : {}), ...record });
  }

  /** List sandboxes. */
  async list(): Promise<Sandbox[]> {
    const answer = await this.#transport.send(get("/sandboxes"));
    return answer.records("sandboxes").map((record) => this.#sandbox(record));
  }

  /** Get a sandbox by ID or name. Does not wake it. */
  async get(id: string): Promise<Sandbox> {
    return this.#sandbox((await this.#transport.send(get(sandboxPath(id)))).record());
  }

  /** Delete a sandbox. */
  async delete(id: string): Promise<void> {
    await this.#transport.send(del(sandboxPath(id)));
  }

  /** Fork a running sandbox: copy its memory and disk. */
  async fork(id: string, options: { metadata?: Record<string, string> } = {}): Promise<Sandbox> {
    const [child] = await this.#fork(sandboxPath(id, "/fork"), {}, options.metadata);
    return child as Sandbox; // forkChildren throws rather than return nothing
  }

  /** Create `count` forks at the same point in time. The server may create fewer. */
  async forkTree(id: string, options: { count: number; metadata?: Record<string, string> }): Promise<Sandbox[]> {
    const { count, metadata } = options;
    if (!Number.isInteger(count) || count < 1) throw new BadRequestError(`count must be at least 1, got ${count}`);
    return await this.#fork(sandboxPath(id, "/fork-tree"), { count }, metadata);
  }

  /** Keep a fork and, on request, delete its siblings. */
  async promote(id: string, options: { cleanupSiblings?: boolean; treeId?: string } = {}): Promise<PromoteResult> {
    const body = { cleanup_siblings: options.cleanupSiblings ?? false, ...given({ tree_id: options.treeId }) };
    const record = (await this.#transport.send(post(sandboxPath(id, "/promote"), body, MACHINE_MS_MAX))).record();
    return withCamelCase({ winner: id, deleted: [], failures: {}, ...record });
  }

  async #fork(path: string, body: JsonObject, metadata: Record<string, string> | undefined): Promise<Sandbox[]> {
    const full = metadata === undefined ? body : { ...body, metadata };
    const call = create(path, Object.keys(full).length ? full : undefined, MACHINE_MS_MAX);
    return (await this.#transport.send(call)).forkChildren().map((record) => this.#sandbox(record));
  }

  #sandbox(record: JsonObject): Sandbox {
    return new Sandbox(parseSandbox(record), this.#client, this.#transport);
  }
}

checked({ SandboxesAPI });

function createBody(options: SandboxCreateOptions): JsonObject {
  // A snapshot has a size already.
  const snapshot = options.fromSnapshot ?? options.from_snapshot;
  return given({
    template: options.template ?? TEMPLATE_DEFAULT,
    ttl_seconds: options.ttlSeconds ?? options.ttl_seconds,
    persistent: options.persistent,
    metadata: options.metadata,
    from_snapshot: snapshot,
    name: options.name,
    cpu: snapshot === undefined ? options.cpu : undefined,
    memory_mb: snapshot === undefined ? (options.memoryMb ?? options.memory_mb) : undefined,
    volumes: options.volumes?.map(volumeOf),
    env: options.env,
    idle_timeout_seconds: options.idleTimeoutSeconds,
    on_timeout: options.onTimeout,
    checkpoints: options.checkpoints && checkpointsOf(options.checkpoints),
    network: options.network && networkOf(options.network),
    visibility: options.visibility,
    host_header: options.hostHeader,
    isolation: options.isolation,
  });
}

const volumeOf = (volume: AttachVolume): JsonObject =>
  given({ name: volume.name, path: volume.path, read_only: volume.readOnly ?? volume.read_only });
