// Runs JavaScript or TypeScript that arrives as JSON lines, and tells what happens as JSON lines: those of
// `wire.py`.
//
//   requests --8--> worker thread --port--> main thread, which runs the code
//   answers  <--3-- worker thread <--port-- console, results, errors
//                   worker thread <--4, 5-- what child processes write
//
// This file is the main thread, `worker.js` the other one; with `translator.js` they are one program.
//
// V8 runs cells as its inspector's console does ("REPL mode"): declarations can be repeated, and `await` can
// stand anywhere.

const fs = require("node:fs");
const inspector = require("node:inspector");
const path = require("node:path");
const { createRequire } = require("node:module");
const { Writable } = require("node:stream");
const { StringDecoder } = require("node:string_decoder");
const { pathToFileURL } = require("node:url");
const util = require("node:util");
const { Worker } = require("node:worker_threads");

// Under this symbol of the global object, translated code finds `load` and `meta`.
const TOOLS = Symbol.for("pandastack.code-context");
const TOOLS_NAME = 'globalThis[Symbol.for("pandastack.code-context")]';
// File in which the guest tells the sandbox, written before a copy of it continues.
const MACHINE_FILE = "/run/pandastack/sandbox_id";
// Output that the main thread may be ahead of the worker by.
const AHEAD_CHARS_MAX = 8 << 20;
// Longest JSON of a plain object or array that is sent beside its text.
const JSON_CHARS_MAX = 1 << 20;
const DISPLAY = Symbol.for("Jupyter.display");
// Frames of Node.js and of this file.
const INTERNAL = /^\s+at (?:.*(?:\bnode:|\[eval\])|new Promise \(<anonymous>\)( \{)?$)/;
const REPRESENTATIONS = ["html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript"];
const MIME_FIELDS = {
  "text/plain": "text",
  "text/html": "html",
  "text/markdown": "markdown",
  "image/svg+xml": "svg",
  "image/png": "png",
  "image/jpeg": "jpeg",
  "application/pdf": "pdf",
  "text/latex": "latex",
  "application/json": "json",
  "application/javascript": "javascript",
};

const ahead = new Int32Array(new SharedArrayBuffer(4));
const language = process.argv.at(-1);
const port = new Worker(`(${worker})()`, {
  eval: true,
  execArgv: [],
  workerData: { TEXT_CHARS_MAX, ahead, language },
});

/** Sends an event, and waits if the worker is far behind. */
function send(type, fields) {
  const length = Object.values(fields).reduce(
    (sum, value) => sum + (typeof value === "string" ? value.length : 0),
    0,
  );
  for (let now; (now = Atomics.load(ahead, 0)) > AHEAD_CHARS_MAX;) Atomics.wait(ahead, 0, now);
  Atomics.add(ahead, 0, length);
  port.postMessage({ type, length, ...fields });
}

/**
 * Replaces `process.stdout` and `process.stderr`. Writes at once: a stream with a queue would wait for ever for
 * a write that was interrupted.
 */
class Stream extends Writable {
  constructor(name, fd) {
    super({ autoDestroy: false, emitClose: false });
    Object.assign(this, { name, fd, _type: "pipe", decoder: new StringDecoder("utf8") });
  }

  write(chunk, encoding, done) {
    const is_text = typeof chunk === "string" && typeof encoding !== "string";
    const text = is_text ? chunk : this.decoded(chunk, encoding);
    for (let start = 0; start < text.length; start += TEXT_CHARS_MAX) {
      send(this.name, { text: text.slice(start, start + TEXT_CHARS_MAX) });
    }
    const told = typeof encoding === "function" ? encoding : done;
    if (told) process.nextTick(told);
    return true;
  }

  decoded(chunk, encoding) {
    return this.decoder.write(typeof chunk === "string" ? Buffer.from(chunk, encoding) : chunk);
  }

  end(...last) {
    const told = last.find((one) => typeof one === "function");
    if (last[0] != null && last[0] !== told) this.write(last[0], typeof last[1] === "string" ? last[1] : undefined);
    process.nextTick(() => {
      this.emit("finish");
      told?.();
    });
    return this;
  }
}

for (const [name, fd] of [
  ["stdout", 1],
  ["stderr", 2],
]) {
  const stream = new Stream(name, fd);
  Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
}

/** What translated code uses. Modules are found from the directory in which the kernel began. */
const tools = {
  async load(what, options, wanted = []) {
    const loaded = await import(what, options);
    const missing = wanted.find((name) => !(name in loaded));
    if (missing !== undefined)
      throw new SyntaxError(`the module '${what}' has no export named '${missing}'`);
    return loaded;
  },
  meta: {
    dirname: process.cwd(),
    filename: path.join(process.cwd(), "cell.mjs"),
    url: pathToFileURL(path.join(process.cwd(), "cell.mjs")).href,
    resolve: (what) => pathToFileURL(require.resolve(what)).href,
  },
};

/** Whose memory this is. A copy of a machine would draw the numbers that its original draws. */
class Machine {
  constructor() {
    this.known = this.look();
    this.own = Math.random;
  }

  look() {
    try {
      return fs.readFileSync(MACHINE_FILE, "utf8");
    } catch {
      return "";
    }
  }

  /** Replaces `Math.random` in another sandbox: V8 seeds it once. Code that replaced it itself keeps it. */
  refresh() {
    const found = this.look();
    if (found === this.known) return;
    this.known = found;
    if (Math.random !== this.own) return;
    const state = new BigUint64Array(2);
    const file = fs.openSync("/dev/urandom");
    fs.readSync(file, state);
    fs.closeSync(file);
    // xorshift128+, as in V8.
    this.own = Math.random = function random() {
      let [s1, s0] = state;
      state[0] = s0;
      s1 ^= BigInt.asUintN(64, s1 << 23n);
      state[1] = s1 ^ s0 ^ (s1 >> 17n) ^ (s0 >> 26n);
      return Number((state[0] + state[1]) & 0x1fffffffffffffn) / 2 ** 53;
    };
  }
}

const encoded = (data) =>
  ArrayBuffer.isView(data)
    ? Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64")
    : data;

/** An object in every form that it offers, or a promise of it. */
function representations(value) {
  const fields = {};
  const later = [];
  try {
    fields.text = typeof value === "string" ? value : util.inspect(value);
  } catch (error) {
    fields.text = `<a value that cannot be inspected: ${error}>`;
  }
  if (value === null || !["object", "function"].includes(typeof value)) return fields;
  const form = (method, take) => {
    try {
      if (typeof value[method] !== "function") return;
      const made = value[method]();
      if (util.types.isPromise(made)) later.push(made.then(take).catch(() => {}));
      else take(made);
    } catch {
      // The other forms are still good.
    }
  };
  const set = (name, data) => data != null && (fields[name] = JSON.parse(JSON.stringify(encoded(data))));
  const bundle = (data) => {
    for (const [kind, part] of Object.entries(data)) {
      try {
        if (MIME_FIELDS[kind]) set(MIME_FIELDS[kind], part);
      } catch {}
    }
  };
  for (const name of REPRESENTATIONS) form(`_repr_${name}_`, (data) => set(name, data));
  form("_repr_mimebundle_", bundle);
  form(DISPLAY, bundle);
  if (Object.keys(fields).length === 1 && later.length === 0 && isPlain(value)) {
    try {
      const json = JSON.stringify(value);
      if (json.length <= JSON_CHARS_MAX) fields.json = JSON.parse(json);
    } catch {
      // It refers to itself, or holds what JSON has no form for.
    }
  }
  return later.length === 0 ? fields : Promise.all(later).then(() => fields);
}

function isPlain(value) {
  const prototype = Object.getPrototypeOf(value);
  return Array.isArray(value) || prototype === Object.prototype || prototype === null;
}

function failure(error, place) {
  try {
    const { name, value, traceback } = failureOf(error, place);
    return { name: String(name), value: String(value), traceback };
  } catch {
    const value = "what was thrown cannot be inspected";
    return { name: "Error", value, traceback: `Uncaught ${value}` };
  }
}

/** Name, message and the user's part of the stack of what was thrown. */
function failureOf(error, place) {
  if (!util.types.isNativeError(error)) {
    const value = typeof error === "string" ? error : util.inspect(error);
    return {
      name: error?.constructor?.name ?? typeof error,
      value,
      traceback: `Uncaught ${util.inspect(error)}`,
    };
  }
  const users = [];
  for (const line of util.inspect(error).split("\n")) {
    if (!INTERNAL.test(line)) users.push(line);
    // Properties of the error follow its last frame.
    else if (line.endsWith(" {")) users.push(`${users.pop()} {`);
  }
  return {
    name: String(error.name),
    value: String(error.message),
    traceback: [...place, ...users].join("\n"),
  };
}

/** What a cell threw, and its place if it has none in its stack. */
class Thrown {
  constructor(value, place) {
    Object.assign(this, { value, place });
  }
}

class Kernel {
  constructor() {
    this.session = new inspector.Session();
    this.session.connect();
    this.machine = new Machine();
    this.translator = new Translator((code) => this.syntaxError(code));
    this.current = null;
    process.on("SIGINT", () => {});
    for (const event of ["uncaughtException", "unhandledRejection"]) {
      process.on(event, (error) => process.stderr.write(`Uncaught ${failure(error, []).traceback}\n`));
    }
    process.on("exit", () => {
      const until = Date.now() + 5000;
      for (let now; (now = Atomics.load(ahead, 0)) > 0 && Date.now() < until;) Atomics.wait(ahead, 0, now, 100);
    });
    process.argv.length = 1;
    process.execArgv.length = 0;
    const require = createRequire(path.join(process.cwd(), "cell.js"));
    const module = { exports: {} };
    for (const name of ["__filename", "__dirname"]) delete globalThis[name];
    const names = {
      require,
      module,
      exports: module.exports,
      display: (...values) => this.display(values),
      [TOOLS]: tools,
    };
    for (const name of Reflect.ownKeys(names)) {
      Object.defineProperty(globalThis, name, { configurable: true, writable: true, value: names[name] });
    }
    port.on("message", (request) => this.take(request));
  }

  take(request) {
    if (request.exit) process.exit(0);
    if (!("stop" in request)) this.run(request);
    else if (this.current?.run === request.stop) this.interrupt();
    else if (!this.current) send("done", { run: request.stop });
  }

  async run(request) {
    const before = Object.keys(request.env ?? {}).map((name) => [name, process.env[name]]);
    this.current = { run: request.run, before, shown: [] };
    const mine = this.current;
    try {
      Object.assign(process.env, request.env);
      this.machine.refresh();
      await this.evaluate(request, mine.shown);
    } catch (error) {
      if (this.current !== mine) return;
      if (error?.code === "ERR_INSPECTOR_COMMAND") return this.interrupt();
      send("error", error instanceof Thrown ? failure(error.value, error.place) : failure(error, []));
    }
    if (this.current === mine) this.end();
  }

  interrupt() {
    const value = "the code was interrupted";
    send("error", { name: "Interrupted", value, traceback: `Interrupted: ${value}` });
    this.end();
  }

  end() {
    for (const [name, value] of this.current.before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    const { run } = this.current;
    this.current = null;
    this.session.post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
    send("done", { run });
  }

  display(values) {
    for (const value of values) {
      const fields = representations(value);
      const tell = (made) => send("result", { is_main_result: false, ...made });
      if (util.types.isPromise(fields)) this.current?.shown.push(fields.then(tell));
      else tell(fields);
    }
  }

  async evaluate({ code, count, run }, shown) {
    const expression = `${this.translator.translate(code)}\n//# sourceURL=<cell-${count}>`;
    const options = { replMode: true, awaitPromise: true, objectGroup: "cell" };
    let value = this.value(await this.post("Runtime.evaluate", { expression, ...options }), code, count);
    if (util.types.isPromise(value)) value = await value;
    await Promise.all(shown);
    if (value !== undefined && this.current?.run === run) {
      const fields = await representations(value);
      if (this.current?.run === run) send("result", { is_main_result: true, ...fields });
    }
  }

  post(method, params) {
    return new Promise((resolve, reject) => {
      this.session.post(method, params, (error, answer) => (error ? reject(error) : resolve(answer)));
    });
  }

  /** What the console's answer stands for. Throws what the code threw, with its place if no stack has it. */
  value({ result, exceptionDetails: details }, code, count) {
    const found = this.object(details ? (details.exception ?? { value: details.text }) : result);
    if (!details) return found;
    const line = code.split("\n")[details.lineNumber];
    const isSyntax = found instanceof SyntaxError && details.scriptId && !/at <cell-/.test(found.stack);
    const place = [
      `<cell-${count}>:${details.lineNumber + 1}`,
      line,
      " ".repeat(details.columnNumber) + "^",
      "",
    ];
    throw new Thrown(found, isSyntax && line !== undefined ? place : []);
  }

  object({ objectId, type, value, unserializableValue: text }) {
    if (text !== undefined) return type === "bigint" ? BigInt(text.slice(0, -1)) : Number(text);
    if (objectId === undefined) return value;
    const functionDeclaration = `function () { ${TOOLS_NAME}.taken = this; }`;
    this.session.post("Runtime.callFunctionOn", { objectId, functionDeclaration });
    const { taken } = tools;
    delete tools.taken;
    return taken;
  }

  /** Where V8 refuses code, which does not run: it is in a function. */
  syntaxError(expression) {
    let found = null;
    this.session.post(
      "Runtime.evaluate",
      { expression, silent: true, objectGroup: "cell" },
      (_, answer) => {
        const { exception, lineNumber: line, columnNumber: column } = answer?.exceptionDetails ?? {};
        if (exception?.className === "SyntaxError")
          found = { message: exception.description.replace(/^SyntaxError: /, ""), line, column };
      },
    );
    return found;
  }
}

new Kernel();
