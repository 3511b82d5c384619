"""A machine of your own: commands and files."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    print(sandbox.exec("uname -s").stdout.strip())  # Linux
    sandbox.filesystem.write("/srv/notes/today.txt", "hello from inside\n")
    print(sandbox.filesystem.read_text("/srv/notes/today.txt").strip())  # hello from inside
    print(sandbox.exec("exit 3").exit_code)  # 3
