/** Snapshots, templates and API keys. */

import { RequestTimeout, TemplateBuildError } from "./errors.js";
import { serverEvents } from "./exec-stream.js";
import {
  type CreatedToken,
  type JsonObject,
  needText,
  type SnapshotInfo,
  type TemplateBuild,
  type TemplateInfo,
  type TokenInfo,
  withCamelCase,
} from "./models.js";
import type { Transport } from "./transport.js";
import { del, get, post, segment, STREAM_IDLE_MS_MAX } from "./wire.js";

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

  /** Get a snapshot. */
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

/** `client.tokens`. */
export class TokensAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** List API keys, without their secrets. */
  async list(): Promise<TokenInfo[]> {
    const records = (await this.#transport.send(get("/me/tokens"))).records("tokens");
    return records.map((record) => withCamelCase({ ...record, prefix: String(record.prefix ?? "") }));
  }

  /** Create an API key. `token` of the result is not shown again. Its scope is `sandboxes` unless told otherwise. */
  async create(
    label?: string,
    options: { expiresInDays?: number; scope?: "read" | "sandboxes" | "admin" } = {},
  ): Promise<CreatedToken> {
    const body = {
      ...(label === undefined ? {} : { label }),
      ...(options.expiresInDays === undefined ? {} : { expires_in_days: options.expiresInDays }),
      ...(options.scope === undefined ? {} : { scope: options.scope }),
    };
    const record = (await this.#transport.send(post("/me/tokens", body))).record();
    return withCamelCase({ ...record, prefix: String(record.prefix ?? ""), token: needText(record, "token", "a key") });
  }

  /** Revoke a key, named by its public prefix. */
  async revoke(prefix: string): Promise<void> {
    await this.#transport.send(del(`/me/tokens/${segment(prefix, "token prefix")}`));
  }
}

function snapshotOf(record: JsonObject): SnapshotInfo {
  return withCamelCase({ ...record, id: needText(record, "id", "a snapshot") });
}

function templateOf(record: JsonObject): TemplateInfo {
  return withCamelCase({ ...record, name: needText(record, "name", "a template") });
}

function buildOf(record: JsonObject): TemplateBuild {
  const { name, status } = record;
  return withCamelCase({
    ...record,
    id: needText(record, "id", "a build"),
    name: typeof name === "string" ? name : "",
    status: typeof status === "string" ? status : "",
  });
}
