"""Rollback, retention, lineage, sleep: a sandbox's past and its pauses, on a platform of this file's own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, List
from urllib.parse import urlsplit

import httpx
import pytest
from pandastack import BadRequestError, CapacityError, ConflictError, NotFoundError, PandaStack, PandaStackError, Sandbox

from counter import count, start_counter
from platform_process import Platform, stays, wait_until
from websocket import connect

LIGHT_SLEEP_SECONDS = 20  # Longer than what a test does meanwhile.
#: Room for two sandboxes of `base`, where nothing is promised twice.
ROOM_FOR_TWO = ("--memory-limit-mb", "1200", "--memory-promised-percent", "100")


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("psa", "10.228.0.0/16", "--warm", "base", "--light-sleep-seconds", str(LIGHT_SLEEP_SECONDS))
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> PandaStack:
    return platform.client()


@pytest.fixture
def own(client: PandaStack) -> Iterator[Sandbox]:
    with client.sandboxes.create("base", metadata={"name": "kept"}) as sandbox:
        yield sandbox


def snapshot_dir(platform: Platform, snapshot: str) -> Path:
    return platform.data_dir / "store" / "snapshots" / snapshot


def sleep_dir(platform: Platform, sandbox: Sandbox) -> Path:
    return platform.data_dir / "store" / "sandboxes" / sandbox.id / "sleep"


def flip(path: Path, offset: int) -> None:
    """Turns a bit as a disk does: without a word, and without another time of last change."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def date_back(directory: Path) -> None:
    """As if the host had been started since: contents are read once in each boot."""
    for name, key in (("manifest.json", "written_boot"), ("checksums.json", "verified_boot")):
        content = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**content, key: "an earlier boot"}))


def allocated_bytes(platform: Platform) -> int:
    """Bytes that the store's file system has allocated, shared extents counted once."""
    # Of this file system: others have much to write, which does not matter here.
    subprocess.run(["sync", "--file-system", str(platform.data_dir / "store")], check=True)
    space = os.statvfs(platform.data_dir / "store")
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def test_rollback_restores_memory_and_disk_and_keeps_the_identity(client: PandaStack, own: Sandbox) -> None:
    own.filesystem.write("/srv/state", "then")
    start_counter(own)
    hostname = own.exec("hostname").stdout
    first = own.snapshot(name="first")
    then = count(own)
    own.filesystem.write("/srv/state", "later")
    own.exec("echo memory > /dev/shm/later", check=True)
    second = own.snapshot()
    for _ in range(2):
        assert own.rollback(first) is own and own.status == "running"
        assert own.filesystem.read("/srv/state") == b"then"
        assert own.exec("cat /dev/shm/later").exit_code != 0
        assert own.exec("hostname").stdout == hostname and own.metadata["name"] == "kept"
        wait_until("the counter of that moment goes on", lambda: count(own) > then, 30)
    own.rollback(second)
    assert own.exec("cat /dev/shm/later").stdout == "memory\n"
    own.hibernate()
    assert own.rollback(first).filesystem.read("/srv/state") == b"then"
    own.pause()
    own.rollback()  # the newest
    assert own.filesystem.read("/srv/state") == b"later"
    asked = time.time()
    assert asked - 3 < float(own.exec("date +%s.%N").stdout) < time.time() + 3
    kinds = [event["kind"] for event in own.events()]
    assert (kinds.count("rolled_back"), kinds.count("hibernated")) == (5, 1), "a rollback is not a sleep"


def test_rollback_keeps_url_and_token(platform: Platform, own: Sandbox) -> None:
    config = platform.client_config()
    put = httpx.put(
        f"{config['api_url']}/v1/sandboxes/{own.id}/preview",
        headers={"Authorization": f"Bearer {config['token']}"}, json={"visibility": "private"},
    )
    token, url = put.json()["token"], own.preview_url(8000)

    def ask(path: str, given: str) -> httpx.Response:
        headers = {"Host": urlsplit(url).netloc, "X-Pandastack-Preview-Token": given}
        return httpx.get(f"http://127.0.0.1:{platform.port}/{path}", headers=headers, timeout=60)

    own.exec("mkdir /srv/www; echo then > /srv/www/page", check=True)
    own.exec("setsid python3 -m http.server 8000 -d /srv/www > /dev/null 2>&1 < /dev/null &", check=True)
    wait_until("the server listens", lambda: 8000 in [port.port for port in own.ports()], 60)
    assert ask("page", token).text == "then\n" and ask("page", "another").status_code == 403
    then, snapshot = (own.id, own.metadata), own.snapshot()
    own.exec("echo later > /srv/www/page", check=True)
    assert ask("page", token).text == "later\n"
    own.rollback(snapshot)
    assert ask("page", token).text == "then\n", "the same server, at the same address, for the same token"
    assert ask("page", "another").status_code == 403
    own.refresh()
    assert (own.id, own.metadata) == then and own.preview_url(8000) == url


def test_a_sandbox_rolls_back_only_to_its_own_snapshots(client: PandaStack, own: Sandbox) -> None:
    with pytest.raises(ConflictError):
        own.rollback()
    snapshot = own.snapshot()
    with own.fork() as child:
        with pytest.raises(PandaStackError) as refused:
            child.rollback(snapshot)
        assert refused.value.status == 400 and "create a sandbox from it" in str(refused.value)
    with pytest.raises(NotFoundError, match="snapshot list"):
        own.rollback("00000000-0000-4000-8000-000000000000")
    assert own.exec("echo alive").stdout == "alive\n"


def test_a_rollback_with_an_unknown_field_fails(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    own.filesystem.write("/srv/state", b"then")
    own.snapshot()
    own.filesystem.write("/srv/state", b"now")
    config = platform.client_config()

    def rollback(body: dict) -> httpx.Response:
        headers = {"Authorization": f"Bearer {config['token']}"}
        return httpx.post(f"{config['api_url']}/v1/sandboxes/{own.id}/rollback", headers=headers, json=body, timeout=60)

    answer = rollback({"snapshotid": "x"})
    assert answer.status_code == 400 and "snapshotid" in answer.json()["error"]
    assert own.filesystem.read("/srv/state") == b"now"
    assert rollback({"snapshot_id": None}).status_code == 200
    assert own.filesystem.read("/srv/state") == b"then", "null is the newest"


def test_creating_from_a_snapshot_keeps_its_template(client: PandaStack, own: Sandbox) -> None:
    snapshot = own.snapshot()
    with pytest.raises(BadRequestError, match="`base`"):
        client.sandboxes.create("postgres-16", from_snapshot=snapshot)
    # Clients of any language send this by default.
    for unasked in ("base", "ubuntu-24.04", "code-interpreter"):
        with client.sandboxes.create(unasked, from_snapshot=snapshot) as copy:
            assert copy.template == "base"


def test_one_of_several_concurrent_promotions_wins(client: PandaStack, own: Sandbox) -> None:
    children = own.fork_tree(4)

    def promote(child: Sandbox) -> object:
        try:
            return child.promote(cleanup_siblings=True)
        except PandaStackError as error:
            return error

    with ThreadPoolExecutor(len(children)) as pool:
        answers = list(pool.map(promote, children))
    won = [(child, answer) for child, answer in zip(children, answers) if isinstance(answer, dict)]
    # One that came after the deletion of its sandbox finds none.
    assert len(won) == 1 and all(getattr(answer, "status", 0) in (404, 409) for answer in answers if answer is not won[0][1]), answers
    winner, promoted = won[0]
    assert len(promoted["deleted"]) == 3 and promoted["failures"] == {}
    assert winner.exec("echo alive").stdout == "alive\n"
    winner.delete()


def test_a_promoted_fork_is_not_deleted_by_a_later_promotion(client: PandaStack, own: Sandbox) -> None:
    first, second, third = own.fork_tree(3)
    first.promote()
    promoted = second.promote(cleanup_siblings=True)
    assert promoted["deleted"] == [third.id] and "promoted too" in promoted["failures"][first.id]
    assert first.exec("echo alive").stdout == "alive\n"
    first.delete()
    second.delete()


def test_snapshot_size_matches_the_changed_data(client: PandaStack, own: Sandbox) -> None:
    idle = own.snapshot().info["size_bytes"]
    dirty = 64 << 20
    own.exec(f"head -c {dirty} /dev/urandom > /dev/shm/dirty", check=True)
    written = own.snapshot().info["size_bytes"]
    # The guest's own bookkeeping of a command comes on top of the pages that the command asked for.
    assert written < dirty * 1.02 + idle + (4 << 20), f"{written} for {dirty}, {idle} when idle"
    assert idle < 16 << 20, f"{idle} bytes of a sandbox that did nothing: the zygote's pages are repeated"


def test_deleting_a_snapshot_frees_only_its_own_data(client: PandaStack, platform: Platform) -> None:
    with client.sandboxes.create("base") as own:
        own.exec("head -c 33554432 /dev/urandom > /dev/shm/one; head -c 33554432 /dev/urandom > /srv/one; sync", check=True)
        digest = "sha256sum /dev/shm/one /srv/one"
        before = own.exec(digest, check=True).stdout
        first = own.snapshot()
    base = allocated_bytes(platform)
    with client.sandboxes.create(from_snapshot=first) as second:
        second.exec("head -c 8388608 /dev/urandom > /dev/shm/two", check=True)
        later = second.snapshot()
    client.snapshots.delete(first)
    with client.sandboxes.create(from_snapshot=later) as again:
        assert again.exec(digest, check=True).stdout == before, "the later one lost what it stood on"
    with_later = allocated_bytes(platform)
    assert with_later < base + (48 << 20), "the second snapshot repeated the first"
    client.snapshots.delete(later)
    wait_until("the bytes are free", lambda: allocated_bytes(platform) < with_later - (64 << 20), 30)


def test_snapshots_expire_and_respect_keep_last(client: PandaStack, own: Sandbox) -> None:
    short = own.snapshot(ttl_seconds=1)
    named = own.snapshot(name="release", metadata={"k": "v"})
    taken = [own.snapshot(keep_last=2) for _ in range(3)]

    def ids() -> set:
        return {entry["id"] for entry in client.snapshots.list(sandbox_id=own.id)}

    wait_until("one ended by its TTL", lambda: short not in ids(), 30)
    assert ids() == {named, taken[1], taken[2]}
    shown = client.snapshots.get(named)
    assert shown["name"] == "release" and shown["metadata"] == {"k": "v"} and shown["kind"] == "manual"
    for bad in ({"keep_last": 0}, {"ttl_seconds": 0}, {"keep_last": 1001}, {"name": ""}, {"name": "two\nlines"}, {"name": "n" * 257}):
        with pytest.raises(PandaStackError) as refused:
            own.snapshot(**bad)
        assert refused.value.status == 400


def test_a_damaged_snapshot_is_never_resumed(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    def refused(snapshot: str) -> None:
        for call in (lambda: client.sandboxes.create(from_snapshot=snapshot), lambda: own.rollback(snapshot)):
            with pytest.raises(ConflictError) as failure:
                call()
            assert "damaged" in str(failure.value) and str(platform.data_dir) not in str(failure.value)
            assert failure.value.code == "snapshot_unusable"

    start_counter(own)
    for name in ("memory", "state", "disk"):
        snapshot = own.snapshot()
        path = snapshot_dir(platform, snapshot) / name
        os.utime(path)
        refused(snapshot)
    snapshot = own.snapshot()
    directory = snapshot_dir(platform, snapshot)
    wait_until("checksums", (directory / "checksums.json").exists, 120)
    flip(directory / "disk", 4096)
    date_back(directory)
    refused(snapshot)
    flip(directory / "disk", 4096)
    own.rollback(snapshot)
    assert count(own) > 0


def test_a_hibernated_sandbox_with_damaged_files_is_never_woken(platform: Platform, own: Sandbox) -> None:
    def refused() -> None:
        with pytest.raises(ConflictError) as failure:
            own.exec("true")
        assert "damaged" in str(failure.value) and failure.value.code == "snapshot_unusable"

    start_counter(own)
    before = count(own)
    own.hibernate()
    sleep = sleep_dir(platform, own)
    wait_until("checksums", (sleep / "checksums.json").exists, 120)
    stat = (sleep / "memory").stat()
    os.utime(sleep / "memory")
    refused()
    os.utime(sleep / "memory", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    flip(sleep / "memory", 1 << 20)
    date_back(sleep)
    refused()
    flip(sleep / "memory", 1 << 20)
    assert count(own) >= before


def test_a_hibernated_sandbox_survives_the_loss_of_its_record(platform: Platform, own: Sandbox) -> None:
    start_counter(own)
    before = count(own)
    own.hibernate()
    record = sleep_dir(platform, own).parent / "record.json"
    wait_until("its machine ended", lambda: json.loads(record.read_text())["machine"] is None, 30)
    # A power loss leaves this of a file that was replaced and not synced.
    empty = record.with_name("empty")
    empty.touch()
    os.replace(empty, record)
    platform.kill_role("agent")
    wait_until("it answers", lambda: answers(own), 60)
    assert count(own) >= before
    assert json.loads(record.read_text())["state"] == "running"


def test_a_snapshot_of_another_engine_is_refused(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    snapshot = own.snapshot()
    manifest = snapshot_dir(platform, snapshot) / "manifest.json"
    content = json.loads(manifest.read_text())
    assert "Haswell" in content["compatibility_key"] or "host" in content["compatibility_key"]
    assert content["kernel"] == own.exec("uname -r").stdout.strip()
    manifest.write_text(json.dumps({**content, "compatibility_key": "another engine; 1.0"}))
    with pytest.raises(ConflictError) as refused:
        client.sandboxes.create(from_snapshot=snapshot)
    assert "another engine; 1.0" in str(refused.value) and refused.value.code == "snapshot_unusable"
    assert own.exec("true").ok


def test_lineage_outlives_the_parent(client: PandaStack) -> None:
    with client.sandboxes.create("base") as root:
        child = root.fork()
        first, second = child.fork_tree(2)
        lineage = child.lineage()
        assert lineage["parent_id"] == root.id and lineage["ancestors"] == [root.id]
        assert [entry["id"] for entry in lineage["children"]] == [first.id, second.id]
        child.delete()
        lineage = first.lineage()
        assert lineage["ancestors"] == [child.id, root.id]
        assert [entry["id"] for entry in lineage["siblings"]] == [second.id]
        assert first.promote(cleanup_siblings=True)["deleted"] == [second.id]
        assert first.lineage()["siblings"] == []
        first.delete()


def test_an_idle_sandbox_sleeps_in_memory_and_then_on_disk(client: PandaStack, platform: Platform) -> None:
    with client.sandboxes.create("base", idle_timeout_seconds=2) as own:
        start_counter(own)
        before, (machine,) = count(own), platform.machine_pids(own.id)
        wait_until("light sleep", lambda: own.refresh().residency == "memory", 30)
        assert own.status == "hibernated" and platform.machine_pids(own.id) == [machine]
        with own.fork() as child:
            assert count(child) >= before
        assert own.refresh().status == "hibernated", "a copy does not wake it"
        after = count(own)
        assert after >= before and platform.machine_pids(own.id) == [machine], "woken in place"
        wait_until("light sleep again", lambda: own.refresh().residency == "memory", 30)
        own.wake()
        assert own.status == "running"
        wait_until("deep sleep", lambda: own.refresh().residency == "disk", 120)
        assert platform.machine_pids(own.id) == []
        assert count(own) >= after
        assert own.lifecycle()["sleeps_when_idle"] is True


def test_a_sandbox_asleep_in_memory_survives_an_agent_kill(client: PandaStack, platform: Platform) -> None:
    with client.sandboxes.create("base", idle_timeout_seconds=2) as own:
        start_counter(own)
        before = count(own)
        (machine,) = platform.machine_pids(own.id)
        wait_until("light sleep", lambda: own.refresh().residency == "memory", 30)
        platform.kill_role("agent")
        wait_until("it answers", lambda: answers(own), 60)
        assert count(own) >= before
        assert platform.machine_pids(own.id) == [machine], "the machine was restarted"


@contextlib.contextmanager
def restarted(platform: Platform, *arguments: str) -> Iterator[None]:
    """The platform with other settings for a while."""
    def restart(words: List[str]) -> None:
        assert platform.process is not None
        platform.process.send_signal(signal.SIGTERM)
        platform.process.wait(timeout=60)
        platform.arguments = words
        platform.start()

    usual = platform.arguments
    restart(["--warm", "base", *arguments])
    try:
        yield
    finally:
        restart(usual)


def create_once_it_answers(client: PandaStack) -> Sandbox:
    """The API answers before its agent was found."""
    made: List[Sandbox] = []

    def create() -> bool:
        with contextlib.suppress(CapacityError):
            made.append(client.sandboxes.create("base", idle_timeout_seconds=1))
        return bool(made)

    wait_until("a sandbox", create, 60)
    return made[0]


def test_sandboxes_asleep_in_memory_are_evicted_for_others(client: PandaStack, platform: Platform) -> None:
    with restarted(platform, "--light-sleep-seconds", "600", *ROOM_FOR_TWO):
        with create_once_it_answers(client) as first, create_once_it_answers(client) as second:
            counted = {sandbox.id: 0 for sandbox in (first, second)}
            for sandbox in (first, second):
                start_counter(sandbox)
                counted[sandbox.id] = count(sandbox)
            wait_until("both sleep lightly", lambda: {first.refresh().residency, second.refresh().residency} == {"memory"}, 60)
            with client.sandboxes.create("base"):
                wait_until("one is written out", lambda: "disk" in (first.refresh().residency, second.refresh().residency), 30)
                out, light = (first, second) if first.residency == "disk" else (second, first)
                assert light.refresh().residency == "memory", "one was enough"
                out.keep_awake(300)
                assert count(out) >= counted[out.id], "it wakes, and the other makes room for it"
                wait_until("the other is written out", lambda: light.refresh().residency == "disk", 30)
                with pytest.raises(CapacityError):
                    client.sandboxes.create("base")
            assert count(light) >= counted[light.id]


def answers(sandbox: Sandbox) -> bool:
    try:
        return sandbox.exec("true").ok
    except PandaStackError:
        return False


def test_leases_and_streams_keep_a_sandbox_awake(client: PandaStack) -> None:
    with client.sandboxes.create("base", idle_timeout_seconds=3) as own:
        assert own.keep_awake(120)["awake_until"]
        # Time itself is what is tested: twice its idle time.
        stays("a lease keeps it awake", lambda: own.refresh().status == "running", 6)
        assert "awake_until" not in own.keep_awake(0)
        stream = own.exec_stream("sleep 6; echo done")
        assert "".join(chunk.text for chunk in stream) == "done\n", "a stream keeps it awake"
        wait_until("asleep when nothing happens", lambda: own.refresh().status == "hibernated", 30)
        with pytest.raises(PandaStackError) as refused:
            own.keep_awake(24 * 3600 + 1)
        assert refused.value.status == 400


def test_an_idle_terminal_keeps_a_sandbox_awake(client: PandaStack, platform: Platform) -> None:
    config = platform.client_config()
    with client.sandboxes.create("base", idle_timeout_seconds=2) as own:
        terminal = connect(config["api_url"], f"/v1/sandboxes/{own.id}/exec/pty", config["token"])
        try:
            seen = b""
            terminal.send(b"echo mar''ker\r")
            while b"marker" not in seen:
                message = terminal.receive()
                seen += message if isinstance(message, bytes) else b""
            # Time itself is what is tested: four times its idle time.
            sleeps = lambda: [event["kind"] for event in own.events()].count("hibernated")  # noqa: E731
            before = sleeps()
            stays("the terminal keeps it awake", lambda: sleeps() == before, 8)
        finally:
            terminal.close()
        wait_until("asleep while no client is attached to the terminal", lambda: own.refresh().status == "hibernated", 60)
        assert [process for process in own.processes() if process.info.is_terminal], "its shell slept with it"


def test_an_expired_sandbox_hibernates_when_on_timeout_says_so(client: PandaStack) -> None:
    with client.sandboxes.create("base", ttl_seconds=600, on_timeout="hibernate") as own:
        start_counter(own)
        before = count(own)
        own.set_ttl(1)
        wait_until("asleep at the end of its TTL", lambda: own.refresh().status == "hibernated", 60)
        own.set_ttl(600)  # The next lifetime is as long: the call must fit into it.
        assert own.refresh().status == "hibernated"
        assert count(own) >= before, "the next call wakes it with its memory"
        assert own.refresh().status == "running"


def test_traffic_keeps_a_sandbox_awake(client: PandaStack) -> None:
    with client.sandboxes.create("base", idle_timeout_seconds=3) as own:
        own.exec("setsid python3 -m http.server 8123 > /dev/null 2>&1 < /dev/null &", check=True)
        url = f"http://{own.refresh().guest_ip}:8123/"

        def fetch() -> bool:
            try:
                return urllib.request.urlopen(url, timeout=5).status == 200
            except OSError:
                return False

        wait_until("the server in the sandbox answers", fetch, 30)
        until = time.monotonic() + 8
        wait_until("traffic for a while", lambda: fetch() and time.monotonic() > until, 30)
        assert own.refresh().status == "running", "it talks"
        wait_until("asleep when it is silent", lambda: own.refresh().status == "hibernated", 60)


def test_a_hibernated_sandbox_holds_no_resources_and_wakes_once(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    start_counter(own)
    before = count(own)
    awake = platform.footprint()
    own.hibernate()

    def holds_nothing() -> bool:
        asleep = platform.footprint()
        one_less = all(asleep[held] == awake[held] - 1 for held in ("machines", "runtime dirs"))
        record = json.loads((platform.data_dir / "store" / "sandboxes" / own.id / "record.json").read_text())
        unnamed = record["machine"] is None and record["slot"] is None
        return one_less and unnamed and asleep["cgroups"] < awake["cgroups"] and platform.machine_pids(own.id) == []

    # Its machine ends behind the answer.
    wait_until("the sleeper holds nothing", holds_nothing, 30)
    with ThreadPoolExecutor(100) as pool:
        results = list(pool.map(lambda _: own.exec("cat /dev/shm/count", timeout_seconds=120), range(100)))
    assert all(int(result.stdout) >= before for result in results)
    assert [event["kind"] for event in own.events()].count("woken") == 1


def test_a_sandbox_can_hibernate_with_its_disk_only(client: PandaStack, platform: Platform, own: Sandbox) -> None:
    own.exec("echo kept > /srv/kept; echo gone > /dev/shm/gone", check=True)
    own.hibernate(keep="disk")
    assert own.refresh().raw["kept"] == "disk" and own.residency == "disk"
    own.hibernate()
    assert own.refresh().raw["kept"] == "disk", "it has nothing else to keep"
    kept = {path.name for path in sleep_dir(platform, own).iterdir()}
    # The record's second name is created again behind the answer.
    assert kept - {"record.new"} == {"disk", "manifest.json", "record.json"}
    assert own.exec("cat /srv/kept", timeout_seconds=120).stdout == "kept\n"
    assert own.exec("cat /dev/shm/gone").exit_code != 0
    assert own.refresh().boot_mode == "boot"
    start_counter(own)
    before = count(own)
    assert "kept" not in own.raw
    own.hibernate()
    assert own.refresh().raw["kept"] == "memory"
    assert count(own) >= before, "after a boot it sleeps and wakes as any other"


def test_forking_a_disk_only_hibernated_sandbox_wakes_it(client: PandaStack, own: Sandbox) -> None:
    own.exec("echo kept > /srv/kept", check=True)
    own.hibernate(keep="disk")
    with own.fork() as child:
        assert child.exec("cat /srv/kept", timeout_seconds=120).stdout == "kept\n"
    wait_until("the host told that it woke", lambda: own.refresh().status == "running", 30)
    assert own.boot_mode == "boot"
    own.hibernate(keep="disk")
    snapshot = own.snapshot()
    with client.sandboxes.create(from_snapshot=snapshot.id) as copy:
        assert copy.exec("cat /srv/kept", timeout_seconds=120).stdout == "kept\n"


def test_commands_and_traffic_trigger_checkpoints(client: PandaStack) -> None:
    # At once: both wait for times that are ten seconds apart.
    with ThreadPoolExecutor(2) as both:
        for checked in [both.submit(check, client) for check in (check_commands, check_traffic_alone)]:
            checked.result()


def check_commands(client: PandaStack) -> None:
    with client.sandboxes.create("base", checkpoints={"every_seconds": 10, "keep_last": 2}) as own:
        def checkpoints() -> list:
            entries = client.snapshots.list(sandbox_id=own.id)
            return [entry["id"] for entry in entries if entry["kind"] == "checkpoint"]

        seen = set()

        def busy() -> bool:
            own.exec("true")
            seen.update(checkpoints())
            return len(seen) >= 3

        wait_until("three checkpoints", busy, 120)
        # The oldest goes after the newest is kept, so a list between the two has one more.
        wait_until("the oldest is gone", lambda: len(checkpoints()) <= 2, 30)
        assert own.rollback(checkpoints()[0]).exec("true").ok
        own.set_lifecycle(checkpoints={"every_seconds": 0, "keep_last": 1})
        assert "checkpoints" not in own.lifecycle()
    wait_until("they go with their sandbox", lambda: not client.snapshots.list(sandbox_id=own.id), 30)


def check_traffic_alone(client: PandaStack) -> None:
    with client.sandboxes.create("base", checkpoints={"every_seconds": 10, "keep_last": 20}) as own:
        own.exec("setsid python3 -m http.server 8123 > /dev/null 2>&1 < /dev/null &", check=True)
        wait_until("the server listens", lambda: 8123 in [port.port for port in own.ports()], 60)
        url = f"http://{own.refresh().guest_ip}:8123/"
        wait_until("nobody uses it any more", lambda: own.lifecycle()["idle_seconds"] >= 2, 30)
        before = {entry["id"] for entry in client.snapshots.list(sandbox_id=own.id)}

        def two_more() -> bool:
            assert urllib.request.urlopen(url, timeout=30).status == 200
            return len({entry["id"] for entry in client.snapshots.list(sandbox_id=own.id)} - before) >= 2

        # The first one may be owed to what was used before; the second one is not.
        wait_until("two checkpoints", two_more, 150)
