"""Volumes after a crash, a power failure or on a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, List

import httpx
import pytest
from pandastack import ConflictError, NotFoundError, PandaStack, PandaStackError, Sandbox

from crash_world import Faults
from platform_process import RESERVE_BYTES, Platform, fill, wait_until

#: Commits one row at a time and says so after each commit. Whatever it said must be there afterwards.
WRITER = """
import sqlite3, sys
base = sqlite3.connect("/data/acks.db", isolation_level=None)
base.execute("PRAGMA journal_mode=WAL"); base.execute("PRAGMA synchronous=FULL")
base.execute("CREATE TABLE IF NOT EXISTS acks (n INTEGER PRIMARY KEY, filler BLOB)")
n = base.execute("SELECT COALESCE(MAX(n), 0) FROM acks").fetchone()[0]
while True:
    n += 1
    base.execute("INSERT INTO acks VALUES (?, randomblob(3000))", (n,))
    print(n, flush=True)
"""
CHECK = """
import sqlite3
base = sqlite3.connect("/data/acks.db")
assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
rows = [n for n, in base.execute("SELECT n FROM acks ORDER BY n")]
assert rows == list(range(1, len(rows) + 1)), rows
print(len(rows))
"""
#: Makes one file at a time, which is in the journal first, and says so after each sync. A database could not be read where nothing may be written.
FILES = """
import os
os.mkdir("/data/rows")
directory = os.open("/data/rows", os.O_RDONLY)
n = 0
while True:
    n += 1
    with open(f"/data/rows/{n}", "w") as row:
        row.write(str(n)); row.flush(); os.fsync(row.fileno())
    os.fsync(directory)
    print(n, flush=True)
"""
CHECK_FILES = """
import sys
for n in range(1, int(sys.argv[1]) + 1):
    assert open(f"/data/rows/{n}").read() == str(n), n
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("psv", "10.227.0.0/16", "--warm", "base")
    running.environment["PANDASTACK_FAULT_DIR"] = str(running.root / "faults")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def faults(platform: Platform) -> Faults:
    return Faults(platform.root / "faults")


def attach(client: PandaStack, name: str, **options: object) -> Sandbox:
    return client.sandboxes.create("base", ttl_seconds=1800, volumes=[{"name": name, "path": "/data", **options}])


def run(sandbox: Sandbox, command: str) -> str:
    return sandbox.exec(command, timeout_seconds=120, check=True).stdout.strip()


def write_until(sandbox: Sandbox, enough: int, then: Callable[[], None], program: str = WRITER) -> int:
    """Runs a writer, collects what it acknowledges, and does ``then`` to it after so many; the last that was heard."""
    sandbox.filesystem.write("/root/writer.py", program)
    heard: List[int] = []
    text = ""
    try:
        for chunk in sandbox.exec_stream("python3 /root/writer.py", timeout_seconds=300):
            # Of the end the writer may complain, if its disk goes before it does.
            text += chunk.text if chunk.stream == "stdout" else ""
            lines = text.split("\n")
            text = lines.pop()
            heard.extend(int(line) for line in lines if line.strip())
            if len(heard) >= enough and then is not None:
                then()
                then = None  # type: ignore[assignment]
    except PandaStackError:
        pass
    assert then is None, f"the writer ended by itself after {len(heard)}"
    return heard[-1]


def rows(client: PandaStack, name: str) -> int:
    with attach(client, name) as reader:
        reader.filesystem.write("/root/check.py", CHECK)
        return int(run(reader, "python3 /root/check.py"))


def kill_machine(platform: Platform, sandbox: Sandbox) -> None:
    for pid in platform.machine_pids(sandbox.id):
        os.kill(pid, signal.SIGKILL)


def test_a_machine_kill_loses_no_acknowledged_volume_write(platform: Platform) -> None:
    client = platform.client()
    client.volumes.create("crash", 64)
    sandbox = attach(client, "crash")
    last = write_until(sandbox, 100, lambda: kill_machine(platform, sandbox))
    wait_until("the loss is seen", lambda: sandbox.refresh().status == "failed", 30)
    # A failed sandbox keeps its hold: an operator may want to inspect it.
    with pytest.raises(ConflictError, match=sandbox.id):
        attach(client, "crash")
    sandbox.delete()
    assert rows(client, "crash") >= last
    client.volumes.delete("crash")


def test_a_reader_sees_data_synced_before_a_machine_kill(platform: Platform) -> None:
    """Readers mount without the journal, and what was synced last is only there."""
    client = platform.client()
    client.volumes.create("left", 64)
    sandbox = attach(client, "left")
    last = write_until(sandbox, 50, lambda: kill_machine(platform, sandbox), FILES)
    wait_until("the loss is seen", lambda: sandbox.refresh().status == "failed", 30)
    sandbox.delete()
    with attach(client, "left", read_only=True) as one, attach(client, "left", read_only=True) as two:
        for reader in (one, two):
            reader.filesystem.write("/root/check.py", CHECK_FILES)
            run(reader, f"python3 /root/check.py {last}")
    client.volumes.delete("left")


def test_attached_volumes_survive_server_kills(platform: Platform) -> None:
    client = platform.client()
    client.volumes.create("servers", 64)
    with attach(client, "servers") as sandbox:
        for role in ("agent", "control"):
            run(sandbox, f"echo before {role} >> /data/file; sync")
            platform.kill_role(role)
            wait_until("it answers", lambda: answers(sandbox), 60)
            run(sandbox, f"echo after {role} >> /data/file; sync")
            with pytest.raises(ConflictError, match=sandbox.id):
                attach(client, "servers")
        assert client.volumes.get("servers")["attached_to"] == [{"sandbox_id": sandbox.id, "read_only": False}]
        assert run(sandbox, "wc -l < /data/file") == "4"
    with attach(client, "servers") as reader:
        assert run(reader, "wc -l < /data/file") == "4"
    client.volumes.delete("servers")


def answers(sandbox: Sandbox) -> bool:
    try:
        return sandbox.exec("true", timeout_seconds=30).ok
    except PandaStackError:
        return False


def test_a_hibernated_sandbox_with_a_changed_volume_is_not_woken(platform: Platform) -> None:
    client = platform.client()
    volume = client.volumes.create("stale", 64)
    with attach(client, "stale") as sandbox:
        run(sandbox, "echo mine > /data/file")
        sandbox.hibernate()
        # As the host would find it if another machine had written the volume meanwhile.
        record = platform.data_dir / "store" / "volumes" / volume["id"] / "volume.json"
        known = json.loads(record.read_text())
        assert known["generation"] == 1
        record.write_text(json.dumps({**known, "generation": 2}))
        with pytest.raises(PandaStackError, match="generation 2") as refused:
            sandbox.exec("cat /data/file")
        assert refused.value.status == 409
        assert sandbox.refresh().status == "hibernated"
        record.write_text(json.dumps(known))
        assert run(sandbox, "cat /data/file") == "mine"
    client.volumes.delete("stale")


#: Held in memory by a process, and on the volume.
REMEMBER = "echo then > /dev/shm/state; echo then > /data/state; sync"
LOOK = "cat /dev/shm/state /data/state"


def cut_off_wake(platform: Platform, faults: Faults, sandbox: Sandbox, step: str, with_machine: bool) -> None:
    """Kills the agent at one step of a wake from disk, and with it the machine, as if the host had gone."""
    faults.arm(step)
    try:
        with ThreadPoolExecutor(1) as pool:
            waking = pool.submit(answers, sandbox)
            wait_until(f"it stands at {step}", lambda: waking.done() or faults.reached(step, set()), 60)
            assert not waking.done(), "nothing held it"
            if with_machine:
                kill_machine(platform, sandbox)
            platform.kill_role("agent")
    finally:
        faults.clear()


@pytest.mark.parametrize("step", ["launch.recorded", "wake.restored"])
def test_a_wake_interrupted_by_an_agent_kill_keeps_its_volume(platform: Platform, faults: Faults, step: str) -> None:
    client = platform.client()
    client.volumes.create("waking", 64)
    with attach(client, "waking") as sandbox:
        run(sandbox, REMEMBER)
        sandbox.hibernate()
        cut_off_wake(platform, faults, sandbox, step, with_machine=False)
        wait_until("it answers", lambda: answers(sandbox), 60)
        assert run(sandbox, LOOK) == "then\nthen"
        run(sandbox, "echo now > /data/state; sync")
        sandbox.hibernate()
        assert run(sandbox, "cat /data/state") == "now"
    client.volumes.delete("waking")


@pytest.mark.parametrize("step", ["launch.recorded", "wake.restored"])
def test_memory_is_not_reused_once_its_volume_may_have_changed(
    platform: Platform, faults: Faults, step: str
) -> None:
    """A sandbox that may have run and written: its memory of the file system would destroy the volume."""
    client = platform.client()
    client.volumes.create("once", 64)
    sandbox = attach(client, "once")
    run(sandbox, REMEMBER)
    sandbox.hibernate()
    cut_off_wake(platform, faults, sandbox, step, with_machine=True)
    wait_until("the loss is seen", lambda: sandbox.refresh().status == "failed", 60)
    with pytest.raises(PandaStackError, match="machine was gone"):
        sandbox.exec("true")
    sandbox.delete()
    with attach(client, "once") as other:
        assert run(other, "cat /data/state") == "then"
    client.volumes.delete("once")


def test_a_wake_whose_machine_dies_fails_with_the_reason(platform: Platform, faults: Faults) -> None:
    client = platform.client()
    client.volumes.create("ended", 64)
    sandbox = attach(client, "ended")
    run(sandbox, REMEMBER)
    sandbox.hibernate()
    faults.arm("launch.recorded")
    with ThreadPoolExecutor(1) as pool:
        try:
            waking = pool.submit(sandbox.exec, "true")
            reached = lambda: waking.done() or faults.reached("launch.recorded", set())
            wait_until("its machine stands before its gate", reached, 60)
            kill_machine(platform, sandbox)
        finally:
            faults.clear()
        with pytest.raises(PandaStackError, match="could not be woken"):
            waking.result()
    wait_until("the loss is seen", lambda: sandbox.refresh().status == "failed", 30)
    sandbox.delete()
    with attach(client, "ended") as other:
        assert run(other, "cat /data/state") == "then"
    client.volumes.delete("ended")


def test_a_sandbox_with_a_read_only_volume_survives_an_interrupted_wake(platform: Platform, faults: Faults) -> None:
    client = platform.client()
    client.volumes.create("read", 64)
    with attach(client, "read", read_only=True) as sandbox:
        run(sandbox, "echo then > /dev/shm/state")
        sandbox.hibernate()
        cut_off_wake(platform, faults, sandbox, "wake.restored", with_machine=True)
        wait_until("it answers", lambda: answers(sandbox), 60)
        assert run(sandbox, "cat /dev/shm/state") == "then"
    client.volumes.delete("read")


@contextmanager
def nearly_full(platform: Platform, left_bytes: int) -> Iterator[None]:
    """The disk of the platform's host has only this much space."""
    store = platform.data_dir / "store"
    filler = store / "filler"
    try:
        fill(filler, left_bytes)
        yield
    finally:
        filler.unlink()


def test_a_volume_that_does_not_fit_the_host_is_rejected(platform: Platform) -> None:
    client, config = platform.client(), platform.client_config()
    with nearly_full(platform, RESERVE_BYTES + (64 << 20)):
        # Without the SDK, which would wait for room.
        refused = httpx.post(
            f"http://127.0.0.1:{platform.port}/v1/volumes", json={"name": "large", "size_mb": 65536}, timeout=60,
            headers={"Authorization": f"Bearer {config['token']}"},
        )
    assert (refused.status_code, refused.json()["code"]) == (507, "disk_full"), refused.text
    assert "does not fit" in refused.json()["error"], refused.text
    with pytest.raises(NotFoundError):
        client.volumes.get("large")
    client.volumes.create("large", 64)
    client.volumes.delete("large")


def test_a_full_host_disk_pauses_a_writer_until_space_is_freed(platform: Platform) -> None:
    client = platform.client()
    client.volumes.create("full", 256)
    with attach(client, "full") as sandbox:
        run(sandbox, "dd if=/dev/urandom of=/data/warm bs=1M count=4 conv=fsync")
        with nearly_full(platform, 8 << 20):
            command = "nohup sh -c 'dd if=/dev/urandom of=/data/big bs=1M count=100 conv=fsync && echo ok > /data/done' &"
            sandbox.exec(f"{command} true", timeout_seconds=60)
            log = lambda: "the host's disk is full" in (platform.data_dir / "logs/agent.log").read_text(errors="replace")
            wait_until("the machine stands still", log, 120)
        wait_until("it goes on", lambda: sandbox.exec("cat /data/done", timeout_seconds=120).ok, 240)
        assert run(sandbox, "stat -c %s /data/big") == str(100 << 20)
        assert "error" not in run(sandbox, "dmesg | grep -i 'ext4-fs error' || true")
    client.volumes.delete("full")


def is_xfs_mount(path: Path) -> bool:
    return any(line.split()[1:3] == [str(path), "xfs"] for line in Path("/proc/mounts").read_text().splitlines())


def test_a_power_failure_loses_no_acknowledged_write(platform: Platform) -> None:
    """The store's file system stops at once, without writing anything out, as when the power goes. What it has afterwards
    is what was flushed. Last in this file: it ends the platform."""
    store = platform.data_dir / "store"
    if not is_xfs_mount(store) or shutil.which("xfs_io") is None:
        pytest.skip("the store is not an XFS of its own, whose power can be cut")
    client = platform.client()
    client.volumes.create("power", 64)
    sandbox = attach(client, "power")
    cut = lambda: subprocess.run(["xfs_io", "-x", "-c", "shutdown", str(store)], check=True)
    last = write_until(sandbox, 150, lambda: power_off(platform, cut))
    platform.start()
    client = platform.client()
    wait_until("the sandbox is given up", lambda: gone(client, sandbox.id), 60)
    assert rows(client, "power") >= last


def power_off(platform: Platform, cut: Callable[[], object]) -> None:
    """Nothing survives the cut: neither the file system's memory nor any process."""
    cut()
    machines = platform.machine_pids()
    assert platform.process is not None
    roles = [platform.role_pid(role) for role in ("agent", "control")]
    os.kill(platform.process.pid, signal.SIGKILL)
    platform.process.wait()
    for pid in [*roles, *machines]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for pid in [*roles, *machines]:
        wait_until("all processes are gone", lambda: Platform.is_gone(pid), 30)
    store = platform.data_dir / "store"
    deadline = time.monotonic() + 30
    while subprocess.run(["umount", str(store)], capture_output=True).returncode != 0:
        assert time.monotonic() < deadline, f"{store} stays mounted"
        time.sleep(0.1)
    # Machines of other platforms that were started meanwhile have copies of all mounts, and with one of them it would stay as it is.
    image = ["losetup", "--associated", f"{store}.xfs"]
    while subprocess.run(image, check=True, capture_output=True).stdout:
        for namespace in mount_namespaces_with(store):
            subprocess.run(["nsenter", f"--mount={namespace}", "umount", "--lazy", str(store)], capture_output=True)
        assert time.monotonic() < deadline, f"{store} is in use"
        time.sleep(0.1)


def mount_namespaces_with(directory: Path) -> List[Path]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f" {directory} " in (process / "mountinfo").read_text():
                found[os.readlink(process / "ns" / "mnt")] = process / "ns" / "mnt"
        except OSError:
            # The process has ended.
            continue
    return list(found.values())


def gone(client: PandaStack, sandbox_id: str) -> bool:
    """Deletes what the failure left of the sandbox, once the platform has noticed."""
    sandbox = client.sandboxes.get(sandbox_id)
    if sandbox.status != "failed":
        return False
    sandbox.delete()
    return True
