/** Apps: sources that are built and served under an address that stays. */

import { checked } from "./check.js";
import { PandaStackError } from "./errors.js";
import { serverEvents } from "./exec-stream.js";
import type { AbortSignal } from "./globals.js";
import { packTree, streamOf, watched } from "./local-tree.js";
import { type JsonObject, type LifecycleInfo, type WireRecord, withCamelCase } from "./models.js";
import type { Transport } from "./transport.js";
import { type Call, create, CREATE_MS_MAX, del, get, given, MACHINE_MS_MAX, post, segment, STREAM_IDLE_MS_MAX, UPLOAD_MS_MAX } from "./wire.js";

/** An instance of an app. */
export type AppInstance = WireRecord<{
  sandbox_id: string;
  /** As of any sandbox; `failed` also if it is gone, until it is replaced. */
  status: string;
}>;
/** An app as the server describes it. */
export type AppInfo = JsonObject & WireRecord<{
  id: string;
  name: string;
  status: "created" | "building" | "running" | "hibernated" | "error" | "stopped";
  url?: string;
  framework?: string;
  /** Machines that never sleep. */
  min_instances: number;
  /** Machines that serve it; those beyond `min_instances` sleep until there is enough to do. */
  max_instances: number;
  /** The machine that serves, the first one of several. */
  sandbox_id?: string;
  /** All machines that serve, in the order in which they are used. */
  instances: AppInstance[];
  workspace?: string;
  git_url?: string;
  git_branch?: string;
  git_host?: string;
  git_public_key?: string;
  git_known_hosts?: string;
  install_command?: string;
  build_command?: string;
  start_command?: string;
  root_directory?: string;
  port?: number;
  health_path?: string;
  idle_timeout_seconds?: number;
  env?: Record<string, string>;
  template?: string;
  cpu?: number;
  memory_mb?: number;
  /** The version that serves. */
  active_deployment_id?: string;
  webhook_url?: string;
  poll_seconds?: number;
  /** Pull requests that get a preview: `off`, `branches` or `all`. */
  previews?: string;
  databases?: JsonObject[];
  /** The app that this one is a preview of. */
  preview_of?: string;
  created_at?: string;
  updated_at?: string;
}>;
/** Resource usage of one instance of an app; `host` and `guest` as for a sandbox, absent where unknown. */
export type AppInstanceMetrics = WireRecord<{
  sandbox_id: string;
  status: string;
  host?: Record<string, number>;
  guest?: Record<string, number>;
}>;
/** Resource usage of an app. */
export type AppMetrics = WireRecord<{
  at: string;
  /** The version that serves; absent before the first one does. */
  deployment_id?: string;
  /** All machines together: `cpu_used_percent` of `cpu_count`, `memory_bytes` and so on. */
  total: Record<string, number>;
  /** Each machine, in the order in which they are used. */
  instances: AppInstanceMetrics[];
}>;
/** Source of a deployment; without any of these, the head of the app's branch. */
export interface DeployAppOptions {
  /** Branch, tag or commit of its repository. */
  gitRef?: string;
  /** A local directory, without what builds create again, such as `node_modules`. */
  directory?: string;
  /** A running sandbox that has it. */
  fromSandbox?: string;
  /** The directory there. */
  path?: string;
  /** Install everything again. */
  clearCache?: boolean;
}
/** Scope and stage of a variable. */
export interface AppEnvOptions {
  /** Never show it again. */
  secret?: boolean;
  /** `all`, `production` (the app itself) or `preview` (of pull requests). */
  scope?: string;
  /** `all`, `build` (never in a machine that serves) or `run` (never in a build). */
  stage?: string;
}
/** Paths that a build of an app creates again, and its history. */
const MADE_ANEW: ReadonlySet<string> = new Set([".git", "node_modules", ".venv", "venv", "__pycache__", ".next"]);

/** A deployment as the server describes it: `id`, `status`, `error`, `git_commit`, ... */
export type DeploymentInfo = JsonObject;

/** `client.apps`. Apps are named by id or by name. */
export class AppsAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Create an app: `name`, and `git_url`, `framework`, `start_command`, `port`, `min_instances`,
   * `max_instances`, `env` and so on.
   */
  async create(settings: JsonObject & { name: string }): Promise<AppInfo> {
    return appOf((await this.#transport.send(create("/apps", settings, CREATE_MS_MAX))).record());
  }

  /** List apps. */
  async list(): Promise<AppInfo[]> {
    return (await this.#transport.send(get("/apps"))).records("items").map(appOf);
  }

  /** Get an app. */
  async get(app: string): Promise<AppInfo> {
    return appOf((await this.#transport.send(get(path(app)))).record());
  }

  /**
   * Update settings. They take effect with the next deployment or restart; template and size with the next
   * build. An empty string clears a setting.
   */
  async update(app: string, settings: JsonObject): Promise<AppInfo> {
    return appOf((await this.#transport.send({ ...post(path(app), settings), method: "PATCH" })).record());
  }

  /** Set the maximum number of instances, and the number that never sleeps. Takes effect immediately. */
  async scale(app: string, options: { minInstances?: number; maxInstances?: number }): Promise<AppInfo> {
    return await this.update(app, given({ min_instances: options.minInstances, max_instances: options.maxInstances }));
  }

  /** Delete an app and its versions. */
  async delete(app: string): Promise<void> {
    await this.#transport.send(del(path(app)));
  }

  /** Deploy the repository's branch, a `gitRef` of it, a local `directory`, or a `path` in a sandbox. */
  async deploy(app: string, options: DeployAppOptions = {}): Promise<DeploymentInfo> {
    const { directory, gitRef, fromSandbox, clearCache } = options;
    if (directory !== undefined) return await this.#upload(app, directory, clearCache === true);
    const body = given({ git_ref: gitRef, from_sandbox: fromSandbox, path: options.path, clear_cache: clearCache });
    return (await this.#transport.send(post(path(app, "/deploys"), body, MACHINE_MS_MAX))).record();
  }

  async #upload(app: string, directory: string, clearCache: boolean): Promise<DeploymentInfo> {
    const packed = watched(await packTree(directory, MADE_ANEW));
    const call: Call = { method: "POST", path: path(app, "/deploys"), contentType: "application/x-tar", msMax: UPLOAD_MS_MAX };
    const query: Record<string, string> = clearCache ? { clear_cache: "1" } : {};
    return await packed.orElse(async () => {
      return (await this.#transport.send({ ...call, query, body: streamOf(packed.pieces()) })).record();
    });
  }

  /** List deployments of an app, newest first. */
  async deployments(app: string): Promise<DeploymentInfo[]> {
    return (await this.#transport.send(get(path(app, "/deploys")))).records("items");
  }

  /** Get a deployment with its log. */
  async deployment(app: string, id: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(get(deployPath(app, id)))).record();
  }

  /** Stream the lines of a deployment's log until it ends. */
  deployLogs(app: string, id: string, options: { signal?: AbortSignal } = {}): AsyncGenerator<string> {
    return this.#lines({ ...get(deployPath(app, id, "/logs")), signal: options.signal });
  }

  /** Wait until a deployment is live; {@link PandaStackError} if it fails. */
  async waitForDeployment(app: string, id: string): Promise<DeploymentInfo> {
    for await (const _ of this.deployLogs(app, id));
    const ended = await this.deployment(app, id);
    if (ended["status"] !== "live") throw new PandaStackError(`the deployment is ${ended["status"]}: ${ended["error"]}`);
    return ended;
  }

  /** Cancel a deployment that is not live yet. */
  async cancel(app: string, id: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(post(deployPath(app, id, "/cancel")))).record();
  }

  /** Roll back to an earlier version: the previous one by default. */
  async rollback(app: string, deploymentId?: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(post(path(app, "/rollback"), given({ deployment_id: deploymentId })))).record();
  }

  /** Start the live version in new machines, with the current settings and variables. */
  async restart(app: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(post(path(app, "/restart")))).record();
  }

  /**
   * Get the live version's output, line by line. With `follow`, stream new output too. Reads the first
   * machine, or the `instance` with that `sandbox_id`.
   */
  logs(
    app: string,
    options: { follow?: boolean; search?: string; instance?: string; signal?: AbortSignal } = {},
  ): AsyncGenerator<string> {
    const query: Record<string, string> = { follow: options.follow === true ? "1" : "0" };
    if (options.search !== undefined) query["search"] = options.search;
    if (options.instance !== undefined) query["instance"] = options.instance;
    return this.#lines({ ...get(path(app, "/runtime-logs"), query), signal: options.signal });
  }

  /** Get the live version's resource usage, in total and per machine. Does not wake it. */
  async metrics(app: string): Promise<AppMetrics> {
    return appOf((await this.#transport.send(get(path(app, "/metrics")))).record()) as unknown as AppMetrics;
  }

  /** Keep the live version awake for this many seconds, for background work. Wakes its first machine. 0 ends the lease. */
  async keepAwake(app: string, seconds: number): Promise<LifecycleInfo> {
    const answer = await this.#transport.send(post(path(app, "/keep-awake"), { seconds }, MACHINE_MS_MAX));
    return withCamelCase(answer.record()) as unknown as LifecycleInfo;
  }

  /** List previews of pull requests. Each is also an app, by its `name`. */
  async previews(app: string): Promise<JsonObject[]> {
    return (await this.#transport.send(get(path(app, "/previews")))).records("items");
  }

  /** Get the preview of a pull request. */
  async getPreview(app: string, number: number): Promise<JsonObject> {
    return (await this.#transport.send(get(path(app, `/previews/${segment(String(number), "number")}`)))).record();
  }

  /** Remove a preview. The next commit to its pull request creates it again. */
  async removePreview(app: string, number: number): Promise<void> {
    await this.#transport.send(del(path(app, `/previews/${segment(String(number), "number")}`)));
  }

  /** List variables. Secret values are masked. */
  async listEnv(app: string): Promise<JsonObject[]> {
    return (await this.#transport.send(get(path(app, "/env")))).records("env");
  }

  /** Set a variable. */
  async setEnv(app: string, key: string, value: string, options: AppEnvOptions = {}): Promise<JsonObject> {
    const body = { value, ...envBody(options) };
    const call = post(path(app, `/env/${segment(key, "variable")}`), body);
    return (await this.#transport.send({ ...call, method: "PUT" })).record();
  }

  /** Remove a variable. */
  async unsetEnv(app: string, key: string): Promise<void> {
    await this.#transport.send(del(path(app, `/env/${segment(key, "variable")}`)));
  }

  /** List GitHub repositories with previews enabled. */
  async previewRepos(): Promise<JsonObject[]> {
    return (await this.#transport.send(get("/preview-repos"))).records("repos");
  }

  /**
   * Enable previews for all apps of a repository, by its GitHub id, and `owner/name` for apps without a
   * webhook delivery yet.
   */
  async enablePreviewRepo(githubRepoId: number, options: { repoFullName?: string } = {}): Promise<JsonObject> {
    const body = { github_repo_id: githubRepoId, ...given({ repo_full_name: options.repoFullName }) };
    return (await this.#transport.send(post("/preview-repos", body))).record();
  }

  /** Disable previews for all apps of a repository. Open previews stay until their pull request is closed. */
  async disablePreviewRepo(githubRepoId: number): Promise<void> {
    await this.#transport.send(del(`/preview-repos/${segment(String(githubRepoId), "repository id")}`));
  }

  /** List variables of a repository's previews. Secret values are masked. */
  async listPreviewEnv(githubRepoId: number): Promise<JsonObject[]> {
    return (await this.#transport.send(get(repoPath(githubRepoId)))).records("env");
  }

  /** Set a variable of previews. A variable of the app with the same name takes precedence. Previews of forks see no secrets. */
  async setPreviewEnv(githubRepoId: number, key: string, value: string, options: { secret?: boolean } = {}): Promise<JsonObject> {
    const body = { value, ...given({ secret: options.secret }) };
    const call = post(repoPath(githubRepoId, `/${segment(key, "variable")}`), body);
    return (await this.#transport.send({ ...call, method: "PUT" })).record();
  }

  /** Remove a variable of previews. */
  async unsetPreviewEnv(githubRepoId: number, key: string): Promise<void> {
    await this.#transport.send(del(repoPath(githubRepoId, `/${segment(key, "variable")}`)));
  }

  /** Set variables from the text of a `.env` file. */
  async importPreviewEnv(githubRepoId: number, dotenv: string, options: { secret?: boolean } = {}): Promise<JsonObject> {
    const body = { dotenv, ...given({ secret: options.secret }) };
    return (await this.#transport.send(post(repoPath(githubRepoId, "/import"), body))).record();
  }

  /** Attach a database. The variable `env` (`DATABASE_URL`) is set with the next deployment or restart. */
  async attachDatabase(app: string, databaseId: string, options: { env?: string; scope?: string; build?: boolean } = {}): Promise<JsonObject> {
    const body = given({ env: options.env, scope: options.scope, build: options.build ?? false });
    const call = post(path(app, `/databases/${segment(databaseId, "database id")}`), body);
    return (await this.#transport.send({ ...call, method: "PUT" })).record();
  }

  /** Detach a database. The app loses access at once. */
  async detachDatabase(app: string, databaseId: string): Promise<void> {
    await this.#transport.send(del(path(app, `/databases/${segment(databaseId, "database id")}`)));
  }

  /** List an app's custom domains. */
  async domains(app: string): Promise<JsonObject[]> {
    return (await this.#transport.send(get(path(app, "/domains")))).records("domains");
  }

  /** Add a custom domain to an app. */
  async addDomain(app: string, domain: string): Promise<JsonObject> {
    return (await this.#transport.send(post(path(app, "/domains"), { domain }))).record();
  }

  /** Remove a custom domain. */
  async removeDomain(app: string, domain: string): Promise<void> {
    await this.#transport.send(del(path(app, `/domains/${segment(domain, "domain")}`)));
  }

  /** Get a custom domain of an app. */
  async getDomain(app: string, domain: string): Promise<JsonObject> {
    return (await this.#transport.send(get(path(app, `/domains/${segment(domain, "domain")}`)))).record();
  }

  /** Set variables from the text of a `.env` file. */
  async importEnv(app: string, dotenv: string, options: AppEnvOptions = {}): Promise<JsonObject> {
    const body = { dotenv, ...envBody(options) };
    return (await this.#transport.send(post(path(app, "/env/import"), body))).record();
  }

  async *#lines(call: Call): AsyncGenerator<string> {
    const stream = await this.#transport.openStream({ ...call, accept: "text/event-stream" }, STREAM_IDLE_MS_MAX);
    for await (const event of serverEvents(stream)) {
      if (event.name === "done") return;
      yield event.data;
    }
  }
}

checked({ AppsAPI });

/** Resource use of an app and of its machines. */
function appOf(record: JsonObject): AppInfo {
  for (const instance of (record["instances"] ?? []) as JsonObject[]) withCamelCase(instance);
  return withCamelCase(record) as AppInfo;
}

function envBody(options: AppEnvOptions): JsonObject {
  return given({ secret: options.secret, scope: options.scope, stage: options.stage });
}

function path(app: string, rest = ""): string {
  return `/apps/${segment(app, "app")}${rest}`;
}

function repoPath(githubRepoId: number, rest = ""): string {
  return `/repos/${segment(String(githubRepoId), "repository id")}/preview-env${rest}`;
}

function deployPath(app: string, id: string, rest = ""): string {
  return path(app, `/deploys/${segment(id, "deployment id")}${rest}`);
}
