// An agent of the Vercel AI SDK with a sandbox of its own.
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";
import { runProgram } from "./bridge.mjs";

/** Run code in an interpreter that remembers: for data that is in the sandbox already. */
export function codeTool(context) {
  return tool({
    description: "Run Python in a persistent interpreter. Variables stay. Returns what it printed and its last value.",
    inputSchema: z.object({ code: z.string() }),
    execute: async ({ code }) => {
      const { stdout, stderr, text, error } = await context.runCode(code, { timeoutSeconds: 60 });
      return { stdout, stderr, value: text, error };
    },
  });
}

/** Run a program that calls the other tools itself: for many calls, or answers too long to read. */
export function programTool(sandbox, tools) {
  const list = Object.entries(tools).map(([name, { description }]) => `tools.${name}(...): ${description}`);
  return tool({
    description: `Run a Python program that can call, with keyword arguments:\n${list.join("\n")}\nPrint only what you need to know.`,
    inputSchema: z.object({ code: z.string() }),
    execute: ({ code }) => runProgram(sandbox, code, tools),
  });
}

/** Answers a question. `tools` are the caller's own; the model reaches them through programs only. */
export async function ask(model, question, { sandbox, tools }) {
  const context = await sandbox.createCodeContext();
  try {
    const { text, steps } = await generateText({
      model,
      prompt: question,
      tools: { run_code: codeTool(context), run_program: programTool(sandbox, tools) },
      stopWhen: stepCountIs(10),
    });
    return { text, steps };
  } finally {
    await context.close();
  }
}
