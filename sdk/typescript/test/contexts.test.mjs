// Code contexts over the wire.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NotFoundError, SandboxTimeout } from "@pandastack/sdk";
import { setup } from "./setup.mjs";

const CONTEXTS = "/v1/sandboxes/s1/repl/sessions";
const CONTEXT = { id: "c1", sandbox_id: "s1", language: "python", cwd: "/home/user", created_at: "2026-01-01T00:00:00Z" };

async function context(t) {
  const made = await setup(t);
  made.server.on("POST", CONTEXTS, 201, CONTEXT);
  return { ...made, context: await (await made.sandbox()).createCodeContext("py", { cwd: "/srv" }) };
}

test("contexts are created, listed, restarted and closed", async (t) => {
  const { server, sandbox, context: made } = await context(t);
  assert.deepEqual(server.last.json, { language: "python", cwd: "/srv" });
  assert.deepEqual([made.id, made.language, made.cwd], ["c1", "python", "/home/user"]);
  server.on("GET", CONTEXTS, 200, { items: [CONTEXT] });
  assert.deepEqual((await (await sandbox()).codeContexts()).map((each) => each.id), ["c1"]);
  server.on("POST", `${CONTEXTS}/c1/restart`, 200, CONTEXT);
  await made.restart();
  server.on("DELETE", `${CONTEXTS}/c1`, 204);
  await made.close();
  assert.equal(server.last.method, "DELETE");
});

test("a run response is parsed with either result format", async (t) => {
  const { server, context: made } = await context(t);
  const answer = { stdout: "out", stderr: "", exit: 1, error: "Traceback", duration_ms: 5, results: [{ "text/plain": "1", "application/json": "{\"a\":1}" }, { type: "image/png", data: "aGk=" }] };
  server.on("POST", `${CONTEXTS}/c1/run`, 200, answer);
  const ran = await made.runCode("1", { timeoutSeconds: 1.5, env: { A: "1" } });
  assert.deepEqual(server.last.json, { code: "1", timeout_ms: 1500, env: { A: "1" } });
  assert.deepEqual([ran.stdout, ran.exit_code, ran.error, ran.text, ran.png, ran.truncated], ["out", 1, "Traceback", "1", "aGk=", false]);
  assert.deepEqual([ran.results[0].json, ran.results[1].chart], [{ a: 1 }, "aGk="]);
});

test("a timeout and a lost context have their own errors", async (t) => {
  const { server, context: made } = await context(t);
  server.on("POST", `${CONTEXTS}/c1/run`, 504, { error: "timeout: the code exceeded 1 ms", code: "exec_timeout" });
  server.on("POST", `${CONTEXTS}/c1/run`, 404, { error: "context `c1` not found", code: "not_found" });
  await assert.rejects(made.runCode("1"), SandboxTimeout);
  await assert.rejects(made.runCode("1"), NotFoundError);
});
