/** Snapshots, templates, API keys and workspaces. */

import { checked } from "./check.js";
import { BadRequestError, RequestTimeout, TemplateBuildError } from "./errors.js";
import { serverEvents } from "./exec-stream.js";
import type { AbortSignal } from "./globals.js";
import { packContext, streamOf, watched } from "./local-tree.js";
import {
  type CreatedToken,
  type JsonObject,
  needText,
  type SnapshotInfo,
  type TokenInfo,
  type Visibility,
  withCamelCase,
  type WorkspaceInfo,
} from "./models.js";
import { withSecrets } from "./printed.js";
import { importBuiltin } from "./runtime.js";
import type { Transport } from "./transport.js";
import type { BuildTemplateOptions, ShareTemplateOptions } from "./template-builds.js";
import type { TemplateBuild, TemplateInfo } from "./template-builds.js";
import { buildOf, credentialsRecord, stepRecord, templateOf, withRecipe } from "./template-builds.js";
import {
  type Call,
  del,
  get,
  given,
  MACHINE_MS_MAX,
  post,
  segment,
  STREAM_IDLE_MS_MAX,
  UPLOAD_MS_MAX,
} from "./wire.js";

/** `client.snapshots`. They are taken by `sandbox.snapshot()`. */
export class SnapshotsAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** List snapshots, newest first, optionally of one sandbox. */
  async list(options: { sandboxId?: string } = {}): Promise<SnapshotInfo[]> {
    const query: Record<string, string> = options.sandboxId === undefined ? {} : { sandbox_id: options.sandboxId };
    return (await this.#transport.send(get("/snapshots", query))).records("snapshots").map(snapshotOf);
  }

  /** Get a snapshot by ID or name. */
  async get(id: string): Promise<SnapshotInfo> {
    return snapshotOf((await this.#transport.send(get(`/snapshots/${segment(id, "snapshot id")}`))).record());
  }

  /** Delete a snapshot. Sandboxes created from it stay. */
  async delete(id: string): Promise<void> {
    await this.#transport.send(del(`/snapshots/${segment(id, "snapshot id")}`));
  }
}

/** `client.templates`. */
export class TemplatesAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** List templates. */
  async list(): Promise<TemplateInfo[]> {
    return (await this.#transport.send(get("/templates"))).records("templates").map(templateOf);
  }

  /** Get a template. */
  async get(name: string): Promise<TemplateInfo> {
    return templateOf((await this.#transport.send(get(`/templates/${segment(name, "template name")}`))).record());
  }

  /** Delete a template of the workspace. Built-in templates cannot be deleted. */
  async delete(name: string): Promise<void> {
    await this.#transport.send(del(`/templates/${segment(name, "template name")}`));
  }

  /**
   * Start building a template from a recipe or a Dockerfile, by default the one in `directory`, whose files it
   * can copy. Wait for the end with {@link waitForBuild}.
   */
  async build(name: string, options: BuildTemplateOptions): Promise<TemplateBuild> {
    const wanted = withRecipe(options);
    const { directory } = wanted;
    let { dockerfile } = wanted;
    if (dockerfile === undefined && directory !== undefined) {
      dockerfile = await (await importBuiltin("fs/promises")).readFile(`${directory}/Dockerfile`, "utf8");
    }
    if (dockerfile === undefined) {
      throw new BadRequestError("give a recipe, a dockerfile, or a directory that has one");
    }
    const begin = given({
      name,
      tags: wanted.tags,
      keep_latest: wanted.keepLatest,
      cpu: wanted.cpu,
      memory_mb: wanted.memoryMb,
      keep_inputs: wanted.keepInputs,
    });
    const start = given({
      dockerfile,
      steps: wanted.steps?.map(stepRecord),
      args: wanted.args,
      target: wanted.target,
      start_command: wanted.startCommand,
      ready: wanted.ready,
      no_cache: wanted.noCache,
      registries: wanted.registries?.map(credentialsRecord),
      plain_http: wanted.plainHttp,
      secrets: wanted.secrets && Object.entries(wanted.secrets).map(([id, value]) => ({ id, value })),
      debug: wanted.debug,
    });
    if (directory === undefined) {
      return buildOf((await this.#transport.send(post("/templates/builds", { ...begin, start }))).record());
    }
    const build = buildOf((await this.#transport.send(post("/templates/builds", begin))).record());
    const path = `/templates/builds/${segment(build.id, "build id")}`;
    try {
      const packed = watched(await packContext(directory));
      const call: Call = { method: "PUT", path: `${path}/files`, contentType: "application/x-tar", msMax: UPLOAD_MS_MAX };
      await packed.orElse(async () => await this.#transport.send({ ...call, body: streamOf(packed.pieces()) }));
      return buildOf((await this.#transport.send(post(`${path}/start`, start))).record());
    } catch (error) {
      // Otherwise it would wait for its files or its start until it expires.
      await this.cancelBuild(build.id).catch(() => undefined);
      throw error;
    }
  }

  /** Cancel a build that is queued or running. */
  async cancelBuild(id: string): Promise<void> {
    await this.#transport.send(post(`/templates/builds/${segment(id, "build id")}/cancel`, {}));
  }

  /**
   * Build a template again, `NAME` or `NAME:TAG`, with fresh images and without the cache. `changes` of the
   * build say what differs. For a schedule, use the target `{ type: "template", template: name }`.
   */
  async rebuild(name: string): Promise<TemplateBuild> {
    const path = `/templates/${segment(name, "template name")}/rebuild`;
    return buildOf((await this.#transport.send(post(path, {}))).record());
  }

  /** Publish a snapshot as a template version. */
  async publish(
    snapshotId: string,
    name: string,
    options: { tags?: string[]; description?: string } = {},
  ): Promise<TemplateBuild> {
    const body = given({ snapshot_id: snapshotId, name, tags: options.tags, description: options.description });
    return buildOf((await this.#transport.send(post("/templates/publish", body))).record());
  }

  /**
   * Replace the workspaces that may use a template, as `WORKSPACE/NAME`. `public` shares with all
   * workspaces. With neither, the template becomes private. Existing sandboxes are kept.
   */
  async setSharing(name: string, options: ShareTemplateOptions = {}): Promise<TemplateInfo> {
    const path = `/templates/${segment(name, "template name")}/sharing`;
    const body = { public: options.public ?? false, workspaces: options.workspaces ?? [] };
    return templateOf((await this.#transport.send({ ...post(path, body), method: "PUT" })).record());
  }

  /** Point a tag to a finished build; set `latest` to roll back. */
  async setTag(name: string, tag: string, buildId: string): Promise<void> {
    const path = `/templates/${segment(name, "template name")}/tags/${segment(tag, "tag")}`;
    await this.#transport.send({ ...post(path, { build_id: buildId }), method: "PUT" });
  }

  /** Delete a tag of a template. */
  async deleteTag(name: string, tag: string): Promise<void> {
    await this.#transport.send(del(`/templates/${segment(name, "template name")}/tags/${segment(tag, "tag")}`));
  }

  /** List running and finished builds. */
  async builds(): Promise<TemplateBuild[]> {
    return (await this.#transport.send(get("/templates/builds"))).records("builds").map(buildOf);
  }

  /** Get a template build. */
  async getBuild(id: string): Promise<TemplateBuild> {
    return await this.buildStatus(id);
  }

  /** The same as {@link getBuild}. */
  async buildStatus(id: string): Promise<TemplateBuild> {
    return buildOf((await this.#transport.send(get(`/templates/builds/${segment(id, "build id")}`))).record());
  }

  /** Stream the lines of a build's log until the build ends. With `follow: false`, return the lines so far. */
  async *buildLogs(
    id: string,
    options: { follow?: boolean; signal?: AbortSignal } = {},
  ): AsyncGenerator<string> {
    const query: Record<string, string> = options.follow === false ? {} : { follow: "1" };
    const { signal } = options;
    const path = `/templates/builds/${segment(id, "build id")}/logs`;
    const call = { ...get(path, query), accept: "text/event-stream", signal };
    const stream = await this.#transport.openStream(call, STREAM_IDLE_MS_MAX);
    for await (const event of serverEvents(stream)) {
      if (event.name === "done") return;
      yield event.data;
    }
  }

  /** Wait until a build ends; {@link TemplateBuildError} if it failed. */
  async waitForBuild(id: string, options: { intervalMs?: number; timeoutMs?: number } = {}): Promise<TemplateBuild> {
    const { intervalMs = 2000, timeoutMs = 1_200_000 } = options;
    const deadline = performance.now() + timeoutMs;
    for (;;) {
      const build = await this.buildStatus(id);
      if (build.status === "done") return build;
      if (build.status === "failed") throw new TemplateBuildError(`the build of '${build.name}' failed: ${build.error}`, build);
      if (performance.now() + intervalMs > deadline) {
        throw new RequestTimeout(`the build of '${build.name}' did not finish within ${timeoutMs / 1000} s`);
      }
      await new Promise((resolve) => setTimeout(resolve, intervalMs));
    }
  }
}

/** Settings of a new key. */
export interface CreateTokenOptions {
  /** Role of the key in its workspace. Default: `developer`. */
  role?: "viewer" | "developer" | "owner";
  /** The earlier name of `role`. */
  scope?: "read" | "sandboxes" | "admin";
  /** Whether it may also manage the installation; needs an operator key. */
  operator?: boolean;
  expiresInDays?: number;
  /** When it stops working, in RFC 3339. */
  expiresAt?: string;
  /** Networks that the key can be used from, such as `10.1.0.0/16`. Default: everywhere. */
  allowFrom?: string[];
  /** Another workspace than the key's own; needs an operator key. */
  workspace?: string;
}

/** `client.tokens`. With `workspace`, an operator key manages the keys of another workspace. */
export class TokensAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** List API keys, without their secrets. */
  async list(options: { workspace?: string } = {}): Promise<TokenInfo[]> {
    const records = (await this.#transport.send(get(tokensOf(options.workspace)))).records("tokens");
    return records.map((record) => withCamelCase({ ...record, prefix: String(record.prefix ?? "") }));
  }

  /** Create an API key. Its secret, `token`, is shown only in this result. The default role is `developer`. */
  async create(label?: string, options: CreateTokenOptions = {}): Promise<CreatedToken> {
    const { role, scope, operator, expiresInDays, expiresAt, allowFrom, workspace } = options;
    const body = given({
      label,
      role,
      scope,
      operator,
      expires_in_days: expiresInDays,
      expires_at: expiresAt,
      allow_from: allowFrom,
    });
    return createdToken((await this.#transport.send(post(tokensOf(workspace), body))).record());
  }

  /** Rotate an API key: replace its secret. The old one keeps working for `overlapSeconds`, a day by default. */
  async rotate(
    prefix: string,
    options: { overlapSeconds?: number; workspace?: string } = {},
  ): Promise<CreatedToken> {
    const path = `${tokensOf(options.workspace)}/${segment(prefix, "token prefix")}/rotate`;
    const body = given({ overlap_seconds: options.overlapSeconds });
    return createdToken((await this.#transport.send(post(path, body))).record());
  }

  /** Revoke an API key by its prefix. */
  async revoke(prefix: string, options: { workspace?: string } = {}): Promise<void> {
    await this.#transport.send(del(`${tokensOf(options.workspace)}/${segment(prefix, "token prefix")}`));
  }
}

/** Quotas of a workspace. */
export interface QuotaLimits {
  sandboxes?: number;
  cpu?: number;
  memoryMb?: number;
  snapshotMb?: number;
  requestsPerSecond?: number;
}

/** @internal */
export function quotaBody(limits: QuotaLimits): JsonObject {
  const { sandboxes, cpu, memoryMb, snapshotMb, requestsPerSecond } = limits;
  return given({
    sandboxes,
    cpu,
    memory_mb: memoryMb,
    snapshot_mb: snapshotMb,
    requests_per_second: requestsPerSecond,
  }) as JsonObject;
}

/** `client.workspaces`. Every call requires an operator key. */
export class WorkspacesAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Create a workspace without API keys; see `client.tokens.create(label, { workspace })`. */
  async create(
    name: string,
    options: { quota?: QuotaLimits; defaultVisibility?: Visibility } = {},
  ): Promise<WorkspaceInfo> {
    const quota = options.quota === undefined ? undefined : quotaBody(options.quota);
    return this.#workspace(post("/workspaces", given({ id: name, quota, default_visibility: options.defaultVisibility })));
  }

  /** List workspaces, oldest first. */
  async list(): Promise<WorkspaceInfo[]> {
    return (await this.#transport.send(get("/workspaces"))).records("workspaces").map(workspaceInfo);
  }

  /** Get a workspace. */
  async get(name: string): Promise<WorkspaceInfo> {
    return this.#workspace(get(workspacePath(name)));
  }

  /** Suspend a workspace: put its machines to sleep and reject its keys. Nothing is lost. */
  async suspend(name: string, reason?: string): Promise<WorkspaceInfo> {
    return this.#workspace(post(workspacePath(name, "/suspend"), given({ reason }), MACHINE_MS_MAX));
  }

  /** Resume a suspended workspace. */
  async resume(name: string): Promise<WorkspaceInfo> {
    return this.#workspace(post(workspacePath(name, "/resume"), {}));
  }

  /** Delete a workspace and everything in it, including backups. */
  async delete(name: string): Promise<void> {
    await this.#transport.send(del(workspacePath(name)));
  }

  /** Get a workspace's quotas (`quota`) and current usage (`used`). */
  async quota(name: string): Promise<JsonObject> {
    return (await this.#transport.send(get(workspacePath(name, "/quota")))).record();
  }

  /** Set a workspace's quotas. For omitted quotas, the platform's limits apply. */
  async setQuota(name: string, limits: QuotaLimits): Promise<JsonObject> {
    const call = { ...post(workspacePath(name, "/quota"), quotaBody(limits)), method: "PUT" };
    return (await this.#transport.send(call)).record();
  }

  async #workspace(call: Call): Promise<WorkspaceInfo> {
    return workspaceInfo((await this.#transport.send(call)).record());
  }
}

checked({ SnapshotsAPI, TemplatesAPI, TokensAPI, WorkspacesAPI });

function workspacePath(name: string, rest = ""): string {
  return `/workspaces/${segment(name, "workspace")}${rest}`;
}

function tokensOf(workspace?: string): string {
  return workspace === undefined ? "/me/tokens" : workspacePath(workspace, "/tokens");
}

function createdToken(record: JsonObject): CreatedToken {
  const known = { prefix: String(record.prefix ?? ""), token: needText(record, "token", "a key") };
  return withSecrets(withCamelCase({ ...record, ...known }), ["token"]);
}

function workspaceInfo(record: JsonObject): WorkspaceInfo {
  return withCamelCase({
    ...record,
    id: needText(record, "id", "a workspace"),
    state: String(record.state ?? ""),
    quota: (record.quota ?? {}) as Record<string, number>,
    used: (record.used ?? {}) as Record<string, number>,
  });
}

function snapshotOf(record: JsonObject): SnapshotInfo {
  return withCamelCase({ ...record, id: needText(record, "id", "a snapshot") });
}
