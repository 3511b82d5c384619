"""One command in a machine that exists for it alone."""

from pandastack import PandaStack

with PandaStack() as client:
    print(client.run("echo $((1 << 10))", template="base").stdout.strip())  # 1024
