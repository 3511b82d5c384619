"""A process that runs on by itself, is found again, and reads what it is sent."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    process = sandbox.start("read name; echo hello $name; read again; echo bye $again", stdin_open=True)
    process.write("panda\n")
    # Later, another client knows only the id.
    found = sandbox.process(process.id)
    found.write("all\n")
    said = []
    print(found.wait(on_stdout=said.append))  # 0
    print("".join(said).split("\n")[:2])  # ['hello panda', 'bye all']
