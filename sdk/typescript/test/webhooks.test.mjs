// Webhooks, and verifying what they received.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";
import { verifyWebhook, WebhookVerificationError } from "../dist/esm/index.js";
import { setup } from "./setup.mjs";

const SECRET = `whsec_${Buffer.alloc(32, "k").toString("base64")}`;

test("webhooks and their deliveries", async (t) => {
  const { server, client } = await setup(t);
  const hook = { id: "w1", url: "https://example.com/x", events: ["sandbox.*"], enabled: true };
  const sent = { id: 7, event_id: "evt_1", type: "ping", state: "pending", attempts: 0 };
  server.on("POST", "/v1/webhooks", 201, { ...hook, secret: SECRET });
  server.on("GET", "/v1/webhooks", 200, { items: [hook] });
  server.on("GET", "/v1/webhooks/w1", 200, hook);
  server.on("PATCH", "/v1/webhooks/w1", 200, { ...hook, enabled: false });
  server.on("DELETE", "/v1/webhooks/w1", 204);
  server.on("POST", "/v1/webhooks/w1/rotate-secret", 200, { ...hook, secret: "whsec_new" });
  server.on("POST", "/v1/webhooks/w1/test", 202, sent);
  server.on("GET", "/v1/webhooks/w1/deliveries", 200, { items: [sent] });
  server.on("POST", "/v1/webhooks/w1/deliveries/7/redeliver", 202, sent);
  assert.equal((await client.webhooks.create({ url: hook.url, events: ["sandbox.*"] })).secret, SECRET);
  assert.deepEqual(server.last.json, { url: hook.url, events: ["sandbox.*"] });
  assert.equal((await client.webhooks.list())[0].id, "w1");
  assert.equal((await client.webhooks.get("w1")).url, hook.url);
  assert.equal((await client.webhooks.update("w1", { enabled: false, events: [] })).enabled, false);
  assert.deepEqual(server.last.json, { enabled: false, events: [] });
  assert.equal((await client.webhooks.rotateSecret("w1")).secret, "whsec_new");
  assert.equal((await client.webhooks.test("w1")).eventId, "evt_1");
  assert.equal((await client.webhooks.deliveries("w1", { limit: 5 }))[0].id, 7);
  assert.deepEqual(server.last.query, { limit: "5" });
  assert.equal((await client.webhooks.redeliver("w1", 7)).id, 7);
  await client.webhooks.delete("w1");
});

function signed(body, { secret = SECRET, age = 0 } = {}) {
  const seconds = String(Math.floor(Date.now() / 1000) - age);
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  const tag = createHmac("sha256", key).update(`evt_1.${seconds}.${body}`).digest("base64");
  const signature = `v1,b3RoZXI= v1,${tag}`;
  return { "Webhook-Id": "evt_1", "webhook-timestamp": seconds, "webhook-signature": signature };
}

test("a signed message is accepted, any other is refused", async () => {
  const body = JSON.stringify({ type: "sandbox.failed" });
  assert.deepEqual(await verifyWebhook(body, signed(body), SECRET), { type: "sandbox.failed" });
  assert.deepEqual(await verifyWebhook(body, new Headers(signed(body)), SECRET), { type: "sandbox.failed" });
  const { "webhook-signature": _, ...unsigned } = signed(body);
  const other = `whsec_${Buffer.alloc(32, "o").toString("base64")}`;
  const refused = [
    [`${body} `, signed(body), SECRET],
    [body, signed(body), other],
    [body, signed(body, { age: 301 }), SECRET],
    [body, unsigned, SECRET],
    [body, { ...signed(body), "webhook-timestamp": "soon" }, SECRET],
    [body, signed(body), "whsec_"],
    [body, signed(body), "whsec_\u0000"],
  ];
  for (const [text, headers, secret] of refused) {
    await assert.rejects(verifyWebhook(text, headers, secret), WebhookVerificationError);
  }
});
