// Requests and responses, call by call.
import assert from "node:assert/strict";
import { mkdtemp, readdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { gunzipSync } from "node:zlib";
import * as sdk from "@pandastack/sdk";
import { collect, setup } from "./setup.mjs";
import { KEY, SANDBOX } from "./wire-server.mjs";

test("create sends only the given options", async (t) => {
  const { server, client } = await setup(t);
  server.on("POST", "/v1/sandboxes", 201, SANDBOX);
  const sandbox = await client.sandboxes.create({ template: "code-interpreter", ttlSeconds: 600, metadata: { task: "x" } });
  assert.deepEqual(server.last.json, { template: "code-interpreter", ttl_seconds: 600, metadata: { task: "x" } });
  assert.equal(server.last.headers.authorization, `Bearer ${KEY}`);
  assert.ok(server.last.headers["idempotency-key"].length >= 16);
  assert.deepEqual([sandbox.id, sandbox.status, sandbox.bootMs, sandbox.isolation], ["s1", "running", 7, "emulated"]);
  assert.deepEqual(sandbox.info.field_of_the_future, [1]);
  await client.sandboxes.create({ from_snapshot: "sn", volumes: [{ name: "v", readOnly: true }] });
  assert.deepEqual(server.last.json, { template: "ubuntu-24.04", from_snapshot: "sn", volumes: [{ name: "v", read_only: true }] });
});

test("list responses may be bare or wrapped", async (t) => {
  const { server, client } = await setup(t);
  server.on("GET", "/v1/sandboxes", 200, [SANDBOX]);
  server.on("GET", "/v1/sandboxes", 200, { items: [SANDBOX] });
  for (let i = 0; i < 2; i++) assert.deepEqual((await client.sandboxes.list()).map((s) => s.id), ["s1"]);
});

test("exec", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", "/v1/sandboxes/s1/exec", 200, { stdout: "1024\n", stderr: "", exit_code: 0, duration_ms: 9 });
  const result = await (await sandbox()).exec("python -c 'print(2 ** 10)'", { timeoutSeconds: 30 });
  assert.deepEqual(server.last.json, { cmd: "python -c 'print(2 ** 10)'", timeout_seconds: 30 });
  assert.deepEqual([result.stdout, result.exit_code, result.exitCode, result.durationMs], ["1024\n", 0, 0, 9]);
  assert.ok(!("exitCode" in JSON.parse(JSON.stringify(result))));
});

test("exec sends options, checks the exit code and rejects invalid arguments", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", "/v1/sandboxes/s1/exec", 200, { stdout: "", stderr: "no", exit_code: 3 });
  const made = await sandbox();
  await made.exec(["echo", "it's", "a b"], { timeoutSeconds: 1.2, cwd: "/srv", env: { A: "1" }, user: "user" });
  assert.deepEqual(server.last.json, { cmd: `echo 'it'"'"'s' 'a b'`, timeout_seconds: 2, cwd: "/srv", env: { A: "1" }, user: "user" });
  await assert.rejects(made.exec("false", { check: true }), (e) => e instanceof sdk.CommandError && e.exitCode === 3 && e.stderr === "no");
  const sent = server.requests.length;
  for (const [cmd, timeoutSeconds] of [["", 1], [[], 1], ["true", 0], ["true", -1], ["true", Number.NaN]]) {
    await assert.rejects(made.exec(cmd, { timeoutSeconds }), sdk.BadRequestError);
  }
  assert.equal(server.requests.length, sent);
});

test("an exec response without an exit code is an error", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", "/v1/sandboxes/s1/exec", 200, { stdout: "x" });
  await assert.rejects((await sandbox()).exec("true"), /exit_code/);
});

test("a command with a long timeout is streamed", async (t) => {
  const { server, sandbox } = await setup(t);
  const body = 'event: stdout\ndata: {"chunk":"a"}\n\nevent: stderr\ndata: {"chunk":"b"}\n\nevent: exit\ndata: {"exit_code":4}\n\n';
  server.on("POST", "/v1/sandboxes/s1/exec/stream", 200, body, { headers: { "Content-Type": "text/event-stream" } });
  const result = await (await sandbox()).exec("make", { timeoutSeconds: 1000 });
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ["a", "b", 4]);
});

test("run and runCode", async (t) => {
  const { server, client, sandbox } = await setup(t);
  server.on("POST", "/v1/run", 200, { stdout: "ok", stderr: "", exit_code: 0, sandbox_id: "gone" });
  server.on("POST", "/v1/sandboxes/s1/exec", 200, { stdout: "", stderr: "", exit_code: 0 });
  const result = await client.run("echo ok", { template: "base", timeoutSeconds: 5 });
  assert.deepEqual([result.stdout, result.sandboxId], ["ok", "gone"]);
  assert.deepEqual(server.last.json, { cmd: "echo ok", timeout_seconds: 5, template: "base" });
  await (await sandbox()).runCode("print(1)");
  assert.equal(server.last.json.cmd, "python3 -c 'print(1)'");
  await assert.rejects((await sandbox()).runCode("x", "cobol"), sdk.BadRequestError);
});

test("files", async (t) => {
  const { server, sandbox } = await setup(t);
  const { filesystem } = await sandbox();
  server.on("GET", "/v1/sandboxes/s1/fs", 200, Buffer.from("grüße"));
  server.on("PUT", "/v1/sandboxes/s1/fs", 200, { path: "/x", bytes: 3 });
  assert.equal(await filesystem.read("/a b&c.txt"), "grüße");
  assert.deepEqual(server.last.query, { path: "/a b&c.txt" });
  assert.deepEqual(Buffer.from(await filesystem.readBytes("/x")), Buffer.from("grüße"));
  assert.deepEqual(await filesystem.write("/x", "grü"), { path: "/x", bytes: 3 });
  assert.equal(server.last.body.toString(), "grü");
  assert.equal(server.last.headers["content-type"], "application/octet-stream");
  await filesystem.write("/x", new Uint8Array([0, 255]));
  assert.deepEqual([...server.last.body], [0, 255]);
  for (const path of ["", "relative"]) await assert.rejects(filesystem.read(path), /absolute/);
});

test("directories", async (t) => {
  const { server, sandbox } = await setup(t);
  const { filesystem } = await sandbox();
  server.on("GET", "/v1/sandboxes/s1/fs/dir", 200, { entries: [{ name: "d", is_dir: true }, { name: "f", is_dir: false, size: 3 }] });
  server.on("GET", "/v1/sandboxes/s1/fs/dir", 200, { entries: null });
  server.on("GET", "/v1/sandboxes/s1/fs/stat", 404, { error: "no such file", code: "file_not_found" });
  server.on("GET", "/v1/sandboxes/s1/fs/stat", 404, { error: "no such sandbox", code: "not_found" });
  server.on("POST", "/v1/sandboxes/s1/fs/mkdir", 204);
  server.on("POST", "/v1/sandboxes/s1/fs/rename", 204);
  server.on("DELETE", "/v1/sandboxes/s1/fs", 204);
  const walked = await collect(filesystem.walk("/"));
  assert.deepEqual(walked.map(({ dir, dirs, files }) => [dir, dirs.map((d) => d.path), files.map((f) => f.path)]), [["/", ["/d"], ["/f"]], ["/d", [], []]]);
  assert.equal(walked[0].dirs[0].isDir, true);
  assert.equal(await filesystem.exists("/x"), false);
  await assert.rejects(filesystem.exists("/x"), sdk.NotFoundError);
  await filesystem.mkdir("/d");
  assert.deepEqual(server.last.query, { path: "/d" });
  await filesystem.rename("/d", "/e");
  assert.deepEqual(server.last.json, { from: "/d", to: "/e" });
  await filesystem.remove("/e");
  assert.deepEqual(server.last.query, { path: "/e" });
});

test("upload and download", async (t) => {
  const { server, sandbox } = await setup(t);
  const { filesystem } = await sandbox();
  const folder = await mkdtemp(join(tmpdir(), "pandastack-sdk-"));
  t.after(() => import("node:fs/promises").then((fs) => fs.rm(folder, { recursive: true })));
  const content = Buffer.alloc(1 << 20, "panda");
  await writeFile(join(folder, "in"), content);
  server.on("PUT", "/v1/sandboxes/s1/fs", 200, { path: "/x", bytes: content.length });
  server.on("GET", "/v1/sandboxes/s1/fs", 200, content);
  server.on("GET", "/v1/sandboxes/s1/fs", 200, undefined, { chunks: ["half"], drop: true });
  await filesystem.upload(join(folder, "in"), "/x");
  assert.ok(server.last.body.equals(content));
  const steps = [];
  await filesystem.download("/x", join(folder, "out"), { onProgress: (done) => steps.push(done) });
  assert.ok((await readFile(join(folder, "out"))).equals(content));
  assert.equal(steps.at(-1), content.length);
  await assert.rejects(filesystem.download("/x", join(folder, "broken")), sdk.NetworkError);
  assert.deepEqual((await readdir(folder)).sort(), ["in", "out"]);
});

test("forks", async (t) => {
  const { server, sandbox } = await setup(t);
  const child = { ...SANDBOX, id: "c1" };
  for (const body of [child, { sandbox: child }, { children: [child] }, { children: ["c1"] }]) server.on("POST", "/v1/sandboxes/s1/fork", 201, body);
  for (const body of [[child], { children: [child] }, { items: [child] }, { sandboxes: [child] }]) server.on("POST", "/v1/sandboxes/s1/fork-tree", 201, body);
  server.on("POST", "/v1/sandboxes/s1/promote", 200, { winner: "s1", tree_id: "t", deleted: ["c2"] });
  const made = await sandbox();
  for (let i = 0; i < 4; i++) assert.equal((await made.fork()).id, "c1");
  assert.equal(server.last.body.length, 0);
  await made.fork({ metadata: { why: "x" } });
  assert.deepEqual(server.last.json, { metadata: { why: "x" } });
  for (let i = 0; i < 4; i++) assert.deepEqual((await made.forkTree({ count: 1 })).map((s) => s.id), ["c1"]);
  assert.deepEqual(server.last.json, { count: 1 });
  for (const count of [0, -1, 1.5]) await assert.rejects(made.forkTree({ count }), sdk.BadRequestError);
  const result = await made.promote({ cleanupSiblings: true });
  assert.deepEqual([result.deleted, result.failures, result.treeId], [["c2"], {}, "t"]);
});

test("snapshots, lifecycle, ports", async (t) => {
  const { server, client, sandbox } = await setup(t);
  server.on("POST", "/v1/sandboxes/s1/snapshots", 201, { snapshot_id: "sn", sandbox_id: "s1" });
  server.on("GET", "/v1/snapshots", 200, { snapshots: [{ id: "sn", size_bytes: 5 }] });
  server.on("DELETE", "/v1/snapshots/sn", 204);
  server.on("POST", "/v1/sandboxes/s1/hibernate", 200, { status: "hibernated" });
  server.on("POST", "/v1/sandboxes/s1/wake", 200, { status: "running" });
  server.on("POST", "/v1/sandboxes/s1/pause", 204);
  server.on("POST", "/v1/sandboxes/s1/resume", 204);
  server.on("PATCH", "/v1/sandboxes/s1/lifecycle", 200, { ttl_seconds: 60, persistent: false, idle_seconds: 0 });
  server.on("GET", "/v1/sandboxes/s1/ports", 200, { ports: [80, { port: 8000, label: "web" }, "junk", null] });
  const made = await sandbox();
  assert.equal((await made.snapshot()).id, "sn");
  assert.equal((await client.snapshots.list({ sandboxId: "s1" }))[0].sizeBytes, 5);
  assert.deepEqual(server.last.query, { sandbox_id: "s1" });
  await client.snapshots.delete("sn");
  const seen = [];
  for (const move of ["hibernate", "wake", "pause", "resume"]) seen.push((await made[move](), made.status));
  assert.deepEqual(seen, ["hibernated", "running", "paused", "running"]);
  assert.equal((await made.setTtl(60)).ttlSeconds, 60);
  assert.deepEqual(server.last.json, { ttl_seconds: 60 });
  await made.setLifecycle({ persistent: true, onTimeout: "hibernate" });
  assert.deepEqual(server.last.json, { persistent: true, on_timeout: "hibernate" });
  assert.equal(made.persistent, true);
  assert.deepEqual((await made.ports()).map((p) => p.port), [80, 8000]);
  const port = new URL(server.url).port;
  assert.equal((await made.previewUrls())[80], `http://80-s1.localhost:${port}`);
  assert.throws(() => made.previewUrl(0), sdk.BadRequestError);
});

test("a build sends its steps", async (t) => {
  const { server, client } = await setup(t);
  server.on("POST", "/v1/templates/builds", 202, { id: "b1", name: "t", status: "queued" });
  const steps = [
    { run: { command: "make", noCache: true } },
    { copy: { sources: ["a"], dest: "/b", owner: "app" } },
    { env: { noCache: "kept" } },
  ];
  await client.templates.build("t", { dockerfile: "FROM base", steps, tags: ["v1"], keepLatest: true });
  const sent = [{ run: { command: "make", no_cache: true } }, steps[1], steps[2]];
  const start = { dockerfile: "FROM base", steps: sent };
  assert.deepEqual(server.last.json, { name: "t", tags: ["v1"], keep_latest: true, start });
});

test("a template is rebuilt, and a build keeps what that needs", async (t) => {
  const { server, client } = await setup(t);
  server.on("POST", "/v1/templates/builds", 202, { id: "b1", name: "t", status: "queued" });
  const rebuilt = { id: "b2", name: "t", status: "queued", rebuild_of: "b1" };
  server.on("POST", "/v1/templates/t%3Av1/rebuild", 202, rebuilt);
  const login = { registry: "1.dkr.ecr.test", username: "k", password: "s", awsRegion: "eu-central-1" };
  await client.templates.build("t", { dockerfile: "FROM base", registries: [login], keepInputs: true });
  const { awsRegion, ...others } = login;
  const start = { dockerfile: "FROM base", registries: [{ ...others, aws_region: awsRegion }] };
  assert.deepEqual(server.last.json, { name: "t", keep_inputs: true, start });
  assert.equal((await client.templates.rebuild("t:v1")).rebuildOf, "b1");
});

test("a recipe is sent as base and steps", async (t) => {
  const { server, client } = await setup(t);
  server.on("POST", "/v1/templates/builds", 202, { id: "b1", name: "t", status: "queued" });
  const common = new sdk.TemplateRecipe("python:3.12").env({ A: "1" }).workdir("/app");
  const copied = common.copy(["a"], ".", { mode: "755" });
  const whole = copied.run("make", { user: "root", noCache: true }).user("app");
  await client.templates.build("t", { recipe: whole.start("python app.py", { ready: { port: 80 } }) });
  const steps = [
    { env: { A: "1" } },
    { workdir: "/app" },
    { copy: { mode: "755", sources: ["a"], dest: "." } },
    { run: { user: "root", command: "make", no_cache: true } },
    { user: "app" },
  ];
  const started = { start_command: "python app.py", ready: { port: 80 } };
  const start = { dockerfile: "FROM python:3.12\n", steps, ...started };
  assert.deepEqual(server.last.json, { name: "t", start });
  assert.deepEqual(common.steps, steps.slice(0, 2), "unchanged");
  const both = client.templates.build("t", { recipe: common, dockerfile: "FROM base" });
  await assert.rejects(both, /a recipe has its own/);
  for (const base of ["", "a b", "base\nRUN x"]) {
    assert.throws(() => new sdk.TemplateRecipe(base), sdk.BadRequestError);
  }
  assert.equal(server.requests.length, 1);
});

test("templates, tokens, me, logs, events", async (t) => {
  const { server, client, sandbox } = await setup(t);
  server.on("GET", "/v1/templates", 200, [{ name: "base", memory_mb: 512 }]);
  server.on("GET", "/v1/me/tokens", 200, [{ prefix: "pds_abcd", label: "ci" }]);
  server.on("POST", "/v1/me/tokens", 200, { token: "pds_secret", prefix: "pds_secr" });
  server.on("DELETE", "/v1/me/tokens/pds_secr", 204);
  server.on("GET", "/v1/me", 200, { email: "a@b" });
  server.on("GET", "/v1/sandboxes/s1/logs", 200, "one\ntwo\n");
  server.on("GET", "/v1/sandboxes/s1/logs", 200, undefined, { chunks: ['data: {"line":"a"}\n\n', ": ping\n\n", 'data: {"chunk":"b\\n"}\n\ndata: raw\n\n'] });
  server.on("GET", "/v1/sandboxes/s1/events", 200, { events: [{ kind: "created" }] });
  server.on("GET", "/v1/templates/builds/b1/logs", 200, "data: one\n\nevent: done\ndata: end\n\ndata: never\n\n");
  server.on("GET", "/v1/templates/builds/b1", 200, { id: "b1", name: "t", status: "failed", error: "no space" });
  assert.equal((await client.templates.list())[0].memoryMb, 512);
  assert.equal((await client.tokens.list())[0].label, "ci");
  assert.equal((await client.tokens.create("x", { expiresInDays: 3 })).token, "pds_secret");
  assert.deepEqual(server.last.json, { label: "x", expires_in_days: 3 });
  await client.tokens.revoke("pds_secr");
  assert.deepEqual(await client.me(), { email: "a@b" });
  const made = await sandbox();
  assert.deepEqual(await collect(made.logs()), ["one", "two"]);
  assert.deepEqual(await collect(made.logs({ follow: true })), ["a", "b", "raw"]);
  assert.deepEqual(await made.events({ tail: 1 }), [{ kind: "created" }]);
  assert.deepEqual(await collect(client.templates.buildLogs("b1")), ["one"]);
  await assert.rejects(client.templates.waitForBuild("b1"), /no space/);
});

test("ids cannot escape their path segment", async (t) => {
  const { server, client } = await setup(t);
  await assert.rejects(client.sandboxes.get("../me"), sdk.NotFoundError);
  assert.equal(server.last.path, "/v1/sandboxes/..%2Fme");
  for (const id of ["", ".", ".."]) await assert.rejects(client.sandboxes.delete(id), sdk.BadRequestError);
  assert.equal(server.requests.length, 1);
});

test("disposal deletes a sandbox and ignores one that is already deleted", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("DELETE", "/v1/sandboxes/s1", 204);
  server.on("DELETE", "/v1/sandboxes/s1", 404, { error: "gone" });
  const dispose = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
  const first = await sandbox();
  await first[dispose]();
  await first[dispose]();
  await (await sandbox())[dispose]();
  assert.equal(first.status, "deleted");
  assert.equal(server.sent("DELETE", "/v1/sandboxes/s1").length, 2);
});

test("the CommonJS build exports the same names", () => {
  const require = createRequire(import.meta.url);
  const cjs = require("@pandastack/sdk");
  assert.deepEqual(Object.keys(cjs).sort(), Object.keys(sdk).sort());
  assert.equal(sdk.Client, sdk.PandaStack);
  assert.equal(sdk.VERSION, require("@pandastack/sdk/package.json").version);
});

test("network policies", async (t) => {
  const { server, client, sandbox } = await setup(t);
  server.on("GET", "/v1/sandboxes/s1/network", 200, { egress: "all" });
  server.on("PUT", "/v1/sandboxes/s1/network", 200, { egress: "none", allow: ["*.a.test"] });
  const made = await sandbox();
  assert.deepEqual(await made.network(), { egress: "all" });
  assert.equal((await made.setNetwork({ allow: ["*.a.test"] })).egress, "none");
  assert.deepEqual(server.last.json, { allow: ["*.a.test"] });
  await made.setNetwork("none");
  assert.deepEqual(server.last.json, { egress: "none" });
  server.on("POST", "/v1/sandboxes", 201, SANDBOX);
  await client.sandboxes.create({ network: "none", visibility: "private" });
  assert.deepEqual([server.last.json.network, server.last.json.visibility], [{ egress: "none" }, "private"]);
});

test("workspace defaults for new sandboxes", async (t) => {
  const { server, client } = await setup(t);
  const answer = { id: "default", default_visibility: "private" };
  server.on("GET", "/v1/me/workspace", 200, answer);
  server.on("PATCH", "/v1/me/workspace", 200, answer);
  assert.deepEqual(await client.workspace(), answer);
  assert.deepEqual(await client.setWorkspace({ defaultVisibility: "private" }), answer);
  assert.deepEqual(server.last.json, { default_visibility: "private" });
});

test("rollback, lineage, leases", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", "/v1/sandboxes/s1/rollback", 200, { ...SANDBOX, status: "running" });
  server.on("GET", "/v1/sandboxes/s1/lineage", 200, { id: "s1", ancestors: ["p"], children: [], siblings: [] });
  server.on("POST", "/v1/sandboxes/s1/keep-awake", 200, { ttl_seconds: 1, persistent: false, idle_seconds: 0 });
  server.on("POST", "/v1/sandboxes/s1/hibernate", 200, { status: "hibernated" });
  server.on("POST", "/v1/sandboxes/s1/snapshots", 201, { id: "sn" });
  const made = await sandbox();
  await made.hibernate({ keep: "disk" });
  assert.deepEqual(server.last.json, { keep: "disk" });
  assert.equal(await made.rollback("sn"), made);
  assert.deepEqual([server.last.json, made.status], [{ snapshot_id: "sn" }, "running"]);
  assert.deepEqual((await made.lineage()).ancestors, ["p"]);
  await made.keepAwake(60);
  assert.deepEqual(server.last.json, { seconds: 60 });
  await made.snapshot({ name: "n", replaceName: true, ttlSeconds: 5, keepLast: 2 });
  assert.deepEqual(server.last.json, { name: "n", replace_name: true, ttl_seconds: 5, keep_last: 2 });
});

test("a function's directory is packed, and dead letters are redriven", async (t) => {
  const { server, client } = await setup(t);
  const ready = { id: "f1", name: "hello", version: 1, is_ready: true, deploy_status: "ready" };
  server.on("GET", "/v1/functions", 200, { items: [ready] });
  server.on("GET", "/v1/functions/hello", 200, ready);
  server.on("POST", "/v1/functions/hello/deploy", 200, ready);
  server.on("GET", "/v1/functions/hello/runs", 200, { items: [{ id: "r1", dead_letter: true }] });
  server.on("POST", "/v1/functions/hello/redrive", 202, { redriven: 3, left: 0 });
  const directory = await mkdtemp(join(tmpdir(), "function-"));
  await writeFile(join(directory, "index.mjs"), "export default () => 1;");
  assert.equal((await client.functions.deploy("hello", directory)).version, 1);
  const [sent] = server.sent("POST", "/v1/functions/hello/deploy");
  const archive = gunzipSync(sent.body);
  assert.equal(archive.subarray(0, 9).toString(), "index.mjs");
  assert.equal(archive.subarray(512, 535).toString(), "export default () => 1;");
  await writeFile(join(directory, "made.zip"), "as it is");
  await client.functions.deploy("hello", join(directory, "made.zip"));
  assert.equal(server.sent("POST", "/v1/functions/hello/deploy")[1].body.toString(), "as it is");
  assert.deepEqual((await client.functions.deadLetters("hello")).map((run) => run.id), ["r1"]);
  assert.equal(await client.functions.redrive("hello"), 3);
});
