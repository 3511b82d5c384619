// Processes by id, and streams that are taken up where they broke.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as sdk from "@pandastack/sdk";
import { collect, setup } from "./setup.mjs";

const STREAM = "/v1/sandboxes/s1/exec/stream";
const PROCESSES = "/v1/sandboxes/s1/processes";
const OUTPUT = `${PROCESSES}/7/output`;
const headers = { "Content-Type": "text/event-stream; charset=utf-8", "X-PandaStack-Process": "7" };
const RECORD = { id: 7, pid: 99, command: "cat", state: "running", stdin_offset: 0 };
const out = (text, end, stream = "stdout") => `id: x\nevent: ${stream}\ndata: {"chunk":"${text}","end":${end}}\n\n`;
const EXIT = 'event: exit\ndata: {"exit_code":3}\n\n';

test("a broken stream resumes at its offset", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", STREAM, 200, undefined, { chunks: [out("one", 3), out("e", 1, "stderr")], drop: true, headers });
  server.on("GET", OUTPUT, 503, { error: "host is away", code: "host_unreachable" });
  server.on("GET", OUTPUT, 200, undefined, { chunks: [out("two", 6)], headers });
  server.on("GET", OUTPUT, 200, undefined, { chunks: [out("three", 11), EXIT], headers });
  const stream = await (await sandbox()).execStream("make");
  const text = (await collect(stream)).filter((chunk) => chunk.stream === "stdout").map((chunk) => chunk.text);
  assert.equal(text.join(""), "onetwothree");
  assert.deepEqual([stream.exitCode, stream.processId, stream.offsets], [3, 7, { stdout: 11, stderr: 1 }]);
  const asked = server.sent("GET", OUTPUT).map(({ query }) => [query.stdout_offset, query.stderr_offset]);
  assert.deepEqual(asked, [["3", "1"], ["3", "1"], ["6", "1"]]);
});

test("resuming the stream of a missing process raises NotFoundError", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", STREAM, 200, undefined, { chunks: [out("one", 3)], drop: true, headers });
  server.on("GET", OUTPUT, 404, { error: "no such process", code: "not_found" });
  await assert.rejects(async () => collect(await (await sandbox()).execStream("make")), sdk.NotFoundError);
});

test("output gaps and timeouts are reported", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("GET", `${PROCESSES}/7`, 200, RECORD);
  const gap = 'event: gap\ndata: {"stream":"stdout","from":5,"to":50}\n\n';
  const late = 'event: exit\ndata: {"exit_code":137,"timed_out":true}\n\n';
  server.on("GET", OUTPUT, 200, undefined, { chunks: [gap, out("x", 51), late], headers });
  const stream = await (await (await sandbox()).process(7)).output({ stdoutOffset: 5 });
  await assert.rejects(() => collect(stream), sdk.SandboxTimeout);
  assert.deepEqual(stream.gaps, [{ stream: "stdout", from: 5, to: 50 }]);
});

test("start, list, signal, resize, wait", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("POST", PROCESSES, 201, RECORD);
  server.on("GET", PROCESSES, 200, { processes: [RECORD] });
  server.on("GET", `${PROCESSES}/7/wait`, 200, RECORD);
  server.on("GET", `${PROCESSES}/7/wait`, 200, { ...RECORD, state: "exited", exit_code: 5 });
  server.on("POST", `${PROCESSES}/7/signal`, 204);
  server.on("POST", `${PROCESSES}/7/resize`, 204);
  const made = await sandbox();
  const process = await made.start(undefined, { pty: { rows: 30, cols: 90 } });
  assert.deepEqual(server.sent("POST", PROCESSES)[0].json, { pty: { rows: 30, cols: 90 } });
  await made.start("cat", { stdinOpen: true, limits: { pids: 3 } });
  assert.deepEqual(server.sent("POST", PROCESSES)[1].json, { cmd: "cat", stdin_open: true, limits: { pids: 3 } });
  assert.deepEqual((await made.processes()).map(({ id }) => id), [7]);
  await process.kill();
  assert.deepEqual(server.sent("POST", `${PROCESSES}/7/signal`)[0].json, { signal: "KILL" });
  await process.resize({ rows: 1, cols: 2 });
  assert.equal(await process.wait(), 5);
});

test("input is not sent twice", async (t) => {
  const { server, sandbox } = await setup(t);
  server.on("GET", `${PROCESSES}/7`, 200, RECORD);
  server.on("GET", `${PROCESSES}/7`, 200, { ...RECORD, stdin_offset: 4 });
  server.on("POST", `${PROCESSES}/7/stdin`, 502, { error: "broke off", code: "guest_unavailable" });
  server.on("POST", `${PROCESSES}/7/stdin`, 200, { offset: 10 });
  const process = await (await sandbox()).process(7);
  await process.write("0123456789");
  const bodies = server.sent("POST", `${PROCESSES}/7/stdin`).map(({ body }) => body.toString());
  assert.deepEqual(bodies, ["0123456789", "456789"]);
});
