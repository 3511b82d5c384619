// Writes docs/reference/typescript.md from the package's types and their comments; with --check only compares.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const entry = fileURLToPath(new URL("../src/index.ts", import.meta.url));
const document = new URL("../../../docs/reference/typescript.md", import.meta.url);
const HEADER = `# TypeScript

\`\`\`ts tested-by: tests/e2e/typescript/canonical.test.mjs
import { PandaStack } from "@pandastack/sdk";

await using sandbox = await new PandaStack().sandboxes.create({ template: "base" });
console.log((await sandbox.exec("echo hello")).stdout); // hello
\`\`\`

Generated from the source's comments by \`sdk/typescript/scripts/reference.mjs\`.
`;

const options = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext, lib: ["lib.es2022.d.ts", "lib.esnext.disposable.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts"], types: [], strict: true };
const program = ts.createProgram([entry], options);
const checker = program.getTypeChecker();

function resolved(symbol) {
  return symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
}

/** The first paragraph of a comment on one line. */
function summary(symbol) {
  const text = ts.displayPartsToString(symbol.getDocumentationComment(checker)).split(/\n\s*\n/)[0];
  return text.replace(/\{@link (\w+)\}/g, "`$1`").replace(/\s+/g, " ").replaceAll("|", "\\|").trim();
}

function isShown(member) {
  const [declaration] = member.declarations ?? [];
  if (!declaration || member.name.startsWith("__") || ts.isPrivateIdentifier(declaration.name ?? declaration)) return false;
  const hidden = ts.ModifierFlags.Private | ts.ModifierFlags.Protected;
  const isInternal = member.getJsDocTags(checker).some((tag) => tag.name === "internal");
  return !isInternal && (ts.getCombinedModifierFlags(declaration) & hidden) === 0;
}

/** A member as one writes it. */
function signature(member) {
  const name = member.name.startsWith("@@") ? `[Symbol.${member.name.slice(2)}]` : member.name;
  const type = checker.getTypeOfSymbol(member);
  const [call] = type.getCallSignatures();
  if (!call || !(member.flags & ts.SymbolFlags.Method)) return name;
  const flags = ts.TypeFormatFlags.NoTruncation | ts.TypeFormatFlags.WriteArrayAsGenericType;
  return (name + checker.signatureToString(call, undefined, flags)).replaceAll("|", "\\|");
}

function classSection(name, symbol) {
  const members = [...symbol.members.values()].filter(isShown);
  const rows = members.map((member) => `| \`${signature(member)}\` | ${summary(member)} |`);
  return [`## \`${name}\``, "", summary(symbol), "", "| call | does |", "|---|---|", ...rows, ""];
}

function generate() {
  const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry)));
  const all = exported.map((symbol) => [symbol.name, resolved(symbol)]).sort(([a], [b]) => (a < b ? -1 : 1));
  const isError = ([, symbol]) => symbol.flags & ts.SymbolFlags.Class && checker.getPropertyOfType(checker.getDeclaredTypeOfSymbol(symbol), "stack");
  const classes = all.filter((each) => each[1].flags & ts.SymbolFlags.Class && !isError(each) && each[0] !== "Client");
  const errors = all.filter(isError);
  const shapes = all.filter(([, symbol]) => symbol.flags & (ts.SymbolFlags.Interface | ts.SymbolFlags.TypeAlias));
  const table = (head, rows) => [`| ${head} |`, "|---|---|", ...rows.map(([name, symbol]) => `| \`${name}\` | ${summary(symbol)} |`), ""];
  return [
    HEADER,
    ...classes.flatMap(([name, symbol]) => classSection(name, symbol)),
    "## Errors", "", ...table("error | when", errors),
    "## Data", "", ...table("shape | is", shapes),
  ].join("\n");
}

const wanted = generate();
if (!process.argv.includes("--check")) writeFileSync(document, wanted);
else if (readFileSync(document, "utf8") !== wanted) {
  console.error("docs/reference/typescript.md is stale\nhint: run `node scripts/reference.mjs` in sdk/typescript");
  process.exitCode = 1;
}
