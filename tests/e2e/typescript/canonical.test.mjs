// The TypeScript SDK against a running server: the program of the front page exactly as written, and
// what the SDK does of its own. The server's behaviour in depth is tests/e2e/python's job.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { AuthError, BadRequestError, ExploreError, NotFoundError, PandaStack, SandboxTimeout } from "@pandastack/sdk";

for (const name of ["PANDASTACK_API", "PANDASTACK_API_KEY"]) {
  if (!process.env[name]) throw new Error(`${name} must name a running server: see tests/e2e/README.md`);
}

/** A first use of the template may have to bake it. */
const PROGRAM_MS_MAX = 1_200_000;
const metadata = { e2e: `ts-${process.pid}-${Date.now()}` };
const client = new PandaStack();
let shared;

before(async () => {
  shared = await client.sandboxes.create({ template: "base", metadata });
});

after(async () => {
  for (const sandbox of await client.sandboxes.list()) if (sandbox.metadata.e2e === metadata.e2e) await sandbox.delete();
});

test("the canonical program", { timeout: PROGRAM_MS_MAX }, async () => {
  const existing = new Set((await client.sandboxes.list()).map((sandbox) => sandbox.id));
  const made = async () => (await client.sandboxes.list()).filter((s) => !existing.has(s.id) && s.template === "code-interpreter");
  try {
    const program = fileURLToPath(new URL("./canonical.mjs", import.meta.url));
    const { stdout } = await promisify(execFile)(process.execPath, [program], { timeout: PROGRAM_MS_MAX });
    assert.equal(stdout, "1024\n\nhello from inside the VM\n");
    assert.deepEqual((await made()).map((sandbox) => sandbox.status), ["running", "running"]);
  } finally {
    for (const sandbox of await made()) await sandbox.delete();
  }
});

test("exec", async () => {
  const result = await shared.exec("echo out; echo err >&2; exit 3", { timeoutSeconds: 30 });
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ["out\n", "err\n", 3]);
  assert.equal((await shared.exec(["printf", "%s|", "a b", "it's"])).stdout, "a b|it's|");
  assert.equal((await shared.exec("echo $A; pwd", { env: { A: "1" }, cwd: "/usr" })).stdout, "1\n/usr\n");
  await assert.rejects(shared.exec("sleep 1234", { timeoutSeconds: 1 }), SandboxTimeout);
});

test("an aborted call kills its command unless killOnAbort is false", async () => {
  const left = "for i in $(seq 100); do pgrep -fx 'sleep 543[12]' || break; sleep 0.1; done";
  for (const seconds of [5431, 5432]) {
    const controller = new AbortController();
    const { signal } = controller;
    const command = `touch /run/begun; sleep ${seconds}`;
    const call = shared.exec(command, { signal, timeoutSeconds: seconds === 5431 ? 60 : 600 });
    const outcome = call.catch((error) => error);
    await shared.exec("until [ -e /run/begun ]; do sleep 0.05; done; rm /run/begun", { timeoutSeconds: 30 });
    controller.abort();
    assert.equal(await outcome, signal.reason);
    const look = await shared.exec(`${left}; pgrep -fxc 'sleep ${seconds}'`, { timeoutSeconds: 60 });
    assert.equal(look.stdout, "0\n");
  }
  const stop = new AbortController();
  const kept = await shared.execStream("echo begun; sleep 5433", { signal: stop.signal, killOnAbort: false });
  for await (const _ of kept) break;
  stop.abort();
  const runs = "until pgrep -fxc 'sleep 5433'; do sleep 0.1; done";
  const begun = await shared.exec(runs, { timeoutSeconds: 60 });
  assert.ok(begun.stdout.endsWith("1\n"), begun.stdout);
  await shared.exec("pkill -fx 'sleep 5433'");
});

test("execStream by iteration and by callbacks", async () => {
  const stream = await shared.execStream("echo grüße; echo two >&2; exit 4", { timeoutSeconds: 30 });
  const seen = { stdout: "", stderr: "" };
  for await (const chunk of stream) seen[chunk.stream] += chunk.text;
  assert.deepEqual([seen, stream.exitCode], [{ stdout: "grüße\n", stderr: "two\n" }, 4]);
  let out = "";
  assert.equal(await shared.execStream("seq 1000", { onStdout: (text) => (out += text) }), 0);
  assert.equal(out.split("\n").length, 1001);
});

test("a command with a long timeout is streamed", async () => {
  assert.equal((await shared.exec("echo long", { timeoutSeconds: 600 })).stdout, "long\n");
});

test("files", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "pandastack-e2e-"));
  t.after(() => rm(folder, { recursive: true }));
  const content = Buffer.alloc(3 << 20, "panda");
  await writeFile(join(folder, "in"), content);
  await shared.filesystem.upload(join(folder, "in"), "/srv/ts/large file");
  await shared.filesystem.download("/srv/ts/large file", join(folder, "out"));
  assert.ok((await readFile(join(folder, "out"))).equals(content));
  assert.deepEqual((await shared.filesystem.list("/srv/ts")).map((entry) => [entry.name, entry.isDir]), [["large file", false]]);
  await shared.filesystem.remove("/srv/ts");
  assert.equal(await shared.filesystem.exists("/srv/ts"), false);
});

test("fork, hibernate, wake, snapshot", async () => {
  const sandbox = await client.sandboxes.create({ template: "base", metadata });
  await sandbox.filesystem.write("/srv/state", "common");
  const branch = await sandbox.fork({ metadata });
  await branch.filesystem.write("/srv/state", "branch");
  assert.equal(await sandbox.filesystem.read("/srv/state"), "common");
  await sandbox.hibernate();
  assert.equal((await sandbox.refresh()).status, "hibernated");
  await sandbox.wake();
  assert.equal(await sandbox.filesystem.read("/srv/state"), "common");
  const snapshot = await sandbox.snapshot();
  const again = await client.sandboxes.create({ fromSnapshot: snapshot.id, metadata });
  assert.equal(await again.filesystem.read("/srv/state"), "common");
  for (const made of [again, branch, sandbox]) await made.delete();
  await client.snapshots.delete(snapshot.id);
});

test("run", async () => {
  const result = await client.run("echo $((6 * 7))", { template: "base", timeoutSeconds: 60 });
  assert.equal(result.stdout, "42\n");
  assert.ok(!(await client.sandboxes.list()).some((sandbox) => sandbox.id === result.sandboxId));
});

test("errors carry code and request id", async () => {
  await assert.rejects(client.sandboxes.get("00000000-0000-4000-8000-000000000000"), (error) => {
    assert.ok(error instanceof NotFoundError);
    assert.deepEqual([error.status, error.code, Boolean(error.requestId)], [404, "not_found", true]);
    return true;
  });
  await assert.rejects(client.sandboxes.create({ template: "base", ttlSeconds: 1e12 }), BadRequestError);
  await assert.rejects(new PandaStack({ apiKey: "pds_wrong" }).me(), AuthError);
});

test("file trees are listed, searched, copied and archived", async () => {
  const files = shared.filesystem;
  await files.write("/srv/ts tree/a/ü.txt", "one\ntwo\n", { mode: 0o600 });
  await files.write("/srv/ts tree/a/ü.txt", "three\n", { append: true });
  assert.equal(await files.read("/srv/ts tree/a/ü.txt", { offset: 4, length: 3 }), "two");
  assert.equal((await files.stat("/srv/ts tree/a/ü.txt")).permissions, 0o600);
  assert.equal((await files.chmod("/srv/ts tree/a/ü.txt", 0o644)).mode, "-rw-r--r--");
  assert.equal((await files.chown("/srv/ts tree/a/ü.txt", { user: "user" })).owner, "user");
  assert.deepEqual((await files.find("/srv/ts tree", { glob: "*.txt" })).map((entry) => entry.name), ["ü.txt"]);
  assert.equal((await files.list("/srv/ts tree", { recursive: true })).length, 2);
  assert.deepEqual(await files.grep("^t", "/srv/ts tree"), [
    { path: "/srv/ts tree/a/ü.txt", line: 2, text: "two" },
    { path: "/srv/ts tree/a/ü.txt", line: 3, text: "three" },
  ]);
  await files.copy("/srv/ts tree", "/srv/ts copy");
  await files.rename("/srv/ts copy", "/srv/ts moved/here", { makeParents: true });
  const dir = await mkdtemp(join(tmpdir(), "pandastack-"));
  try {
    await files.downloadArchive("/srv/ts moved", join(dir, "a.tar"));
    await files.uploadArchive(join(dir, "a.tar"), "/srv/ts again");
    await files.downloadDir("/srv/ts again", join(dir, "tree"));
    assert.equal(await readFile(join(dir, "tree/here/a/ü.txt"), "utf8"), "one\ntwo\nthree\n");
    await files.uploadDir(join(dir, "tree"), "/srv/ts by hand");
    assert.equal(await files.read("/srv/ts by hand/here/a/ü.txt"), "one\ntwo\nthree\n");
  } finally {
    await rm(dir, { recursive: true });
  }
  assert.equal(await files.read("/srv/ts again/here/a/ü.txt"), "one\ntwo\nthree\n");
  const url = await files.signedUrl("/srv/ts again/here/a/ü.txt", { expiresInSeconds: 60 });
  assert.equal(await (await fetch(url)).text(), "one\ntwo\nthree\n");
});

test("watch, metrics and resumed events", async () => {
  await shared.filesystem.mkdir("/srv/ts watched");
  let last;
  const wait = (kind, path) => (change) => change.kind === kind && change.path === path;
  const seen = wait("created", "/srv/ts watched/file");
  const watching = (async () => {
    for await (const change of shared.filesystem.watch("/srv/ts watched")) {
      last = change.id;
      if (seen(change)) return change;
    }
  })();
  // The watch begins at a time of its own; a file made again and again is seen sooner or later.
  let found;
  void watching.then((change) => (found = change));
  const deadline = Date.now() + 60_000;
  while (!found && Date.now() < deadline) await shared.exec("rm -f '/srv/ts watched/file'; touch '/srv/ts watched/file'");
  assert.equal((await watching).isDir, false);
  assert.match(last, /^\d+-\d+$/);
  const metrics = await shared.metrics();
  assert.equal(metrics.status, "running");
  assert.ok(metrics.host.memory_bytes > 0 && metrics.guest.memory_total_bytes > 0);
  const [first] = await shared.events();
  for await (const event of shared.followEvents({ after: first.id })) {
    assert.ok(event.id > first.id);
    break;
  }
});

test("explore keeps the best branch and deletes the others", async () => {
  const candidates = ["echo 1 > /srv/out", { label: "best", cmd: "echo 2 > /srv/out; echo 2" }, { label: "fn", fn: (copy) => copy.exec("true") }];
  const result = await shared.explore(candidates, { scoreFn: (_, outcome) => Number(outcome.stdoutTail || 1) });
  try {
    assert.equal(result.winnerOutcome.label, "best");
    assert.deepEqual(result.winnerOutcome.filesChanged, ["/srv/out"]);
    assert.deepEqual([result.reaped.length, result.errors], [2, []]);
    assert.equal((await result.winner.exec("cat /srv/out")).stdout, "2\n");
    assert.deepEqual(result.outcomes.map((outcome) => outcome.ok), [true, true, true]);
  } finally {
    await result.winner.delete();
  }
  await assert.rejects(shared.explore(["false"]), (error) => error instanceof ExploreError && error.outcomes[0].exitCode === 1);
});
