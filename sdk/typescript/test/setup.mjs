// A server and a client for one test, cleaned up after it.
import { PandaStack } from "@pandastack/sdk";
import { KEY, SANDBOX, WireServer } from "./wire-server.mjs";

for (const name of Object.keys(process.env)) if (name.startsWith("PANDASTACK_")) delete process.env[name];
process.env.XDG_CONFIG_HOME = "/nonexistent";

export async function setup(t, options = {}) {
  const server = await WireServer.start();
  t.after(() => server.close());
  const client = new PandaStack({ baseUrl: server.url, apiKey: KEY, ...options });
  server.on("GET", "/v1/sandboxes/s1", 200, SANDBOX);
  return { server, client, sandbox: () => client.sandboxes.get("s1") };
}

export async function collect(iterable) {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
}
