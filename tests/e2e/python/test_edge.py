"""An edge of its own: previews that do not notice when control is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Iterator, List

import httpx
import pytest
from pandastack import Sandbox

from edge_process import EdgeProcess, serve
from platform_process import BINARY, Platform, wait_until


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("pdse", "10.219.0.0/16", "--warm", "base", "--tls")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def edge(platform: Platform) -> Iterator[EdgeProcess]:
    """An edge beside the platform."""
    with EdgeProcess(platform.environment, platform.root / "edge.log") as running:
        yield running


@pytest.fixture
def served(platform: Platform) -> Iterator[Sandbox]:
    sandbox = serve(platform.client().sandboxes.create(template="base"))
    yield sandbox
    sandbox.delete()


def test_the_edge_serves_without_control(platform: Platform, edge: EdgeProcess, served: Sandbox) -> None:
    assert edge.get(served) == 200
    pid = platform.role_pid("control")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert [edge.get(served) for _ in range(10)] == [200] * 10
    finally:
        os.kill(pid, signal.SIGCONT)
    answers: List[int] = []
    done = threading.Event()

    def hammer() -> None:
        while not done.is_set():
            answers.append(edge.get(served))

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        platform.kill_role("control")
    finally:
        done.set()
        thread.join()
    assert answers and set(answers) == {200}


def test_the_edge_waits_for_an_agent_restart(platform: Platform, edge: EdgeProcess, served: Sandbox) -> None:
    assert edge.get(served) == 200
    platform.kill_role("agent")
    assert edge.get(served) == 200


def test_visibility_changes_reach_the_edge(platform: Platform, edge: EdgeProcess, served: Sandbox) -> None:
    assert edge.get(served) == 200
    config = json.loads(platform.config_path().read_text())
    key = {"Authorization": f"Bearer {config['token']}"}
    url = f"{config['api_url']}/v1/sandboxes/{served.id}/preview"
    for visibility, status in [("off", 404), ("private", 403), ("unlisted", 200)]:
        assert httpx.put(url, headers=key, json={"visibility": visibility}).status_code == 200
        wait_until(f"the edge knows of {visibility}", lambda: edge.get(served) == status, 30)


def test_tls_and_http_share_one_address(platform: Platform, served: Sandbox) -> None:
    printed = subprocess.run([BINARY, "ca", "print"], env=platform.environment, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr

    def ask(name: str, alpn: str = "http/1.1") -> tuple:
        """Status line and negotiated protocol of a request by TLS, trusting this installation's authority alone."""
        context = ssl.create_default_context(cadata=printed.stdout)
        context.set_alpn_protocols([alpn])
        with socket.create_connection(("127.0.0.1", platform.port), timeout=60) as link:
            with context.wrap_socket(link, server_hostname=name) as secure:
                if alpn == "h2":
                    return "", secure.selected_alpn_protocol()
                secure.sendall(f"GET /healthz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
                return secure.makefile("rb").readline().decode().strip(), secure.selected_alpn_protocol()

    assert ask("localhost") == ("HTTP/1.1 200 OK", "http/1.1")
    assert ask("api.panda.test", "h2") == ("", "h2")
    # A page that is not there, from the server inside.
    assert ask(f"8000-{served.id}.panda.test")[0].startswith("HTTP/1.1 404")
    plain = httpx.get(f"http://127.0.0.1:{platform.port}/healthz")
    assert plain.status_code == 200
    with pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(
            socket.create_connection(("127.0.0.1", platform.port), timeout=60), server_hostname="localhost"
        )


#: The authorities of a machine of its own: nothing outside of it changes.
ALONE = """
mount -t tmpfs own /usr/local/share/ca-certificates && mount -t tmpfs own /etc/ssl/certs && "$1" ca install && shift && exec "$@"
"""


def test_a_host_can_trust_the_installation_ca(platform: Platform) -> None:
    ask = "import ssl, sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=60, context=ssl.create_default_context()).status)"
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ALONE, "sh", BINARY, sys.executable, "-c", ask]
    url = f"https://localhost:{platform.port}/healthz"
    done = subprocess.run([*words, url], env=platform.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "200", done.stderr
    outside = subprocess.run([sys.executable, "-c", ask, url], capture_output=True, text=True, timeout=120)
    assert "CERTIFICATE_VERIFY_FAILED" in outside.stderr, "nobody else was told"


def test_tls_with_a_certificate_from_files(platform: Platform, served: Sandbox, tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=panda.test",
         "-addext", "subjectAltName=DNS:*.panda.test", "-keyout", str(key), "-out", str(chain)],
        check=True, capture_output=True,
    )
    arguments = ["--tls-cert", str(chain), "--tls-key", str(key)]
    with EdgeProcess(platform.environment, platform.root / "edge-tls.log", *arguments) as edge:
        address, port = edge.address.split(":")
        name = f"8000-{served.id}.panda.test"
        context = ssl.create_default_context(cadata=chain.read_text())
        with socket.create_connection((address, int(port)), timeout=60) as link:
            with context.wrap_socket(link, server_hostname=name) as secure:
                secure.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
                assert secure.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"
        assert edge.get(served) == 200, "plain HTTP on the same address"
