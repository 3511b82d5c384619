"use strict";

const TEXT_CHARS_MAX = 1 << 20;

/**
 * The thread that talks to the outside: it reads on while code runs, and terminates code that does not return
 * to the event loop. The function's text is its program.
 */
function worker() {
  const fs = require("node:fs");
  const inspector = require("node:inspector");
  const net = require("node:net");
  const { createInterface } = require("node:readline");
  const { StringDecoder } = require("node:string_decoder");
  const { parentPort: port, workerData } = require("node:worker_threads");
  const [REQUESTS, ANSWERS] = [8, 3];
  const { TEXT_CHARS_MAX, ahead } = workerData;
  // Until the main thread handles an interrupt by itself.
  const STOP_WAIT_MS = 200;
  const SETTLE_WAIT_MS = 5000;

  const waiting = [];
  const cancelled = new Set();
  let current = null;
  let is_closed = false;
  let count = 0;

  function send(type, fields) {
    const text = JSON.stringify({ id: current, type, ...fields });
    const line = Buffer.from(
      text.replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0")) + "\n",
    );
    for (let sent = 0; sent < line.length;) {
      try {
        sent += fs.writeSync(ANSWERS, line, sent);
      } catch (error) {
        if (error.code !== "EAGAIN") throw error;
      }
    }
  }

  const output = (name, text) => {
    for (let start = 0; start < text.length; start += TEXT_CHARS_MAX) {
      send(name, { text: text.slice(start, start + TEXT_CHARS_MAX), timestamp: Date.now() * 1e6 });
    }
  };

  /** Reads what children write to a standard stream. */
  class Catcher {
    constructor(name, fd, reader) {
      Object.assign(this, { name, fd, held: "", seen: null, decoder: new StringDecoder("utf8") });
      this.mark = "\0" + require("node:crypto").randomBytes(16).toString("hex");
      new net.Socket({ fd: reader, readable: true, writable: false })
        .on("data", (data) => this.take(data))
        .on("error", () => {});
    }

    take(data) {
      this.held += this.decoder.write(data);
      for (let at; (at = this.held.indexOf(this.mark)) >= 0; this.seen?.()) {
        output(this.name, this.held.slice(0, at));
        this.held = this.held.slice(at + this.mark.length);
      }
      const last = this.held.lastIndexOf("\0");
      const end = last >= 0 && this.mark.startsWith(this.held.slice(last)) ? last : this.held.length;
      output(this.name, this.held.slice(0, end));
      this.held = this.held.slice(end);
    }

    /** Waits until everything written so far was sent. */
    settle() {
      return new Promise((resolve) => {
        const timer = setTimeout(resolve, SETTLE_WAIT_MS);
        this.seen = () => (clearTimeout(timer), resolve());
        // A child may have made the pipe one that does not wait.
        const write = () =>
          fs.write(this.fd, this.mark, (error) => error?.code === "EAGAIN" && setTimeout(write, 5));
        write();
      });
    }
  }

  const catchers = [new Catcher("stdout", 1, 4), new Catcher("stderr", 2, 5)];

  /** TypeScript as JavaScript of the same lines. */
  function stripped(code) {
    const { stripTypeScriptTypes } = require("node:module");
    if (!stripTypeScriptTypes)
      throw new Error(`TypeScript needs Node.js 22.13 or later; this is ${process.version}`);
    process.emitWarning = () => {};
    try {
      return stripTypeScriptTypes(code, { mode: "strip" });
    } catch (error) {
      // Enums and namespaces have code of their own.
      if (error.code !== "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX") throw error;
      return stripTypeScriptTypes(code, { mode: "transform" });
    }
  }

  function next() {
    if (current !== null) return;
    const request = waiting.shift();
    if (request === undefined) {
      if (is_closed) port.postMessage({ exit: true });
      return;
    }
    if (cancelled.delete(request.run)) return next();
    current = request.run;
    send("started", { execution_count: ++count });
    try {
      const code = workerData.language === "typescript" ? stripped(request.code) : request.code;
      port.postMessage({ ...request, code, count });
    } catch (error) {
      send("error", {
        name: error.name,
        value: error.message,
        traceback: `${error.name}: ${error.message}`,
      });
      end();
    }
  }

  async function end() {
    await Promise.all(catchers.map((catcher) => catcher.settle()));
    send("ended");
    current = null;
    next();
  }

  const session = new inspector.Session();
  session.connectToMainThread();

  /** Makes the main thread return to its event loop, where it ends the run. */
  async function stop(run) {
    const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    process.kill(0, "SIGINT");
    port.postMessage({ stop: run });
    await later(STOP_WAIT_MS);
    while (current === run && !ending) {
      // Again: a child may have begun after the first one.
      process.kill(0, "SIGINT");
      port.postMessage({ stop: run });
      session.post("Runtime.terminateExecution", () => {});
      await later(STOP_WAIT_MS);
    }
  }

  let ending = false;
  let written = 0;
  /** Tells the main thread from the event loop, so that requests are read between its messages, too. */
  const release = () => {
    Atomics.sub(ahead, 0, written);
    Atomics.notify(ahead, 0);
    written = 0;
  };
  port.on("message", ({ length, type, ...fields }) => {
    if (length && !written) setImmediate(release);
    written += length ?? 0;
    if (type === "done") {
      if (ending || fields.run !== current) return;
      ending = true;
      end().then(() => (ending = false));
    } else if (type === "stdout" || type === "stderr") output(type, fields.text);
    else send(type, fields);
  });

  const requests = createInterface({
    input: new net.Socket({ fd: REQUESTS, readable: true, writable: false }),
  });
  requests.on("line", (line) => {
    const request = JSON.parse(line);
    if (!("cancel" in request)) {
      waiting.push(request);
      next();
    } else if (request.cancel === current) stop(current);
    else cancelled.add(request.cancel);
  });
  requests.on("close", () => {
    is_closed = true;
    next();
  });
}
