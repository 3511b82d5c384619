"""An upgrade is a restart: a new program takes over from the old one, and followers lose nothing."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Iterator

import pytest
from pandastack import CapacityError, Sandbox

from platform_process import BINARY, Platform, has_open, wait_until
from stream_in_middle import check_every_byte_once


@pytest.fixture
def platform() -> Iterator[Platform]:
    running = Platform("psu", "10.203.0.0/16", "--warm", "base")
    running.binary = str(copy_program(running.root / "old", b""))
    try:
        yield running.start()
    finally:
        running.stop()


def copy_program(directory: Path, more: bytes) -> Path:
    """The program in another place, and with other bytes where some are given: nothing may go by either."""
    directory.mkdir()
    program = directory / "pandastack"
    shutil.copy2(BINARY, program)
    with program.open("ab") as file:
        file.write(more)
    return program


def upgrade(platform: Platform) -> None:
    assert platform.process is not None
    platform.process.send_signal(signal.SIGTERM)
    platform.process.wait(timeout=60)
    shutil.rmtree(platform.root / "old")
    platform.binary = str(copy_program(platform.root / "new", b"another build"))
    platform.start()


def is_reached(sandbox: Sandbox) -> bool:
    """Whether the new agent can be reached: the API answers before that."""
    try:
        return sandbox.exec("true", timeout_seconds=30).exit_code == 0
    except CapacityError:
        return False


def test_an_upgrade_replaces_the_servers_and_keeps_the_machines(platform: Platform) -> None:
    client = platform.client()
    zygotes = lambda: [pid for pid in platform.machine_pids() if has_open(pid, platform.data_dir / "store/zygotes")]
    platform.await_zygote("base")
    running, paused, asleep = (client.sandboxes.create("base", ttl_seconds=3600) for _ in range(3))
    for sandbox in (running, paused, asleep):
        sandbox.exec(f"echo {sandbox.id} > /dev/shm/kept", check=True)
    paused.pause()
    asleep.hibernate()
    wait_until("the sleeper's machine has ended", lambda: platform.machine_pids(asleep.id) == [], 30)
    machines = platform.machine_pids()
    check_every_byte_once(running, lambda: upgrade(platform))
    for role in ("control", "agent"):
        program = os.readlink(f"/proc/{platform.role_pid(role)}/exe")
        assert program == str(platform.root / "new/pandastack"), role
    assert platform.machine_pids() == machines, "every machine, and the zygote, is the one that the old program made"
    wait_until("the host answers", lambda: is_reached(running), 60)
    paused.resume()
    for sandbox in (running, paused, asleep):
        assert sandbox.exec("cat /dev/shm/kept", timeout_seconds=60).stdout == f"{sandbox.id}\n"
    # Forks are made by the code inside the old processes.
    for copy in (running.fork(), client.sandboxes.create("base", ttl_seconds=3600)):
        assert copy.exec("echo works", timeout_seconds=60).stdout == "works\n"
        copy.delete()
    assert zygotes() and set(zygotes()) <= set(machines), "creates went on with the old zygote"
