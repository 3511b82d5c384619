// Every record that calls return has the fields of its schema in openapi/: none is missing, none is unknown, and none is
// promised that the server may leave out.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const entry = fileURLToPath(new URL("../src/index.ts", import.meta.url));
const description = new URL("../../../openapi/pandastack-v1.json", import.meta.url);
const skip = existsSync(description) ? false : "skipped: the package is tested outside of its repository";

/** Records and their schemas. */
const SCHEMAS = {
  AppInfo: "App",
  AppInstance: "AppInstance",
  AppInstanceMetrics: "AppInstanceMetrics",
  AppMetrics: "AppMetrics",
  AuditEntry: "AuditEntry",
  AuditVerification: "AuditVerification",
  CreatedToken: "TokenCreated",
  Database: "Database",
  DatabaseBackups: "DatabaseBackups",
  DatabaseBaseBackup: "DatabaseBaseBackup",
  DatabaseConnection: "DatabaseConnection",
  DatabaseDrill: "DatabaseDrill",
  DatabaseRows: "DatabaseRows",
  DatabaseStats: "DatabaseStats",
  ExecResult: "ExecResult",
  Execution: "Execution",
  FileChange: "FileChange",
  FileInfo: "FileEntry",
  FunctionInfo: "Function",
  FunctionMetrics: "FunctionMetrics",
  FunctionRun: "Run",
  FunctionVersion: "FunctionVersion",
  GrepMatch: "GrepMatch",
  LifecycleInfo: "Lifecycle",
  LineageInfo: "Lineage",
  Member: "Member",
  MemberSession: "MemberSession",
  NetworkPolicy: "NetworkPolicy",
  NextRuns: "NextRuns",
  PortInfo: "Port",
  ProcessInfo: "Process",
  PromoteResult: "Promoted",
  RunResult: "RunResult",
  SandboxEvent: "Event",
  SandboxInfo: "Sandbox",
  SandboxMetrics: "SandboxMetrics",
  ScheduleInfo: "Schedule",
  ScheduleRun: "ScheduleRun",
  SnapshotInfo: "Snapshot",
  TemplateBuild: "Build",
  TemplateInfo: "Template",
  TokenInfo: "TokenInfo",
  Usage: "UsageReport",
  VolumeInfo: "Volume",
  Webhook: "Webhook",
  WebhookDelivery: "WebhookDelivery",
  WorkspaceInfo: "WorkspaceInfo",
  WriteResult: "FileWritten",
};
/** Fields of schemas that a record has under another name. */
const RENAMED = { "Execution.exit": "exit_code", "FileChange.is_dir": "isDir" };
/** Fields that no answer has, and why. */
const OWN = {
  "Execution.png": "the first picture of its results",
  "Execution.text": "the first text of its results",
  "FileChange.id": "the id of its event in the stream",
  "PortInfo.label": "of the published client",
  "PortInfo.source": "of the published client",
  "TemplateBuild.bytes": "of the published client",
  "TemplateBuild.image_ref": "of the published client",
  "TemplateBuild.size_mb": "of the published client",
  "TemplateInfo.meta": "of the published client",
  "TemplateInfo.rootfs_path": "of the published client",
  "TemplateInfo.workspace": "of the published client",
};
/** Fields that are there although a schema lets them be absent, and why. */
const FILLED = {
  "AppInfo.instances": "every server sends it",
  "AppInfo.max_instances": "every server sends it",
  "AppInfo.min_instances": "every server sends it",
  "Execution.truncated": "false when absent",
  "ProcessInfo.lingering": "every server sends it",
  "ProcessInfo.timed_out": "every server sends it",
};

const options = {
  target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  lib: ["lib.es2022.d.ts", "lib.esnext.disposable.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts"],
  types: [],
  strict: true,
};

function camel(name) {
  return name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
}

/** Names of every exported record's fields, and those it promises; the second, camelCase name of a field is left out. */
function readRecords() {
  const program = ts.createProgram([entry], options);
  const checker = program.getTypeChecker();
  const records = new Map();
  for (const symbol of checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry)))) {
    const declared = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    const [declaration] = declared.declarations ?? [];
    const text = ts.isTypeAliasDeclaration(declaration) ? declaration.type.getText() : "";
    const isRecord = text.includes("WireRecord<");
    assert.ok(symbol.name in SCHEMAS || !isRecord, `${symbol.name} has no schema`);
    if (!(symbol.name in SCHEMAS)) continue;
    const all = checker.getPropertiesOfType(checker.getDeclaredTypeOfSymbol(declared));
    const seconds = new Set(all.map(({ name }) => name).filter((name) => name.includes("_")).map(camel));
    const own = all.filter(({ name }) => !seconds.has(name));
    const promised = own.filter(({ flags }) => !(flags & ts.SymbolFlags.Optional));
    records.set(symbol.name, { names: own.map(({ name }) => name), promised: promised.map(({ name }) => name) });
  }
  return records;
}

/** Names of a schema's fields, and those that are always there. */
function fieldsOf(schema, schemas) {
  if (schema.$ref) return fieldsOf(schemas[schema.$ref.split("/").pop()], schemas);
  const names = new Set(Object.keys(schema.properties ?? {}));
  const always = new Set(schema.required ?? []);
  for (const part of schema.allOf ?? []) {
    const more = fieldsOf(part, schemas);
    more.names.forEach((name) => names.add(name));
    more.always.forEach((name) => always.add(name));
  }
  // One of several: none of their fields is always there.
  for (const part of schema.oneOf ?? []) fieldsOf(part, schemas).names.forEach((name) => names.add(name));
  return { names, always };
}

test("records have the fields of their schemas", { skip }, () => {
  const { schemas } = JSON.parse(readFileSync(description, "utf8")).components;
  const records = readRecords();
  const used = new Set();
  const found = [];
  for (const [record, schema] of Object.entries(SCHEMAS)) {
    assert.ok(records.has(record) && schema in schemas, `${record} or its schema ${schema} is gone`);
    const { names, promised } = records.get(record);
    const wire = fieldsOf(schemas[schema], schemas);
    const excepted = (table, name) => `${record}.${name}` in table && used.add(`${record}.${name}`);
    const local = (name) => (excepted(RENAMED, name) ? RENAMED[`${record}.${name}`] : name);
    const known = new Set([...wire.names].map(local));
    const always = new Set([...wire.always].map(local));
    for (const name of known) if (!names.includes(name)) found.push(`${record}.${name} is missing`);
    for (const name of names) if (!known.has(name) && !excepted(OWN, name)) found.push(`${record}.${name} is unknown`);
    for (const name of promised) {
      if (known.has(name) && !always.has(name) && !excepted(FILLED, name)) found.push(`${record}.${name} may be absent`);
    }
  }
  assert.deepEqual(found, []);
  const stale = Object.keys({ ...RENAMED, ...OWN, ...FILLED }).filter((name) => !used.has(name));
  assert.deepEqual(stale, [], "exceptions that are none any more");
});
