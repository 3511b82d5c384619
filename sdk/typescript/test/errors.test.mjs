// Errors, retries, time limits, configuration.
import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as sdk from "@pandastack/sdk";
import { resolveConfig } from "../dist/esm/config.js";
import { errorFromResponse } from "../dist/esm/errors.js";
import { previewUrl } from "../dist/esm/preview.js";
import { CapacityRetry, parseBudget, parseRetryAfter } from "../dist/esm/retry.js";
import { setup } from "./setup.mjs";
import { gate, SANDBOX, WireServer } from "./wire-server.mjs";

const BODY = { error: "no room", code: "no_capacity", request_id: "r-1" };

for (const [status, kind] of [
  [400, "BadRequestError"], [401, "AuthError"], [403, "PermissionDeniedError"], [404, "NotFoundError"], [409, "ConflictError"],
  [422, "BadRequestError"], [429, "RateLimitError"], [500, "ServerError"], [501, "ServerError"], [503, "ServerError"],
]) {
  test(`status ${status} raises ${kind}`, async (t) => {
    const { server, client } = await setup(t);
    server.on("GET", "/v1/me", status, BODY);
    const error = await client.me().catch((e) => e);
    assert.equal(error.constructor, sdk[kind]);
    assert.equal(error.name, kind);
    assert.deepEqual([error.status, error.statusCode, error.code, error.requestId], [status, status, "no_capacity", "r-1"]);
    assert.match(error.message, /no room.*r-1/);
    assert.equal(server.requests.length, 1);
  });
}

test("any error body is readable", () => {
  for (const [body, shown] of [['{"message":"elsewhere"}', "elsewhere"], ['{"error":{"a":1}}', '{"a":1}'], ["<html>", "<html>"], ["", "HTTP 502"]]) {
    const error = errorFromResponse(502, new Headers({ "x-request-id": "h" }), body, { what: "GET /v1/me", isCommand: false });
    assert.ok(error.message.includes(shown), error.message);
    assert.equal(error.requestId, "h");
  }
});

for (const [status, headers] of [[503, { "Retry-After": "0" }], [429, { "Retry-After": "0" }], [507, {}]]) {
  test(`a create refused with ${status} is retried under one idempotency key`, async (t) => {
    const seen = [];
    const { server, client } = await setup(t, { onCreateRetry: (event) => seen.push(event) });
    t.mock.method(Math, "random", () => 0);
    server.on("POST", "/v1/sandboxes", status, BODY, { headers });
    server.on("POST", "/v1/sandboxes", 201, SANDBOX);
    assert.equal((await client.sandboxes.create()).id, "s1");
    const [first, second] = server.sent("POST", "/v1/sandboxes");
    assert.equal(first.headers["idempotency-key"], second.headers["idempotency-key"]);
    assert.deepEqual(seen.map((event) => [event.attempt, event.statusCode]), [[1, status]]);
  });
}

test("other errors are not retried", async (t) => {
  const { server, client, sandbox } = await setup(t);
  const cases = [[503, {}, BODY], [503, { "Retry-After": "0" }, "upstream down"], [429, {}, BODY], [500, { "Retry-After": "0" }, BODY], [503, { "Retry-After": "3600" }, BODY]];
  for (const [status, headers, body] of cases) server.on("POST", "/v1/sandboxes", status, body, { headers });
  for (const _ of cases) await assert.rejects(client.sandboxes.create(), sdk.PandaStackError);
  assert.equal(server.requests.length, cases.length);
  server.on("POST", "/v1/sandboxes/s1/exec", 503, BODY, { headers: { "Retry-After": "0" } });
  await assert.rejects((await sandbox()).exec("true"), sdk.CapacityError);
  assert.equal(server.sent("POST", "/v1/sandboxes/s1/exec").length, 1);
});

test("retry budget and backoff", () => {
  const refusal = (status, after, code = "c") =>
    errorFromResponse(status, new Headers(after === undefined ? {} : { "retry-after": String(after) }), JSON.stringify({ error: "x", code }), { what: "w", isCommand: false });
  let now = 0;
  const retry = new CapacityRetry(60, () => now, () => 1);
  assert.deepEqual([0, 0, 0, 0, 0, 0].map(() => retry.delayAfter(refusal(503, 5))), [6, 7, 9, 13, 20, 20]);
  now = 50;
  assert.equal(retry.delayAfter(refusal(503, 5)), 10);
  assert.equal(retry.delayAfter(refusal(503, 11)), undefined);
  now = 200;
  assert.equal(retry.delayAfter(refusal(503, 5)), undefined);
  assert.ok(retry.delayAfter(refusal(503, 5, "template_baking")) !== undefined);
  assert.equal(new CapacityRetry(60, () => 0, () => 0).delayAfter(refusal(507)), 0.5);
  assert.equal(new CapacityRetry(0).delayAfter(refusal(503, 0)), undefined);
});

test("invalid Retry-After and budget values are ignored or clamped", () => {
  for (const [value, expected] of [[null, undefined], ["5", 5], [" 0.5 ", 0.5], ["-1", 0], ["NaN", undefined], ["soon", undefined], ["", undefined], ["Thu, 01 Jan 1970 00:01:00 GMT", 60]]) {
    assert.equal(parseRetryAfter(value, 0), expected, String(value));
  }
  for (const [value, expected] of [[undefined, 60], ["", 60], ["x", 60], ["0", 0], ["7", 7], ["-3", 0]]) assert.equal(parseBudget(value), expected);
});

test("command timeouts", async (t) => {
  const { server, sandbox } = await setup(t);
  const cases = [[504, "command hit its timeout", "SandboxTimeout"], [500, "context deadline exceeded", "SandboxTimeout"], [500, "read: i/o timeout", "ServerError"], [408, "timeout", "BadRequestError"]];
  for (const [status, error] of cases) server.on("POST", "/v1/sandboxes/s1/exec", status, { error });
  const made = await sandbox();
  for (const [, , kind] of cases) assert.equal((await made.exec("sleep 9").catch((e) => e)).name, kind);
});

test("requests to a silent or a trickling server time out", async (t) => {
  const { server, client } = await setup(t, { timeoutMs: 1000 });
  const { open, wait } = gate();
  t.after(open);
  server.on("GET", "/v1/me", 200, {}, { before: wait });
  const trickle = [" ", () => new Promise((r) => setTimeout(r, 50))];
  server.on("GET", "/v1/templates", 200, undefined, { chunks: Array.from({ length: 100 }, () => trickle).flat() });
  await assert.rejects(client.me(), sdk.RequestTimeout);
  await assert.rejects(client.templates.list(), sdk.RequestTimeout);
  assert.equal(server.requests.length, 2);
});

test("the caller's signal aborts the call with its own reason", async (t) => {
  const { server, sandbox } = await setup(t);
  const { open, wait } = gate();
  t.after(open);
  server.on("POST", "/v1/sandboxes/s1/exec", 200, {}, { before: wait });
  const controller = new AbortController();
  const running = (await sandbox()).exec("true", { signal: controller.signal });
  controller.abort(new Error("mine"));
  await assert.rejects(running, /mine/);
});

test("an unreachable server is reported with a hint", async () => {
  const server = await WireServer.start();
  await server.close();
  const client = new sdk.PandaStack({ baseUrl: server.url, apiKey: "k" });
  await assert.rejects(client.me(), (e) => e instanceof sdk.NetworkError && /pandastack up/.test(e.message));
});

test("after a broken connection, reads are retried once and commands never", async (t) => {
  const { server, client, sandbox } = await setup(t);
  server.on("GET", "/v1/me", 200, undefined, { drop: true });
  server.on("GET", "/v1/me", 200, { ok: true });
  assert.deepEqual(await client.me(), { ok: true });
  server.on("GET", "/v1/templates", 200, undefined, { drop: true });
  await assert.rejects(client.templates.list(), sdk.NetworkError);
  assert.equal(server.sent("GET", "/v1/templates").length, 2);
  server.on("POST", "/v1/sandboxes/s1/exec", 200, undefined, { drop: true });
  await assert.rejects((await sandbox()).exec("true"), sdk.NetworkError);
  assert.equal(server.sent("POST", "/v1/sandboxes/s1/exec").length, 1);
  server.on("DELETE", "/v1/sandboxes/s1", 200, undefined, { drop: true });
  server.on("DELETE", "/v1/sandboxes/s1", 404, { error: "gone" });
  await client.sandboxes.delete("s1");
  await assert.rejects(client.sandboxes.delete("s1"), sdk.NotFoundError);
});

test("redirects do not carry the key", async (t) => {
  const { server, client } = await setup(t);
  server.on("GET", "/v1/me", 302, undefined, { headers: { Location: "http://elsewhere.example/" } });
  await assert.rejects(client.me(), /elsewhere\.example/);
  assert.equal(server.requests.length, 1);
});

test("malformed responses raise ServerError", async (t) => {
  const { server, client } = await setup(t);
  const bodies = ["not json", "[1]", '"x"', "{}", '{"id":null}', '{"id":5}'];
  for (const body of bodies) server.on("GET", "/v1/sandboxes/odd", 200, body);
  for (const _ of bodies) await assert.rejects(client.sandboxes.get("odd"), sdk.ServerError);
});

test("configuration", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "pandastack-sdk-"));
  t.after(() => rm(folder, { recursive: true }));
  await mkdir(join(folder, "pandastack"));
  const file = (content) => writeFile(join(folder, "pandastack", "config.json"), content);
  const resolve = async (env = {}, options = {}) => {
    const { baseUrl, apiKey } = await resolveConfig(options, { XDG_CONFIG_HOME: folder, ...env });
    return [baseUrl, apiKey];
  };
  const env = { PANDASTACK_API: "http://env:1", PANDASTACK_API_URL: "http://env2:1", PANDASTACK_API_KEY: "k", PANDASTACK_TOKEN: "t" };
  await assert.rejects(resolve(), (e) => e instanceof sdk.AuthError && /hint:/.test(e.message));
  await file('{"api_url":"http://file:1/","token":"filekey"}');
  assert.deepEqual(await resolve(env, { baseUrl: "http://arg:1/v1/", apiKey: "arg" }), ["http://arg:1", "arg"]);
  assert.deepEqual(await resolve(env), ["http://env:1", "k"]);
  assert.deepEqual(await resolve({ PANDASTACK_API_URL: "http://env2:1", PANDASTACK_TOKEN: "t" }), ["http://env2:1", "t"]);
  assert.deepEqual(await resolve(), ["http://file:1", "filekey"]);
  assert.deepEqual(await resolve({ PANDASTACK_API: "http://file:1/v1" }), ["http://file:1", "filekey"]);
  await assert.rejects(resolve({ PANDASTACK_API: "http://other:1" }), sdk.AuthError);
  await file("not json");
  assert.deepEqual(await resolve({ PANDASTACK_API_KEY: "k" }, { baseUrl: "https://h/prefix/v1" }), ["https://h/prefix", "k"]);
  assert.deepEqual(await resolve({ PANDASTACK_API_KEY: "k" }), ["http://127.0.0.1:8080", "k"]);
  for (const baseUrl of ["ftp://x", "localhost:8080", "http://", "x"]) await assert.rejects(resolve({}, { baseUrl, apiKey: "k" }), sdk.BadRequestError);
});

test("preview addresses", () => {
  for (const [base, options, expected] of [
    ["https://api.example.com", {}, "https://80-s.example.com"],
    ["https://example.com:8443", {}, "https://80-s.example.com"],
    ["http://127.0.0.1:8080", {}, "http://80-s.localhost:8080"],
    ["http://[::1]:8080", { scheme: "https" }, "https://80-s.localhost:8080"],
    ["https://api.example.com", { host: "p.example:99" }, "https://80-s.p.example:99"],
  ]) assert.equal(previewUrl(base, "s", 80, options), expected);
});
