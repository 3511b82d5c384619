"""Two control servers, two agents: sandboxes land on both hosts, a host that is gone is shown as gone, and a control
server that is gone is not missed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Dict, Iterator, List, Optional

import httpx
import pytest
from pandastack import ConflictError, Database, PandaStackError, Sandbox

from edge_process import EdgeProcess, serve
from platform_process import BINARY, seed_store, wait_until
from replicated import POSTGRES_PROGRAMS, ReplicatedPlatform

SECOND = "second-host"


class SecondAgent:
    """Another agent of the same control, with a data directory and a network of its own."""

    def __init__(self, platform: ReplicatedPlatform, warm: str = "base") -> None:
        self.data_dir = platform.root / "second"
        self.data_dir.mkdir()
        seed_store(self.data_dir)
        self.runtime_dir = Path("/run/pandastack-pdsb")
        self.environment: Dict[str, str] = {
            **platform.environment,
            "PANDASTACK_DATA_DIR": str(self.data_dir),
            "PANDASTACK_RUNTIME_DIR": str(self.runtime_dir),
            "PANDASTACK_NET_PREFIX": "pdsb",
            "PANDASTACK_SUBNET": "10.217.0.0/16",
        }
        command = [
            BINARY, "agent", "--host", SECOND, "--warm", warm,
            # The one that follows: it passes reports on.
            "--control", platform.controls[1].socket, "--link-secret-file", str(platform.secret),
        ]
        with (platform.root / "second.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=30)

    def remove(self) -> None:
        self.kill()
        subprocess.run([BINARY, "down", "--purge"], env=self.environment, check=True, timeout=120)


@pytest.fixture(scope="module")
def platform() -> Iterator[ReplicatedPlatform]:
    if POSTGRES_PROGRAMS is None:
        pytest.skip("PANDASTACK_TEST_POSTGRES_BIN is not set; `cargo xtask test` brings a server")
    running = ReplicatedPlatform("pdsa", "10.216.0.0/16", "--warm", "base")
    try:
        yield running.start()
    finally:
        running.stop()


def is_reachable(platform: ReplicatedPlatform, host: str) -> bool:
    headers = {"Authorization": f"Bearer {platform.token()}"}
    answer = httpx.get(f"{platform.controls[0].url}/v1/hosts", headers=headers).raise_for_status().json()
    return any(found["id"] == host and found["reachable"] for found in answer["items"])


def test_sandboxes_spread_over_two_hosts_and_a_lost_host_is_reported(platform: ReplicatedPlatform) -> None:
    client = platform.client()
    second = SecondAgent(platform)
    made = []
    try:
        wait_until("the second host reports", lambda: is_reachable(platform, SECOND), 60)
        placed: Dict[str, object] = {}

        def lands_on_both() -> bool:
            try:
                sandbox = client.sandboxes.create(template="base")
            except PandaStackError:
                return False  # The second host is still baking.
            made.append(sandbox)
            placed.setdefault(client.sandboxes.get(sandbox.id).raw["host"], sandbox)
            return len(placed) == 2

        wait_until("sandboxes on both hosts", lands_on_both, 180)
        for sandbox in placed.values():
            assert sandbox.exec("echo here").stdout == "here\n"

        lost, kept = placed[SECOND], next(s for host, s in placed.items() if host != SECOND)
        second.kill()
        gone = lambda: not client.sandboxes.get(lost.id).raw["host_reachable"]
        wait_until("the host is shown as gone", gone, 60)
        assert client.sandboxes.get(lost.id).status == "running", "the last known state is kept"
        with pytest.raises(PandaStackError) as refused:
            lost.exec("true")
        assert (refused.value.status, refused.value.code) == (503, "host_unreachable")
        assert kept.exec("true").exit_code == 0
        assert client.sandboxes.create(template="base").exec("true").exit_code == 0, "placement avoids it"
    finally:
        for sandbox in client.sandboxes.list():
            sandbox.delete()
        second.remove()


def test_a_database_on_a_lost_host_can_fail_over(platform: ReplicatedPlatform) -> None:
    client = platform.client()
    second = SecondAgent(platform, "postgres-16")
    made: List[str] = []
    try:
        wait_until("the second host reports", lambda: is_reachable(platform, SECOND), 60)
        home = lambda database: client.sandboxes.get(database["sandbox_id"]).raw["host"]

        def lands_there() -> Optional[Database]:
            try:
                database = client.databases.create()
            except PandaStackError:
                return None  # PostgreSQL is still being prepared.
            made.append(database["id"])
            return database if home(database) == SECOND else None

        found: Dict[str, Database] = {}
        wait_until("a database on the second host", lambda: found.update(it=lands_there()) or found["it"], 300)
        database = found["it"]
        client.databases.query(database["id"], "CREATE TABLE kept AS SELECT 42 AS n")
        wait_until("a base backup", lambda: client.databases.backups(database["id"])["healthy"], 120)
        with pytest.raises(ConflictError, match="host is reachable"):
            client.databases.failover(database["id"])
        archived = client.databases.backups(database["id"])["latest_restorable"]
        wait_until("the log is archived", lambda: client.databases.backups(database["id"])["latest_restorable"] > archived, 60)
        second.kill()
        wait_until("it may fail over", lambda: client.databases.get(database["id"])["failover_available"], 60)
        moved = client.databases.failover(database["id"])
        assert (moved["connection_url"], home(moved) == SECOND) == (database["connection_url"], False)
        assert client.databases.query(database["id"], "SELECT n FROM kept")["rows"] == [[42]]
    finally:
        for known in made:
            client.databases.delete(known)
        second.remove()


def test_two_control_servers_share_state_and_survive_a_kill(platform: ReplicatedPlatform) -> None:
    first, second = platform.controls
    here, there = first.client(), second.client()
    sandbox = here.sandboxes.create(template="base", ttl_seconds=600)
    mirror = there.sandboxes.get(sandbox.id)
    assert mirror.exec("echo written > /root/file; echo there").stdout == "there\n"
    assert sandbox.filesystem.read("/root/file").text == "written\n"
    short = there.sandboxes.create(template="base", ttl_seconds=1, on_timeout="kill")
    gone = lambda client: short.id not in {found.id for found in client.sandboxes.list()}
    wait_until("its lifetime ended", lambda: gone(here) and gone(there), 30)

    served, later = serve(sandbox), serve(there.sandboxes.create(template="base", ttl_seconds=600))
    sockets = ",".join(control.socket for control in platform.controls)
    edge = ["--control", sockets, "--link-secret-file", str(platform.secret)]
    with EdgeProcess(platform.environment, platform.root / "edge.log", *edge) as edge_of_both:
        assert edge_of_both.get(served) == 200
        kill_the_leader(platform, mirror)
        assert edge_of_both.get(later) == 200, "the edge asks the server that is left"
    later.delete()

    # A replica that comes back follows, and serves.
    first.start()
    wait_until("it knows the host", lambda: first.answers("readyz"), 30)
    assert leads(platform, first.url), "what is the leader's is passed on"
    first.client().sandboxes.get(sandbox.id).delete()
    assert sandbox.id not in {found.id for found in there.sandboxes.list()}


def kill_the_leader(platform: ReplicatedPlatform, mirror: Sandbox) -> None:
    """A command that streams through one server goes on while the other, which leads, is killed."""
    first, second = platform.controls
    there = second.client()
    lines: List[str] = []
    command = "for i in 1 2 3 4 5 6; do echo $i; sleep 1; done"
    stream = lambda: mirror.exec_stream(command, on_stdout=lines.append, timeout_seconds=60)
    streaming = threading.Thread(target=stream)
    streaming.start()
    wait_until("the command runs", lambda: lines, 30)
    first.kill()
    assert there.sandboxes.get(mirror.id).exec("true").exit_code == 0, "sandboxes do not need the leader"
    made = there.sandboxes.create(template="base", ttl_seconds=1, on_timeout="kill")
    wait_until("the other server leads", lambda: leads(platform, second.url), 60)
    wait_until("it ends lifetimes", lambda: made.id not in {f.id for f in there.sandboxes.list()}, 30)
    streaming.join(timeout=60)
    assert "".join(lines).split() == ["1", "2", "3", "4", "5", "6"]


def leads(platform: ReplicatedPlatform, url: str) -> bool:
    """Whether this server answers calls that only the leader serves."""
    headers = {"Authorization": f"Bearer {platform.token()}"}
    return httpx.get(f"{url}/v1/schedules", headers=headers).status_code == 200
