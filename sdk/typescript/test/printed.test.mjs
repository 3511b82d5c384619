// Objects print what they are, and no secrets.
import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { setup } from "./setup.mjs";
import { KEY } from "./wire-server.mjs";

const SECRETS = {
  password: "hunter2",
  connection_url: "postgres://u:hunter2@h/d",
  pooled_url: "postgres://u:hunter2@p/d",
  broker_token: "hunter2-token",
};

function assertPrints(thing, text) {
  assert.deepEqual([inspect(thing), String(thing), `${thing}`], [text, text, text]);
}

test("printed handles show their id and state", async (t) => {
  const { server, client, sandbox } = await setup(t);
  const process = { id: 7, pid: 9, state: "running", command: `curl -H ${KEY}` };
  server.on("GET", "/v1/sandboxes/s1/processes/7", 200, process);
  server.on("GET", "/v1/sandboxes/s1/processes/7", 200, { ...process, state: "exited", exit_code: 3 });
  server.on("POST", "/v1/sandboxes/s1/repl/sessions", 201, { id: "c1", language: "python", cwd: "/" });
  assertPrints(client, `PandaStack { baseUrl: "${server.url}" }`);
  const made = await sandbox();
  assertPrints(made, 'Sandbox { id: "s1", status: "running", template: "base" }');
  const handle = await made.process(7);
  assertPrints(handle, 'Process { id: 7, state: "running" }');
  assertPrints(await handle.refresh(), 'Process { id: 7, state: "exited", exitCode: 3 }');
  assertPrints(await made.createCodeContext(), 'CodeContext { id: "c1", language: "python" }');
});

test("a printed stream shows its process", async (t) => {
  const { server, sandbox } = await setup(t);
  const headers = { "Content-Type": "text/event-stream", "X-PandaStack-Process": "7" };
  const chunks = ['event: exit\ndata: {"exit_code":0}\n\n'];
  server.on("POST", "/v1/sandboxes/s1/exec/stream", 200, undefined, { chunks, headers });
  const stream = await (await sandbox()).execStream("make");
  assertPrints(stream, "ExecStream { processId: 7 }");
  await stream.wait();
  assertPrints(stream, "ExecStream { processId: 7, exitCode: 0 }");
});

test("records contain passwords and keys but do not print them", async (t) => {
  const { server, client } = await setup(t);
  const record = { id: "d1", status: "running", label: "shop", ...SECRETS };
  server.on("GET", "/v1/databases/d1", 200, record);
  server.on("GET", "/v1/databases/d1/connection", 200, record);
  server.on("GET", "/v1/databases", 200, { items: [record] });
  server.on("POST", "/v1/me/tokens", 201, { prefix: "pds_ab", label: "ci", token: KEY });
  const { databases } = client;
  const [one, connection] = [await databases.get("d1"), await databases.connection("d1")];
  for (const database of [one, connection, ...(await databases.list())]) {
    const text = inspect([database]);
    assert.ok(!text.includes("hunter2") && text.includes("label: 'shop'"), text);
    assert.deepEqual(JSON.parse(JSON.stringify(database)), record);
    assert.deepEqual([database.password, database.connectionUrl], [SECRETS.password, SECRETS.connection_url]);
  }
  const token = await client.tokens.create("ci");
  assert.ok(token.token === KEY && !inspect(token).includes(KEY) && inspect(token).includes("pds_ab"));
});
