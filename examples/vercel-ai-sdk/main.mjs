// node main.mjs "Which of our regions sold most?"    (with the key of a model in AI_GATEWAY_API_KEY)
import { PandaStack } from "@pandastack/sdk";
import { tool } from "ai";
import { z } from "zod";
import { ask } from "./agent.mjs";

const tools = {
  orders: tool({
    description: "all orders of a region ('north' or 'south'), a list of {id, amount}",
    inputSchema: z.object({ region: z.enum(["north", "south"]) }),
    execute: async ({ region }) => Array.from({ length: 1000 }, (_, id) => ({ id, amount: region === "north" ? id : id / 2 })),
  }),
};

const client = new PandaStack();
const sandbox = await client.sandboxes.create({ template: "code-interpreter", network: "none" });
try {
  const { text } = await ask(process.env.MODEL ?? "anthropic/claude-sonnet-4.5", process.argv[2] ?? "Which region sold most?", { sandbox, tools });
  console.log(text);
} finally {
  await sandbox.delete();
}
