// Apps with the TypeScript SDK: a local directory becomes an address. How they build and serve in depth is tests/e2e/python's job.
import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { NotFoundError, PandaStack } from "@pandastack/sdk";

const client = new PandaStack();
const origin = new URL(process.env.PANDASTACK_API);

/** A page of an app, by its name: `fetch` does not let one say for which host a request is. */
function page(app, path = "/") {
  const { hostname, port } = origin;
  return new Promise((resolve, reject) => {
    const asked = request({ hostname, port, path, headers: { host: `${app}.localhost` } }, async (answer) => {
      let text = "";
      for await (const chunk of answer) text += chunk;
      resolve([answer.statusCode, text]);
    });
    asked.on("error", reject);
    asked.end();
  });
}

test("a directory is deployed as an app, fetched and deleted", async (t) => {
  const name = `ts${process.pid}${Date.now().toString(36)}`;
  const directory = await mkdtemp(join(tmpdir(), "pandastack-e2e-app-"));
  t.after(() => rm(directory, { recursive: true }));
  await mkdir(join(directory, "node_modules"));
  await writeFile(join(directory, "index.html"), "grüße");
  await writeFile(join(directory, "node_modules/left.js"), "");
  const app = await client.apps.create({ name });
  t.after(() => client.apps.delete(app.id).catch((error) => assert.ok(error instanceof NotFoundError, error)));
  const begun = await client.apps.deploy(name, { directory, clearCache: true });
  assert.equal((await client.apps.waitForDeployment(name, begun.id)).trigger, "upload");
  assert.deepEqual(await page(name), [200, "grüße"]);
  assert.deepEqual((await page(name, "/node_modules/left.js"))[0], 404);
  const set = await client.apps.setEnv(name, "TOKEN", "s3cret", { secret: true, stage: "build" });
  assert.equal(set.stage, "build");
  const metrics = await client.apps.metrics(name);
  assert.equal(metrics.deploymentId, begun.id);
  assert.deepEqual(metrics.instances.map((one) => one.status), ["running"]);
  assert.ok(metrics.total.memory_bytes > 0);
  await client.apps.delete(app.id);
  await assert.rejects(client.apps.get(app.id), NotFoundError);
});
