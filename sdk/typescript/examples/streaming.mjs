// Output while it is produced.
import { PandaStack } from "@pandastack/sdk";

const client = new PandaStack();
const sandbox = await client.sandboxes.create({ template: "base" });
try {
  const stream = await sandbox.execStream("for i in 1 2 3; do echo line $i; done", { timeoutSeconds: 30 });
  for await (const chunk of stream) process.stdout.write(`${chunk.stream}: ${chunk.text}`);
  console.log("exit code", stream.exitCode);
} finally {
  await sandbox.delete(); // `await using` does this where the language has it
}
