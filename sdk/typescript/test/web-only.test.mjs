// In a runtime that has what the web has and nothing else: no process, no Buffer, no modules of Node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import vm from "node:vm";
import { setup } from "./setup.mjs";
import { KEY, SANDBOX } from "./wire-server.mjs";

const WEB = [
  "AbortController", "AbortSignal", "Blob", "DOMException", "Event", "EventTarget", "FormData", "Headers", "ReadableStream", "Request", "Response",
  "TextDecoder", "TextDecoderStream", "TextEncoder", "TransformStream", "URL", "URLSearchParams", "WebSocket", "WritableStream", "atob", "btoa",
  "clearTimeout", "crypto", "fetch", "performance", "queueMicrotask", "setTimeout", "structuredClone",
];

/** The package's CommonJS build, evaluated where only the web's own names exist. */
function load() {
  const context = vm.createContext(Object.fromEntries(WEB.filter((name) => name in globalThis).map((name) => [name, globalThis[name]])));
  const loaded = new Map();
  const require = (from, name) => {
    assert.ok(name.startsWith("."), `the package asks for ${name}`);
    const path = resolve(from, name);
    if (!loaded.has(path)) {
      const module = { exports: {} };
      loaded.set(path, module);
      const run = vm.compileFunction(readFileSync(path, "utf8"), ["exports", "require", "module"], { parsingContext: context, filename: path });
      run(module.exports, (other) => require(dirname(path), other), module);
    }
    return loaded.get(path).exports;
  };
  return require(join(dirname(fileURLToPath(import.meta.url)), "../dist/cjs"), "./index.js");
}

test("the package works with web APIs only", async (t) => {
  const { server } = await setup(t);
  const sdk = load();
  const client = new sdk.PandaStack({ apiKey: KEY, baseUrl: server.url });
  server.on("POST", "/v1/sandboxes", 201, SANDBOX);
  server.on("POST", "/v1/sandboxes/s1/exec", 200, { stdout: "1024\n", stderr: "", exit_code: 0, duration_ms: 9 });
  const sandbox = await client.sandboxes.create();
  assert.equal((await sandbox.exec("python -c 'print(2 ** 10)'")).stdout, "1024\n");
  // A call that needs local files says so, and what to do instead.
  await assert.rejects(sandbox.filesystem.upload("notes.txt", "/srv/notes.txt"), /no local files.*filesystem\.write/s);
});
