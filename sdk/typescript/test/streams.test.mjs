// Event streams: the parser on its own, then streamed commands.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as sdk from "@pandastack/sdk";
import { EventParser } from "../dist/esm/sse.js";
import { collect, setup } from "./setup.mjs";
import { gate } from "./wire-server.mjs";

const PATH = "/v1/sandboxes/s1/exec/stream";
const OUT = 'event: stdout\ndata: {"chunk":"hello"}\n\n';
const EXIT = 'event: exit\ndata: {"exit_code":0}\n\n';
const headers = { "Content-Type": "text/event-stream; charset=utf-8" };

function parse(...chunks) {
  const parser = new EventParser();
  return chunks.flatMap((chunk) => parser.feed(chunk)).map(({ name, data }) => [name, data]);
}

for (const [text, expected] of [
  ["data: a\n\n", [["message", "a"]]],
  ["event: x\ndata: a\ndata: b\n\n", [["x", "a\nb"]]],
  [": comment\n\n:\n\ndata:a\n\n", [["message", "a"]]],
  ["event: x\r\ndata: a\r\n\r\n", [["x", "a"]]],
  ["event: x\rdata: a\r\r", [["x", "a"]]],
  ["\ufeffdata: a\n\n", [["message", "a"]]],
  ["event: only\n\ndata: a\n\n", [["message", "a"]]],
  ["data\n\n", [["message", ""]]],
  ["id: 7\nretry: 5\nfoo: bar\ndata:  two spaces\n\n", [["message", " two spaces"]]],
  ["data: grüße \u2028 \u0085 🐼\n\n", [["message", "grüße \u2028 \u0085 🐼"]]],
  ["data: unfinished\n", []],
]) {
  test(`parser: ${JSON.stringify(text)} split at every byte`, () => {
    const raw = new TextEncoder().encode(text);
    assert.deepEqual(parse(raw), expected);
    assert.deepEqual(parse(...[...raw].map((byte) => new Uint8Array([byte]))), expected);
    for (let cut = 0; cut < raw.length; cut++) assert.deepEqual(parse(raw.slice(0, cut), raw.slice(cut)), expected);
  });
}

test("parser: event size limit", () => {
  const feed = (...texts) => {
    const parser = new EventParser(64);
    return texts.flatMap((text) => parser.feed(new TextEncoder().encode(text)));
  };
  assert.throws(() => feed(`data: ${"x".repeat(100)}`), /64 characters/);
  assert.throws(() => feed(...Array(10).fill("data: xxxxxxxxxx\n")), sdk.ServerError);
  assert.equal(feed(...Array(100).fill("data: xxxxxxxxxx\n\n")).length, 100);
});

async function streaming(t, chunks, more = {}) {
  const context = await setup(t);
  context.server.on("POST", PATH, 200, undefined, { chunks, headers, ...more });
  return { ...context, sandbox: await context.sandbox() };
}

test("iteration", async (t) => {
  const { server, sandbox } = await streaming(t, [": hi\n\n", OUT, 'event: stderr\ndata: {"chunk":"gr\\u00fc"}\n\n', 'event: new\ndata: {"x":1}\n\n', EXIT]);
  const stream = await sandbox.execStream("make", { timeoutSeconds: 5 });
  assert.deepEqual(await collect(stream), [{ stream: "stdout", text: "hello" }, { stream: "stderr", text: "grü" }]);
  assert.equal(stream.exitCode, 0);
  assert.equal(server.last.headers.accept, "text/event-stream");
  assert.deepEqual(server.last.json, { cmd: "make", timeout_seconds: 5 });
});

test("output arrives while the command runs", async (t) => {
  const { open, wait } = gate();
  const { sandbox } = await streaming(t, [OUT, wait, EXIT]);
  const stream = await sandbox.execStream("make");
  assert.equal((await stream[Symbol.asyncIterator]().next()).value.text, "hello");
  assert.equal(stream.exitCode, undefined);
  open();
  assert.equal(await stream.wait(), 0);
});

test("callbacks", async (t) => {
  const { sandbox } = await streaming(t, [OUT, 'event: stderr\ndata: {"chunk":"bad"}\n\nevent: exit\ndata: {"exit_code":7}\n\n']);
  const seen = [];
  assert.equal(await sandbox.execStream("make", { onStdout: (text) => seen.push(text), onStderr: (text) => seen.push(text) }), 7);
  assert.deepEqual(seen, ["hello", "bad"]);
});

test("a character split across chunks is decoded", async (t) => {
  const raw = Buffer.from(`event: stdout\ndata: {"chunk":"🐼"}\n\n${EXIT}`);
  const { sandbox } = await streaming(t, [...raw].map((byte) => Buffer.from([byte])));
  assert.deepEqual((await collect(await sandbox.execStream("x"))).map((chunk) => chunk.text), ["🐼"]);
});

for (const drop of [false, true]) {
  test(`a missing exit event raises ExecInterrupted, drop ${drop}`, async (t) => {
    const { sandbox } = await streaming(t, [OUT], { drop });
    const error = await collect(await sandbox.execStream("make")).catch((e) => e);
    assert.ok(error instanceof sdk.ExecInterrupted, String(error));
    assert.equal(error.partialStdout, "hello");
  });
}

test("error events", async (t) => {
  const { server, sandbox } = await streaming(t, ['event: error\ndata: {"error":"command timeout"}\n\n']);
  server.on("POST", PATH, 200, 'event: error\ndata: {"error":"guest died"}\n\n');
  server.on("POST", PATH, 200, "event: exit\ndata: {}\n\n");
  server.on("POST", PATH, 404, { error: "no such sandbox", code: "sandbox_not_found" });
  await assert.rejects(async () => collect(await sandbox.execStream("x")), sdk.SandboxTimeout);
  await assert.rejects(async () => collect(await sandbox.execStream("x")), /guest died/);
  await assert.rejects(async () => collect(await sandbox.execStream("x")), /exit_code/);
  await assert.rejects(sandbox.execStream("x"), (e) => e instanceof sdk.NotFoundError && e.code === "sandbox_not_found");
});

test("leaving a stream early raises nothing", async (t) => {
  const { open, wait } = gate();
  const { server, client, sandbox } = await streaming(t, [OUT, wait, EXIT]);
  server.on("GET", "/v1/me", 200, { ok: 1 });
  for await (const _ of await sandbox.execStream("make")) break;
  open();
  assert.deepEqual(await client.me(), { ok: 1 });
});

test("waiting for a closed stream fails instead of hanging", async (t) => {
  const { open, wait } = gate();
  t.after(open);
  const { sandbox } = await streaming(t, [OUT, wait]);
  const stream = await sandbox.execStream("make");
  await stream[Symbol.asyncIterator]().next();
  stream.close();
  await assert.rejects(stream.wait(), sdk.PandaStackError);
});
