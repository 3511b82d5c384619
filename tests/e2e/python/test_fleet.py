"""Two hosts that joined with tokens, over TCP with mutual TLS; and somebody who stole the key of one."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Dict, Iterator

import httpx
import pytest
from pandastack import PandaStackError, Sandbox

from edge_process import EdgeProcess, serve
from fleet import Fleet, FleetHost, StolenIdentity
from platform_process import BINARY, Platform, read_text, wait_until

#: Marks this file as one that starts a platform of its own.
OWN = Platform


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    running = Fleet("pdfc")
    try:
        running.start()
        running.add_host("host-a", "pdfa", "10.241.0.0/16", "127.0.0.2")
        running.add_host("host-b", "pdfb", "10.242.0.0/16", "127.0.0.3")
        yield running
    finally:
        running.stop()


def sandbox_on(fleet: Fleet, host: str) -> Sandbox:
    """A sandbox on that host. Others are deleted again."""
    client, found, others = fleet.client(), [], []

    def lands() -> bool:
        try:
            sandbox = client.sandboxes.create(template="base", ttl_seconds=900)
        except PandaStackError:
            return False  # The host is still preparing the template.
        (found if client.sandboxes.get(sandbox.id).raw["host"] == host else others).append(sandbox)
        return bool(found)

    wait_until(f"a sandbox on {host}", lands, 300)
    for other in others:
        other.delete()
    return found[0]


def answers(sandbox: Sandbox, command: str, expect: str) -> bool:
    """Whether its agent is back. Until the agent reports, its last report still counts."""
    try:
        return sandbox.exec(command).stdout == expect
    except PandaStackError:
        return False


def report_of(fleet: Fleet, host: str, address: str) -> Dict[str, Any]:
    return {
        "host": host, "address": address, "version": "0", "engine": "fake", "isolation": "emulated",
        "memory_total_mb": 1 << 20, "memory_free_mb": 1 << 20, "disk_free_bytes": 1 << 40, "slots_free": 100,
        "templates": [], "sandboxes": [], "snapshots": [], "at": "2030-01-01T00:00:00Z",
    }


def test_hosts_join_and_run_sandboxes_over_mutual_tls(fleet: Fleet) -> None:
    first, second = sandbox_on(fleet, "host-a"), sandbox_on(fleet, "host-b")
    for sandbox in (first, second):
        assert sandbox.exec("echo here").stdout == "here\n"
        sandbox.filesystem.write("/root/file", b"x" * 300_000)
        assert sandbox.filesystem.read("/root/file").text == "x" * 300_000
    hosts = {host["id"]: host for host in fleet.list_hosts()}
    assert [hosts[name]["link"] for name in ("host-a", "host-b")] == ["certificate", "certificate"]
    for host in fleet.hosts:
        assert host.identity.stat().st_mode & 0o777 == 0o600
        assert not (host.data_dir / "link-secret").exists(), "no host has the secret of control"
    # Plain HTTP is refused before it is read.
    for address in (f"127.0.0.1:{fleet.agents_port}", fleet.hosts[0].address):
        plain = httpx.post(f"http://{address}/v1/hosts", content=b"x" * 100_000, trust_env=False)
        assert plain.status_code == 401 and "certificate" in plain.json()["error"]
    first.delete()
    second.delete()


def test_a_restarted_agent_needs_no_token(fleet: Fleet) -> None:
    host = fleet.hosts[0]
    sandbox = sandbox_on(fleet, "host-a")
    sandbox.exec("echo kept > /root/file")
    host.kill()
    host.start()
    wait_until("it answers", lambda: answers(sandbox, "cat /root/file", "kept\n"), 60)
    sandbox.delete()


def test_an_edge_joins_and_serves(fleet: Fleet) -> None:
    sandbox = serve(sandbox_on(fleet, "host-b"))
    environment = {**fleet.environment, "PANDASTACK_DATA_DIR": str(fleet.root / "edge-host")}
    arguments = ["--control", fleet.control_url, "--name", "edge-a", "--join", fleet.join_token("--edge")]
    with EdgeProcess(environment, fleet.root / "edge.log", *arguments) as edge:
        assert edge.get(sandbox) == 200
        stolen = StolenIdentity(fleet.root / "edge-host/edge/host-identity.json", fleet.root)
        for host in fleet.hosts:
            for path in ("host", f"sandboxes/{sandbox.id}", f"sandboxes/{sandbox.id}/logs"):
                status, said = stolen.call(f"https://{host.address}/agent/v1/{path}")
                assert status in (401, 403), (path, status, said)
        assert fleet.host("edge-a")["role"] == "edge"
        assert fleet.cli("host", "remove", "edge-a").returncode == 0
        assert stolen.call(f"{fleet.control_url}/internal/v1/routes/{sandbox.id}")[0] == 0
        gone = lambda: stolen.call(f"https://{fleet.hosts[0].address}/agent/v1/host")[0] == 0
        wait_until("agents refuse it, too", gone, 30)
    sandbox.delete()


def test_a_token_joins_one_host_once(fleet: Fleet) -> None:
    token = fleet.join_token("--edge", "--ttl", "15m")
    environment = {**fleet.environment, "PANDASTACK_DATA_DIR": str(fleet.root / "other")}

    def join(token: str, name: str) -> "subprocess.CompletedProcess[str]":
        command = [BINARY, "edge", "--edge-listen", "127.0.0.1:0", "--control", fleet.control_url]
        command += ["--name", name, "--join", token]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    with EdgeProcess(environment, fleet.root / "once.log", "--control", fleet.control_url, "--name", "once",
                     "--join", token):
        pass
    (fleet.root / "other/edge/host-identity.json").unlink()
    twice = join(token, "twice")
    assert twice.returncode != 0 and "was used at" in twice.stderr, twice.stderr
    short = fleet.join_token("--edge", "--ttl", "1s")
    # An agent's role, so that the token is not used before it expires.
    agent = [
        BINARY, "agent", "--host", "late", "--control", fleet.control_url,
        "--advertise", "127.0.0.4:7071", "--join", short,
    ]

    def expired() -> bool:
        late = subprocess.run(agent, env=environment, capture_output=True, text=True, timeout=60)
        assert late.returncode != 0
        return "expired" in late.stderr

    wait_until("the token expires", expired, 30)
    forged = token[:-64] + "0" * 64
    assert "cannot reach control" in join(forged, "forged").stderr, "another authority is not trusted"
    audit = json.loads(fleet.cli("audit", "--limit", "100", "--json").stdout)
    of_token = [entry["status"] for entry in audit if entry["token_prefix"] == token[:13]]
    assert sorted(of_token) == [200, 401]


def test_a_stolen_key_is_one_host_until_it_is_removed(fleet: Fleet) -> None:
    victim: FleetHost = fleet.hosts[1]
    sandbox = sandbox_on(fleet, "host-b")
    stolen = StolenIdentity(victim.identity, fleet.root)
    for path, report in [
        ("hosts/host-a/report", report_of(fleet, "host-a", "https://127.0.0.9:9")),
        ("hosts/host-b/report", report_of(fleet, "host-a", "https://127.0.0.9:9")),
        ("hosts/host-a/report", report_of(fleet, "host-b", "https://127.0.0.9:9")),
    ]:
        status, said = stolen.call(f"{fleet.control_url}/internal/v1/{path}", report)
        assert status == 403, (path, status, said)
    # Other hosts let in control and edges only.
    status, said = stolen.call(f"https://{fleet.hosts[0].address}/agent/v1/host")
    assert status == 0, said
    assert stolen.call(f"{fleet.control_url}/internal/v1/secrets")[0] == 403
    assert stolen.call(f"{fleet.control_url}/v1/hosts")[0] == 401, "the API wants a key"

    assert fleet.cli("host", "remove", "host-b").returncode == 0
    report = report_of(fleet, "host-b", "https://127.0.0.9:9")
    status, said = stolen.call(f"{fleet.control_url}/internal/v1/hosts/host-b/report", report)
    assert status == 0, said
    assert stolen.call(f"{fleet.control_url}/internal/v1/certificate", {"request": ""})[0] == 0
    with pytest.raises(PandaStackError) as refused:
        sandbox.exec("true")
    assert refused.value.code == "host_unreachable"
    assert fleet.host("host-b")["link"] == "removed"
    wait_until("the agent notices", lambda: "control is not responding" in read_text(victim.log), 30)

    # The host itself comes back with a token of its own, and its sandbox with it; the stolen key does not.
    victim.kill()
    victim.start("--join", fleet.join_token("--host", "host-b"))
    wait_until("its sandbox answers", lambda: answers(sandbox, "true", ""), 60)
    assert stolen.call(f"{fleet.control_url}/internal/v1/certificate", {"request": ""})[0] == 0
    sandbox.delete()
