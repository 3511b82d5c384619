"""The program of the front page, exactly as written there."""

from __future__ import annotations

import subprocess
import sys

from pandastack import PandaStack

PROGRAM = '''\
from pandastack import PandaStack
client = PandaStack()                       # PANDASTACK_API_KEY; PANDASTACK_TOKEN and token=, api_key= too; base URL configurable
sandbox = client.sandboxes.create(template="code-interpreter", ttl_seconds=600, metadata={"task": "data-analysis"})
result = sandbox.exec("python -c 'print(2 ** 10)'", timeout_seconds=30)
print(result.stdout, result.exit_code)      # 1024 0
sandbox.filesystem.write("/srv/out/result.txt", "hello from inside the microVM")   # parents are made
print(sandbox.filesystem.read("/srv/out/result.txt"))                              # prints the text
branch = sandbox.fork()
branch.exec("echo exploring an alternate path")
sandbox.snapshot(); sandbox.hibernate(); sandbox.wake()
'''

#: A first use of the template may have to bake it.
PROGRAM_SECONDS_MAX = 1200


def test_canonical_program(client: PandaStack) -> None:
    before = {sandbox.id for sandbox in client.sandboxes.list()}
    snapshots_before = {snapshot["id"] for snapshot in client.snapshots.list()}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "1024\n 0\nhello from inside the microVM\n"
        made = [sandbox for sandbox in client.sandboxes.list() if sandbox.id not in before]
        assert {sandbox.status for sandbox in made} == {"running"}
        assert {sandbox.template for sandbox in made} == {"code-interpreter"}
        assert [s.metadata["task"] for s in made if s.parent_id is None] == ["data-analysis"]
        assert len(made) == 2
    finally:
        for sandbox in client.sandboxes.list():
            if sandbox.id not in before and sandbox.template == "code-interpreter":
                sandbox.delete()
        for snapshot in client.snapshots.list():
            if snapshot["id"] not in snapshots_before:
                client.snapshots.delete(snapshot["id"])
