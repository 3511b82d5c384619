"""A sandbox cannot reach the host, its neighbours or metadata addresses, and the host can reach it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import urllib.request
from ipaddress import IPv4Address
from typing import Iterator, List
from urllib.parse import urlsplit

import pytest
from internet import BEYOND, METADATA, PRIVATE, InternetInABox
from pandastack import PandaStack, Sandbox

from platform_process import wait_until

SERVE = "nohup python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &"

#: What the gateway serves to every guest: names, and databases of an app's machines.
GATEWAY, GATEWAY_PORTS = "192.0.0.1", (53, 5432)

# Prints which of these it reached: protocol, address, and port where there is one. A refusal counts: something answered.
PROBE = """
import json, os, socket, struct, sys, time
from concurrent.futures import ThreadPoolExecutor
def ping(address, number):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as card:
        head = struct.pack(">BBHHH", 8, 0, 0, number, 1)
        total = sum(struct.unpack(">4H", head)); total = (total & 0xffff) + (total >> 16)
        card.sendto(struct.pack(">BBHHH", 8, 0, ~total & 0xffff, number, 1), (address, 0))
        end = time.monotonic() + 3
        while (left := end - time.monotonic()) > 0:
            card.settimeout(left)
            packet, peer = card.recvfrom(2048)
            if peer[0] == address and packet[20] == 0 and packet[24:26] == struct.pack(">H", number): return True
    return False
def tried(number, protocol, address, port):
    try:
        if protocol == "icmp": return ping(address, number)
        with socket.socket(type=socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM) as probe:
            probe.settimeout(3)
            probe.connect((address, port))
            if protocol == "udp": probe.send(b"anybody?"); probe.recv(64)
        return True
    except ConnectionRefusedError: return True
    except OSError: return False
asked = json.loads(sys.argv[1])
with ThreadPoolExecutor(64) as pool:
    outcomes = list(pool.map(lambda numbered: tried(1000 + numbered[0], *numbered[1]), enumerate(asked)))
print(json.dumps([one for one, reached in zip(asked, outcomes) if reached]))
"""


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """A service of the host, on all its addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        accept = threading.Thread(target=lambda: [server.accept() for _ in iter(int, 1)], daemon=True)
        accept.start()
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """A service of the host that answers datagrams, on all its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 0))

        def answer() -> None:
            while True:
                try:
                    data, peer = server.recvfrom(64)
                    server.sendto(data, peer)
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(10)
            client.sendto(b"here?", ("127.0.0.1", port))
            assert client.recv(64) == b"here?"
        yield port


def platform_ports() -> List[int]:
    """Listen addresses of control, agent, edge and databases on this host."""
    listed = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    own = [line.split()[3] for line in listed.splitlines() if any(map(is_platform, re.findall(r"pid=(\d+)", line)))]
    return sorted({int(address.rpartition(":")[2]) for address in own})


def is_platform(pid: str) -> bool:
    """By its file: roles are named after the link that they were started by."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("pandastack")
    except OSError:
        return False


def host_addresses() -> List[str]:
    links = json.loads(subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, check=True).stdout)
    return [info["local"] for link in links for info in link["addr_info"] if info["local"] != "127.0.0.1"]


def reached(sandbox: Sandbox, addresses: List[List[object]]) -> List[List[object]]:
    result = sandbox.exec(["python3", "-c", PROBE, json.dumps(addresses)], timeout_seconds=300)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}:8000/", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_sandbox_cannot_reach_forbidden_addresses(client: PandaStack, listener: int, echo: int) -> None:
    with client.sandboxes.create(template="base") as one, client.sandboxes.create(template="base") as other:
        other.exec(SERVE)
        wait_until("the host reaches a sandbox's port", lambda: answers(other.guest_ip), 60)
        api = urlsplit(os.environ["PANDASTACK_API"]).port
        ports = platform_ports()
        assert api in ports, "the platform's listeners are not found"
        # The slot's own end of the guest's link, the host's ends of both slots, addresses of the host.
        ends = [str(IPv4Address(sandbox.guest_ip) - 1) for sandbox in (one, other)]
        hosts = [GATEWAY, *ends, *(address for address in host_addresses()[:8] if address not in ends)]
        forbidden = [["tcp", host, port] for host in hosts for port in (listener, *ports)]
        forbidden = [to for to in forbidden if to[1] != GATEWAY or to[2] not in GATEWAY_PORTS]
        forbidden += [["udp", host, echo] for host in hosts] + [["icmp", host, 0] for host in hosts]
        forbidden += [["tcp", other.guest_ip, 8000], ["udp", other.guest_ip, 8000], ["icmp", other.guest_ip, 0]]
        assert reached(one, forbidden) == []
        # The probe tells what it reaches: its own loopback answers all three.
        assert reached(other, [["tcp", "127.0.0.1", 8000], ["udp", "127.0.0.1", 9], ["icmp", "127.0.0.1", 0]]) == [
            ["tcp", "127.0.0.1", 8000], ["udp", "127.0.0.1", 9], ["icmp", "127.0.0.1", 0],
        ]


def connects(address: str) -> bool:
    try:
        with socket.create_connection((address, 80), timeout=10):
            return True
    except OSError:
        return False


@pytest.mark.own_platform
def test_a_sandbox_cannot_reach_metadata_or_private_networks_of_its_host(client: PandaStack) -> None:
    addresses = (METADATA, PRIVATE, BEYOND)
    ways: List[List[object]] = [way for address in addresses for way in (["tcp", address, 80], ["icmp", address, 0])]
    with InternetInABox(), client.sandboxes.create(template="base") as sandbox:
        wait_until("the host reaches all", lambda: all(connects(address) for address in addresses), 30)
        assert reached(sandbox, ways) == []
        # There is a way to all: a policy opens a private network that the operator allows, no other, and metadata never.
        sandbox.set_network({"egress": "all", "allow": [f"{address}/32" for address in addresses]})
        opened = reached(sandbox, ways)
        assert ["tcp", PRIVATE, 80] in opened
        assert [to for to in opened if METADATA in to or BEYOND in to] == []


def test_a_sandbox_with_a_forged_address_reaches_nothing(client: PandaStack, listener: int) -> None:
    with client.sandboxes.create(template="base") as one, client.sandboxes.create(template="base") as other:
        other.exec(SERVE)
        wait_until("the host reaches a sandbox's port", lambda: answers(other.guest_ip), 60)
        forged = "ip addr flush dev eth0; ip addr add 10.0.0.2/8 dev eth0; ip route add default via 10.0.0.1"
        assert one.exec(forged).exit_code == 0
        assert reached(one, [["tcp", other.guest_ip, 8000], ["tcp", GATEWAY, listener]]) == []
        assert one.exec("echo still here").stdout == "still here\n", "the way to the guest is not the network"
