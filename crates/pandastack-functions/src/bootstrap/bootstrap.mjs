// Runs a Node function: imports its handler, then answers calls from the runtime API until the machine ends.
//
// What `_HANDLER` may name:
//
//   module.function    called as function(event, context[, callback]), as on AWS Lambda
//   file.js            its `handler`, or its default export: a function, or an object with `fetch(request, env, ctx)`;
//                      a file that exports none of them is a script: run for each call, the event on standard input,
//                      JSON on standard output
//
// Requests are written to the socket by hand, and an answer goes out together with the question for the next call: under
// emulation the HTTP client alone would take longer than most handlers.

import crypto from "node:crypto";
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import net from "node:net";
import path from "node:path";
import { spawn } from "node:child_process";
import { pathToFileURL } from "node:url";

const START = "/2018-06-01/runtime/";
const END_OF_HEAD = Buffer.from("\r\n\r\n");
const INTEGRATION = "application/vnd.awslambda.http-integration-response";
/** Bytes of a script's output that can be its answer. Beyond it the call fails. */
const SCRIPT_OUTPUT_MAX = 6 * 1024 * 1024;

/** One connection to the runtime API. */
class Api {
  constructor() {
    const [host, port] = process.env.AWS_LAMBDA_RUNTIME_API.split(":");
    this.host = host;
    this.pending = Buffer.alloc(0);
    this.waiting = null;
    this.socket = net.connect({ host, port: Number(port), noDelay: true });
    this.socket.on("data", (part) => {
      this.pending = this.pending.length ? Buffer.concat([this.pending, part]) : part;
      this.wake();
    });
    // The runtime ends with the machine, or because a call took too long.
    this.socket.on("close", () => process.exit(0));
    this.socket.on("error", () => process.exit(0));
    this.askNext = `GET ${START}invocation/next HTTP/1.1\r\nHost: ${host}\r\n\r\n`;
  }

  wake() {
    const waiting = this.waiting;
    if (!waiting) return;
    const answer = this.parse();
    if (answer) {
      this.waiting = null;
      waiting(answer);
    }
  }

  parse() {
    const end = this.pending.indexOf(END_OF_HEAD);
    if (end < 0) return null;
    const headers = {};
    for (const line of this.pending.toString("latin1", 0, end).split("\r\n").slice(1)) {
      const colon = line.indexOf(":");
      headers[line.slice(0, colon).toLowerCase()] = line.slice(colon + 1).trim();
    }
    const from = end + 4;
    const to = from + Number(headers["content-length"] ?? 0);
    if (this.pending.length < to) return null;
    const body = this.pending.subarray(from, to);
    this.pending = this.pending.subarray(to);
    return { headers, body };
  }

  read() {
    const answer = this.parse();
    return answer ? Promise.resolve(answer) : new Promise((resolve) => (this.waiting = resolve));
  }

  post(where, body, thenNext) {
    const bytes = Buffer.from(body);
    // Cheaper to say than for the runtime to find out.
    const peakKb = process.resourceUsage().maxRSS;
    const head =
      `POST ${START}${where} HTTP/1.1\r\nHost: ${this.host}\r\nContent-Length: ${bytes.length}\r\n` +
      `Pandastack-Memory-Peak-Kb: ${peakKb}\r\n\r\n`;
    this.socket.write(Buffer.concat([Buffer.from(head), bytes, Buffer.from(thenNext ? this.askNext : "")]));
    return this.read();
  }

  /** Begins an answer in parts. */
  begin(where, contentType) {
    this.socket.write(
      `POST ${START}${where} HTTP/1.1\r\nHost: ${this.host}\r\nTransfer-Encoding: chunked\r\n` +
        `Lambda-Runtime-Function-Response-Mode: streaming\r\nContent-Type: ${contentType}\r\n` +
        "Trailer: Lambda-Runtime-Function-Error-Type\r\n\r\n",
    );
  }

  part(bytes) {
    if (!bytes.length) return Promise.resolve();
    const framed = Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from("\r\n")]);
    if (this.socket.write(framed)) return Promise.resolve();
    return new Promise((resolve) => this.socket.once("drain", resolve));
  }

  end(failed) {
    const trailer = failed ? `Lambda-Runtime-Function-Error-Type: ${failed.name || "Error"}\r\n` : "";
    this.socket.write(`0\r\n${trailer}\r\n${this.askNext}`);
    return this.read();
  }
}

/** What a handler writes its answer to when it streams. */
class ResponseStream {
  constructor(api, where) {
    Object.assign(this, { api, where, begun: false, contentType: "application/octet-stream", prelude: null, ended: false });
    this.writableEnded = false;
  }
  setContentType(type) {
    this.contentType = type;
  }
  start() {
    if (this.begun) return;
    this.begun = true;
    this.api.begin(this.where, this.prelude ? INTEGRATION : this.contentType);
    if (this.prelude) this.api.part(Buffer.concat([Buffer.from(JSON.stringify(this.prelude)), Buffer.alloc(8)]));
  }
  write(part, encoding, done) {
    this.start();
    const bytes = typeof part === "string" ? Buffer.from(part) : Buffer.from(part);
    const written = this.api.part(bytes);
    const callback = typeof encoding === "function" ? encoding : done;
    if (callback) written.then(() => callback());
    return true;
  }
  end(part) {
    if (part !== undefined && part !== null && typeof part !== "function") this.write(part);
    this.start();
    this.ended = this.writableEnded = true;
  }
  on() {
    return this;
  }
  once() {
    return this;
  }
  emit() {
    return false;
  }
}

const STREAMS = Symbol("streams");
globalThis.awslambda = {
  streamifyResponse: (handler) => Object.assign(handler, { [STREAMS]: true }),
  HttpResponseStream: {
    from(stream, prelude) {
      stream.prelude = { statusCode: 200, headers: {}, ...prelude };
      return stream;
    },
  },
};

function contextOf(headers) {
  const deadline = Number(headers["lambda-runtime-deadline-ms"] ?? 0);
  return {
    awsRequestId: headers["lambda-runtime-aws-request-id"],
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    functionName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    logStreamName: headers["lambda-runtime-aws-request-id"],
    attempt: Number(headers["pandastack-attempt"] ?? 1),
    callbackWaitsForEmptyEventLoop: false,
    getRemainingTimeInMillis: () => Math.max(0, deadline - Date.now()),
  };
}

function requestOf(event, headers) {
  const isHttp = headers["pandastack-http"] === "1" || event?.requestContext?.http;
  if (!isHttp) {
    const body = JSON.stringify(event ?? null);
    return new Request("http://localhost/", { method: "POST", body, headers: { "content-type": "application/json" } });
  }
  const { method } = event.requestContext.http;
  const given = new Headers(event.headers);
  if (event.cookies?.length) given.set("cookie", event.cookies.join("; "));
  const scheme = event.headers["x-forwarded-proto"] ?? "http";
  const query = event.rawQueryString ? `?${event.rawQueryString}` : "";
  const url = `${scheme}://${event.requestContext.domainName}${event.rawPath}${query}`;
  const has = event.body !== undefined && event.body !== null && method !== "GET" && method !== "HEAD";
  const body = has ? Buffer.from(event.body, event.isBase64Encoded ? "base64" : "utf8") : undefined;
  return new Request(url, { method, headers: given, body });
}

async function sendResponse(api, where, response) {
  const headers = {};
  const cookies = response.headers.getSetCookie();
  for (const [name, value] of response.headers) if (name !== "set-cookie") headers[name] = value;
  const type = headers["content-type"] ?? "";
  // What says how long it is fits into one answer; everything else streams.
  if (!response.body || headers["content-length"] || /^text\/plain|json/.test(type)) {
    const bytes = Buffer.from(await response.arrayBuffer());
    const answer = { statusCode: response.status, headers, cookies, body: bytes.toString("base64"), isBase64Encoded: true };
    return api.post(`${where}/response`, JSON.stringify(answer), true);
  }
  api.begin(`${where}/response`, INTEGRATION);
  await api.part(Buffer.concat([Buffer.from(JSON.stringify({ statusCode: response.status, headers, cookies })), Buffer.alloc(8)]));
  let failed = null;
  try {
    for await (const part of response.body) await api.part(Buffer.from(part));
  } catch (error) {
    console.error(error);
    failed = error;
  }
  return api.end(failed);
}

/** A file without a handler: each call runs it in a process of its own. */
function script(file) {
  return (event) =>
    new Promise((resolve, reject) => {
      const text = JSON.stringify(event ?? null);
      const env = text.length < 100_000 ? { ...process.env, PANDASTACK_INPUT: text } : process.env;
      const child = spawn(process.execPath, [file], { stdio: ["pipe", "pipe", "inherit"], env });
      const parts = [];
      let length = 0;
      child.stdin.on("error", () => {});
      child.stdin.end(text);
      child.stdout.on("data", (part) => {
        process.stdout.write(part);
        length += part.length;
        if (length <= SCRIPT_OUTPUT_MAX) parts.push(part);
      });
      child.on("error", reject);
      child.on("close", (code) => {
        const failed = (message) => reject(Object.assign(new Error(message), { name: "ScriptFailed" }));
        if (code !== 0) return failed(`the script exited with ${code}`);
        if (length > SCRIPT_OUTPUT_MAX) return failed(`the script printed more than ${SCRIPT_OUTPUT_MAX} bytes`);
        const output = Buffer.concat(parts).toString().trim();
        for (const candidate of [output, output.slice(output.lastIndexOf("\n") + 1)]) {
          try {
            return resolve(JSON.parse(candidate));
          } catch {
            // Not JSON: the next candidate, or the text itself.
          }
        }
        resolve(output);
      });
    });
}

function lambda(handler) {
  if (handler[STREAMS]) {
    return { streams: handler };
  }
  if (handler.length < 3) return { call: async (event, context) => handler(event, context) };
  return {
    call: (event, context) =>
      new Promise((resolve, reject) => {
        const done = (error, value) => (error ? reject(error) : resolve(value));
        const returned = handler(event, context, done);
        if (returned && typeof returned.then === "function") returned.then(resolve, reject);
      }),
  };
}

async function load(root, file) {
  for (const name of [file, `${file}.mjs`, `${file}.js`, `${file}.cjs`]) {
    const full = path.join(root, name);
    if (fs.existsSync(full) && fs.statSync(full).isFile()) return import(pathToFileURL(full));
  }
  throw new Error(`the bundle has no file ${file}`);
}

async function find() {
  const root = process.env.LAMBDA_TASK_ROOT;
  const entrypoint = process.env._HANDLER;
  if (/\.(m|c)?js$/.test(entrypoint)) {
    const file = path.join(root, entrypoint);
    if (!fs.existsSync(file)) throw new Error(`the bundle has no file ${entrypoint}`);
    if (!/\bexports?\b/.test(fs.readFileSync(file, "utf8"))) return { call: script(file) };
    const module = await import(pathToFileURL(file));
    const main = module.default ?? module;
    const handler = module.handler ?? main.handler;
    if (typeof handler === "function") return lambda(handler);
    const fetcher = module.fetch ?? main.fetch;
    if (typeof fetcher === "function") return { fetch: fetcher.bind(main) };
    if (typeof main === "function") return lambda(main);
    throw new Error(`${entrypoint} exports no handler, fetch or default function`);
  }
  const dot = entrypoint.lastIndexOf(".");
  if (dot < 1) throw new Error(`the entrypoint ${entrypoint} is neither a file nor module.function`);
  const module = await load(root, entrypoint.slice(0, dot));
  const name = entrypoint.slice(dot + 1);
  const handler = module[name] ?? module.default?.[name];
  if (typeof handler !== "function") throw new Error(`the module exports no function ${name}`);
  return name === "fetch" ? { fetch: handler } : lambda(handler);
}

/** A copy must not draw the random numbers of its siblings: they come from the kernel, which knows. */
function drawFromKernel() {
  const source = fs.openSync("/dev/urandom", "r");
  const fill = (view) => {
    const bytes = Buffer.from(view.buffer, view.byteOffset, view.byteLength);
    let at = 0;
    while (at < bytes.length) at += fs.readSync(source, bytes, at, bytes.length - at, null);
    return view;
  };
  const word = new BigUint64Array(1);
  Math.random = () => Number(fill(word)[0] >> 11n) / 2 ** 53;
  const randomBytes = (size, done) => {
    const bytes = fill(Buffer.alloc(size));
    if (!done) return bytes;
    process.nextTick(done, null, bytes);
    return undefined;
  };
  const uuid = () => {
    const b = fill(Buffer.alloc(16));
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    return b.toString("hex").replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
  };
  crypto.randomBytes = crypto.pseudoRandomBytes = randomBytes;
  crypto.randomUUID = uuid;
  crypto.randomFillSync = fill;
  crypto.webcrypto.getRandomValues = fill;
  Object.defineProperty(globalThis.crypto, "getRandomValues", { value: fill, configurable: true });
  Object.defineProperty(globalThis.crypto, "randomUUID", { value: uuid, configurable: true });
  syncBuiltinESMExports();
}

function failure(error, requestId) {
  const known = error instanceof Error ? error : new Error(String(error));
  const stackTrace = (known.stack ?? "").split("\n").slice(1).map((line) => line.trim());
  return JSON.stringify({ errorMessage: known.message, errorType: known.name, stackTrace, requestId });
}

const env = process.env;

async function answer(api, handler, { headers, body }) {
  const requestId = headers["lambda-runtime-aws-request-id"];
  const where = `invocation/${requestId}`;
  try {
    const event = body.length ? JSON.parse(body) : null;
    if (handler.fetch) {
      const pending = [];
      const context = { waitUntil: (promise) => pending.push(promise), passThroughOnException: () => {} };
      const response = await handler.fetch(requestOf(event, headers), env, context);
      await Promise.allSettled(pending);
      return await sendResponse(api, where, response);
    }
    if (handler.streams) {
      const stream = new ResponseStream(api, `${where}/response`);
      let failed = null;
      try {
        await handler.streams(event, stream, contextOf(headers));
      } catch (error) {
        if (!stream.begun) throw error;
        console.error(error);
        failed = error;
      }
      stream.start();
      return await api.end(failed);
    }
    const value = await handler.call(event, contextOf(headers));
    return await api.post(`${where}/response`, JSON.stringify(value ?? null), true);
  } catch (error) {
    console.error(error);
    return api.post(`${where}/error`, failure(error, requestId), true);
  }
}

async function serve(handler) {
  const api = new Api();
  api.socket.write(api.askNext);
  for (;;) {
    const got = await api.read();
    if (got.headers["lambda-runtime-aws-request-id"]) await answer(api, handler, got);
  }
}

let handler;
try {
  drawFromKernel();
  handler = await find();
} catch (error) {
  console.error(error);
  await new Api().post("init/error", failure(error, ""), false);
  process.exit(1);
}
const loops = Number(process.env.PANDASTACK_CONCURRENCY ?? 1);
await Promise.all(Array.from({ length: loops }, () => serve(handler)));
