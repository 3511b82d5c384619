// Every example does what it says, in each runtime: each line it prints is the comment beside its `console.log`.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const MS_MAX = 300_000;
const examples = new URL("../../../examples/typescript/", import.meta.url);
// Beside the packages that they import, where a user would have them after `npm install`.
const copy = new URL("./.examples/", import.meta.url);
const installed = (path) => fileURLToPath(new URL(`./node_modules/${path}`, import.meta.url));
// Deno's package for this platform alone: those of the others, which its main package names, are not in every registry.
const deno = installed("@deno/linux-x64-glibc/deno");
const RUNTIMES = { node: [process.execPath], bun: [installed(".bin/bun"), "run"], deno: [deno, "run", "--quiet", "--allow-all"] };

before(async () => {
  await rm(copy, { recursive: true, force: true });
  await mkdir(copy, { recursive: true });
  await cp(examples, copy, { recursive: true });
});

for (const name of (await readdir(examples)).sort()) {
  for (const [runtime, [command, ...options]] of Object.entries(RUNTIMES)) {
    test(`example: ${name} in ${runtime}`, { timeout: MS_MAX }, async () => {
      const program = fileURLToPath(new URL(name, copy));
      const printed = (await readFile(program, "utf8")).matchAll(/^\s*console\.log\(.*\); \/\/ (.+)$/gm);
      const promised = [...printed].map((found) => found[1]);
      assert.ok(promised.length > 0, `${name} promises nothing`);
      const { stdout } = await promisify(execFile)(command, [...options, program], { timeout: MS_MAX });
      assert.deepEqual(stdout.trimEnd().split("\n"), promised);
    });
  }
}
