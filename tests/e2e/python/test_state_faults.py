"""State of a sandbox on a full disk and after many repetitions."""

from __future__ import annotations

from typing import Iterator

import pytest
from pandastack import PandaStack, PandaStackError, Sandbox

from counter import count, start_counter
from full_only import times
from platform_process import RESERVE_BYTES, Platform, fill, wait_until

#: Each writes the whole machine down and reads it again.
SLEEPS = times(100, 15)

# A connection that lives in memory only.
ECHO = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 7777))
client = socket.create_connection(("127.0.0.1", 7777))
peer, _ = server.accept()
sent = 0
while True:
    sent += 1
    client.sendall(b"%d\\n" % sent)
    got = peer.recv(64).decode().strip()
    with open("/dev/shm/new.echo", "w") as file: print(got, file=file)
    os.rename("/dev/shm/new.echo", "/dev/shm/echo")
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("psb", "10.229.0.0/16", "--warm", "base")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> PandaStack:
    return platform.client()


def echoed(sandbox: Sandbox) -> int:
    return int(sandbox.exec("cat /dev/shm/echo", timeout_seconds=120, check=True).stdout)


def test_a_full_disk_fails_the_snapshot_but_not_the_sandbox(platform: Platform, client: PandaStack) -> None:
    store = platform.data_dir / "store"
    filler = store / "filler"
    with client.sandboxes.create("base") as sandbox:
        start_counter(sandbox)
        sandbox.exec("head -c 167772160 /dev/urandom > /dev/shm/dirty", timeout_seconds=120, check=True)
        for left in (RESERVE_BYTES + (24 << 20), RESERVE_BYTES // 2):
            try:
                fill(filler, left)
                for call in (sandbox.snapshot, sandbox.hibernate):
                    with pytest.raises(PandaStackError) as refused:
                        call()
                    assert refused.value.status == 507, str(refused.value)
                before = count(sandbox)
                wait_until("the source runs on", lambda: count(sandbox) > before, 30)
            finally:
                filler.unlink()
        assert sandbox.refresh().status == "running"
        client.snapshots.delete(sandbox.snapshot())
        sandbox.hibernate()
        assert sandbox.exec("wc -c < /dev/shm/dirty").stdout.strip() == "167772160"


def test_repeated_sleeps_lose_no_state(client: PandaStack) -> None:
    with client.sandboxes.create("base", ttl_seconds=3600) as sandbox:
        start_counter(sandbox)
        sandbox.filesystem.write("/root/echo.py", ECHO)
        sandbox.exec("setsid python3 /root/echo.py > /dev/null 2>&1 < /dev/null &", check=True)
        wait_until("both run", lambda: sandbox.exec("cat /dev/shm/count /dev/shm/echo").ok, 30)
        last = {"count": count(sandbox), "echo": echoed(sandbox)}
        for sleep in range(SLEEPS):
            sandbox.hibernate()
            shown = sandbox.exec(f"cat /dev/shm/count /dev/shm/echo; echo {sleep} >> /srv/sleeps", check=True)
            now = dict(zip(last, map(int, shown.stdout.split())))
            assert all(now[name] >= last[name] for name in last), f"sleep {sleep}: {last} became {now}"
            last = now
        assert sandbox.filesystem.read("/srv/sleeps").text.split() == [str(n) for n in range(SLEEPS)]
        end = echoed(sandbox)
        wait_until("the connection still works", lambda: echoed(sandbox) > end, 30)
