// Copies of a running machine, snapshots, and going back.
import { PandaStack } from "@pandastack/sdk";

const client = new PandaStack();
const sandbox = await client.sandboxes.create({ template: "base", ttlSeconds: 600 });
try {
  await sandbox.exec("echo before > /srv/state", { check: true });
  const snapshot = await sandbox.snapshot({ name: "before" });
  const child = await sandbox.fork();
  await child.exec("echo child > /srv/state", { check: true });
  await child.delete();
  console.log((await sandbox.filesystem.read("/srv/state")).trim()); // before
  await sandbox.exec("rm /srv/state", { check: true });
  await sandbox.rollback(snapshot.id);
  console.log((await sandbox.filesystem.read("/srv/state")).trim()); // before
  await client.snapshots.delete(snapshot.id);
} finally {
  await sandbox.delete();
}
