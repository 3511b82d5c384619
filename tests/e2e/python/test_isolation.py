"""A sandbox cannot reach the host, its neighbours or metadata addresses, and the host can reach it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import urllib.request
from typing import Iterator, List
from urllib.parse import urlsplit

import pytest
from pandastack import PandaStack, Sandbox

from platform_process import wait_until

SERVE = "nohup python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &"

# Prints, for each address, whether a connection was made. A refusal counts as reached: something answered.
PROBE = """
import json, socket, sys
reached = []
for address in json.loads(sys.argv[1]):
    probe = socket.socket()
    probe.settimeout(3)
    try:
        probe.connect(tuple(address))
        reached.append(address)
    except ConnectionRefusedError:
        reached.append(address)
    except OSError:
        pass
print(json.dumps(reached))
"""


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """A service of the host, on all its addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        accept = threading.Thread(target=lambda: [server.accept() for _ in iter(int, 1)], daemon=True)
        accept.start()
        yield server.getsockname()[1]


def host_addresses() -> List[str]:
    links = json.loads(subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, check=True).stdout)
    return [info["local"] for link in links for info in link["addr_info"] if info["local"] != "127.0.0.1"]


def reached(sandbox: Sandbox, addresses: List[List[object]]) -> List[object]:
    result = sandbox.exec(["python3", "-c", PROBE, json.dumps(addresses)], timeout_seconds=300)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}:8000/", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_sandbox_reaches_nobody_it_should_not(client: PandaStack, listener: int) -> None:
    with client.sandboxes.create(template="base") as one, client.sandboxes.create(template="base") as other:
        other.exec(SERVE)
        wait_until("the host reaches a sandbox's port", lambda: answers(other.guest_ip), 60)
        api = urlsplit(os.environ["PANDASTACK_API"]).port
        # The slot's own end of the guest's link, the host's end of the slot's, every address of the host.
        hosts = ["192.0.0.1", *host_addresses()[:8]]
        forbidden = [[host, port] for host in hosts for port in (listener, api)]
        forbidden += [[other.guest_ip, 8000], ["169.254.169.254", 80], ["10.0.0.1", 80], ["192.168.0.1", 80]]
        assert reached(one, forbidden) == []


def test_a_sandbox_that_changes_its_address_gets_nowhere(client: PandaStack, listener: int) -> None:
    with client.sandboxes.create(template="base") as one, client.sandboxes.create(template="base") as other:
        other.exec(SERVE)
        wait_until("the host reaches a sandbox's port", lambda: answers(other.guest_ip), 60)
        forged = "ip addr flush dev eth0; ip addr add 10.0.0.2/8 dev eth0; ip route add default via 10.0.0.1"
        assert one.exec(forged).exit_code == 0
        assert reached(one, [[other.guest_ip, 8000], ["192.0.0.1", listener]]) == []
        assert one.exec("echo still here").stdout == "still here\n", "the way to the guest is not the network"
