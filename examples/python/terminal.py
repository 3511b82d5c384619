"""A shell on a terminal."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    shell = sandbox.start("sh", pty=(24, 80))
    shell.resize(40, 120)
    shell.write("stty size; exit\n")
    seen = []
    shell.wait(on_stdout=seen.append)
    print("40 120" in "".join(seen))  # True
