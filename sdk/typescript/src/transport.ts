/**
 * Sending calls: time limits, retries, and conversion of failures to errors.
 *
 * Invariants: every method ends within its limit; every failure leaves as a `PandaStackError`
 * (or as the caller's own abort reason); no answer grows past its limit in memory.
 */

import type { Config } from "./config.js";
import {
  errorFromResponse,
  NetworkError,
  NotFoundError,
  PandaStackError,
  RequestTimeout,
  SandboxTimeout,
  ServerError,
} from "./errors.js";
import type { AbortSignal, Fetch, Headers, Response } from "./globals.js";
import { CapacityRetry, type CreateRetryEvent } from "./retry.js";
import { VERSION } from "./version.js";
import { Answer, type Call, ERROR_BODY_BYTES_MAX, isResendable, JSON_BODY_BYTES_MAX, whatOf } from "./wire.js";

/** Options of a transport. */
export interface TransportOptions {
  /** Settles address and key; called once, at the first call. */
  config: () => Promise<Config>;
  callMsMax: number;
  createRetrySeconds: number;
  onCreateRetry: ((event: CreateRetryEvent) => void) | undefined;
  fetch: Fetch;
}

/** Ends an exchange: at a deadline, on silence, or by the caller's signal. */
class Guard {
  readonly #controller = new AbortController();
  readonly #onCallerAbort = (): void => this.#controller.abort();
  readonly #idleMs: number | undefined;
  readonly #caller: AbortSignal | undefined;
  #deadline: ReturnType<typeof setTimeout> | undefined;
  #idle: ReturnType<typeof setTimeout> | undefined;
  /** Reason why the guard ended the exchange, if it did. */
  expired: "deadline" | "silence" | undefined;

  constructor(limits: { msMax?: number | undefined; idleMs?: number; signal?: AbortSignal | undefined }) {
    this.#idleMs = limits.idleMs;
    this.#caller = limits.signal;
    if (limits.msMax !== undefined) this.#deadline = setTimeout(() => this.#expire("deadline"), limits.msMax);
    if (limits.signal?.aborted) this.#controller.abort();
    limits.signal?.addEventListener("abort", this.#onCallerAbort, { once: true });
    this.progress();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Something arrived: the wait for the next starts anew. */
  progress(): void {
    if (this.#idleMs === undefined) return;
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => this.#expire("silence"), this.#idleMs);
  }

  /** Drop the exchange, even if it is in progress. */
  end(): void {
    clearTimeout(this.#deadline);
    clearTimeout(this.#idle);
    this.#caller?.removeEventListener("abort", this.#onCallerAbort);
    this.#controller.abort();
  }

  #expire(why: "deadline" | "silence"): void {
    this.expired ??= why;
    this.#controller.abort();
  }
}

/** One server, one key. */
export class Transport {
  readonly #options: TransportOptions;
  #config: Promise<Config> | undefined;
  /** The settled address; `undefined` before the first call. */
  baseUrl: string | undefined;

  constructor(options: TransportOptions) {
    this.#options = options;
  }

  /** Send a call; wait and repeat where a create is refused for lack of room. */
  async send(call: Call): Promise<Answer> {
    const retry = new CapacityRetry(call.isCreate ? this.#options.createRetrySeconds : 0);
    for (;;) {
      try {
        return await this.#attempt(call);
      } catch (error) {
        const delaySeconds = error instanceof PandaStackError ? retry.delayAfter(error) : undefined;
        if (delaySeconds === undefined || !(error instanceof PandaStackError)) throw error;
        this.#announce(call, retry, error, delaySeconds);
        await pause(delaySeconds * 1000, call.signal);
      }
    }
  }

  /** Send a call whose answer is read piece by piece; errors before the first byte are thrown here. */
  async openStream(call: Call, idleMs: number): Promise<ByteStream> {
    const guard = new Guard({ msMax: call.msMax, idleMs, signal: call.signal });
    try {
      const response = await this.#fetch(call, guard.signal);
      if (response.ok) return new ByteStream(call, response, guard, idleMs);
      throw await failure(call, response);
    } catch (error) {
      const typed = this.#typed(call, error, guard, idleMs);
      guard.end();
      throw typed;
    }
  }

  async #attempt(call: Call): Promise<Answer> {
    let wasResent = false;
    for (;;) {
      try {
        return await this.#exchange(call);
      } catch (error) {
        // The delete whose answer was lost did its work.
        if (wasResent && call.method === "DELETE" && error instanceof NotFoundError) {
          return new Answer(whatOf(call), new Uint8Array());
        }
        // A kept-open connection that the server closed at this very moment.
        if (wasResent || !(error instanceof BrokenConnection) || !isResendable(call)) throw error;
        wasResent = true;
      }
    }
  }

  async #exchange(call: Call): Promise<Answer> {
    const msMax = call.msMax ?? this.#options.callMsMax;
    const guard = new Guard({ msMax, signal: call.signal });
    try {
      const response = await this.#fetch(call, guard.signal);
      if (!response.ok) throw await failure(call, response);
      return new Answer(whatOf(call), await readBody(call, response, call.bodyBytesMax ?? JSON_BODY_BYTES_MAX));
    } catch (error) {
      throw this.#typed(call, error, guard, msMax);
    } finally {
      guard.end();
    }
  }

  async #fetch(call: Call, signal: AbortSignal): Promise<Response> {
    const config = await this.#settled();
    const query = new URLSearchParams(call.query).toString();
    const headers: Record<string, string> = {
      Accept: call.accept ?? "application/json",
      "X-PandaStack-Client": `typescript/${VERSION}`,
    };
    if (config.apiKey !== undefined) headers.Authorization = `Bearer ${config.apiKey}`;
    if (call.contentType) headers["Content-Type"] = call.contentType;
    Object.assign(headers, call.extra);
    if (call.idempotencyKey) headers["Idempotency-Key"] = call.idempotencyKey;
    const init: RequestInit & { duplex?: "half" } = { method: call.method, headers, signal, redirect: "manual" };
    if (call.body !== undefined) init.body = call.body as BodyInit;
    if (call.body instanceof ReadableStream) init.duplex = "half";
    return await this.#options.fetch(`${config.baseUrl}/v1${call.path}${query ? `?${query}` : ""}`, init);
  }

  /** The address of a WebSocket. Handshakes have no headers of ours, so a key goes into the query. */
  async socketUrl(path: string, query: Record<string, string>): Promise<string> {
    const config = await this.#settled();
    const all = config.apiKey === undefined ? query : { ...query, access_token: config.apiKey };
    return `${config.baseUrl.replace(/^http/, "ws")}/v1${path}?${new URLSearchParams(all)}`;
  }

  async #settled(): Promise<Config> {
    this.#config ??= this.#options.config();
    const config = await this.#config.catch((error: unknown) => {
      this.#config = undefined; // a key may be there next time
      throw error;
    });
    this.baseUrl = config.baseUrl;
    return config;
  }

  #announce(call: Call, retry: CapacityRetry, error: PandaStackError, delaySeconds: number): void {
    this.#options.onCreateRetry?.({
      method: call.method,
      path: call.path,
      attempt: retry.attempt,
      statusCode: error.status ?? 0,
      error: error.reason,
      delaySeconds,
      elapsedSeconds: retry.elapsedSeconds,
      retryAfterSeconds: error.retryAfterSeconds,
    });
  }

  #typed(call: Call, error: unknown, guard: Guard, msMax: number): unknown {
    return typedError(call, error, guard.expired, msMax, this.baseUrl);
  }
}

/** The body of an open answer. Ends by itself when read to the end; else `close` it. */
export class ByteStream {
  readonly #call: Call;
  readonly #guard: Guard;
  readonly #idleMs: number;
  readonly #response: Response;

  constructor(call: Call, response: Response, guard: Guard, idleMs: number) {
    this.#call = call;
    this.#response = response;
    this.#guard = guard;
    this.#idleMs = idleMs;
  }

  /** The answer's headers. */
  get headers(): Headers {
    return this.#response.headers;
  }

  /** The body as it arrives; throws when the connection breaks or falls silent. */
  async *chunks(): AsyncGenerator<Uint8Array, void, undefined> {
    const reader = this.#response.body?.getReader();
    if (!reader) return;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        this.#guard.progress();
        yield value;
      }
    } catch (error) {
      const expired = this.#guard.expired;
      throw typedError(this.#call, error, expired, expired === "deadline" ? (this.#call.msMax ?? 0) : this.#idleMs);
    } finally {
      this.close();
    }
  }

  /** Drop the rest of the body. */
  close(): void {
    this.#guard.end();
  }
}

/** A broken connection, distinguished from other network errors only to decide about resending. */
class BrokenConnection extends NetworkError {
  override name = "NetworkError";
}

function typedError(
  call: Call,
  error: unknown,
  expired: "deadline" | "silence" | undefined,
  msMax: number,
  server = "the server",
): unknown {
  if (error instanceof PandaStackError) return error;
  const what = whatOf(call);
  if (expired === "silence") return new NetworkError(`${what}: no byte for ${msMax / 1000} s`, { cause: error });
  if (expired === "deadline") {
    const kind = call.isCommand ? SandboxTimeout : RequestTimeout;
    return new kind(`${what}: no complete answer within ${msMax / 1000} s`, { cause: error });
  }
  if (call.signal?.aborted) return call.signal.reason;
  const cause = error instanceof Error ? (error.cause as { code?: string; message?: string } | undefined) : undefined;
  const detail = cause?.code ?? cause?.message ?? (error instanceof Error ? error.message : String(error));
  // The runtime's own patience with a silent server may end before ours.
  if (/^UND_ERR_(HEADERS|BODY)_TIMEOUT$/.test(detail)) {
    return new (call.isCommand ? SandboxTimeout : RequestTimeout)(`${what}: no answer in time`, { cause: error });
  }
  if (["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"].includes(detail)) {
    return new NetworkError(`${what}: cannot connect to ${server}: ${detail}`, {
      hint: "start the server with `pandastack up`, or set PANDASTACK_API to where it listens",
      cause: error,
    });
  }
  return new BrokenConnection(`${what}: the connection broke: ${detail}`, { cause: error });
}

async function failure(call: Call, response: Response): Promise<PandaStackError> {
  const what = whatOf(call);
  // A runtime may hide the status of a redirect that it did not follow.
  if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
    // Following would send the key to an address that was not configured.
    const where = response.headers.get("location") ?? "elsewhere";
    return new ServerError(`${what}: the server redirects to ${where}`, {
      status: response.status,
      hint: "set the base URL to the final address",
    });
  }
  const body = await readBody(call, response, ERROR_BODY_BYTES_MAX);
  const isCommand = call.isCommand ?? false;
  return errorFromResponse(response.status, response.headers, new TextDecoder().decode(body), { what, isCommand });
}

async function readBody(call: Call, response: Response, bytesMax: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > bytesMax) throw new ServerError(`${whatOf(call)}: the response is longer than ${bytesMax} bytes`);
    chunks.push(value);
  }
  if (chunks.length === 1 && chunks[0]) return chunks[0];
  const body = new Uint8Array(size);
  let offset = 0;
  for (const chunk of chunks) {
    body.set(chunk, offset);
    offset += chunk.length;
  }
  return body;
}

function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    if (signal?.aborted) onAbort();
    else signal?.addEventListener("abort", onAbort, { once: true });
  });
}
