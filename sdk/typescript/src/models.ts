/**
 * Results of calls, and how they are read from the server's JSON. Records keep the names of the wire
 * (`size_bytes`) and answer to camelCase (`sizeBytes`) too. An unknown field never breaks a client; a missing
 * required one is a {@link ServerError} instead of an `undefined` deep inside a program. */

import { ServerError } from "./errors.js";

type CamelCase<Name extends string> = Name extends `${infer Head}_${infer Tail}`
  ? `${Head}${Capitalize<CamelCase<Tail>>}`
  : Name;

/** A record whose fields can be read by their wire name and in camelCase. */
export type WireRecord<T> = T & {
  readonly [Key in keyof T as Key extends `${string}_${string}` ? CamelCase<Key> : never]: T[Key];
};

/** A JSON object of the server. */
export type JsonObject = Record<string, unknown>;

/** Result of a finished command. A non-zero exit code is a result, not an error. */
export interface ExecResultFields {
  stdout: string;
  stderr: string;
  exit_code: number;
  duration_ms: number;
  /** Whether a stream passed the server's limit and lost its end. */
  truncated: boolean;
  /** The signal that ended the command; `exit_code` is then 128 more than it. */
  signal?: number;
  /** `duration_ms` in microseconds. */
  duration_us?: number;
}
/** Result of `exec`. */
export type ExecResult = WireRecord<ExecResultFields>;
/** Result of `client.run`, beyond an exec result. The sandbox is gone by now. */
export interface RunResultFields extends ExecResultFields {
  sandbox_id?: string;
  create_ms?: number;
  total_ms?: number;
  engine?: string;
  isolation?: string;
}
/** Result of `client.run`. */
export type RunResult = WireRecord<RunResultFields>;

/** A piece of output, in the order it arrived. */
export interface ExecChunk {
  stream: "stdout" | "stderr";
  text: string;
}

/** The server's record of a sandbox, with its JSON names. */
export interface SandboxInfo {
  id: string;
  /** Unique in the workspace; can be used instead of the ID. */
  name?: string;
  template: string;
  cpu: number;
  memory_mb: number;
  /** `creating`, `running`, `paused`, `hibernated`, `stopping`, `failed` or `deleted`. */
  status: string;
  guest_ip?: string;
  created_at?: string;
  metadata: Record<string, string>;
  from_snapshot?: string;
  boot_ms?: number;
  boot_mode?: string;
  persistent?: boolean;
  ttl_seconds?: number;
  /** The engine that runs it. */
  engine?: string;
  /** `hardware` or `emulated`. */
  isolation?: string;
  /** Location of a hibernated sandbox's memory: `memory` or `disk`. */
  residency?: string;
  /** State that it kept when it was put to sleep: `memory` or `disk`. */
  kept?: string;
  /** The sandbox it was forked from. */
  parent_id?: string;
  expires_at?: string;
  /** Reason for the failure. */
  failure?: string;
  workspace?: string;
  /** The host it lives on. */
  host?: string;
  /** `false` when its host does not respond; `status` is then the last one known. */
  host_reachable?: boolean;
  /** Network policy, unless it allows the whole public internet. */
  network?: NetworkPolicy;
  /** Duration of each stage of `boot_ms`, in microseconds. */
  boot_stages_us?: Record<string, number>;
  /** Milliseconds for which the parent of a fork was paused. */
  pause_ms?: number;
  volumes?: JsonObject[];
  [field: string]: unknown;
}

/** A file or directory. `mtime` is in Unix seconds. */
export type FileInfo = WireRecord<{
  name: string;
  path: string;
  is_dir: boolean;
  size: number;
  mode: string;
  mtime: number;
  /** `file`, `directory`, `symlink` or `other`. */
  kind?: string;
  /** The permission bits of `mode` as a number. */
  permissions?: number;
  uid?: number;
  gid?: number;
  owner?: string;
  group?: string;
  /** Target of a symbolic link. */
  link_target?: string;
  /** Extended attributes whose names begin with `user.` and whose values are text. */
  xattrs?: Record<string, string>;
}>;

/** A matching line. */
export interface GrepMatch {
  path: string;
  line: number;
  text: string;
}

/** A change of a watched file. */
export interface FileChange {
  /** Give it to `watch({ resume })` to go on after this change. */
  id: string;
  /** `created`, `modified`, `removed`, `renamed`, `attributes` or `overflow` (look again at everything). */
  kind: string;
  path: string;
  /** The new path after a rename. */
  to?: string;
  isDir: boolean;
  /** Counts the changes of a watch from 1. */
  sequence: number;
}

/** Resource usage of a sandbox. `guest` is absent while it does not run. */
export type SandboxMetrics = WireRecord<{
  at: string;
  status: string;
  /** Process ID of the machine on its host; absent while it does not run. */
  pid?: number;
  /** Alias of `host.memory_bytes`. */
  host_rss_bytes?: number;
  host: Record<string, number>;
  egress_denied?: number;
  guest?: Record<string, number>;
}>;

/** The response to a file write. */
export interface WriteResult {
  path: string;
  bytes: number;
}

/** Action when the TTL ends. */
export type OnTimeout = "kill" | "hibernate";

/** State that a hibernated sandbox keeps: memory and disk, or only the disk. */
export type Keep = "memory" | "disk";

/** Automatic snapshots of an active sandbox. */
export interface Checkpoints {
  /** At least so long between two; 0 takes none. */
  everySeconds: number;
  /** Number of checkpoints that are kept. */
  keepLast?: number;
}

/** Checkpoints as they are sent. */
export function checkpointsOf(checkpoints: Checkpoints): JsonObject {
  const { everySeconds, keepLast } = checkpoints;
  return keepLast === undefined
    ? { every_seconds: everySeconds }
    : { every_seconds: everySeconds, keep_last: keepLast };
}

/** Base of a network policy: the public internet, or nothing. */
export type Egress = "all" | "none";

/** Visibility of a sandbox's ports. */
export type Visibility = "unlisted" | "private" | "off";

/** Isolation that a sandbox needs. */
export type RequiredIsolation = "any" | "hardware";

/**
 * A sandbox's network policy. `deny` takes precedence over `allow`. Entries are addresses, networks, names and `*.`
 * names, with optional ports: `10.0.0.0/8:5432`, `api.example.com`, `*.example.com:443`.
 */
export interface NetworkPolicy {
  /** Default: `none` if `allow` or `presets` is set, otherwise `all`. */
  egress?: Egress;
  /** Lists kept by the platform. */
  presets?: Array<"package-registries">;
  allow?: string[];
  deny?: string[];
}

/** A network policy as it is sent; a word alone is where it starts from. */
export function networkOf(network: NetworkPolicy | Egress): JsonObject {
  return typeof network === "string" ? { egress: network } : { ...network };
}

/** A sandbox's ancestors, siblings and children. */
export type LineageInfo = WireRecord<{
  id: string;
  parent_id?: string;
  tree_id?: string;
  ancestors: string[];
  children: JsonObject[];
  siblings: JsonObject[];
}>;

/** Lifetime settings of a sandbox. */
export type LifecycleInfo = WireRecord<{
  ttl_seconds: number;
  persistent: boolean;
  idle_seconds: number;
  idle_timeout_seconds?: number;
  on_timeout?: OnTimeout;
  expires_at?: string;
  awake_until?: string;
  /** Whether it hibernates when idle: persistent ones, and those that were given an idle timeout. */
  sleeps_when_idle?: boolean;
  /** Snapshots that the platform takes by itself. */
  checkpoints?: { every_seconds: number; keep_last?: number };
}>;

/** A stored snapshot. */
export type SnapshotInfo = WireRecord<{
  id: string;
  sandbox_id?: string;
  template?: string;
  size_bytes?: number;
  created_at?: string;
  workspace?: string;
  name?: string;
  metadata?: Record<string, string>;
  pause_ms?: number;
  kind?: string;
  expires_at?: string;
  /** The host that holds it. */
  host?: string;
}>;

/** A volume. */
export type VolumeInfo = WireRecord<{
  name: string;
  id?: string;
  size_mb?: number;
  size_bytes?: number;
  used_bytes?: number;
  generation?: number;
  host?: string;
  protected?: boolean;
  delete_with_sandbox?: boolean;
  snapshot?: boolean;
  cloned_from?: string;
  attached_to?: Array<{ sandbox_id: string; read_only: boolean }>;
  created_at?: string;
}>;

/** The result of a promotion: the kept fork, deleted siblings, and siblings that could not be deleted. */
export type PromoteResult = WireRecord<{
  winner: string;
  tree_id?: string;
  deleted: string[];
  failures: Record<string, string>;
}>;

/** An event of a sandbox. Unknown fields are kept. */
export interface SandboxEvent {
  id?: number;
  at?: string;
  kind?: string;
  /** Alias of `kind`. */
  type?: string;
  sandbox_id?: string;
  detail?: string;
  [field: string]: unknown;
}

/** A port of a sandbox. */
export type PortInfo = WireRecord<{
  port: number;
  label?: string;
  listening: boolean;
  source?: string;
  proxy_url?: string;
  /** The address it is bound to inside the sandbox. */
  address?: string;
}>;

/** Fields of an API key. */
interface TokenFields {
  prefix: string;
  label?: string;
  /** `viewer`, `developer` or `owner`. */
  role?: string;
  /** The earlier name of `role`: `read`, `sandboxes` or `admin`. */
  scope?: string;
  /** Whether it may also manage the installation. */
  operator?: boolean;
  created_at?: string;
  expires_at?: string;
  last_used_at?: string;
  /** Networks that the key can be used from. Default: everywhere. */
  allow_from?: string[];
}
/** An API key, without its secret. */
export type TokenInfo = WireRecord<TokenFields>;
/** A new API key; `token` is never shown again. */
export type CreatedToken = WireRecord<TokenFields & { token: string; replaces?: string; replaced_until?: string }>;

/** A workspace, as shown to operators. */
export type WorkspaceInfo = WireRecord<{
  id: string;
  /** `active`, `suspended` or `deleting`. */
  state: string;
  created_at?: string;
  suspended_at?: string;
  suspend_reason?: string;
  /** Quotas. For omitted quotas, the platform's limits apply. */
  quota: Record<string, number>;
  /** Current usage. */
  used: Record<string, number>;
  default_visibility?: string;
}>;

/** The workspace and scopes of an API key. */
export type MeInfo = JsonObject;

/** Make a wire record answer to camelCase as well. The extra names do not show up in JSON or logs. */
export function withCamelCase<T extends object>(record: T): WireRecord<T> {
  for (const name of Object.keys(record)) {
    const camel = name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
    if (camel === name || camel in record) continue;
    Object.defineProperty(record, camel, { get: () => (record as JsonObject)[name], enumerable: false });
  }
  return record as WireRecord<T>;
}

/** Usage of a workspace from `from` to `to`, with totals per sandbox, kind of service and function. */
export interface Usage {
  from?: string;
  to?: string;
  /** By `kind`: `sandbox`, `app`, `function`, `database`, `template`. */
  kinds?: Array<Record<string, unknown>>;
  functions?: Array<Record<string, unknown>>;
  total: Record<string, number>;
  sandboxes: Array<Record<string, unknown>>;
  truncated: boolean;
  [field: string]: unknown;
}

/** A required, non-empty string of an answer. */
export function needText(data: JsonObject, name: string, what: string): string {
  const value = data[name];
  if (typeof value === "string" && value) return value;
  throw new ServerError(`the server's response for ${what} has no '${name}'`);
}

/** Read an exec result. A missing exit code is not taken for 0: that would invent a success. */
export function parseExecResult(data: JsonObject): ExecResult {
  if (typeof data.exit_code !== "number") throw new ServerError("the server's response for exec has no 'exit_code'");
  return withCamelCase({
    ...data,
    stdout: string(data.stdout),
    stderr: string(data.stderr),
    exit_code: data.exit_code,
    duration_ms: number(data.duration_ms),
    truncated: data.truncated === true,
  });
}

/** Read a sandbox. */
export function parseSandbox(data: JsonObject): SandboxInfo {
  const metadata = data.metadata;
  return {
    ...data,
    id: needText(data, "id", "a sandbox"),
    template: string(data.template),
    cpu: number(data.cpu),
    memory_mb: number(data.memory_mb),
    status: string(data.status) || "running",
    metadata: typeof metadata === "object" && metadata !== null ? (metadata as Record<string, string>) : {},
  };
}

/** Read a directory entry; `parent` completes one that has only a name. */
export function parseFile(data: JsonObject, parent: string): FileInfo {
  const name = string(data.name) || (string(data.path).replace(/\/+$/, "").split("/").pop() ?? "");
  return withCamelCase({
    name,
    path: string(data.path) || `${parent.replace(/\/+$/, "")}/${name}`,
    is_dir: data.is_dir === true,
    size: number(data.size),
    mode: String(data.mode ?? ""),
    mtime: number(data.mtime),
    ...given(data, ["kind", "permissions", "uid", "gid", "owner", "group", "link_target", "xattrs"]),
  });
}

/** The named fields that are there. */
function given(data: JsonObject, names: string[]): JsonObject {
  return Object.fromEntries(names.filter((name) => data[name] !== undefined).map((name) => [name, data[name]]));
}

/** Read one port, a bare number or an object; `undefined` for anything else. */
export function parsePort(data: unknown): PortInfo | undefined {
  const record = typeof data === "number" ? { port: data } : (data as JsonObject | null | undefined);
  if (typeof record?.port !== "number") return undefined;
  return withCamelCase({ ...record, port: record.port, listening: record.listening !== false });
}

function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}
