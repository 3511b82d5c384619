// Calls of the services that no other test makes.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { collect, setup } from "./setup.mjs";

const FUNCTION = { id: "f1", name: "hello", entrypoint: "main.js", version: 1, is_ready: true };

test("functions.deploy packs a file or a directory and creates or updates the function", async (t) => {
  const { server, client } = await setup(t);
  const dir = await mkdtemp(join(tmpdir(), "pandastack-functions-"));
  t.after(() => rm(dir, { recursive: true }));
  await mkdir(join(dir, "app"));
  await writeFile(join(dir, "app/main.js"), "exports.handler = 1");
  server.on("GET", "/v1/functions", 200, { items: [] });
  server.on("GET", "/v1/functions", 200, { items: [FUNCTION] });
  server.on("POST", "/v1/functions", 200, FUNCTION);
  server.on("PATCH", "/v1/functions/hello", 200, FUNCTION);
  server.on("GET", "/v1/functions/hello", 200, FUNCTION);
  server.on("POST", "/v1/functions/hello/deploy", 200, FUNCTION);
  await client.functions.deploy("hello", join(dir, "app/main.js"), { runtime: "nodejs" });
  assert.equal(server.sent("POST", "/v1/functions")[0].json.entrypoint, "main.js");
  const names = (request) => execFileSync("tar", ["-tz"], { input: request.body }).toString();
  assert.equal(names(server.sent("POST", "/v1/functions/hello/deploy")[0]), "main.js\n");
  await client.functions.deploy("hello", join(dir, "app"), { entrypoint: "other.js" });
  assert.deepEqual(server.sent("PATCH", "/v1/functions/hello")[0].json, { entrypoint: "other.js" });
  assert.equal(names(server.sent("POST", "/v1/functions/hello/deploy")[1]), "main.js\n");
});

test("functions: versions, aliases, metrics, logs, queued runs", async (t) => {
  const { server, client } = await setup(t);
  server.on("GET", "/v1/functions/hello/versions", 200, { items: [{ version: 2, status: "ready" }] });
  server.on("PUT", "/v1/functions/hello/aliases/live", 200, FUNCTION);
  server.on("GET", "/v1/functions/hello/metrics", 200, { total: 3, p50_ms: 1 });
  server.on("GET", "/v1/functions/hello/runs/r1", 200, { id: "r1", status: "queued" });
  server.on("GET", "/v1/functions/hello/runs/r1", 200, { id: "r1", status: "success" });
  const body = 'event: stdout\ndata: {"text":"a"}\n\nevent: other\ndata: {}\n\n';
  server.on("GET", "/v1/functions/hello/logs", 200, body, { headers: { "Content-Type": "text/event-stream" } });
  assert.equal((await client.functions.versions("hello"))[0].version, 2);
  await client.functions.setAlias("hello", "live", 2, { version: 1, percent: 10 });
  assert.deepEqual(server.last.json, { version: 2, canary_percent: 10, canary_version: 1 });
  assert.equal((await client.functions.metrics("hello", 2)).p50Ms, 1);
  assert.deepEqual(server.last.query, { period: "2" });
  assert.equal((await client.functions.waitForRun("hello", "r1")).status, "success");
  assert.deepEqual(await collect(client.functions.followLogs("hello")), [{ stream: "stdout", text: "a" }]);
});

test("apps, databases, schedules, templates, the account", async (t) => {
  const { server, client } = await setup(t);
  server.on("GET", "/v1/apps/shop/domains/a.com", 200, { domain: "a.com" });
  server.on("POST", "/v1/apps/shop/env/import", 200, { imported: 1, total: 1 });
  server.on("GET", "/v1/databases/d1/stats", 200, { size_bytes: 5 });
  server.on("PATCH", "/v1/schedules/c1", 200, { id: "c1", name: "n", paused: true });
  server.on("GET", "/v1/templates/builds/b1", 200, { id: "b1", name: "t", status: "done" });
  server.on("GET", "/v1/usage", 200, { total: { creates: 1 }, sandboxes: [], truncated: false });
  server.on("GET", "/v1/audit", 200, { entries: [{ id: 1, path: "/v1/run" }] });
  assert.equal((await client.apps.getDomain("shop", "a.com")).domain, "a.com");
  server.on("PATCH", "/v1/apps/shop", 200, { id: "a1", instances: [{ sandbox_id: "s1", status: "running" }] });
  assert.equal((await client.apps.scale("shop", { maxInstances: 3 })).instances[0].sandboxId, "s1");
  assert.deepEqual(server.last.json, { max_instances: 3 });
  await client.apps.importEnv("shop", "A=1", { secret: true });
  assert.deepEqual(server.last.json, { dotenv: "A=1", secret: true });
  assert.equal((await client.databases.stats("d1")).sizeBytes, 5);
  await client.schedules.pause("c1");
  assert.deepEqual(server.last.json, { paused: true });
  await client.schedules.resume("c1");
  assert.deepEqual(server.last.json, { paused: false });
  assert.equal((await client.templates.getBuild("b1")).status, "done");
  assert.equal((await client.usage({ since: "2026-01-01T00:00:00Z" })).total.creates, 1);
  assert.deepEqual(server.last.query, { from: "2026-01-01T00:00:00Z" });
  server.on("PUT", "/v1/me/quota", 200, { quota: { memory_mb: 5 } });
  assert.equal((await client.setQuota({ memoryMb: 5 })).quota.memory_mb, 5);
  assert.deepEqual(server.last.json, { memory_mb: 5 });
  assert.equal((await client.audit({ sandboxId: "s1", limit: 5 }))[0].path, "/v1/run");
  assert.deepEqual(server.last.query, { sandbox_id: "s1", limit: "5" });
  server.on("GET", "/v1/outdated", 200, { items: [{ kind: "sandbox", id: "s1" }], complete: true });
  assert.equal((await client.outdated()).items[0].id, "s1");
  assert.deepEqual(server.last.query, {});
  await client.outdated({ all: true });
  assert.deepEqual(server.last.query, { all: "true" });
});

test("workspaces and their keys", async (t) => {
  const { server, client } = await setup(t);
  const shop = { id: "shop", state: "active", quota: { cpu: 4 }, used: { cpu: 0 }, suspend_reason: "x" };
  server.on("POST", "/v1/workspaces", 201, shop);
  server.on("GET", "/v1/workspaces", 200, { items: [shop] });
  server.on("POST", "/v1/workspaces/shop/suspend", 200, { ...shop, state: "suspended" });
  server.on("POST", "/v1/workspaces/shop/resume", 200, shop);
  server.on("PUT", "/v1/workspaces/shop/quota", 200, { quota: { cpu: 8 } });
  server.on("DELETE", "/v1/workspaces/shop", 204);
  server.on("POST", "/v1/workspaces/shop/tokens", 201, { token: "pds_s", prefix: "pds_a", role: "owner" });
  server.on("POST", "/v1/me/tokens/pds_a/rotate", 201, { token: "pds_t", prefix: "pds_b", replaces: "pds_a" });
  assert.equal((await client.workspaces.create("shop", { quota: { cpu: 4 } })).suspendReason, "x");
  assert.deepEqual(server.last.json, { id: "shop", quota: { cpu: 4 } });
  assert.equal((await client.workspaces.list())[0].id, "shop");
  assert.equal((await client.workspaces.suspend("shop", "unpaid")).state, "suspended");
  assert.deepEqual(server.last.json, { reason: "unpaid" });
  assert.equal((await client.workspaces.resume("shop")).state, "active");
  assert.equal((await client.workspaces.setQuota("shop", { cpu: 8 })).quota.cpu, 8);
  const made = await client.tokens.create("ci", { role: "owner", allowFrom: ["10.0.0.0/8"], workspace: "shop" });
  assert.deepEqual([made.role, made.token], ["owner", "pds_s"]);
  assert.deepEqual(server.last.json, { label: "ci", role: "owner", allow_from: ["10.0.0.0/8"] });
  assert.equal((await client.tokens.rotate("pds_a", { overlapSeconds: 0 })).replaces, "pds_a");
  assert.deepEqual(server.last.json, { overlap_seconds: 0 });
  await client.workspaces.delete("shop");
});

test("members and their sessions", async (t) => {
  const { server, client } = await setup(t);
  const ada = { id: "m1", email: "ada@example.com", role: "developer", last_sign_in_at: "x" };
  server.on("GET", "/v1/members", 200, { items: [ada] });
  server.on("POST", "/v1/members", 201, ada);
  server.on("PATCH", "/v1/members/m1", 200, { ...ada, role: "owner" });
  server.on("DELETE", "/v1/members/m1", 204);
  server.on("GET", "/v1/members/sessions", 200, { items: [{ id: "pds_a", member: "m1", client: "laptop" }] });
  server.on("DELETE", "/v1/members/sessions/pds_a", 204);
  server.on("GET", "/v1/login", 200, { provider: { name: "Example", url: "https://a/v1/login/start" } });
  assert.equal((await client.members.list())[0].lastSignInAt, "x");
  await client.members.add({ email: "ada@example.com", role: "viewer" });
  assert.deepEqual(server.last.json, { email: "ada@example.com", role: "viewer" });
  assert.equal((await client.members.setRole("m1", "owner")).role, "owner");
  assert.deepEqual([server.last.method, server.last.json], ["PATCH", { role: "owner" }]);
  assert.equal((await client.members.sessions())[0].client, "laptop");
  await client.members.revoke("pds_a");
  await client.members.remove("m1");
  assert.equal((await client.console.loginProvider()).name, "Example");
});

test("apps.deploy packs a directory without its dependencies", async (t) => {
  const { server, client } = await setup(t);
  const dir = await mkdtemp(join(tmpdir(), "pandastack-apps-"));
  t.after(() => rm(dir, { recursive: true }));
  await mkdir(join(dir, "lib/node_modules"), { recursive: true });
  for (const name of ["index.html", "lib/a.js", "lib/node_modules/b.js"]) await writeFile(join(dir, name), name);
  server.on("POST", "/v1/apps/shop/deploys", 202, { id: "d1", status: "queued" });
  assert.equal((await client.apps.deploy("shop", { directory: dir, clearCache: true })).id, "d1");
  const sent = server.sent("POST", "/v1/apps/shop/deploys")[0];
  assert.deepEqual([sent.headers["content-type"], sent.query], ["application/x-tar", { clear_cache: "1" }]);
  assert.deepEqual(execFileSync("tar", ["-t"], { input: sent.body }).toString().split("\n").sort(), ["", "index.html", "lib/", "lib/a.js"]);
  await client.apps.deploy("shop", { gitRef: "v1", clearCache: true });
  assert.deepEqual(server.last.json, { git_ref: "v1", clear_cache: true });
  await assert.rejects(client.apps.deploy("shop", { directory: join(dir, "index.html") }), /is not a directory/);
});

test("app metrics, variable stages and database logs", async (t) => {
  const { server, client } = await setup(t);
  const instances = [{ sandbox_id: "s1", status: "running", host: { memory_bytes: 7 } }];
  server.on("GET", "/v1/apps/shop/metrics", 200, { at: "now", deployment_id: "d1", total: { memory_bytes: 7 }, instances });
  server.on("PUT", "/v1/apps/shop/env/KEY", 200, { key: "KEY", stage: "build" });
  server.on("GET", "/v1/databases/d1/logs", 200, "LOG:  ready\n", { headers: { "Content-Type": "text/plain" } });
  const metrics = await client.apps.metrics("shop");
  assert.deepEqual([metrics.deploymentId, metrics.instances[0].sandboxId, metrics.total.memory_bytes], ["d1", "s1", 7]);
  await client.apps.setEnv("shop", "KEY", "v", { secret: true, stage: "build" });
  assert.deepEqual(server.last.json, { value: "v", secret: true, stage: "build" });
  server.on("POST", "/v1/apps/shop/keep-awake", 200, { awake_until: "2026-01-01T00:00:00Z" });
  assert.equal((await client.apps.keepAwake("shop", 90)).awakeUntil, "2026-01-01T00:00:00Z");
  assert.deepEqual(server.last.json, { seconds: 90 });
  assert.equal(await client.databases.logs("d1"), "LOG:  ready\n");
});

test("sandboxes are addressed by name", async (t) => {
  const { server, client } = await setup(t);
  const record = { id: "s1", template: "base", status: "running", name: "web" };
  server.on("POST", "/v1/sandboxes", 201, record);
  server.on("GET", "/v1/sandboxes/web", 200, record);
  assert.equal((await client.sandboxes.create({ template: "base", name: "web" })).name, "web");
  assert.deepEqual(server.last.json, { template: "base", name: "web" });
  const found = await client.sandboxes.get("web");
  assert.deepEqual([found.id, found.name], ["s1", "web"]);
});

test("databases are addressed by name and restored to the latest state", async (t) => {
  const { server, client } = await setup(t);
  server.on("POST", "/v1/databases", 201, { id: "d1", status: "running", name: "shop" });
  server.on("POST", "/v1/databases/shop/clone", 201, { id: "d2", status: "running", name: "copy" });
  assert.equal((await client.databases.create({ name: "shop" })).name, "shop");
  assert.deepEqual(server.last.json, { name: "shop" });
  await client.databases.branch("shop", { name: "copy" });
  assert.deepEqual(server.last.json, { name: "copy" });
  await client.databases.restore("shop", "latest", { name: "copy" });
  assert.deepEqual(server.last.json, { name: "copy", target_time: "latest" });
});

test("apps: previews of a repository", async (t) => {
  const { server, client } = await setup(t);
  server.on("GET", "/v1/preview-repos", 200, { repos: [{ github_repo_id: 7, enabled: true }] });
  server.on("POST", "/v1/preview-repos", 200, { github_repo_id: 7, enabled: true });
  server.on("DELETE", "/v1/preview-repos/7", 204);
  server.on("GET", "/v1/repos/7/preview-env", 200, { env: [{ key: "A", value: "1" }] });
  server.on("PUT", "/v1/repos/7/preview-env/A", 200, { key: "A", secret: true });
  server.on("DELETE", "/v1/repos/7/preview-env/A", 204);
  server.on("POST", "/v1/repos/7/preview-env/import", 200, { imported: 1, total: 1 });
  assert.equal((await client.apps.enablePreviewRepo(7, { repoFullName: "me/shop" })).enabled, true);
  assert.deepEqual(server.last.json, { github_repo_id: 7, repo_full_name: "me/shop" });
  assert.equal((await client.apps.previewRepos())[0].github_repo_id, 7);
  await client.apps.setPreviewEnv(7, "A", "v", { secret: true });
  assert.deepEqual(server.last.json, { value: "v", secret: true });
  assert.equal((await client.apps.importPreviewEnv(7, "A=1")).total, 1);
  assert.deepEqual(server.last.json, { dotenv: "A=1" });
  assert.equal((await client.apps.listPreviewEnv(7))[0].key, "A");
  await client.apps.unsetPreviewEnv(7, "A");
  assert.equal(server.last.path, "/v1/repos/7/preview-env/A");
  await client.apps.disablePreviewRepo(7);
  assert.equal(server.last.path, "/v1/preview-repos/7");
});

test("the reference is up to date", () => {
  execFileSync(process.execPath, ["scripts/reference.mjs", "--check"], { cwd: new URL("..", import.meta.url) });
});
