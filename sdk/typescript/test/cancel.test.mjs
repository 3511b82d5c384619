// An aborted call kills its command, unless it was told not to.
import assert from "node:assert/strict";
import { test } from "node:test";
import { collect, setup } from "./setup.mjs";
import { gate } from "./wire-server.mjs";

const EXEC = "/v1/sandboxes/s1/exec";
const STREAM = "/v1/sandboxes/s1/exec/stream";
const PROCESSES = "/v1/sandboxes/s1/processes";
const SIGNAL = `${PROCESSES}/7/signal`;
const headers = { "Content-Type": "text/event-stream; charset=utf-8", "X-PandaStack-Process": "7" };
const OUT = 'event: stdout\ndata: {"chunk":"hello","end":5}\n\n';

/** A command that runs until the test is over, and the way to abort its call once it runs. */
async function running(t) {
  const { server, sandbox } = await setup(t);
  const [begun, over] = [gate(), gate()];
  t.after(over.open);
  server.on("POST", SIGNAL, 204);
  const block = async () => {
    begun.open();
    await over.wait();
  };
  const controller = new AbortController();
  const { signal } = controller;
  const tag = () => server.requests.find(({ query }) => query.tag)?.query.tag;
  /** The process is listed, with the tag that its call gave it, after so many looks at the list. */
  const listedAfter = (looks) => {
    const found = { id: 7 };
    const others = { processes: [{ id: 3, tag: "x" }] };
    for (let look = 0; look < looks; look++) server.on("GET", PROCESSES, 200, others);
    const before = () => Object.assign(found, { tag: tag() });
    server.on("GET", PROCESSES, 200, { processes: [{ id: 3 }, found] }, { before });
  };
  const abort = async (call) => {
    const outcome = call(await sandbox(), signal).catch((error) => error);
    await begun.wait();
    controller.abort();
    assert.equal(await outcome, signal.reason);
  };
  const killed = () => server.sent("POST", SIGNAL).map(({ json }) => json.signal);
  return { server, sandbox, begun, over, block, controller, signal, tag, listedAfter, abort, killed };
}

for (const looks of [0, 2]) {
  test(`an aborted exec kills its command, listed after ${looks} polls`, async (t) => {
    const { server, block, listedAfter, abort, killed, tag } = await running(t);
    server.on("POST", EXEC, 200, { exit_code: 0 }, { before: block });
    listedAfter(looks);
    await abort((sandbox, signal) => sandbox.exec("make", { signal }));
    assert.deepEqual(killed(), ["KILL"]);
    assert.match(tag(), /^exec-/);
  });
}

test("killOnAbort: false leaves the command running", async (t) => {
  const { server, block, abort, killed } = await running(t);
  server.on("POST", EXEC, 200, { exit_code: 0 }, { before: block });
  await abort((sandbox, signal) => sandbox.exec("make", { signal, killOnAbort: false }));
  assert.deepEqual([killed(), server.sent("GET", PROCESSES)], [[], []]);
  assert.deepEqual(server.sent("POST", EXEC)[0].query, {});
});

test("exec without a signal sends no tag", async (t) => {
  const { server, sandbox } = await running(t);
  server.on("POST", EXEC, 200, { exit_code: 0 });
  await (await sandbox()).exec("make");
  assert.deepEqual(server.last.query, {});
});

test("an already aborted call sends no request", async (t) => {
  const { server, sandbox } = await running(t);
  const made = await sandbox();
  const before = server.requests.length;
  await assert.rejects(made.exec("make", { signal: AbortSignal.abort() }), { name: "AbortError" });
  await assert.rejects(made.execStream("make", { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal(server.requests.length, before);
});

const READERS = {
  iterating: async (sandbox, signal) => await collect(await sandbox.execStream("make", { signal })),
  "with a callback": (sandbox, signal) => sandbox.execStream("make", { signal, onStdout: () => undefined }),
  "of a long exec": (sandbox, signal) => sandbox.exec("make", { signal, timeoutSeconds: 600 }),
};
for (const [name, read] of Object.entries(READERS)) {
  test(`aborting a reader (${name}) kills the command`, async (t) => {
    const { server, block, listedAfter, abort, killed } = await running(t);
    server.on("POST", STREAM, 200, undefined, { chunks: [OUT, block], headers });
    listedAfter(0); // for an abort that comes together with the first byte
    await abort(read);
    assert.deepEqual(killed(), ["KILL"]);
  });
}

test("an abort kills the command while no chunk is being read", async (t) => {
  const { server, sandbox, over, controller, signal } = await running(t);
  server.on("POST", STREAM, 200, undefined, { chunks: [OUT, over.wait], headers });
  const stream = await (await sandbox()).execStream("make", { signal });
  assert.equal((await stream[Symbol.asyncIterator]().next()).value.text, "hello");
  controller.abort();
  while (server.sent("POST", SIGNAL).length === 0) await new Promise((resolve) => setImmediate(resolve));
  await assert.rejects(stream.wait(), { name: "AbortError" });
});

test("an abort kills neither a closed stream's command nor one with killOnAbort: false", async (t) => {
  const { server, sandbox, over, controller, signal, killed } = await running(t);
  server.on("POST", STREAM, 200, undefined, { chunks: [OUT, over.wait], headers });
  const made = await sandbox();
  const kept = await made.execStream("make", { signal, killOnAbort: false });
  const closed = await made.execStream("make", { signal });
  closed.close();
  controller.abort();
  await assert.rejects(kept.wait(), { name: "AbortError" });
  assert.deepEqual(killed(), []);
});

test("a failed kill does not hide the abort", async (t) => {
  const { server, block, abort, killed } = await running(t);
  server.on("POST", EXEC, 200, { exit_code: 0 }, { before: block });
  server.on("GET", PROCESSES, 503, { error: "host is away", code: "host_unreachable" });
  await abort((sandbox, signal) => sandbox.exec("make", { signal }));
  assert.deepEqual([killed(), server.sent("GET", PROCESSES).length], [[], 1]);
});
