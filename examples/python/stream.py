"""Output as it comes, by callback and by iteration."""

from pandastack import PandaStack

with PandaStack() as client, client.sandboxes.create(template="base", ttl_seconds=600) as sandbox:
    lines = []
    sandbox.exec_stream("for n in 1 2 3; do echo line $n; done", on_stdout=lines.append)
    print("".join(lines).split("\n")[1])  # line 2
    stream = sandbox.exec_stream("seq 1 100000")
    print(sum(len(chunk.text) for chunk in stream))  # 588895
    print(stream.exit_code)  # 0
