// Unmodified E2B clients of npm against a running server. Each test is named after the feature that it proves; the last
// one compares what passed with docs/reference/e2b-compatibility.md.
import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { after, before, test } from "node:test";

const api = process.env.PANDASTACK_API.replace(/\/+$/, "").replace(/\/v1$/, "");
Object.assign(process.env, { E2B_API_URL: api, E2B_SANDBOX_URL: api, E2B_API_KEY: process.env.PANDASTACK_API_KEY });
const e2b = await import("e2b");
const { ALL_TRAFFIC, Sandbox, Template, CommandExitError, NotFoundError, TimeoutError, FileType } = e2b;
const { Sandbox: CodeSandbox } = await import("@e2b/code-interpreter");

const TIMEOUT_MS = 600_000;
const metadata = { e2e: `e2b-ts-${process.pid}-${Date.now()}` };
const options = { timeoutMs: TIMEOUT_MS, metadata };
const passed = [];
let box;

/** A test that counts as proof of a feature. */
function feature(name, detail, body) {
  test(`e2b: ${name}: ${detail}`, async (t) => {
    await body(t);
    passed.push(`| \`${name}\` | ${detail} |`);
  });
}

async function waitFor(what, probe, ms = 60_000) {
  const deadline = Date.now() + ms;
  for (;;) {
    const found = await probe();
    if (found) return found;
    assert.ok(Date.now() < deadline, `not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

before(async () => {
  box = await Sandbox.create("base", { ...options, envs: { GLOBAL: "of the sandbox" } });
});

after(async () => {
  const pages = Sandbox.list({ query: { metadata } });
  while (pages.hasNext) for (const each of await pages.nextItems()) await Sandbox.kill(each.sandboxId);
});

feature("Sandbox.create, getInfo, isRunning, list, kill", "with metadata and paging", async () => {
  const info = await box.getInfo();
  assert.deepEqual([info.sandboxId, info.metadata, info.state], [box.sandboxId, metadata, "running"]);
  assert.equal(await box.isRunning(), true);
  const other = await Sandbox.create("base", options);
  const pages = Sandbox.list({ query: { metadata }, limit: 1 });
  const seen = [];
  while (pages.hasNext) seen.push(...(await pages.nextItems()).map((each) => each.sandboxId));
  assert.deepEqual(new Set(seen), new Set([box.sandboxId, other.sandboxId]));
  assert.equal(await other.kill(), true);
  assert.equal(await other.kill(), false);
  assert.equal(await other.isRunning(), false);
});

feature("pause, connect, setTimeout", "files are kept, and client objects keep working", async () => {
  const made = await Sandbox.create("base", options);
  await made.files.write("kept", "before");
  await made.pause();
  assert.equal((await made.getInfo()).state, "paused");
  assert.equal(await made.isRunning(), false);
  const again = await Sandbox.connect(made.sandboxId, { timeoutMs: TIMEOUT_MS });
  assert.equal(await again.files.read("kept"), "before");
  assert.equal(await made.files.read("kept"), "before");
  await again.setTimeout(1_200_000);
  const left = (await again.getInfo()).endAt.getTime() - Date.now();
  assert.ok(left > 1_100_000, String(left));
  await made.kill();
});

feature("commands.run", "output, exit code, user, cwd, envs, callbacks", async () => {
  let out = "";
  const ran = await box.commands.run("id -un; pwd; echo $GLOBAL $OWN; echo grüße >&2", { envs: { OWN: "x" }, onStdout: (text) => (out += text) });
  assert.deepEqual([ran.stdout, ran.stderr, ran.exitCode], ["user\n/home/user\nof the sandbox x\n", "grüße\n", 0]);
  assert.equal(out, ran.stdout);
  assert.equal((await box.commands.run("id -un; pwd", { user: "root", cwd: "/usr" })).stdout, "root\n/usr\n");
  await assert.rejects(box.commands.run("exit 7"), (error) => error instanceof CommandExitError && error.exitCode === 7);
  await assert.rejects(box.commands.run("sleep 321", { timeoutMs: 2000 }), TimeoutError);
});

feature("commands: background, list, connect, stdin, kill", "", async () => {
  const handle = await box.commands.run("cat; sleep 1000", { background: true, stdin: true, timeoutMs: 0 });
  assert.ok((await box.commands.list()).some((process) => process.pid === handle.pid));
  let heard = "";
  const other = await box.commands.connect(handle.pid, { onStdout: (text) => (heard += text), timeoutMs: 0 });
  await box.commands.sendStdin(handle.pid, "through stdin\n");
  await waitFor("the echo", () => heard === "through stdin\n");
  assert.equal(await other.kill(), true);
  await assert.rejects(handle.wait(), CommandExitError);
  assert.equal(await box.commands.kill(999_999), false);
});

feature("pty", "create, sendInput, resize", async () => {
  let seen = "";
  const handle = await box.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: (data) => (seen += new TextDecoder().decode(data)) });
  await box.pty.resize(handle.pid, { cols: 121, rows: 33 });
  await box.pty.sendInput(handle.pid, new TextEncoder().encode("stty size; exit 0\n"));
  await handle.wait();
  assert.match(seen, /33 121/);
});

feature("files", "write, read, list, getInfo, rename, makeDir, remove, exists", async () => {
  assert.equal((await box.files.write("js/a/text", "grüße")).path, "/home/user/js/a/text");
  assert.equal(await box.files.read("js/a/text"), "grüße");
  assert.deepEqual(await box.files.read("js/a/text", { format: "bytes" }), new TextEncoder().encode("grüße"));
  const info = await box.files.getInfo("js/a/text");
  assert.deepEqual([info.name, info.size, info.type, info.owner], ["text", 7, FileType.FILE, "user"]);
  assert.equal(await box.files.makeDir("js/b"), true);
  assert.equal(await box.files.makeDir("js/b"), false);
  await box.files.rename("js/a/text", "js/b/moved");
  assert.deepEqual((await box.files.list("js/b")).map((entry) => entry.name), ["moved"]);
  await box.files.remove("js");
  assert.equal(await box.files.exists("js"), false);
  await assert.rejects(box.files.read("js/b/moved"), NotFoundError);
  const large = new Uint8Array(3 << 20).fill(7);
  await box.files.write("large", large.buffer);
  assert.equal((await box.files.getInfo("large")).size, large.length);
});

feature("files.watchDir", "streamed", async () => {
  await box.files.makeDir("live");
  const names = [];
  const watch = await box.files.watchDir("live", (event) => names.push(event.name), { timeoutMs: 0 });
  await box.files.write("live/x", "1");
  await waitFor("the event", () => names.includes("x"));
  await watch.stop();
});

feature("uploadUrl, downloadUrl", "signed", async () => {
  await box.files.write("/home/user/signed", "content");
  const named = `&sandbox_id=${box.sandboxId}`;
  const url = (await box.downloadUrl("/home/user/signed", { useSignatureExpiration: 60 })) + named;
  assert.equal(await (await fetch(url)).text(), "content");
  const form = new FormData();
  form.append("file", new Blob(["uploaded"]), "ignored");
  assert.equal((await fetch((await box.uploadUrl("/home/user/by-url")) + named, { method: "POST", body: form })).status, 200);
  assert.equal(await box.files.read("by-url"), "uploaded");
});

feature("network rules", "allowInternetAccess, allowOut, denyOut; updateNetwork", async () => {
  const made = await Sandbox.create("base", { ...options, allowInternetAccess: false });
  assert.equal((await made.getInfo()).allowInternetAccess, false);
  await made.updateNetwork({ allowOut: ["*.example.com"], denyOut: [ALL_TRAFFIC] });
  assert.deepEqual((await made.getInfo()).network.allowOut, ["*.example.com"]);
  await made.kill();
});

feature("Template: build, exists, assignTags, getTags", "steps, files, logs", async () => {
  const name = `e2e-ts-${process.pid}`;
  const messages = [];
  const base = Template({ fileContextPath: import.meta.dirname }).fromTemplate("base");
  const steps = base.copy("package.json", "js/");
  try {
    const onBuildLogs = (entry) => messages.push(entry.message);
    const built = await Template.build(steps.runCmd("echo built > js/said"), name, { onBuildLogs });
    assert.ok(messages.includes("[2/2] RUN echo built > js/said"), messages.join("\n"));
    assert.equal(await Template.exists(name), true);
    assert.equal((await Template.assignTags(name, "v1")).buildId, built.buildId);
    assert.deepEqual((await Template.getTags(name)).map((tag) => tag.tag).sort(), ["default", "v1"]);
    const made = await Sandbox.create(`${name}:v1`, options);
    assert.equal(await made.files.read("js/said"), "built\n");
    assert.match(await made.files.read("js/package.json"), /pandastack-e2e/);
    await made.kill();
  } finally {
    const headers = { "X-API-Key": process.env.E2B_API_KEY };
    await fetch(`${api}/templates/${name}`, { method: "DELETE", headers });
  }
});

feature("code interpreter: runCode, contexts", "Python; state, results, errors", async () => {
  const code = await CodeSandbox.create(options);
  assert.equal((await code.runCode("x = 20\nx + 1")).text, "21");
  const ran = await code.runCode("print('grüße')\nx");
  assert.deepEqual([ran.logs.stdout.join(""), ran.text], ["grüße\n", "20"]);
  assert.equal((await code.runCode("1/0")).error.name, "ZeroDivisionError");
  const context = await code.createCodeContext({ cwd: "/tmp" });
  assert.equal((await code.runCode("import os; os.getcwd()", { context })).text, "/tmp");
  await code.kill();
});

test("e2b: the compatibility table is up to date", async () => {
  const document = new URL("../../../docs/reference/e2b-compatibility.md", import.meta.url);
  const text = await readFile(document, "utf8");
  const rows = ["| TypeScript client | tested |", "|---|---|", ...passed].join("\n");
  const wanted = `<!-- typescript: generated -->\n\n${rows}\n\n<!-- /typescript -->`;
  if (process.env.PANDASTACK_WRITE_DOCS) {
    return writeFile(document, text.replace(/<!-- typescript: generated -->[^]*<!-- \/typescript -->/, () => wanted));
  }
  assert.ok(text.includes(wanted), "docs/reference/e2b-compatibility.md is stale: run this test with PANDASTACK_WRITE_DOCS=1");
});
