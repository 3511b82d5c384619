// A machine of your own: commands and files.
import { PandaStack } from "@pandastack/sdk";

const client = new PandaStack();
const sandbox = await client.sandboxes.create({ template: "base", ttlSeconds: 600 });
try {
  console.log((await sandbox.exec("uname -s")).stdout.trim()); // Linux
  await sandbox.filesystem.write("/srv/notes/today.txt", "hello from inside\n");
  console.log((await sandbox.filesystem.read("/srv/notes/today.txt")).trim()); // hello from inside
  console.log((await sandbox.exec("exit 3")).exitCode); // 3
} finally {
  await sandbox.delete();
}
