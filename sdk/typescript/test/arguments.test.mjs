// Arguments of a wrong type are refused by name, and nothing is sent.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import * as sdk from "@pandastack/sdk";
import { setup } from "./setup.mjs";

const SDK = fileURLToPath(new URL("..", import.meta.url));

test("the table of signatures is up to date", () => {
  execFileSync(process.execPath, ["scripts/signatures.mjs", "--check"], { cwd: SDK });
});

const SANDBOX = [
  [(s) => s.exec(null), "exec: cmd must be a string or an array of strings, not null"],
  [(s) => s.exec(), "exec: cmd must be a string or an array of strings, not undefined"],
  [(s) => s.exec(["echo", 1]), "exec: cmd[1] must be a string, not number"],
  [(s) => s.exec("x", 5), "exec: options must be an object, not number"],
  [(s) => s.exec("x", { env: { PORT: 8080 } }), "exec: options.env.PORT must be a string, not number"],
  [(s) => s.exec("x", { timeoutSeconds: "5" }), "exec: options.timeoutSeconds must be a number, not string"],
  [(s) => s.exec("x", { timeoutSeconds: NaN }), "exec: options.timeoutSeconds must be a number, not NaN"],
  [(s) => s.exec("x", { signal: "now" }), "exec: options.signal must be an AbortSignal, not string"],
  [
    (s) => s.execStream("x", { onStdout: "log" }),
    "execStream: options.onStdout must be a function, not string",
  ],
  [(s) => s.start("x", { pty: 24 }), "start: options.pty must be an object with rows, cols, not number"],
  [(s) => s.start("x", { pty: { rows: 24 } }), "start: options.pty.cols must be a number, not undefined"],
  [(s) => s.process("7"), "process: id must be a number, not string"],
  [(s) => s.forkTree(8), "forkTree: options must be an object with count, not number"],
  [(s) => s.forkTree({ count: "8" }), "forkTree: options.count must be a number, not string"],
  [(s) => s.fork({ metadata: [] }), "fork: options.metadata must be an object, not an array"],
  [
    (s) => s.explore("make"),
    "explore: candidates must be an array of strings or objects with label, not string",
  ],
  [
    (s) => s.explore([{ label: "a", cmd: "b", score: NaN }]),
    "explore: candidates[0].score must be a number, not NaN",
  ],
  [(s) => s.setNetwork({ allow: "a" }), "setNetwork: network.allow must be an array of strings, not string"],
  [(s) => s.keepAwake(null), "keepAwake: seconds must be a number, not null"],
];
const FILES = [
  [
    (f) => f.write("/a", { a: 1 }),
    "write: content must be a string or an ArrayBuffer or a Uint8Array, not object",
  ],
  [(f) => f.write(5, "x"), "write: path must be a string, not number"],
  [(f) => f.read("/a", { length: "5" }), "read: options.length must be a number, not string"],
  [(f) => f.chmod("/a", "644"), "chmod: mode must be a number, not string"],
];
const CLIENT = [
  [(c) => c.sandboxes.create("base"), "create: options must be an object, not string"],
  [(c) => c.sandboxes.create({ cpu: "2" }), "create: options.cpu must be a number, not string"],
  [
    (c) => c.sandboxes.create({ volumes: [{}] }),
    "create: options.volumes[0].name must be a string, not undefined",
  ],
  [(c) => c.sandboxes.get(5), "get: id must be a string, not number"],
  [(c) => c.run(7), "run: cmd must be a string or an array of strings, not number"],
  [(c) => c.databases.query("d", "select $1", 1), "query: params must be an array, not number"],
  [(c) => c.databases.restore("d", 5), "restore: at must be a string or a Date, not number"],
  [(c) => c.volumes.create("data", "10"), "create: sizeMb must be a number, not string"],
  [(c) => c.apps.setEnv("a", "PORT", 80), "setEnv: value must be a string, not number"],
  [
    (c) => c.tokens.create("ci", { allowFrom: "*" }),
    "create: options.allowFrom must be an array of strings, not string",
  ],
];

async function refused(call, sentence) {
  await assert.rejects(async () => await call(), (error) => {
    assert.ok(error instanceof sdk.ArgumentTypeError && error instanceof sdk.BadRequestError, String(error));
    assert.equal(error.message.slice(error.message.indexOf(".") + 1), sentence);
    return true;
  });
}

test("arguments of a wrong type are named and rejected before a request", async (t) => {
  const { server, client, sandbox } = await setup(t);
  const made = await sandbox();
  const before = server.requests.length;
  for (const [call, sentence] of SANDBOX) await refused(() => call(made), sentence);
  for (const [call, sentence] of FILES) await refused(() => call(made.filesystem), sentence);
  for (const [call, sentence] of CLIENT) await refused(() => call(client), sentence);
  assert.equal(server.requests.length, before);
});

test("synchronous methods throw argument errors at once", async (t) => {
  const { sandbox } = await setup(t);
  const made = await sandbox();
  assert.throws(() => made.filesystem.watch(null), /watch: path must be a string, not null/);
  assert.throws(() => made.previewUrl("80"), /Sandbox.previewUrl: port must be a number, not string/);
  assert.throws(() => new sdk.PandaStack("http://a"), /PandaStack: options must be an object, not string/);
  assert.ok(made.exec(null).catch(() => undefined) instanceof Promise);
});

test("arguments allowed by the signatures pass", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", "/v1/sandboxes/s1/exec", 200, { exit_code: 0 });
  server.on("PUT", "/v1/sandboxes/s1/fs", 200, {});
  const made = await sandbox();
  const env = { A: "b", LEFT_OUT: undefined };
  for (const cmd of ["a", ["a", "b"]]) await made.exec(cmd, { env, cwd: undefined, limits: { cpu: 1 } });
  for (const content of ["a", Buffer.from("a"), new Uint8Array([97]), new Uint8Array([97]).buffer]) {
    await made.filesystem.write("/a", content);
    assert.equal(server.last.body.toString(), "a");
  }
  assert.equal(made.exec.name, "exec");
});

for (const [score, why] of [[NaN, /not NaN/], [undefined, /not undefined/], ["7", /not string/]]) {
  test(`a score of ${String(score)} fails its branch`, async (t) => {
    const { server, sandbox } = await setup(t);
    const record = { id: "s2", template: "base", cpu: 1, memory_mb: 512, status: "running" };
    server.on("POST", "/v1/sandboxes/s1/fork-tree", 201, { children: [record] });
    server.on("POST", "/v1/sandboxes/s2/exec", 200, { exit_code: 0 });
    server.on("DELETE", "/v1/sandboxes/s2", 204);
    const exploring = (await sandbox()).explore(["true"], { scoreFn: () => score, captureFiles: false });
    const error = await exploring.catch((caught) => caught);
    assert.ok(error instanceof sdk.ExploreError, String(error));
    assert.match(error.outcomes[0].error, why);
    assert.deepEqual([error.outcomes[0].ok, error.outcomes[0].score], [false, 0]);
  });
}
