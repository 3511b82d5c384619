/** Apps: sources that are built and served under an address that stays. */

import { PandaStackError } from "./errors.js";
import { serverEvents } from "./exec-stream.js";
import { packTree, streamOf, watched } from "./local-tree.js";
import { type JsonObject, type LifecycleInfo, type WireRecord, withCamelCase } from "./models.js";
import type { Transport } from "./transport.js";
import { type Call, create, CREATE_MS_MAX, del, get, given, MACHINE_MS_MAX, post, segment, STREAM_IDLE_MS_MAX, UPLOAD_MS_MAX } from "./wire.js";

/** A machine that serves an app. */
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
  /** Which pull requests get a preview: `off`, `branches` or `all`. */
  previews?: string;
  databases?: JsonObject[];
  /** The app that this one is a preview of. */
  preview_of?: string;
  created_at?: string;
  updated_at?: string;
}>;
/** What one machine of an app uses; `host` and `guest` as of a sandbox, absent where nobody can say. */
export type AppInstanceMetrics = WireRecord<{
  sandbox_id: string;
  status: string;
  host?: Record<string, number>;
  guest?: Record<string, number>;
}>;
/** What an app uses. */
export type AppMetrics = WireRecord<{
  at: string;
  /** The version that serves; absent before the first one does. */
  deployment_id?: string;
  /** All machines together: `cpu_used_percent` of `cpu_count`, `memory_bytes` and so on. */
  total: Record<string, number>;
  /** Each machine, in the order in which they are used. */
  instances: AppInstanceMetrics[];
}>;
/** Where the source of a deployment comes from; without any of these, the head of the app's branch. */
export interface DeployAppOptions {
  /** Branch, tag or commit of its repository. */
  gitRef?: string;
  /** A local directory, without what builds make anew, such as `node_modules`. */
  directory?: string;
  /** A running sandbox that has it. */
  fromSandbox?: string;
  /** The directory there. */
  path?: string;
  /** Install everything anew. */
  clearCache?: boolean;
}
/** Who sees a variable, and when it is there. */
export interface AppEnvOptions {
  /** Never show it again. */
  secret?: boolean;
  /** `all`, `production` (the app itself) or `preview` (of pull requests). */
  scope?: string;
  /** `all`, `build` (never in a machine that serves) or `run` (never in a build). */
  stage?: string;
}
/** What a build of an app makes anew, and its history. */
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

  /** Make an app: `name`, and `git_url`, `framework`, `start_command`, `port`, `min_instances`, `max_instances`, `env` and so on. */
  async create(settings: JsonObject & { name: string }): Promise<AppInfo> {
    return appOf((await this.#transport.send(create("/apps", settings, CREATE_MS_MAX))).record());
  }

  /** Apps of the workspace. */
  async list(): Promise<AppInfo[]> {
    return (await this.#transport.send(get("/apps"))).records("items").map(appOf);
  }

  /** One app. */
  async get(app: string): Promise<AppInfo> {
    return appOf((await this.#transport.send(get(path(app)))).record());
  }

  /** Change settings; they hold from the next deployment or restart on, template and size from the next build on. An empty text takes one back. */
  async update(app: string, settings: JsonObject): Promise<AppInfo> {
    return appOf((await this.#transport.send({ ...post(path(app), settings), method: "PATCH" })).record());
  }

  /** Say how many machines serve an app, and how many of them never sleep; the live version follows at once. */
  async scale(app: string, options: { minInstances?: number; maxInstances?: number }): Promise<AppInfo> {
    return await this.update(app, given({ min_instances: options.minInstances, max_instances: options.maxInstances }));
  }

  /** Delete an app with all its versions. */
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

  /** Deployments of an app, newest first. */
  async deployments(app: string): Promise<DeploymentInfo[]> {
    return (await this.#transport.send(get(path(app, "/deploys")))).records("items");
  }

  /** One deployment, with its log. */
  async deployment(app: string, id: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(get(deployPath(app, id)))).record();
  }

  /** The lines of a deployment's log, until it is over. */
  deployLogs(app: string, id: string, options: { signal?: AbortSignal } = {}): AsyncGenerator<string> {
    return this.#lines({ ...get(deployPath(app, id, "/logs")), signal: options.signal });
  }

  /** Wait until a deployment is live; {@link PandaStackError} if it is over otherwise. */
  async waitForDeployment(app: string, id: string): Promise<DeploymentInfo> {
    for await (const _ of this.deployLogs(app, id));
    const ended = await this.deployment(app, id);
    if (ended["status"] !== "live") throw new PandaStackError(`the deployment is ${ended["status"]}: ${ended["error"]}`);
    return ended;
  }

  /** Stop a deployment that is not live yet. */
  async cancel(app: string, id: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(post(deployPath(app, id, "/cancel")))).record();
  }

  /** Return to an earlier version: the one before the live one unless named. */
  async rollback(app: string, deploymentId?: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(post(path(app, "/rollback"), given({ deployment_id: deploymentId })))).record();
  }

  /** Start the live version in new machines, with the settings and variables of now. */
  async restart(app: string): Promise<DeploymentInfo> {
    return (await this.#transport.send(post(path(app, "/restart")))).record();
  }

  /**
   * What the live version prints, a line each; with `follow`, also from now on. Of several machines the first, or the `instance` that
   * is named by its `sandbox_id`.
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

  /** What the machines of the live version use now, together and each. Never wakes one. */
  async metrics(app: string): Promise<AppMetrics> {
    return appOf((await this.#transport.send(get(path(app, "/metrics")))).record()) as unknown as AppMetrics;
  }

  /** Keep the live version awake for so long, because of work in the background; 0 ends that. Its first machine wakes. */
  async keepAwake(app: string, seconds: number): Promise<LifecycleInfo> {
    const answer = await this.#transport.send(post(path(app, "/keep-awake"), { seconds }, MACHINE_MS_MAX));
    return withCamelCase(answer.record()) as unknown as LifecycleInfo;
  }

  /** Previews of pull requests; each is an app too, by its `name`. */
  async previews(app: string): Promise<JsonObject[]> {
    return (await this.#transport.send(get(path(app, "/previews")))).records("items");
  }

  /** The preview of one pull request. */
  async getPreview(app: string, number: number): Promise<JsonObject> {
    return (await this.#transport.send(get(path(app, `/previews/${segment(String(number), "number")}`)))).record();
  }

  /** Remove a preview; the next commit of its pull request makes it anew. */
  async removePreview(app: string, number: number): Promise<void> {
    await this.#transport.send(del(path(app, `/previews/${segment(String(number), "number")}`)));
  }

  /** Variables; secrets are masked. */
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

  /** Repositories of GitHub whose previews were turned on. */
  async previewRepos(): Promise<JsonObject[]> {
    return (await this.#transport.send(get("/preview-repos"))).records("repos");
  }

  /**
   * Turn previews on for all apps of a repository: by the number that GitHub gives it, and `owner/name` for apps that no delivery came
   * for yet.
   */
  async enablePreviewRepo(githubRepoId: number, options: { repoFullName?: string } = {}): Promise<JsonObject> {
    const body = { github_repo_id: githubRepoId, ...given({ repo_full_name: options.repoFullName }) };
    return (await this.#transport.send(post("/preview-repos", body))).record();
  }

  /** Turn previews off for all apps of a repository; open ones stay until their pull request is closed. */
  async disablePreviewRepo(githubRepoId: number): Promise<void> {
    await this.#transport.send(del(`/preview-repos/${segment(String(githubRepoId), "repository id")}`));
  }

  /** Variables that previews of a repository's apps see; secrets are masked. */
  async listPreviewEnv(githubRepoId: number): Promise<JsonObject[]> {
    return (await this.#transport.send(get(repoPath(githubRepoId)))).records("env");
  }

  /** Set one of them. The app's own of that name wins, and previews of forks see no secret. */
  async setPreviewEnv(githubRepoId: number, key: string, value: string, options: { secret?: boolean } = {}): Promise<JsonObject> {
    const body = { value, ...given({ secret: options.secret }) };
    const call = post(repoPath(githubRepoId, `/${segment(key, "variable")}`), body);
    return (await this.#transport.send({ ...call, method: "PUT" })).record();
  }

  /** Remove one of them. */
  async unsetPreviewEnv(githubRepoId: number, key: string): Promise<void> {
    await this.#transport.send(del(repoPath(githubRepoId, `/${segment(key, "variable")}`)));
  }

  /** Set what the text of a `.env` file says. */
  async importPreviewEnv(githubRepoId: number, dotenv: string, options: { secret?: boolean } = {}): Promise<JsonObject> {
    const body = { dotenv, ...given({ secret: options.secret }) };
    return (await this.#transport.send(post(repoPath(githubRepoId, "/import"), body))).record();
  }

  /** Attach a database: the variable `env` (`DATABASE_URL`) holds its connection string from the next deployment or restart on. */
  async attachDatabase(app: string, databaseId: string, options: { env?: string; scope?: string; build?: boolean } = {}): Promise<JsonObject> {
    const body = given({ env: options.env, scope: options.scope, build: options.build ?? false });
    const call = post(path(app, `/databases/${segment(databaseId, "database id")}`), body);
    return (await this.#transport.send({ ...call, method: "PUT" })).record();
  }

  /** Detach a database; it is out of reach at once. */
  async detachDatabase(app: string, databaseId: string): Promise<void> {
    await this.#transport.send(del(path(app, `/databases/${segment(databaseId, "database id")}`)));
  }

  /** Names of an app beside its own. */
  async domains(app: string): Promise<JsonObject[]> {
    return (await this.#transport.send(get(path(app, "/domains")))).records("domains");
  }

  /** Give an app another name. */
  async addDomain(app: string, domain: string): Promise<JsonObject> {
    return (await this.#transport.send(post(path(app, "/domains"), { domain }))).record();
  }

  /** Take a name away. */
  async removeDomain(app: string, domain: string): Promise<void> {
    await this.#transport.send(del(path(app, `/domains/${segment(domain, "domain")}`)));
  }

  /** One of an app's names beside its own. */
  async getDomain(app: string, domain: string): Promise<JsonObject> {
    return (await this.#transport.send(get(path(app, `/domains/${segment(domain, "domain")}`)))).record();
  }

  /** Set what the text of a `.env` file says. */
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

/** What is said of an app, and of its machines one by one. */
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
