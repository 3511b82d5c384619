// An HTTP server of this process that answers what a test scripted and keeps what it was sent.
import { createServer } from "node:http";
import { once } from "node:events";

export const KEY = "pds_0123456789abcdef0123456789abcdef";

export class WireServer {
  requests = [];
  #replies = new Map();
  #http = createServer((request, response) => void this.#handle(request, response));

  static async start() {
    const server = new WireServer();
    server.#http.listen(0, "127.0.0.1");
    await once(server.#http, "listening");
    server.url = `http://127.0.0.1:${server.#http.address().port}`;
    return server;
  }

  async close() {
    this.#http.closeAllConnections();
    this.#http.close();
    await once(this.#http, "close");
  }

  /**
   * Script one answer; several for one route are given in order, the last one again and again.
   * `more`: headers; chunks (bytes to flush, or async functions to wait for); drop; before.
   */
  on(method, path, status = 200, body = undefined, more = {}) {
    const key = `${method} ${path}`;
    this.#replies.set(key, [...(this.#replies.get(key) ?? []), { status, body, ...more }]);
  }

  sent(method, path) {
    return this.requests.filter((request) => request.method === method && request.path === path);
  }

  get last() {
    return this.requests.at(-1);
  }

  async #handle(request, response) {
    const url = new URL(request.url, "http://x");
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const body = Buffer.concat(pieces);
    this.requests.push({
      method: request.method,
      path: url.pathname,
      query: Object.fromEntries(url.searchParams),
      headers: request.headers,
      body,
      get json() {
        return JSON.parse(body.toString());
      },
    });
    const replies = this.#replies.get(`${request.method} ${url.pathname}`) ?? [
      { status: 404, body: { error: `nothing scripted at ${request.method} ${url.pathname}`, code: "not_scripted" } },
    ];
    await this.#reply(response, replies.length > 1 ? replies.shift() : replies[0]);
  }

  async #reply(response, reply) {
    await reply.before?.();
    if (reply.drop && !reply.chunks) return void response.socket.destroy();
    const isBytes = Buffer.isBuffer(reply.body) || typeof reply.body === "string";
    const body = isBytes ? reply.body : reply.body === undefined ? "" : JSON.stringify(reply.body);
    response.writeHead(reply.status, { "Content-Type": isBytes ? "application/octet-stream" : "application/json", ...reply.headers });
    if (!reply.chunks) return void response.end(body);
    response.flushHeaders();
    for (const chunk of reply.chunks) {
      if (typeof chunk === "function") await chunk();
      else await new Promise((resolve) => response.write(chunk, resolve));
    }
    if (reply.drop) response.socket?.destroy();
    else response.end();
  }
}

/** A promise and the way to fulfil it. */
export function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { open, wait: () => opened };
}

export const SANDBOX = {
  id: "s1", template: "base", cpu: 1, memory_mb: 512, status: "running", metadata: { a: "b" }, boot_ms: 7,
  isolation: "emulated", field_of_the_future: [1],
};
