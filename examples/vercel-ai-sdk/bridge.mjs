// Programmatic tool calling: a program that the model wrote runs in a sandbox and calls tools of this process.
//
// The bridge is the program's standard input and output, so the sandbox needs no network and this process no open port.
// What the tools answer goes to the program; the model sees only what the program prints.
import { readFile } from "node:fs/promises";

const RUNNER = await readFile(new URL("./bridge.py", import.meta.url), "utf8");
/** A program that calls more often than this is stuck in a loop. */
const CALLS_MAX = 1000;
/** Longest line of the program. What it sends is not trusted, nor is its length. */
const LINE_CHARS_MAX = 4 * 1024 * 1024;

/**
 * Run a Python program in a sandbox. In it `tools.<name>(...)` runs the tool of that name here.
 * Resolves to what it printed, and its traceback if it failed.
 */
export async function runProgram(sandbox, code, tools, { timeoutSeconds = 120 } = {}) {
  const process = await sandbox.start(["python3", "-u", "-c", RUNNER], { stdinOpen: true, timeoutSeconds });
  const send = (message) => process.write(`${JSON.stringify(message)}\n`);
  await send({ code, tools: Object.keys(tools) });
  const stream = await process.output();
  let calls = 0;
  for await (const line of lines(stream)) {
    const message = JSON.parse(line);
    if (message.call === undefined) return { printed: message.printed, error: message.error ?? undefined };
    calls += 1;
    if (calls > CALLS_MAX) {
      await process.kill();
      return { printed: "", error: `the program called tools more than ${CALLS_MAX} times` };
    }
    await send(await answer(tools, message));
  }
  return { printed: "", error: `the program ended without a result (exit code ${stream.exitCode})` };
}

/** One call. The program is not trusted: only tools that were given, only arguments that fit. */
async function answer(tools, { call, arguments: given }) {
  if (!Object.hasOwn(tools, call)) return { error: "there is no such tool" };
  const { inputSchema, execute } = tools[call];
  const input = inputSchema.safeParse(given);
  if (!input.success) return { error: input.error.message };
  try {
    return { result: await execute(input.data, { toolCallId: call, messages: [] }) };
  } catch (error) {
    return { error: error.message };
  }
}

async function* lines(stream) {
  let rest = "";
  for await (const { stream: name, text } of stream) {
    if (name !== "stdout") continue;
    const parts = (rest + text).split("\n");
    rest = parts.pop();
    if (rest.length > LINE_CHARS_MAX) throw new Error("the program sent a line that does not end");
    yield* parts;
  }
}
