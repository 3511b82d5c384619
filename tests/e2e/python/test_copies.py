"""Copies of a machine that goes on: what is in them is one instant, however they were made."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Iterator, List, Optional

import pytest
from pandastack import NotFoundError, PandaStack, Sandbox

from crash_world import Faults
from full_only import times
from platform_process import Platform, wait_until

# Writes the same byte over a large buffer again and again and checks each time that the last pass is all there. Memory
# that was copied while it changed has pages of several passes, which the copy finds out by itself.
WRITER = """
import time
PAGES, PAGE = 6144, 4096
buffer, number = bytearray(PAGES * PAGE), 0
while True:
    last, number = number % 251, number + 1
    if buffer != bytes([last]) * len(buffer):
        open("/dev/shm/torn", "w").write(str(number))
        raise SystemExit
    for page in range(PAGES):
        buffer[page * PAGE : (page + 1) * PAGE] = bytes([number % 251]) * PAGE
    open("/dev/shm/passes", "w").write(str(number))
"""
ZYGOTES_MAX = 4


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("psc", "10.230.0.0/16", "--warm", "base")
    running.environment["PANDASTACK_FAULT_DIR"] = str(running.root / "faults")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def faults(platform: Platform) -> Faults:
    return Faults(platform.root / "faults")


@pytest.fixture(scope="module")
def client(platform: Platform) -> PandaStack:
    made = platform.client()
    # Processes are counted: the template's own has to be there first.
    wait_until("a zygote of the template", lambda: is_forked(made), 120)
    return made


def is_forked(client: PandaStack) -> bool:
    with client.sandboxes.create("base") as sandbox:
        return sandbox.boot_mode == "fork"


@pytest.fixture
def own(client: PandaStack) -> Iterator[Sandbox]:
    with client.sandboxes.create("base") as sandbox:
        yield sandbox


def passes(sandbox: Sandbox) -> int:
    text = sandbox.exec("cat /dev/shm/passes").stdout.strip()
    return int(text) if text else 0


def is_whole(sandbox: Sandbox) -> None:
    """The writer in the sandbox finds the pass it was in the middle of, and goes on."""
    before = passes(sandbox)
    wait_until("two more passes", lambda: passes(sandbox) >= before + 2 or is_torn(sandbox), 120)
    assert not is_torn(sandbox), "memory of several instants"


def is_torn(sandbox: Sandbox) -> bool:
    return sandbox.exec("cat /dev/shm/torn").ok


def snapshot_zygotes(platform: Platform) -> List[str]:
    records = (platform.data_dir / "store" / "zygotes").glob("snapshot@*/record.json")
    return sorted(path.parent.name for path in records)


def zygote_pids(platform: Platform) -> List[int]:
    records = (platform.data_dir / "store" / "zygotes").glob("snapshot@*/record.json")
    return [json.loads(record.read_text())["machine"]["pid"] for record in records]


def test_a_snapshot_of_a_busy_machine_is_consistent(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    own.filesystem.write("/root/writer.py", WRITER)
    own.exec("setsid python3 /root/writer.py > /dev/null 2>&1 < /dev/null &", check=True)
    wait_until("the writer writes", lambda: passes(own) >= 2, 120)
    machines = len(platform.machine_pids())
    for _ in range(times(3, 1)):
        snapshot = own.snapshot()
        with client.sandboxes.create(from_snapshot=snapshot) as copy:
            is_whole(copy)
        is_whole(own)
        client.snapshots.delete(snapshot)
    wait_until("no twin stays", lambda: len(platform.machine_pids()) == machines, 30)
    with own.fork() as child:
        is_whole(child)
    is_whole(own)


def test_deleting_a_sandbox_during_a_snapshot_leaks_nothing(client: PandaStack, platform: Platform) -> None:
    before = platform.footprint()
    own = client.sandboxes.create("base")
    own.exec("head -c 134217728 /dev/urandom > /dev/shm/dirty", check=True)
    with ThreadPoolExecutor(2) as pool:
        taken = pool.submit(own.snapshot)
        wait_until("a twin, or the end", lambda: taken.done() or len(platform.machine_pids()) > before["machines"] + 1, 60)
        assert own.exec("echo alive", timeout_seconds=60).stdout == "alive\n"
        own.delete()
        snapshot = taken.result()
    with client.sandboxes.create(from_snapshot=snapshot) as copy:
        assert copy.exec("wc -c < /dev/shm/dirty").stdout.strip() == "134217728", "it was finished before the delete"
    client.snapshots.delete(snapshot)
    for held in ("machines", "runtime dirs", "cgroups", "files"):
        wait_until(f"{held} as before", lambda: platform.footprint()[held] == before[held], 60)


def test_a_snapshot_in_use_gets_a_zygote(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    own.exec("setsid sh -c 'sleep 86400; :' > /dev/null 2>&1 < /dev/null & echo $! > /dev/shm/pid; echo then > /srv/state", check=True)
    snapshot = own.snapshot()

    def make() -> Sandbox:
        return client.sandboxes.create(from_snapshot=snapshot)

    first = make()
    assert first.boot_mode == "restore" and snapshot_zygotes(platform) == []
    second = make()
    assert second.boot_mode == "restore"

    # If memory is short, the zygote is requested again only by another restore.
    def forked() -> Optional[Sandbox]:
        made = make()
        if made.boot_mode == "fork":
            return made
        made.delete()
        return None

    third = wait_until("a fork of it", forked, 300)
    fourth = make()
    assert fourth.boot_mode == "fork"
    alive = [second, third, fourth]
    for sandbox in alive:
        assert sandbox.exec("cat /srv/state; kill -0 $(cat /dev/shm/pid) && echo runs").stdout == "then\nruns\n"
    for command in ("hostname", "head -c 16 /dev/urandom | od -An -tx1", "cat /etc/machine-id"):
        assert len({sandbox.exec(command).stdout for sandbox in alive}) == len(alive), command
    third.exec("echo mine > /srv/state", check=True)
    assert fourth.exec("cat /srv/state").stdout == make_and_read(make) == "then\n"
    # The zygote survives the agent, and ends with its snapshot; machines made from it continue.
    (pid,) = zygote_pids(platform)
    platform.kill_role("agent")
    assert make().boot_mode == "fork" and zygote_pids(platform) == [pid]
    client.snapshots.delete(snapshot)
    wait_until("no zygote", lambda: not snapshot_zygotes(platform) and platform.is_gone(pid), 60)
    assert third.exec("cat /srv/state").stdout == "mine\n"
    for sandbox in client.sandboxes.list():
        if sandbox.id != own.id:
            sandbox.delete()


def make_and_read(make: Callable[[], Sandbox]) -> str:
    with make() as sandbox:
        return sandbox.exec("cat /srv/state").stdout


def test_snapshot_zygotes_are_limited_in_number(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    snapshots = [own.snapshot() for _ in range(ZYGOTES_MAX + 1)]
    for snapshot in snapshots:
        record = platform.data_dir / "store" / "zygotes" / f"snapshot@{snapshot}" / "record.json"

        def has_zygote() -> bool:
            client.sandboxes.create(from_snapshot=snapshot).delete()
            return record.exists()

        wait_until("a zygote", has_zygote, 300)
    gone = platform.data_dir / "store" / "zygotes" / f"snapshot@{snapshots[0]}"
    wait_until("the one not used for longest is gone", lambda: not gone.exists(), 60)
    wait_until("as many as may be", lambda: len(snapshot_zygotes(platform)) == ZYGOTES_MAX, 60)
    for snapshot in snapshots:
        client.snapshots.delete(snapshot)
    wait_until("none", lambda: snapshot_zygotes(platform) == [], 60)


def test_forks_ten_deep(client: PandaStack) -> None:
    line = [client.sandboxes.create("base")]
    for depth in range(1, 11):
        line[-1].exec(f"echo {depth} >> /srv/line; echo {depth} >> /dev/shm/line", check=True)
        line.append(line[-1].fork())
    expected = "".join(f"{depth}\n" for depth in range(1, 11))
    assert line[-1].exec("cat /srv/line; cat /dev/shm/line").stdout == expected * 2
    assert line[1].exec("cat /srv/line").stdout == "1\n2\n", "what descendants wrote stays theirs"
    assert len(line[-1].lineage()["ancestors"]) == 10
    snapshot = line[-1].snapshot()
    for sandbox in line:
        sandbox.delete()
    with client.sandboxes.create(from_snapshot=snapshot) as copy:
        assert copy.exec("cat /dev/shm/line").stdout == expected
    client.snapshots.delete(snapshot)


def is_ending(client: PandaStack, sandbox: Sandbox) -> bool:
    try:
        return client.sandboxes.get(sandbox.id).status in ("stopping", "deleted")
    except NotFoundError:
        return True


def held_fork(faults: Faults, pool: ThreadPoolExecutor, parent: Sandbox) -> "Future[List[Sandbox]]":
    """A fork of which one child does not come up until the faults are cleared."""
    faults.arm("launch.recorded")
    forking = pool.submit(parent.fork_tree, 3)
    reached = lambda: forking.done() or faults.reached("launch.recorded", set())
    wait_until("a child stands before its gate", reached, 60)
    assert not forking.done(), "nothing held it"
    return forking


def test_a_parent_stays_usable_while_its_forks_start(client: PandaStack, faults: Faults) -> None:
    parent = client.sandboxes.create("base")
    with ThreadPoolExecutor(2) as pool:
        try:
            forking = held_fork(faults, pool, parent)
            assert parent.exec("echo free; echo later > /srv/later", timeout_seconds=30).stdout == "free\n"
            client.snapshots.delete(parent.snapshot())
            assert not forking.done()
            # Its children begin in its control group: it may not end before they have left.
            deleting = pool.submit(parent.delete)
            wait_until("it is being deleted", lambda: is_ending(client, parent), 30)
        finally:
            faults.clear()
        children = forking.result()
        deleting.result()
    for child in children:
        assert child.exec("cat /srv/later; echo alive", timeout_seconds=60).stdout == "alive\n"
        child.delete()
    assert len(children) == 3


def test_a_sandbox_can_wake_while_its_forks_start(client: PandaStack, faults: Faults, own: Sandbox) -> None:
    own.exec("echo then > /dev/shm/state", check=True)
    own.hibernate()
    with ThreadPoolExecutor(1) as pool:
        try:
            forking = held_fork(faults, pool, own)
            assert own.exec("cat /dev/shm/state; echo later > /dev/shm/state", timeout_seconds=60).stdout == "then\n"
            assert not forking.done()
        finally:
            faults.clear()
        children = forking.result()
    for child in children:
        assert child.exec("cat /dev/shm/state", timeout_seconds=60).stdout == "then\n"
        child.delete()
    assert len(children) == 3


def test_fork_tree_creates_a_hundred_distinct_children(client: PandaStack, own: Sandbox) -> None:
    own.exec("echo shared > /dev/shm/shared", check=True)
    children = own.fork_tree(100)
    assert len({child.id for child in children}) == 100
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda child: child.exec("cat /dev/shm/shared; hostname", timeout_seconds=120).stdout, children))
    assert len(set(answers)) == 100 and all(answer.startswith("shared\n") for answer in answers)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Sandbox.delete, children))
