"""Network policies by address, port and name, at create and while a sandbox runs."""

from __future__ import annotations

import json
import socket
from typing import Any, Dict, Iterator, List

import httpx
import pytest
from internet import DATAGRAM_PORT, OTHER, PLAIN_PORT, PRIVATE, RESOLVER, SERVER, TOLD_PORT, InternetInABox
from pandastack import BadRequestError, NetworkPolicy, PandaStack, PandaStackError, Sandbox
from platform_process import BINARY, Platform, wait_until

#: Runs in a sandbox: tries what it is given and prints the result of each.
TRY = r"""
import json, os, socket, ssl, sys
os.environ["RES_OPTIONS"] = "timeout:10 attempts:3"
socket.setdefaulttimeout(20)
def attempt(kind, where, port=0, name=None):
    try:
        if kind == "resolve":
            return socket.getaddrinfo(where, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        link = socket.create_connection((where, port), timeout=20)
        if kind == "https":
            context = ssl._create_unverified_context()
            link = context.wrap_socket(link, server_hostname=name)
        if kind == "plain":
            link.sendall(b"echo"); return link.recv(16).decode()
        link.sendall(f"GET / HTTP/1.1\r\nHost: {name or where}\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while chunk := link.recv(4096): data += chunk
        return data.decode().split("\r\n\r\n")[-1] or "nothing"
    except socket.gaierror: return "no name"
    except OSError as error: return type(error).__name__
print(json.dumps([attempt(*one) for one in json.loads(sys.argv[1])]))
"""


def tried(sandbox: Sandbox, *attempts: List[object]) -> List[str]:
    result = sandbox.exec(["python3", "-c", TRY, json.dumps(attempts)], timeout_seconds=300)
    assert result.exit_code == 0, result.stderr
    answers: List[str] = json.loads(result.stdout)
    return answers


PLAIN = ["plain", SERVER, PLAIN_PORT]
OPEN, WEB = "echo", "hello "


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with InternetInABox():
        running = Platform("pdsn", "10.221.0.0/16", "--warm", "base", "--resolver", RESOLVER)
        try:
            yield running.start()
        finally:
            running.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[PandaStack]:
    with platform.client() as made:
        yield made


def answers(sandbox: Sandbox) -> bool:
    try:
        return sandbox.exec("true").exit_code == 0
    except PandaStackError:
        return False


def events(sandbox: Sandbox, kind: str) -> List[str]:
    return [event["detail"] for event in sandbox.events() if event["kind"] == kind]


def test_egress_all_none_and_address_lists_are_enforced(client: PandaStack) -> None:
    with client.sandboxes.create("base") as sandbox:
        assert sandbox.network() == {"egress": "all"}
        assert tried(sandbox, PLAIN, ["resolve", "a.test"]) == [OPEN, SERVER]
        assert sandbox.set_network("none") == {"egress": "none"}
        closed, name = tried(sandbox, PLAIN, ["resolve", "a.test"])
        assert closed != OPEN and name == "no name"
        sandbox.set_network({"allow": [f"{SERVER}:{PLAIN_PORT}"]})
        assert tried(sandbox, PLAIN, ["http", SERVER, 80])[0] == OPEN
        assert tried(sandbox, ["http", SERVER, 80], ["plain", OTHER, PLAIN_PORT]) != [WEB + SERVER, OPEN]
        sandbox.set_network({"deny": [f"0.0.0.0/0:{PLAIN_PORT}"]})
        closed, web = tried(sandbox, PLAIN, ["http", SERVER, 80])
        assert (closed != OPEN, web) == (True, WEB + SERVER)
        assert events(sandbox, "network_changed")[:2] == ["none", "none, 1 allowed, 0 denied"]


def test_mail_ports_are_blocked_unless_a_policy_allows_them(client: PandaStack) -> None:
    with client.sandboxes.create("base") as sandbox:
        relay, submission = ["plain", SERVER, 25], ["plain", SERVER, 587]
        assert [answer == OPEN for answer in tried(sandbox, PLAIN, relay, submission)] == [True, False, False]
        sandbox.set_network({"allow": [f"{SERVER}:587"]})
        assert [answer == OPEN for answer in tried(sandbox, relay, submission)] == [False, True]


def test_a_network_policy_applies_from_creation_and_persists(platform: Platform, client: PandaStack) -> None:
    policy = {"egress": "none", "allow": [f"{SERVER}/32:{PLAIN_PORT}"]}

    def holds(sandbox: Sandbox) -> bool:
        assert sandbox.network() == policy
        return [answer == OPEN for answer in tried(sandbox, PLAIN, ["plain", OTHER, PLAIN_PORT])] == [True, False]

    with client.sandboxes.create("base", network=policy) as sandbox:
        assert holds(sandbox)
        snapshot = sandbox.snapshot()
        with sandbox.fork() as child:
            assert holds(child), "fork"
        sandbox.hibernate()
        assert holds(sandbox), "wake"
        sandbox.rollback()
        assert holds(sandbox), "rollback"
        with client.sandboxes.create(from_snapshot=snapshot) as copy:
            assert holds(copy), "a sandbox made from its snapshot"
        sandbox.hibernate()
        sandbox.set_network("none")
        assert client.sandboxes.get(sandbox.id).status == "hibernated", "a change of policy wakes nobody"
        assert tried(sandbox, PLAIN) != [OPEN]
        sandbox.set_network(policy)  # type: ignore[arg-type]
        platform.kill_role("agent")
        wait_until("the sandbox answers again", lambda: answers(sandbox), 60)
        assert holds(sandbox), "a restart of the agent"


def test_names_are_checked_when_they_are_resolved_and_used(client: PandaStack) -> None:
    with client.sandboxes.create("base", network={"allow": ["*.good.test", "shop.other.test:443", "*.private.test"]}) as sandbox:
        # Nothing is open before a name was asked for.
        assert tried(sandbox, PLAIN) != [OPEN]
        assert tried(sandbox, ["resolve", "bad.test"], ["resolve", "good.test"]) == ["no name", "no name"]
        names = tried(sandbox, ["http", "www.good.test", 80], ["https", "www.good.test", 443, "www.good.test"])
        assert names == [WEB + "www.good.test", WEB + "www.good.test"]
        # The address is open now, for the allowed name only.
        for attempt in (
            ["http", SERVER, 80, "bad.test"],
            ["http", SERVER, 80],
            ["https", SERVER, 443, "bad.test"],
            ["https", SERVER, 443],
        ):
            assert not tried(sandbox, attempt)[0].startswith(WEB), attempt
        assert tried(sandbox, ["https", SERVER, 443, "api.good.test"]) == [WEB + "api.good.test"]
        # Other ports of it are open by address; a name with a port opens that port alone.
        assert tried(sandbox, PLAIN, ["resolve", "shop.other.test"]) == [OPEN, OTHER]
        answers = tried(sandbox, ["https", OTHER, 443, "shop.other.test"], ["plain", OTHER, PLAIN_PORT])
        assert (answers[0], answers[1] != OPEN) == (WEB + "shop.other.test", True)
        # The owner of a name must not be able to lead into private networks.
        assert tried(sandbox, ["resolve", "a.private.test"]) == [PRIVATE]
        assert httpx.get(f"http://{PRIVATE}/").text == WEB + PRIVATE, "there is somebody to reach"
        assert not tried(sandbox, ["http", "a.private.test", 80])[0].startswith(WEB)


def test_the_package_registries_preset_opens_nothing_else(client: PandaStack) -> None:
    with client.sandboxes.create("base", network={"presets": ["package-registries"]}) as sandbox:
        names = ("pypi.org", "registry.npmjs.org", "index.rubygems.org")
        assert tried(sandbox, *(["https", name, 443, name] for name in names)) == [WEB + name for name in names]
        assert tried(sandbox, ["http", "deb.debian.org", 80]) == [WEB + "deb.debian.org"]
        assert tried(sandbox, ["resolve", "good.test"], ["resolve", "evil.pypi.org"]) == ["no name", "no name"]
        # All of these names lead to one address here, which is open for them and on their ports alone.
        other, plain = tried(sandbox, ["https", SERVER, 443, "good.test"], PLAIN)
        assert not other.startswith(WEB) and plain != OPEN


def test_resolved_addresses_stay_open_after_fork_wake_and_rollback(platform: Platform, client: PandaStack) -> None:
    attempts = [PLAIN, ["plain", OTHER, PLAIN_PORT]]

    def open_ones(sandbox: Sandbox) -> List[bool]:
        """Which of the two addresses answer, without a name."""
        return [answer == OPEN for answer in tried(sandbox, *attempts)]

    both: NetworkPolicy = {"allow": ["*.good.test", "*.other.test"]}
    one: NetworkPolicy = {"allow": ["*.other.test"]}
    with client.sandboxes.create("base", network=both) as sandbox:
        assert open_ones(sandbox) == [False, False], "nothing is open before a name was asked for"
        assert tried(sandbox, ["resolve", "www.good.test"], ["resolve", "shop.other.test"]) == [SERVER, OTHER]
        assert open_ones(sandbox) == [True, True]
        with sandbox.fork() as child:
            assert open_ones(child) == [True, True], "fork"
        snapshot = sandbox.snapshot()
        sandbox.hibernate()
        assert client.sandboxes.get(sandbox.id).status == "hibernated"
        with sandbox.fork() as child:
            assert open_ones(child) == [True, True], "fork of a sleeper"
        assert open_ones(sandbox) == [True, True], "wake"
        # Web connections must still say an allowed name.
        named, unnamed = tried(sandbox, ["https", SERVER, 443, "api.good.test"], ["https", SERVER, 443, "bad.test"])
        assert named == WEB + "api.good.test" and not unnamed.startswith(WEB)

        platform.kill_role("agent")
        wait_until("the sandbox answers again", lambda: answers(sandbox), 60)
        assert open_ones(sandbox) == [True, True], "a restart of the agent"
        sandbox.hibernate()
        assert open_ones(sandbox) == [True, True], "what one agent resolved, the next one takes along"
        sandbox.rollback()
        assert open_ones(sandbox) == [True, True], "rollback"
        with client.sandboxes.create(from_snapshot=snapshot) as copy:
            assert open_ones(copy) == [True, True], "a sandbox made from its snapshot"
        with client.sandboxes.create(from_snapshot=snapshot, network=one) as copy:
            assert open_ones(copy) == [False, True], "its own policy decides"

        sandbox.hibernate()
        sandbox.set_network(one)
        assert open_ones(sandbox) == [False, True], "a name that is no longer allowed"
        with sandbox.fork() as child:
            assert open_ones(child) == [False, True], "and not in a fork either"


def test_denied_names_are_blocked_on_an_open_network(client: PandaStack) -> None:
    with client.sandboxes.create("base", network={"deny": ["*.bad.test"]}) as sandbox:
        assert tried(sandbox, ["resolve", "www.bad.test"], ["resolve", "good.test"]) == ["no name", SERVER]
        answers = tried(
            sandbox,
            ["https", SERVER, 443, "good.test"],
            ["https", SERVER, 443, "www.bad.test"],
            ["http", SERVER, 80],
            PLAIN,
        )
        assert answers[0] == WEB + "good.test" and not answers[1].startswith(WEB)
        assert answers[2:] == [WEB + SERVER, OPEN]


def test_deny_rules_override_allowed_names(client: PandaStack) -> None:
    www, shop = "www.good.test", "shop.other.test"
    allow = ["*.good.test", "*.other.test"]
    with client.sandboxes.create("base", network={"allow": allow, "deny": [f"{SERVER}/32"]}) as sandbox:
        # A denied network stays closed whichever name leads into it.
        assert tried(sandbox, ["resolve", www], ["resolve", shop]) == [SERVER, OTHER]
        attempts = [["https", SERVER, 443, www], PLAIN, ["https", OTHER, 443, shop], ["plain", OTHER, PLAIN_PORT]]
        web, plain, other_web, other_plain = tried(sandbox, *attempts)
        assert not web.startswith(WEB) and plain != OPEN
        assert (other_web, other_plain) == (WEB + shop, OPEN)
        # So does a denied port, and only that.
        sandbox.set_network({"allow": allow, "deny": [f"0.0.0.0/0:{PLAIN_PORT}"]})
        assert tried(sandbox, ["resolve", www]) == [SERVER]
        web, plain = tried(sandbox, *attempts[:2])
        assert web == WEB + www and plain != OPEN
        # And a port of a name, whether names or everything else is open.
        deny = [f"*.good.test:{PLAIN_PORT}", f"{shop}:443"]
        policies: List[NetworkPolicy] = [{"allow": allow, "deny": deny}, {"egress": "all", "deny": deny}]
        for policy in policies:
            sandbox.set_network(policy)
            assert tried(sandbox, ["resolve", www], ["resolve", shop]) == [SERVER, OTHER]
            web, plain, other_web, other_plain = tried(sandbox, *attempts)
            assert web == WEB + www and plain != OPEN, policy
            assert not other_web.startswith(WEB) and other_plain == OPEN, policy
        assert tried(sandbox, ["https", OTHER, 443, "blog.other.test"]) == [WEB + "blog.other.test"]


def test_denied_egress_is_recorded_as_events(client: PandaStack) -> None:
    with client.sandboxes.create("base", network={"allow": ["*.good.test"]}) as sandbox:
        tried(sandbox, ["resolve", "bad.test"], ["plain", OTHER, PLAIN_PORT])
        tried(sandbox, ["resolve", "a.good.test"], ["https", SERVER, 443, "bad.test"])
        # No allowed name leads there, so the name check does not see it.
        tried(sandbox, ["https", OTHER, 443, "a.good.test"])

        def told() -> bool:
            found = events(sandbox, "egress_denied")
            wanted = ["dns bad.test", f"tcp {OTHER}:{PLAIN_PORT}", f"tcp {SERVER}:443 (bad.test)", f"tcp {OTHER}:443"]
            return all(any(line.startswith(part) for line in found) for part in wanted)

        wait_until("the refusals are told", told, 60)
        counted = sandbox.metrics()["egress_denied"]
        assert counted >= 4, counted
        sandbox.hibernate()
        assert sandbox.metrics()["egress_denied"] >= counted, "the count outlives sleep"
        assert refused_by_all(client) >= counted


def refused_by_all(client: PandaStack) -> int:
    page = httpx.get(f"{client.base_url}/metrics").text
    [line] = [line for line in page.splitlines() if line.startswith("pandastack_egress_denied_total ")]
    return int(line.split()[1])


def test_a_policy_change_cuts_connections_it_no_longer_allows(client: PandaStack) -> None:
    hold = r"""
import socket, sys, time
link = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20); print("connected", flush=True)
link.settimeout(5)
while True:
    try:
        link.sendall(b"x"); link.recv(16); time.sleep(0.1)
    except OSError: print("cut", flush=True); break
"""
    with client.sandboxes.create("base") as sandbox:
        sandbox.filesystem.write("/root/hold.py", hold)
        sandbox.exec(f"nohup python3 /root/hold.py {SERVER} {PLAIN_PORT} > /root/log 2>&1 &")
        log = lambda: sandbox.exec("cat /root/log").stdout
        wait_until("the connection is open", lambda: "connected" in log(), 60)
        sandbox.set_network("none")
        wait_until("the connection is cut", lambda: "cut" in log(), 60)


def test_an_open_web_connection_ends_when_its_address_is_denied(client: PandaStack) -> None:
    hold = r"""
import socket, sys, time
link = socket.create_connection((sys.argv[1], 80), timeout=20)
link.settimeout(5)
while True:
    try:
        link.sendall(f"GET / HTTP/1.1\r\nHost: {sys.argv[1]}\r\n\r\n".encode())
        if not link.recv(4096): raise OSError("closed")
        print("answered", flush=True); time.sleep(0.1)
    except OSError: print("cut", flush=True); break
"""
    with client.sandboxes.create("base", network={"allow": ["*.good.test"]}) as sandbox:
        sandbox.filesystem.write("/root/hold.py", hold)
        sandbox.exec("nohup python3 /root/hold.py www.good.test > /root/log 2>&1 &")
        log = lambda: sandbox.exec("cat /root/log").stdout
        wait_until("the connection is open", lambda: "answered" in log(), 60)
        sandbox.set_network({"allow": ["*.good.test"], "deny": [f"{SERVER}/32"]})
        wait_until("the connection is cut", lambda: "cut" in log(), 60)


#: Runs in a sandbox, as root: writes frames to its card past its own kernel's rules, and then an honest datagram.
FORGE = r"""
import json, socket, struct, sys
server, port, told, neighbour = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
gateway, own = bytes.fromhex("06000ac90001"), bytes.fromhex("06000ac90002")
card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); card.bind(("eth0", 0))
def frame(source, mac, text, to=server):
    body = struct.pack(">HHHH", 4000, port, 8 + len(text), 0) + text
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(to))
    total = sum(struct.unpack(">10H", head)); total = (total & 0xffff) + (total >> 16)
    head = head[:10] + struct.pack(">H", ~(total + (total >> 16)) & 0xffff) + head[12:]
    card.send(gateway + mac + b"\x08\x00" + head + body)
for source in ("93.184.216.77", "10.221.0.2", "127.0.0.1", "0.0.0.0", neighbour):
    frame(source, own, b"forged source " + source.encode())
frame("192.0.0.2", bytes.fromhex("060000000099"), b"forged card")
frame("192.0.0.2", own, b"to a neighbour", neighbour)
frame("192.0.0.2", own, b"to metadata", "169.254.169.254")
card.send(gateway + own + b"\x86\xdd" + bytes.fromhex("6000000000083aff") + b"\xfe\x80" + bytes(13) + b"\x02\xff\x02" + bytes(13)
          + b"\x02\x85\x00\x7b\xb9" + bytes(4))
leak = sys.argv[5].encode()
for source, to in (("fd00::2", "2001:db8::1"), ("fd00::2", "ff02::1"), ("fe80::2", "fe80::1")):
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, to)
    body = struct.pack(">HHHH", 4000, port, 8 + len(leak), 0) + leak
    card.send(gateway + own + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(body), 17, 64) + ends + body)
honest = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); honest.settimeout(20)
honest.sendto(b"honest", (server, port)); honest.recv(64)
link = socket.create_connection((server, told), timeout=20)
data = b""
while chunk := link.recv(4096): data += chunk
print(json.dumps(json.loads(data)))
"""

#: Runs in a sandbox, as root: takes IPv6 into use, with everything that a neighbour would tell it, and prints who it reached.
SPEAK_IPV6 = r"""
import socket, subprocess, sys
try: open("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "w").write("0")
except OSError: pass
for line in ("addr add fd00::2/64 dev eth0 nodad", "neigh add fd00::1 lladdr 06:00:0a:c9:00:01 dev eth0", "route add default via fd00::1"):
    subprocess.run(["ip", "-6", *line.split()], capture_output=True)
for where in ("fd00::1", "2001:db8::1", "fe80::1%eth0"):
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagram: datagram.sendto(sys.argv[1].encode(), (where, 7001))
    except OSError: pass
    try: socket.create_connection((where, 80), timeout=3); print(where)
    except ConnectionRefusedError: print(where)
    except OSError: pass
"""

ETHERTYPE_IPV6 = 0x86DD


class Ipv6Watch:
    """Hears every IPv6 frame that arrives at an interface of the host while its block runs."""

    def __enter__(self) -> "Ipv6Watch":
        self.card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_IPV6))
        self.card.setblocking(False)
        return self

    def heard(self) -> bytes:
        frames = []
        while True:
            try:
                frames.append(self.card.recv(65536))
            except BlockingIOError:
                return b"\n".join(frames)

    def say(self, text: bytes) -> None:
        """Sends a frame that is heard."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as card:
            card.bind(("lo", 0))
            card.send(bytes(12) + ETHERTYPE_IPV6.to_bytes(2, "big") + text.ljust(64))

    def __exit__(self, *_: Any) -> None:
        self.card.close()


def test_forged_packets_never_leave(client: PandaStack) -> None:
    with client.sandboxes.create("base") as attacker, client.sandboxes.create("base") as neighbour:
        listen = "import socket; s = socket.socket(2, 2); s.bind(('0.0.0.0', %d)); print(s.recv(64))" % DATAGRAM_PORT
        neighbour.exec(f"nohup python3 -u -c \"{listen}\" > /root/log 2>&1 &")
        leak = f"leak of {attacker.id}"
        arguments = [SERVER, str(DATAGRAM_PORT), str(TOLD_PORT), str(neighbour.guest_ip), leak]
        with Ipv6Watch() as watch:
            result = attacker.exec(["python3", "-c", FORGE, *arguments], timeout_seconds=120)
            assert result.exit_code == 0, result.stderr
            assert json.loads(result.stdout) == ["honest"], "what was forged arrived"
            spoken = attacker.exec(["python3", "-c", SPEAK_IPV6, leak], timeout_seconds=120)
            assert (spoken.exit_code, spoken.stdout) == (0, ""), spoken.stderr
            watch.say(b"heard by the watch")
            heard = watch.heard()
        assert b"heard by the watch" in heard and leak.encode() not in heard
        assert neighbour.exec("cat /root/log").stdout == ""
        # A guest that takes its interface apart harms itself alone.
        attacker.exec("ip link set eth0 address 06:00:00:00:00:77; ip addr flush dev eth0; ip -6 addr add fd00::2/64 dev eth0")
        assert attacker.exec("echo still here").stdout == "still here\n"
        assert tried(neighbour, PLAIN) == [OPEN]


def test_invalid_policies_are_rejected_with_a_reason(platform: Platform, client: PandaStack) -> None:
    config = json.loads(platform.config_path().read_text())
    url = f"{config['api_url'].removesuffix('/v1')}/v1/sandboxes"
    bearer = {"Authorization": f"Bearer {config['token']}"}

    def refused(network: Dict[str, Any]) -> str:
        answer = httpx.post(url, json={"network": network}, headers=bearer, timeout=60)
        assert answer.status_code == 400, answer.text
        body = answer.json()
        assert body["code"] == "bad_request"
        return str(body["error"])

    assert "10.0.0.1/8" in refused({"allow": ["10.0.0.1/8"]})
    assert "xn--" in refused({"allow": ["münchen.de"]})
    assert "65535" in refused({"deny": ["a.test:0"]})
    assert "package-registries" in refused({"presets": ["everything"]})
    assert "256" in refused({"allow": [f"n{at}.test" for at in range(257)]})
    with client.sandboxes.create("base") as sandbox, pytest.raises(BadRequestError):
        sandbox.set_network({"allow": ["http://a.test"]})


def test_the_cli_shows_and_sets_the_network_policy(platform: Platform, client: PandaStack) -> None:
    import subprocess

    def run(*words: str) -> str:
        done = subprocess.run([BINARY, *words], env=platform.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = run("sandbox", "create", "--network", "none", "--allow", "10.9.0.0/16:5432", "--preset", "package-registries")
    sandbox = client.sandboxes.get(made.strip())
    with sandbox:
        assert sandbox.network() == {
            "egress": "none", "presets": ["package-registries"], "allow": ["10.9.0.0/16:5432"],
        }
        assert "10.9.0.0/16:5432" in run("sandbox", "network", "get", sandbox.id)
        run("sandbox", "network", "set", sandbox.id, "--deny", "*.bad.test")
        assert sandbox.network() == {"egress": "all", "deny": ["*.bad.test"]}
