"""Killing the servers kills no sandbox and loses nothing that was acknowledged."""

from __future__ import annotations

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import pytest
from pandastack import NotFoundError, PandaStackError

from counter import count, start_counter
from platform_process import Platform, wait_until


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("pdsr", "10.211.0.0/16", "--warm", "base")
    try:
        yield running.start()
    finally:
        running.stop()


def test_control_runs_without_privileges(platform: Platform) -> None:
    """Also the next one; what it writes is its own, and nobody else may use the sockets."""
    for _ in range(2):
        status = Path(f"/proc/{platform.role_pid('control')}/status").read_text()
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        user = int(lines["Uid"].split()[0])
        assert set(lines["Uid"].split()) == {str(user)} and user != 0
        assert int(lines["CapEff"], 16) == int(lines["CapPrm"], 16) == 0
        assert lines["NoNewPrivs"].strip() == "1"
        for own in (platform.data_dir / "control/control.db", platform.runtime_dir / "control.sock"):
            assert own.stat().st_uid == user, own
        agent = (platform.runtime_dir / "agent.sock").stat()
        assert (agent.st_uid, agent.st_mode & 0o777) == (user, 0o600)
        assert (platform.data_dir / "link-secret").stat().st_uid == 0
        platform.kill_role("control")
    assert platform.client().sandboxes.list() is not None


@pytest.mark.parametrize("role", ["control", "agent"])
def test_a_killed_server_leaves_sandboxes_running(platform: Platform, role: str) -> None:
    client = platform.client()
    running = client.sandboxes.create(template="base", metadata={"role": role})
    asleep = client.sandboxes.create(template="base")
    try:
        start_counter(running)
        running.filesystem.write("/root/kept", "before")
        asleep.exec("echo memory > /dev/shm/kept")
        asleep.hibernate()
        machine = platform.machine_pids(running.id)
        assert len(machine) == 1
        platform.kill_role(role)

        def answers() -> bool:
            try:
                return running.exec("true").exit_code == 0
            except PandaStackError:
                return False

        wait_until("the sandbox answers again", answers, 60)
        assert platform.machine_pids(running.id) == machine, "the machine was restarted"
        assert running.filesystem.read("/root/kept") == b"before"
        first = count(running)
        wait_until("the counter goes on", lambda: count(running) > first, 30)
        assert client.sandboxes.get(running.id).metadata["role"] == role
        assert client.sandboxes.get(asleep.id).status == "hibernated"
        assert asleep.exec("cat /dev/shm/kept").stdout == "memory\n"
    finally:
        running.delete()
        asleep.delete()


def test_a_create_interrupted_by_an_agent_kill_leaks_nothing(platform: Platform) -> None:
    client = platform.client()
    wait_until("nothing but the zygote", lambda: len(platform.machine_pids()) == 1, 120)
    before = platform.footprint()
    with ThreadPoolExecutor(8) as pool:
        creates = [pool.submit(client.sandboxes.create, template="base") for _ in range(8)]
        os.kill(platform.role_pid("agent"), signal.SIGKILL)
        made = []
        for create in creates:
            try:
                made.append(create.result())
            except PandaStackError:
                pass
    wait_until("ready again", platform.is_ready, 120)
    for sandbox in made:

        def answers() -> bool:
            try:
                return sandbox.exec("true").exit_code == 0
            except PandaStackError:
                return False

        # An acknowledged one is there and works.
        wait_until("an acknowledged sandbox answers", answers, 60)
        sandbox.delete()
    for sandbox in client.sandboxes.list():
        with contextlib.suppress(NotFoundError):
            sandbox.delete()

    def clean() -> bool:
        now = platform.footprint()
        return all(now[key] == before[key] for key in ("machines", "runtime dirs", "files", "cgroups"))

    try:
        wait_until("nothing is left", clean, 60)
    except AssertionError as late:
        raise AssertionError(f"{before} became {platform.footprint()}") from late


def test_a_hibernated_sandbox_with_an_empty_record_is_not_removed(platform: Platform) -> None:
    client = platform.client()
    asleep = client.sandboxes.create(template="base")
    asleep.hibernate()
    # A repeated request waits until the machine has ended, and so for the last entry in its record.
    asleep.hibernate()
    home = platform.data_dir / "store" / "sandboxes" / asleep.id
    # As a power loss may leave it.
    (home / "record.json").write_text("")
    platform.kill_role("agent")

    def creates() -> bool:
        try:
            client.sandboxes.create(template="base").delete()
            return True
        except PandaStackError:
            return False

    wait_until("the agent is back", creates, 60)
    assert (home / "sleep" / "manifest.json").exists() and (home / "sleep" / "memory").exists()


def test_a_sandbox_whose_machine_dies_is_reported_as_failed(platform: Platform) -> None:
    client = platform.client()
    sandbox = client.sandboxes.create(template="base")
    try:
        (pid,) = platform.machine_pids(sandbox.id)
        os.kill(pid, signal.SIGKILL)
        wait_until("failed", lambda: client.sandboxes.get(sandbox.id).status == "failed", 30)
        with pytest.raises(PandaStackError) as refused:
            sandbox.exec("true")
        assert refused.value.status == 409
    finally:
        sandbox.delete()
    with pytest.raises(NotFoundError):
        client.sandboxes.get(sandbox.id)
