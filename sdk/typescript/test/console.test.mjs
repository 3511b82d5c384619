// Calls that pages use: the browser's session instead of a key, events of the workspace, terminals.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as sdk from "@pandastack/sdk";
import { collect, setup } from "./setup.mjs";
import { KEY, SANDBOX } from "./wire-server.mjs";

test("a client with a session sends no key", async (t) => {
  const { server } = await setup(t);
  const client = new sdk.PandaStack({ baseUrl: server.url, session: true });
  server.on("POST", "/v1/console/session", 200, { workspace: "default", token_prefix: "pds_01234567" });
  server.on("GET", "/v1/console/sessions", 200, { items: [{ id: "a" }] });
  server.on("DELETE", "/v1/console/sessions/a", 204, "");
  server.on("DELETE", "/v1/console/session", 204, "");
  assert.equal((await client.console.signIn(KEY)).token_prefix, "pds_01234567");
  assert.deepEqual(await client.console.sessions(), [{ id: "a" }]);
  await client.console.revoke("a");
  await client.console.signOut();
  assert.deepEqual(JSON.parse(server.requests[0].body), { api_key: KEY });
  for (const request of server.requests) assert.equal(request.headers.authorization, undefined);
});

test("workspace events are listed and followed after a given id", async (t) => {
  const { client, server } = await setup(t);
  server.on("GET", "/v1/events", 200, { events: [{ id: 1, kind: "created" }] });
  const stream = 'id: 2\nevent: event\ndata: {"id":2,"kind":"deleted"}\n\n';
  server.on("GET", "/v1/events", 200, undefined, {
    chunks: [stream],
    headers: { "Content-Type": "text/event-stream" },
  });
  assert.deepEqual(await client.events({ tail: 5 }), [{ id: 1, kind: "created" }]);
  assert.deepEqual(await collect(client.followEvents({ after: 1 })), [{ id: 2, kind: "deleted" }]);
  assert.equal(server.last.headers["last-event-id"], "1");
});

/** A WebSocket that a test drives. */
class FakeSocket {
  static opened = [];
  readyState = 1;
  sent = [];
  constructor(url) {
    this.url = new URL(url);
    FakeSocket.opened.push(this);
  }
  send(data) {
    this.sent.push(typeof data === "string" ? data : new TextDecoder().decode(data));
  }
  close() {}
  say(value) {
    this.onmessage({
      data: typeof value === "object" ? JSON.stringify(value) : new TextEncoder().encode(value).buffer,
    });
  }
}

async function opened(count) {
  const deadline = Date.now() + 10_000;
  while (FakeSocket.opened.length < count) {
    assert.ok(Date.now() < deadline, `${FakeSocket.opened.length} of ${count} sockets were opened`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return FakeSocket.opened[count - 1];
}

test("a terminal reconnects at the byte offset where it was cut off", async (t) => {
  const { client, server } = await setup(t);
  server.on("GET", "/v1/sandboxes/s1", 200, SANDBOX);
  const before = globalThis.WebSocket;
  globalThis.WebSocket = FakeSocket;
  t.after(() => (globalThis.WebSocket = before));
  let seen = "";
  const exits = [];
  const sandbox = await client.sandboxes.get("s1");
  const terminal = sandbox.terminal({
    rows: 24,
    cols: 80,
    onData: (bytes) => (seen += new TextDecoder().decode(bytes)),
    onExit: (code) => exits.push(code),
  });
  terminal.write("early");
  const first = await opened(1);
  assert.equal(first.url.pathname, `/v1/sandboxes/${sandbox.id}/exec/pty`);
  assert.equal(first.url.searchParams.get("process"), null);
  first.say({ process: 7, offset: 0 });
  assert.deepEqual(first.sent, ["early"]);
  first.say("hello ");
  first.readyState = 3;
  first.onclose();
  terminal.write("late");
  const second = await opened(2);
  assert.equal(second.url.searchParams.get("process"), "7");
  assert.equal(second.url.searchParams.get("offset"), "6");
  second.say({ process: 7, offset: 6 });
  assert.deepEqual(second.sent, ["late"]);
  second.say("world");
  second.say({ exit: 0 });
  second.onclose();
  assert.equal(seen, "hello world");
  assert.deepEqual(exits, [0]);
  assert.equal(FakeSocket.opened.length, 2);
});
