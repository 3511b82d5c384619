// Programs compile against the packed package, all declarations checked: for an old language version with
// and without the declarations of browsers, and for a new one, which has `await using`.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const SDK = fileURLToPath(new URL("..", import.meta.url));
const PROGRAM = `
import { PandaStack, type ExecResult, type Sandbox } from "@pandastack/sdk";

export async function main(): Promise<number> {
  const sandbox: Sandbox = await new PandaStack().sandboxes.create({ template: "base" });
  const result: ExecResult = await sandbox.exec(["make", "test"], { timeoutSeconds: 5, killOnAbort: false });
  for await (const chunk of await sandbox.execStream("make")) chunk.text.trim();
  await sandbox.delete();
  return result.exitCode;
}
`;
const DISPOSING = `
import { PandaStack } from "@pandastack/sdk";

export async function main(signal: AbortSignal): Promise<string> {
  await using sandbox = await new PandaStack({ fetch: fetch }).sandboxes.create();
  return (await sandbox.exec("make", { signal })).stdout;
}
`;

/** Errors of the compiler in a program beside the package. */
function mistakes(dir, program, { lib, ...options }) {
  const file = join(dir, "program.ts");
  writeFileSync(file, program);
  const strict = { strict: true, skipLibCheck: false, noEmit: true, types: [] };
  const libraries = { lib: lib.map((name) => `lib.${name}.d.ts`) };
  const made = ts.createProgram([file], { ...strict, ...options, ...libraries });
  return ts.getPreEmitDiagnostics(made).map(({ file: where, messageText }) => {
    return `${where?.fileName}: ${ts.flattenDiagnosticMessageText(messageText, "\n")}`;
  });
}

const node = { module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext };
const bundler = { module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler };
const [old, recent] = [{ target: ts.ScriptTarget.ES2020 }, { target: ts.ScriptTarget.ES2022 }];
const CASES = [
  ["ES2020 alone", PROGRAM, { ...old, ...node, lib: ["es2020"] }],
  ["ES2020 for browsers", PROGRAM, { ...old, ...bundler, lib: ["es2020", "dom"] }],
  ["ES2022 with disposal", DISPOSING, { ...recent, ...node, lib: ["es2022", "esnext.disposable", "dom"] }],
];

test("programs compile against the packed package", (t) => {
  const dir = mkdtempSync(join(tmpdir(), "pandastack-types-"));
  t.after(() => rmSync(dir, { recursive: true }));
  const pack = ["pack", "--silent", "--ignore-scripts", "--pack-destination", dir];
  const tarball = execFileSync("npm", pack, { cwd: SDK, encoding: "utf8" }).trim().split("\n").at(-1);
  const home = join(dir, "node_modules/@pandastack/sdk");
  mkdirSync(home, { recursive: true });
  execFileSync("tar", ["-xzf", join(dir, tarball), "-C", home, "--strip-components", "1"]);
  for (const [name, program, options] of CASES) assert.deepEqual(mistakes(dir, program, options), [], name);
});
