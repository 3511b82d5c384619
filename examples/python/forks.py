"""Copies of a running machine, snapshots, and going back."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    sandbox.exec("echo before > /srv/state", check=True)
    snapshot = sandbox.snapshot(name="before")
    with sandbox.fork() as child:
        child.exec("echo child > /srv/state", check=True)
        print(sandbox.filesystem.read_text("/srv/state").strip())  # before
    sandbox.exec("rm /srv/state", check=True)
    sandbox.rollback(snapshot)
    print(sandbox.filesystem.read_text("/srv/state").strip())  # before
    children = sandbox.fork_tree(3)
    for number, child in enumerate(children):
        child.exec(f"echo {number} > /srv/state", check=True)
    children[1].promote(cleanup_siblings=True)
    print(children[1].filesystem.read_text("/srv/state").strip())  # 1
    children[1].delete()
    client.snapshots.delete(snapshot)
