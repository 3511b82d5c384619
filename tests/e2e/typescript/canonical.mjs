import { PandaStack } from "@pandastack/sdk";
const client = new PandaStack({ apiKey: process.env.PANDASTACK_API_KEY });   // pds_...; baseUrl is configurable
const sandbox = await client.sandboxes.create({ template: "code-interpreter", ttlSeconds: 600, metadata: { task: "data-analysis" } });
const result = await sandbox.exec("python -c 'print(2 ** 10)'", { timeoutSeconds: 30 });
console.log(result.stdout);
await sandbox.filesystem.write("/tmp/notes.txt", "hello from inside the VM");
console.log(await sandbox.filesystem.read("/tmp/notes.txt"));
const branch = await sandbox.fork();
