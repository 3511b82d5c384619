/** Webhooks: URLs that receive the events of a workspace. */

import { checked } from "./check.js";
import { type JsonObject, needText, withCamelCase, type WireRecord } from "./models.js";
import type { Transport } from "./transport.js";
import { type Call, del, get, given, post, segment } from "./wire.js";

/** A URL that receives events of the workspace. */
export type Webhook = WireRecord<{
  id: string;
  url: string;
  /** Events that are sent; empty for all. */
  events?: string[];
  description?: string;
  enabled?: boolean;
  /** Reason why the server disabled it. */
  disabled_reason?: string;
  /** Time of the first failed attempt since the last delivery that was accepted. */
  failing_since?: string;
  created_at?: string;
  /** Only in the responses to `create` and `rotateSecret`. */
  secret?: string;
}>;

/** An event on its way to a webhook, or sent. */
export type WebhookDelivery = WireRecord<{
  id: number;
  /** The same for every attempt; receivers get it as `webhook-id`. */
  event_id?: string;
  /** Kind of the event, such as `sandbox.failed`. */
  type?: string;
  /** `pending`, `delivered` or `failed`. */
  state?: string;
  attempts?: number;
  /** Result of the last attempt. */
  result?: string;
  created_at?: string;
  next_attempt_at?: string;
  ended_at?: string;
}>;

/** Settings of a new webhook. */
export interface CreateWebhookOptions {
  /** URL that receives a `POST` request for every event. */
  url: string;
  /** Kinds such as `sandbox.failed`, or all of a resource, such as `sandbox.*`. Default: all events. */
  events?: string[];
  description?: string;
}

/** Changes of a webhook. Omitted settings are kept. */
export interface UpdateWebhookOptions {
  url?: string;
  /** An empty list means all events. */
  events?: string[];
  description?: string;
  enabled?: boolean;
}

/**
 * `client.webhooks`: URLs that receive events such as `sandbox.failed`. Receivers check the signature with
 * `verifyWebhook`.
 */
export class WebhooksAPI {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Create a webhook. Only this response contains its `secret`. */
  async create(options: CreateWebhookOptions): Promise<Webhook> {
    const { url, events, description } = options;
    return this.#webhook(post("/webhooks", given({ url, events, description })));
  }

  /** List webhooks, oldest first. */
  async list(): Promise<Webhook[]> {
    return (await this.#transport.send(get("/webhooks"))).records("webhooks").map(webhook);
  }

  /** Get a webhook. */
  async get(id: string): Promise<Webhook> {
    return this.#webhook(get(path(id)));
  }

  /** Change a webhook. */
  async update(id: string, options: UpdateWebhookOptions): Promise<Webhook> {
    const { url, events, description, enabled } = options;
    const body = given({ url, events, description, enabled });
    return this.#webhook({ ...post(path(id), body), method: "PATCH" });
  }

  /** Delete a webhook and its deliveries. */
  async delete(id: string): Promise<void> {
    await this.#transport.send(del(path(id)));
  }

  /** Replace the secret. For 24 hours, deliveries are also signed with the old one. */
  async rotateSecret(id: string): Promise<Webhook> {
    return this.#webhook(post(`${path(id)}/rotate-secret`, {}));
  }

  /** Send a test message of type `ping`. */
  async test(id: string): Promise<WebhookDelivery> {
    return this.#delivery(post(`${path(id)}/test`, {}));
  }

  /** List deliveries, newest first. */
  async deliveries(id: string, options: { limit?: number } = {}): Promise<WebhookDelivery[]> {
    const query: Record<string, string> = options.limit === undefined ? {} : { limit: String(options.limit) };
    const answer = await this.#transport.send(get(`${path(id)}/deliveries`, query));
    return answer.records("deliveries").map(delivery);
  }

  /** Send a delivery that has ended again. */
  async redeliver(id: string, deliveryId: number): Promise<WebhookDelivery> {
    return this.#delivery(post(`${path(id)}/deliveries/${deliveryId}/redeliver`, {}));
  }

  async #webhook(call: Call): Promise<Webhook> {
    return webhook((await this.#transport.send(call)).record());
  }

  async #delivery(call: Call): Promise<WebhookDelivery> {
    return delivery((await this.#transport.send(call)).record());
  }
}

checked({ WebhooksAPI });

function path(id: string): string {
  return `/webhooks/${segment(id, "webhook id")}`;
}

function webhook(record: JsonObject): Webhook {
  return withCamelCase({ ...record, id: needText(record, "id", "a webhook"), url: String(record.url ?? "") });
}

function delivery(record: JsonObject): WebhookDelivery {
  return withCamelCase({ ...record, id: Number(record.id ?? 0) });
}

/** A received message is not from the webhook, or too old. */
export class WebhookVerificationError extends Error {
  override name = "WebhookVerificationError";
}

/** The part of `Headers` of the Fetch API that is read. */
export interface HeaderEntries {
  entries(): Iterable<[string, string]>;
}

function isHeaders(headers: object): headers is HeaderEntries {
  return typeof (headers as Partial<HeaderEntries>).entries === "function";
}

/** Oldest message that is accepted, in seconds. */
const TOLERANCE_SECONDS = 300;

/**
 * Check the signature of a received message and return the event.
 *
 * `body` is the request body as it was received. Throws `WebhookVerificationError` if the message was not
 * signed with `secret`, or is older than `toleranceSeconds` (default: 300).
 */
export async function verifyWebhook(
  body: string,
  headers: Record<string, string | string[] | undefined> | HeaderEntries,
  secret: string,
  options: { toleranceSeconds?: number } = {},
): Promise<JsonObject> {
  const values = new Map<string, string>();
  const pairs = isHeaders(headers) ? headers.entries() : Object.entries(headers);
  for (const [name, value] of pairs) values.set(name.toLowerCase(), String(value ?? ""));
  const [id, seconds] = [values.get("webhook-id"), values.get("webhook-timestamp")];
  const signatures = (values.get("webhook-signature") ?? "").split(" ");
  if (!id || !seconds || !/^\d+$/.test(seconds)) {
    throw new WebhookVerificationError("a header is missing or malformed");
  }
  const age = Math.abs(Date.now() / 1000 - Number(seconds));
  if (age > (options.toleranceSeconds ?? TOLERANCE_SECONDS)) {
    throw new WebhookVerificationError("the message is too old, or the clock of this machine is wrong");
  }
  const signed = new TextEncoder().encode(`${id}.${seconds}.${body}`);
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", secretBytes(secret), algorithm, false, ["verify"]);
  for (const signature of signatures) {
    const tag = signature.startsWith("v1,") ? decoded(signature.slice(3)) : undefined;
    if (tag && (await crypto.subtle.verify("HMAC", key, tag, signed))) {
      return JSON.parse(body) as JsonObject;
    }
  }
  throw new WebhookVerificationError("the signature does not match");
}

function secretBytes(secret: string): Uint8Array<ArrayBuffer> {
  const bytes = decoded(secret.replace(/^whsec_/, ""));
  if (!bytes || bytes.length === 0) {
    throw new WebhookVerificationError("the secret is malformed");
  }
  return bytes;
}

function decoded(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  } catch {
    return undefined;
  }
}
