// Output as it comes.
import { PandaStack } from "@pandastack/sdk";

const client = new PandaStack();
const sandbox = await client.sandboxes.create({ template: "base", ttlSeconds: 600 });
try {
  let characters = 0;
  const stream = await sandbox.execStream("seq 1 100000");
  for await (const chunk of stream) characters += chunk.text.length;
  console.log(characters); // 588895
  console.log(stream.exitCode); // 0
} finally {
  await sandbox.delete();
}
