"""The tour in one program: create, run, files, fork, snapshot, sleep."""

from pandastack import PandaStack

client = PandaStack()
sandbox = client.sandboxes.create(template="code-interpreter", ttl_seconds=600, metadata={"task": "data-analysis"})
result = sandbox.exec("python -c 'print(2 ** 10)'", timeout_seconds=30)
print(result.stdout, result.exit_code)
sandbox.filesystem.write("/srv/out/result.txt", "hello from inside the microVM")
print(sandbox.filesystem.read("/srv/out/result.txt"))
branch = sandbox.fork()
branch.exec("echo exploring an alternate path")
sandbox.snapshot(); sandbox.hibernate(); sandbox.wake()

branch.delete()
sandbox.delete()
