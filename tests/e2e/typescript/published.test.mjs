// The `@pandastack/sdk` of npm, unmodified, against a running server. It is installed under another name beside ours.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Client, NotFoundError, SandboxTimeout } from "published-sdk";

const metadata = { e2e: `published-ts-${process.pid}-${Date.now()}` };
const client = new Client();

after(async () => {
  for (const each of await client.sandboxes.list()) if (each.info.metadata?.e2e === metadata.e2e) await each.kill();
});

test("published: sandboxes, exec, files, lifecycle, copies", async () => {
  const box = await client.sandboxes.create({ metadata });
  assert.equal((await client.sandboxes.get(box.id)).status, "running");
  const ran = await box.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual([ran.stdout, ran.stderr, ran.exitCode ?? ran.exit_code], ["out\n", "err\n", 3]);
  await assert.rejects(box.exec("sleep 1000", { timeoutSeconds: 1 }), SandboxTimeout);
  await box.filesystem.write("/srv/a", "grüße");
  assert.equal(await box.filesystem.read("/srv/a"), "grüße");
  const context = await box.createCodeContext();
  await context.runCode("x = 41");
  assert.deepEqual([(await context.runCode("x + 1")).text, (await context.runCode("1/0")).exit_code], ["42", 1]);
  await context.close();
  await box.hibernate();
  assert.equal((await client.sandboxes.get(box.id)).status, "hibernated");
  assert.equal((await box.exec("cat /srv/a")).stdout, "grüße");
  const fork = await box.fork();
  assert.equal((await fork.exec("cat /srv/a")).stdout, "grüße");
  const tree = await box.forkTree({ count: 2 });
  assert.equal(tree.length, 2);
  for (const each of [fork, ...tree, box]) await each.kill();
  await assert.rejects(client.sandboxes.get(box.id), NotFoundError);
});

test("published: templates and keys", async () => {
  assert.ok((await client.templates.list()).some((template) => template.name === "base"));
  assert.ok(Array.isArray(await client.tokens.list()));
});

// Their source comes from a repository; deploying one with a published client is tests/e2e/python's job.
test("published: apps", async () => {
  const name = `published${process.pid}${Date.now().toString(36)}`;
  const made = await client.apps.create({ name, git_url: "https://git.example/a.git", env: { MODE: "fast" } });
  try {
    assert.deepEqual([made.name, made.status, made.env], [name, "created", { MODE: "fast" }]);
    assert.ok((await client.apps.list()).some((app) => app.id === made.id));
    await client.apps.setEnv(made.id, "TOKEN", "s3cret", { secret: true });
    assert.equal((await client.apps.update(made.id, { env: { MODE: "slow" }, port: 9000 })).port, 9000);
    const known = Object.fromEntries((await client.apps.listEnv(made.id)).map((one) => [one.key, one.value]));
    assert.equal(known.MODE, "slow");
    assert.notEqual(known.TOKEN, "s3cret");
    assert.deepEqual(await client.apps.deployments(made.id), []);
  } finally {
    await client.apps.delete(made.id);
  }
  await assert.rejects(client.apps.get(made.id), NotFoundError);
});

test("published: previews of a repository", async () => {
  const repo = process.pid * 1_000_000 + (Date.now() % 1_000_000);
  const enabled = await client.apps.enablePreviewRepo(repo, { repoFullName: `published/repo${repo}` });
  try {
    assert.deepEqual([enabled.github_repo_id, enabled.enabled], [repo, true]);
    const listed = (await client.apps.previewRepos()).find((one) => one.github_repo_id === repo);
    assert.deepEqual([listed.repo_full_name, listed.enabled], [`published/repo${repo}`, true]);
    assert.equal((await client.apps.setPreviewEnv(repo, "TOKEN", "s3cret", { secret: true })).secret, true);
    assert.deepEqual(await client.apps.importPreviewEnv(repo, "A=1\nB=2\n"), { imported: 2, total: 3 });
    const known = Object.fromEntries((await client.apps.listPreviewEnv(repo)).map((one) => [one.key, one.value]));
    assert.deepEqual([Object.keys(known), known.A], [["A", "B", "TOKEN"], "1"]);
    assert.notEqual(known.TOKEN, "s3cret");
    for (const key of Object.keys(known)) await client.apps.unsetPreviewEnv(repo, key);
    assert.deepEqual(await client.apps.listPreviewEnv(repo), []);
  } finally {
    await client.apps.disablePreviewRepo(repo);
  }
  await assert.rejects(client.apps.disablePreviewRepo(repo), NotFoundError);
});

test("published: volumes", async () => {
  const name = `published-${process.pid}`;
  const made = await client.volumes.create({ name, size_mb: 64 });
  try {
    assert.ok((await client.volumes.list()).some((volume) => volume.name === made.name));
  } finally {
    await client.volumes.delete(name);
  }
});
