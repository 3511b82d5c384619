"""Forks, snapshots, sleep: what only a machine can do."""

from __future__ import annotations

import ast
import random
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Tuple

import httpx
import pytest

from pandastack import ConflictError, NotFoundError, PandaStack, Sandbox

from conftest import RUN, wait_for
from full_only import times

FORKS = times(50, 12)

#: How far a sandbox's clock may be from this machine's, exchange included.
CLOCK_SECONDS_MAX = 2.0

#: A process that keeps a secret and a counter in its memory and nowhere else, and shows both.
COUNTER = """
setsid sh -c '
  secret=$(cat /proc/sys/kernel/random/uuid); i=0
  while :; do
    i=$((i + 1)); echo "$$ $secret $i" > /dev/shm/counter.new; mv /dev/shm/counter.new /dev/shm/counter
    sleep 0.02
  done
' > /dev/null 2>&1 < /dev/null &
"""

#: What a new process draws: Python's generator, and what uuidgen prints (the same call to the same library).
DRAW = """
import ctypes, random
print(random.random())
drawn = ctypes.create_string_buffer(16)
ctypes.CDLL("libuuid.so.1").uuid_generate(drawn)
print(drawn.raw.hex())
"""

#: Shakes hands with itself, trusting the certificate alone.
HANDSHAKE = """
import socket, ssl, threading
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain("/root/fresh.pem")
client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
client.load_verify_locations("/root/fresh.pem")
listener = socket.create_server(("127.0.0.1", 0))

def answer():
    peer, _ = listener.accept()
    with server.wrap_socket(peer, server_side=True) as secure:
        secure.sendall(b"hello")

threading.Thread(target=answer, daemon=True).start()
with client.wrap_socket(socket.create_connection(listener.getsockname()), server_hostname="localhost") as secure:
    print(secure.recv(5).decode())
"""


def start_counter(sandbox: Sandbox) -> None:
    sandbox.exec(COUNTER, timeout_seconds=30, check=True)
    wait_for("the counter runs", lambda: sandbox.exec("cat /dev/shm/counter").ok)


def read_counter(sandbox: Sandbox) -> Tuple[str, int]:
    """The process's identity (pid and secret), and its count."""
    pid, secret, count = sandbox.exec("cat /dev/shm/counter", check=True).stdout.split()
    return f"{pid} {secret}", int(count)


def assert_goes_on(sandbox: Sandbox, identity: str, count: int) -> None:
    now_identity, now_count = read_counter(sandbox)
    assert now_identity == identity, "another process: memory was lost"
    assert now_count >= count, "the counter went back"
    wait_for("the counter moves on", lambda: read_counter(sandbox)[1] > now_count)


def assert_clock(sandbox: Sandbox) -> None:
    before = time.time()
    guest = float(sandbox.exec("date +%s.%N", check=True).stdout)
    after = time.time()
    assert before - CLOCK_SECONDS_MAX < guest < after + CLOCK_SECONDS_MAX


def test_a_sandbox_reports_its_engine_size_and_status(shared: Sandbox) -> None:
    assert shared.engine and shared.isolation in ("hardware", "emulated")
    assert shared.cpu >= 1 and shared.memory_mb >= 256 and shared.status == "running"
    assert_clock(shared)


def test_an_idle_guest_kernel_rarely_wakes_up(own: Sandbox) -> None:
    settings = "vm/compaction_proactiveness vm/stat_interval kernel/watchdog"
    assert own.exec(f"cd /proc/sys && cat {settings}", check=True).stdout.split() == ["0", "60", "0"]
    # The kernel's own thread that would look at memory twice a second.
    wakes = "awk '/^voluntary/ {print $2}' /proc/$(pgrep kcompactd0)/status"
    before, after = own.exec(f"{wakes}; sleep 4; {wakes}", check=True).stdout.split()
    assert int(after) - int(before) < 4


def test_a_fork_diverges_from_its_parent(own: Sandbox) -> None:
    own.filesystem.write("/srv/state", "common")
    start_counter(own)
    identity, count = read_counter(own)
    with own.fork(metadata=RUN) as branch:
        assert branch.id != own.id and branch.parent_id == own.id
        assert_goes_on(branch, identity, count)
        branch.filesystem.write("/srv/state", "branch")
        own.filesystem.write("/srv/state", "trunk")
        own.exec("touch /srv/only-trunk", check=True)
        assert branch.filesystem.read("/srv/state") == b"branch"
        assert own.filesystem.read("/srv/state") == b"trunk"
        assert not branch.filesystem.exists("/srv/only-trunk")
        branch.exec("kill $(cut -d' ' -f1 /dev/shm/counter)", check=True)
        assert_goes_on(own, identity, count)
        assert_clock(branch)
        names = {s.exec("hostname; cat /etc/machine-id", check=True).stdout for s in (own, branch)}
        assert len(names) == 2
    assert_goes_on(own, identity, count)


def test_a_fork_survives_the_deletion_of_its_parent(client: PandaStack) -> None:
    parent = client.sandboxes.create("base", metadata=RUN)
    with parent.fork() as branch:
        parent.delete()
        assert branch.exec("echo alive").stdout == "alive\n"


def test_forks_draw_different_random_data(own: Sandbox) -> None:
    own.filesystem.write("/root/draw.py", DRAW)
    children = own.fork_tree(FORKS, metadata=RUN)
    try:
        assert len(children) == FORKS
        # Kernel randomness, its user-facing ids, the identity that services derive names from, and what programs draw.
        command = (
            "head -c 32 /dev/urandom | od -An -v -tx1; cat /proc/sys/kernel/random/uuid /etc/machine-id; python3 /root/draw.py"
        )
        with ThreadPoolExecutor(FORKS) as pool:
            outputs = list(pool.map(lambda child: child.exec(command, 120, check=True).stdout, children))
        drawn = ("first bytes", "second bytes", "uuid", "machine id", "Python's random number", "uuidgen's uuid")
        assert {len(output.splitlines()) for output in outputs} == {len(drawn)}
        for what, values in zip(drawn, zip(*map(str.splitlines, outputs))):
            assert len(set(values)) == FORKS, f"two forks share {what}"
    finally:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda child: child.delete(), children))


def test_forked_contexts_draw_different_random_numbers(own: Sandbox) -> None:
    draw = "(random.random(), ssl.RAND_bytes(16).hex())"
    context = own.create_code_context()
    context.run_code(f"import random, ssl\nrandom.seed(7)\n{draw}")
    children = own.fork_tree(3, metadata=RUN)
    try:
        drawn = [context.run_code(draw).text]
        for child in children:
            (inherited,) = [each for each in child.code_contexts() if each.id == context.id]
            drawn.append(inherited.run_code(draw).text)
        numbers, secrets = zip(*map(ast.literal_eval, drawn))
        assert len(set(numbers)) == 4 and len(set(secrets)) == 4, drawn
    finally:
        for child in children:
            child.delete()


def test_a_context_keeps_its_random_seed_after_sleep(own: Sandbox) -> None:
    context = own.create_code_context()
    context.run_code("import random\nrandom.seed(7)")
    own.hibernate()
    assert context.run_code("random.random()").text == repr(random.Random(7).random())


def test_fork_tree_and_promote(client: PandaStack, own: Sandbox) -> None:
    first, second, third = own.fork_tree(3, metadata=RUN)
    assert {child.metadata["fork_parent_id"] for child in (first, second, third)} == {own.id}
    assert len({child.metadata["fork_tree_id"] for child in (first, second, third)}) == 1
    result = second.promote(cleanup_siblings=True)
    assert result["winner"] == second.id
    assert sorted(result["deleted"]) == sorted([first.id, third.id]) and result["failures"] == {}
    with pytest.raises(NotFoundError):
        client.sandboxes.get(first.id)
    assert second.exec("echo winner").stdout == "winner\n"
    assert own.exec("echo parent").stdout == "parent\n"
    second.delete()


def test_a_snapshot_captures_a_point_in_time(client: PandaStack, own: Sandbox) -> None:
    own.filesystem.write("/srv/state", "then")
    start_counter(own)
    identity, count = read_counter(own)
    snapshot = own.snapshot()
    try:
        own.filesystem.write("/srv/state", "later")
        assert snapshot in {entry["id"] for entry in client.snapshots.list(sandbox_id=own.id)}
        for _ in range(2):
            with client.sandboxes.create(from_snapshot=snapshot, metadata=RUN) as again:
                assert again.filesystem.read("/srv/state") == b"then"
                assert_goes_on(again, identity, count)
                assert_clock(again)
        assert own.filesystem.read("/srv/state") == b"later"
        assert_goes_on(own, identity, count)
    finally:
        client.snapshots.delete(snapshot)
    with pytest.raises(NotFoundError):
        client.snapshots.get(snapshot)


def test_copies_report_how_long_their_source_was_paused(raw: httpx.Client, own: Sandbox) -> None:
    def ask(what: str, body: dict) -> dict:
        answer = raw.post(f"/sandboxes/{own.id}/{what}", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    child, tree, snapshot = ask("fork", {"metadata": RUN}), ask("fork-tree", {"count": 3, "metadata": RUN}), ask("snapshots", {})
    try:
        for answer in (child, tree, snapshot, *tree["children"]):
            assert 0 < answer["pause_ms"] < 60_000
        assert {sibling["pause_ms"] for sibling in tree["children"]} == {tree["pause_ms"]}, "one pause for all"
    finally:
        assert raw.delete(f"/snapshots/{snapshot['id']}").is_success
        for made in (child, *tree["children"]):
            assert raw.delete(f"/sandboxes/{made['id']}").is_success


def test_a_paused_sandbox_can_be_forked_and_snapshotted(client: PandaStack, own: Sandbox) -> None:
    start_counter(own)
    identity, count = read_counter(own)
    own.pause()
    snapshot = own.snapshot()
    try:
        with own.fork(metadata=RUN) as branch:
            assert own.refresh().status == "paused", "a copy lets nobody go on"
            assert_goes_on(branch, identity, count)
        with client.sandboxes.create(from_snapshot=snapshot, metadata=RUN) as again:
            assert again.status == "running"
            assert_goes_on(again, identity, count)
            assert_clock(again)
        assert own.refresh().status == "paused"
    finally:
        client.snapshots.delete(snapshot)
    own.resume()
    assert_goes_on(own, identity, count)


def test_hibernate_and_wake_keep_memory_and_set_the_clock(own: Sandbox) -> None:
    start_counter(own)
    identity, count = read_counter(own)
    own.hibernate()
    assert own.refresh().status == "hibernated" and own.residency == "disk"
    # Time that passes is the very thing under test: a clock that was stopped is off by this much.
    threading.Event().wait(CLOCK_SECONDS_MAX + 1)
    assert own.refresh().status == "hibernated", "looking must not wake it"
    own.wake()
    assert own.refresh().status == "running"
    assert_clock(own)
    assert_goes_on(own, identity, count)


def test_a_certificate_issued_during_sleep_is_valid_after_waking(own: Sandbox, tmp_path: Path) -> None:
    own.filesystem.write("/root/handshake.py", HANDSHAKE)
    own.hibernate()
    # As above: for a clock that was stopped, the certificate would be from the future.
    threading.Event().wait(CLOCK_SECONDS_MAX + 1)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )
    own.filesystem.write("/root/fresh.pem", key.read_text() + certificate.read_text())
    shown = own.exec("python3 /root/handshake.py", timeout_seconds=60)
    assert shown.stdout == "hello\n", shown.stderr


def test_the_next_call_wakes_a_sandbox(own: Sandbox) -> None:
    own.filesystem.write("/srv/state", "kept")
    for call in (
        lambda: own.exec("cat /srv/state").stdout,
        lambda: own.filesystem.read("/srv/state").text,
        lambda: "".join(chunk.text for chunk in own.exec_stream("cat /srv/state")),
    ):
        own.hibernate()
        assert call() == "kept"
        assert own.refresh().status == "running"
    own.wake()  # awake already: fine


def test_a_hibernated_sandbox_can_be_forked_without_waking(own: Sandbox) -> None:
    own.filesystem.write("/srv/state", "asleep")
    own.hibernate()
    with own.fork(metadata=RUN) as branch:
        assert branch.filesystem.read("/srv/state") == b"asleep"
    assert own.refresh().status == "hibernated"


def test_pause_and_resume(own: Sandbox) -> None:
    start_counter(own)
    own.pause()
    assert own.refresh().status == "paused"
    own.resume()
    assert own.refresh().status == "running"
    assert_goes_on(own, *read_counter(own))


def test_lifecycle(client: PandaStack) -> None:
    with client.sandboxes.create("base", ttl_seconds=500, metadata=RUN) as sandbox:
        before = sandbox.lifecycle()
        assert before["ttl_seconds"] == 500 and before["persistent"] is False
        sandbox.set_ttl(900)
        assert sandbox.lifecycle()["ttl_seconds"] >= 900
        assert sandbox.set_persistent(True)["persistent"] is True
        assert sandbox.set_persistent(False)["persistent"] is False


def test_an_expired_ttl_deletes_the_sandbox(client: PandaStack) -> None:
    sandbox = client.sandboxes.create("base", ttl_seconds=1, metadata=RUN)

    def is_gone() -> bool:
        try:
            return client.sandboxes.get(sandbox.id).status in ("stopping", "deleted")
        except NotFoundError:
            return True

    wait_for("the sandbox is gone at the end of its TTL", is_gone)


def test_ports(own: Sandbox) -> None:
    own.exec("setsid python3 -m http.server 8123 > /dev/null 2>&1 < /dev/null &", check=True)
    wait_for("port 8123 is listed", lambda: 8123 in {port.port for port in own.ports()})
    assert f"8123-{own.id}." in own.preview_url(8123)


def test_events_are_listed_in_order(own: Sandbox) -> None:
    own.hibernate()
    own.wake()
    events = own.events()
    assert len(events) >= 3
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert {event["sandbox_id"] for event in events} == {own.id}


def test_a_kernel_panic_is_reported_with_the_console(raw: httpx.Client, own: Sandbox) -> None:
    crash = "sleep 5; echo c > /proc/sysrq-trigger"
    own.exec(f"setsid sh -c '{crash}' > /dev/null 2>&1 < /dev/null &", check=True)

    def shown() -> dict:
        return raw.get(f"/sandboxes/{own.id}").json()

    wait_for("the sandbox has failed", lambda: shown()["status"] == "failed")
    failure = shown()["failure"]
    assert failure.startswith("the guest's kernel panicked: "), failure
    assert "crash" in failure and "last console lines: " in failure, failure
    assert "/var/" not in failure and "/run/" not in failure, "paths of the host"


def test_calls_on_a_deleted_sandbox_fail(client: PandaStack) -> None:
    sandbox = client.sandboxes.create("base", metadata=RUN)
    sandbox.delete()
    assert sandbox.id not in {other.id for other in client.sandboxes.list()}
    for call in (sandbox.refresh, sandbox.fork, lambda: sandbox.exec("true"), lambda: sandbox.filesystem.read("/x")):
        with pytest.raises((NotFoundError, ConflictError)):
            call()
