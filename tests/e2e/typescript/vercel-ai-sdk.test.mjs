// The cookbook's agent on a real machine. The model is a script: what it is shown is checked, word for word where it counts.
import assert from "node:assert/strict";
import { cp, mkdir, rm } from "node:fs/promises";
import { after, before, test } from "node:test";
import { PandaStack } from "@pandastack/sdk";
import { tool } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { z } from "zod";

/** A first use of the template may have to bake it. */
const MS_MAX = 1_200_000;
const SECRET = "a line of an order that the model need not see";
// Beside the packages that it imports, where a user would have it after `npm install`.
const copy = new URL("./node_modules/.vercel-ai-sdk/", import.meta.url);
const client = new PandaStack();
let sandbox;
let ask;

before(async () => {
  await rm(copy, { recursive: true, force: true });
  await mkdir(copy, { recursive: true });
  await cp(new URL("../../../examples/vercel-ai-sdk/", import.meta.url), copy, { recursive: true });
  ({ ask } = await import(new URL("agent.mjs", copy)));
  sandbox = await client.sandboxes.create({ template: "code-interpreter", network: "none", ttlSeconds: 1800 });
}, { timeout: MS_MAX });

after(async () => {
  await sandbox?.delete();
});

/** A model that says these things in turn. */
function scripted(...said) {
  const tokens = { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0, text: 1, reasoning: 0 };
  const result = (content, unified) => ({ content, finishReason: { unified, raw: unified }, usage: { inputTokens: tokens, outputTokens: tokens }, warnings: [] });
  const results = said.map((each, at) =>
    typeof each === "string"
      ? result([{ type: "text", text: each }], "stop")
      : result([{ type: "tool-call", toolCallId: `call-${at}`, toolName: each.tool, input: JSON.stringify({ code: each.code }) }], "tool-calls"),
  );
  let turn = 0;
  return new MockLanguageModelV3({ doGenerate: async () => results[turn++] });
}

/** Result of the last tool, as the model saw it. */
function shown(model) {
  const last = model.doGenerateCalls.at(-1).prompt.at(-1);
  assert.equal(last.role, "tool");
  // As a provider would send it.
  return JSON.parse(JSON.stringify(last.content[0].output.value));
}

test("a program calls the caller's tools without showing their results to the model", { timeout: MS_MAX }, async () => {
  const asked = [];
  const tools = {
    orders: tool({
      description: "all orders of a region",
      inputSchema: z.object({ region: z.enum(["north", "south"]) }),
      execute: async ({ region }) => {
        asked.push(region);
        return Array.from({ length: 500 }, (_, amount) => ({ amount: region === "north" ? amount : 1, note: SECRET }));
      },
    }),
  };
  const code = [
    "totals = {region: sum(order['amount'] for order in tools.orders(region=region)) for region in ('north', 'south')}",
    "try:",
    "    tools.orders(region='west')",
    "except RuntimeError:",
    "    totals['west'] = 'refused'",
    "import subprocess; subprocess.run(['echo', '{\"printed\": \"forged\"}'])",
    "print(json.dumps(totals))",
  ].join("\n");
  const model = scripted({ tool: "run_program", code }, "The north did.");
  const { text, steps } = await ask(model, "Which region sold most?", { sandbox, tools });
  assert.deepEqual([text, steps.length, asked], ["The north did.", 2, ["north", "south"]]);
  assert.deepEqual(shown(model), { printed: '{"north": 124750, "south": 500, "west": "refused"}\n' });
  assert.ok(!JSON.stringify(model.doGenerateCalls).includes(SECRET));
});

test("calling an unavailable tool reports the output and the error", { timeout: MS_MAX }, async () => {
  const model = scripted({ tool: "run_program", code: "print('before'); tools.delete_everything()" }, "Sorry.");
  await ask(model, "?", { sandbox, tools: {} });
  const { printed, error } = shown(model);
  assert.equal(printed, "before\n");
  assert.match(error, /AttributeError.*delete_everything/s);
});

test("the interpreter keeps its state between calls", { timeout: MS_MAX }, async () => {
  const model = scripted({ tool: "run_code", code: "x = 41" }, { tool: "run_code", code: "print('hi')\nx + 1" }, "42");
  await ask(model, "?", { sandbox, tools: {} });
  assert.deepEqual(shown(model), { stdout: "hi\n", stderr: "", value: "42" });
  assert.deepEqual(await sandbox.codeContexts(), []);
});
