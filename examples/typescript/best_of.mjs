// Three ways from the same state; the best one stays.
import { PandaStack } from "@pandastack/sdk";

const client = new PandaStack();
const sandbox = await client.sandboxes.create({ template: "base", ttlSeconds: 600 });
try {
  const found = await sandbox.explore(["echo 3", "echo 8", "echo 5"], { scoreFn: (_, outcome) => Number(outcome.stdoutTail) });
  console.log(found.winnerOutcome.stdoutTail.trim()); // 8
  await found.winner.delete();
} finally {
  await sandbox.delete();
}
