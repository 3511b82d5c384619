"""Servers inside sandboxes, reached from outside by a name of their own."""

from __future__ import annotations

import base64
import itertools
import json
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional, Tuple
from urllib.parse import urlsplit

import httpx
import pytest
from conftest import RUN, wait_for
from pandastack import PandaStack, Sandbox
from websocket import WebSocket

PORT = 8000

#: A server with what previews must carry: plain answers, echoes, events, and an upgrade that echoes bytes.
SERVER = r"""
import base64, http.server, json, os, socketserver, sys, threading, time
counts, lock = {}, threading.Lock()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, body, kind="application/json"):
        self.send_response(200); self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        if self.headers.get("Upgrade"):
            self.send_response(101); self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", self.headers["Upgrade"]); self.end_headers(); self.wfile.flush()
            while chunk := self.connection.recv(4096): self.connection.sendall(chunk)
            self.close_connection = True; return
        if self.path == "/events":
            self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.end_headers()
            for n in range(3):
                self.wfile.write(f"data: {n} {time.monotonic()}\n\n".encode())
                self.wfile.flush()
                time.sleep(1.5)
            self.close_connection = True; return
        if self.path == "/counts": return self.answer(json.dumps(counts).encode())
        self.answer(json.dumps({"path": self.path, "host": socketname, "headers": dict(self.headers)}).encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/count":
            with lock: counts[body.decode()] = counts.get(body.decode(), 0) + 1
        self.answer(body, "application/octet-stream")
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True; request_queue_size = 128
socketname = os.uname().nodename
Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def serve(sandbox: Sandbox, address: str = "0.0.0.0", port: int = PORT) -> None:
    sandbox.filesystem.write("/root/server.py", SERVER)
    sandbox.exec(f"nohup python3 /root/server.py {address} {port} >/root/server.log 2>&1 &")
    wait_for("the server listens", lambda: port in [found.port for found in sandbox.ports()])


def api() -> httpx.URL:
    return httpx.URL(os.environ["PANDASTACK_API"])


def browser(sandbox: Sandbox, port: int = PORT, **options: object) -> httpx.Client:
    """A client whose every request goes to the sandbox; the name need not resolve on this machine."""
    host = urlsplit(sandbox.preview_url(port)).netloc
    return httpx.Client(base_url=str(api()), headers={"Host": host}, timeout=60, **options)


@pytest.fixture(scope="module")
def served(client: PandaStack) -> Iterator[Sandbox]:
    sandbox = client.sandboxes.create(template="base", ttl_seconds=1800, metadata=RUN)
    serve(sandbox)
    yield sandbox
    sandbox.delete()


def test_a_port_is_reachable_by_its_preview_url(served: Sandbox) -> None:
    assert served.preview_url(PORT) == f"http://{served.get_host(PORT)}"
    assert served.get_host(PORT).startswith(f"{PORT}-{served.id}.")
    with browser(served) as http:
        claims = {"X-Forwarded-For": "6.6.6.6", "Forwarded": "for=6.6.6.6", "X-Forwarded-User": "6.6.6.6"}
        answer = http.get("/hello?x=1", headers=claims)
    assert answer.status_code == 200
    seen = answer.json()
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    assert seen["path"] == "/hello?x=1"
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["x-forwarded-proto"] == "http"
    assert headers["x-forwarded-host"].startswith(f"{PORT}-{served.id}.")
    assert "6.6.6.6" not in json.dumps(headers)


def test_ports_are_listed_with_their_urls(served: Sandbox) -> None:
    answer = httpx.get(
        f"{api()}/v1/sandboxes/{served.id}/ports",
        headers={"Authorization": f"Bearer {os.environ['PANDASTACK_API_KEY']}"},
    ).json()
    [port] = [port for port in answer["ports"] if port["port"] == PORT]
    assert port["proxy_url"] == served.preview_url(PORT)


def test_e2b_headers_select_the_sandbox_and_port(served: Sandbox) -> None:
    named = {"E2b-Sandbox-Id": served.id, "E2b-Sandbox-Port": str(PORT)}
    assert httpx.get(f"{api()}/by-header", headers=named).json()["path"] == "/by-header"
    gone = httpx.get(str(api()), headers={**named, "E2b-Sandbox-Id": "nobody"})
    assert gone.status_code == 502 and "was not found" in gone.json()["message"]


def test_large_bodies_and_server_sent_events_are_streamed(served: Sandbox) -> None:
    body = os.urandom(8 * 1024 * 1024)
    with browser(served) as http:
        assert http.post("/echo", content=body).content == body
        with http.stream("GET", "/events") as answer:
            arrivals: List[float] = []
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    arrivals.append(time.monotonic())
    assert len(arrivals) == 3 and arrivals[-1] - arrivals[0] > 0.5, "the events came all at once"


def test_an_upgraded_connection_passes_bytes(served: Sandbox) -> None:
    with open_socket(served) as stream:
        for word in (b"ping", b"pong"):
            stream.sendall(word)
            assert read_until(stream, word) == word


def open_socket(sandbox: Sandbox) -> socket.socket:
    key = base64.b64encode(os.urandom(16)).decode()
    host = urlsplit(sandbox.preview_url(PORT)).netloc
    stream = socket.create_connection((api().host, api().port), timeout=30)
    head = f"GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    stream.sendall(f"{head}Sec-WebSocket-Key: {key}\r\n\r\n".encode())
    assert read_until(stream, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
    return stream


def read_until(stream: socket.socket, end: bytes) -> bytes:
    got = b""
    while not got.endswith(end):
        piece = stream.recv(4096)
        assert piece, f"closed after {got!r}"
        got += piece
    return got


def test_a_closed_port_reports_the_reason(served: Sandbox) -> None:
    with browser(served, 8123) as http:
        closed = http.get("/")
        page = http.get("/", headers={"Accept": "text/html"})
    assert closed.status_code == 502 and closed.json()["code"] == "port_closed"
    assert "0.0.0.0:8123" in closed.json()["error"]
    assert page.headers["content-type"].startswith("text/html") and "Nothing listens here" in page.text
    serve(served, "127.0.0.1", 8124)
    with browser(served, 8124) as http:
        inside = http.get("/")
    assert inside.status_code == 502 and "listens on 127.0.0.1:8124" in inside.json()["error"]
    unknown = httpx.get(str(api()), headers={"Host": "80-00000000-0000-4000-8000-000000000000.localhost"})
    assert unknown.status_code == 404 and unknown.json()["code"] == "not_found"


def test_visibility(client: PandaStack, served: Sandbox) -> None:
    key = {"Authorization": f"Bearer {os.environ['PANDASTACK_API_KEY']}"}
    base = f"{api()}/v1/sandboxes/{served.id}"

    def set_visibility(visibility: str) -> dict:
        answer = httpx.put(f"{base}/preview", headers=key, json={"visibility": visibility})
        assert answer.status_code == 200, answer.text
        return answer.json()

    try:
        token = set_visibility("private")["token"]
        with browser(served) as http:
            assert http.get("/").status_code == 403
            headers = {"X-Pandastack-Preview-Token": token}
            seen = http.get("/", headers=headers)
            assert seen.status_code == 200 and token not in seen.text, "the guest saw the token"
            signed = httpx.post(f"{base}/preview-token", headers=key, json={"port": PORT}).json()
            assert urlsplit(signed["url"]).netloc == urlsplit(served.preview_url(PORT)).netloc
            query = urlsplit(signed["url"]).query
            moved = http.get(f"/page?{query}")
            assert moved.status_code == 302 and moved.headers["location"] == "/page"
            cookie = moved.headers["set-cookie"].split(";")[0]
            assert http.get("/page", headers={"Cookie": cookie}).status_code == 200
            assert httpx.post(f"{base}/preview/revoke", headers=key).status_code == 200
            assert http.get("/page", headers={"Cookie": cookie}).status_code == 403
            assert http.get("/", headers=headers).status_code == 403
            set_visibility("off")
            assert http.get("/").status_code == 404
    finally:
        set_visibility("unlisted")
    bad = httpx.put(f"{base}/preview", headers=key, json={"visibility": "sometimes"})
    assert bad.status_code == 400 and "visibility" in bad.json()["error"]


def audited(client: PandaStack) -> List[Tuple[str, str, int]]:
    return [(entry["method"], entry["route"], entry["status"]) for entry in client.audit(limit=100)]


def test_a_workspace_has_a_default_visibility(client: PandaStack) -> None:
    assert client.workspace()["default_visibility"] == "unlisted"
    changed = subprocess.run(
        [os.environ["PANDASTACK_BIN"], "workspace", "set", "--default-visibility", "private", "--json"],
        capture_output=True, text=True, check=True,
    )
    try:
        assert json.loads(changed.stdout) == client.workspace()
        wait_for("the change is in the audit log", lambda: ("PATCH", "/v1/me/workspace", 200) in audited(client))
        with client.sandboxes.create(template="base", ttl_seconds=600, metadata=RUN) as sandbox:
            with browser(sandbox) as http:
                assert http.get("/").status_code == 403
        with client.sandboxes.create(template="base", ttl_seconds=600, metadata=RUN, visibility="off") as sandbox:
            with browser(sandbox) as http:
                assert http.get("/").status_code == 404
    finally:
        assert client.set_workspace(default_visibility="unlisted")["default_visibility"] == "unlisted"


def test_a_hundred_requests_wake_a_sandbox_once(served: Sandbox) -> None:
    with browser(served) as http:
        served.hibernate()
        before = len([event for event in served.events() if event["kind"] == "woken"])
        with ThreadPoolExecutor(100) as pool:
            answers = list(pool.map(lambda n: http.get(f"/{n}").status_code, range(100)))
    assert answers == [200] * 100
    woken = lambda: len([event for event in served.events() if event["kind"] == "woken"])
    wait_for("the wake is recorded", lambda: woken() > before)
    assert woken() == before + 1


@contextmanager
def hammered(sandbox: Sandbox, posted: Optional[List[str]] = None) -> Iterator[Callable[[], int]]:
    """Asks all the time from a few threads: none may fail. Gives how many requests were answered. Every other one has a body that
    the server counts, if there is a list to note these in."""
    failed: List[str] = []
    answered = [0]
    done = threading.Event()

    def ask(http: httpx.Client, name: Optional[str]) -> None:
        try:
            answer = http.get("/hammer") if name is None else http.post("/count", content=name.encode())
            if answer.status_code != 200:
                failed.append(f"{answer.status_code} {answer.text}")
            answered[0] += 1
        except httpx.HTTPError as error:
            failed.append(repr(error))

    def hammer(thread: int) -> None:
        with browser(sandbox) as http:
            for turn in itertools.count():
                if done.is_set():
                    return
                name = f"{thread}-{turn}" if posted is not None and turn % 2 else None
                ask(http, name)
                if posted is not None and name is not None:
                    posted.append(name)

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: answered[0]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failed, failed[:5]


def test_no_request_fails_while_the_sandbox_sleeps_and_wakes(served: Sandbox) -> None:
    sleeps = int(os.environ.get("PANDASTACK_TEST_SLEEPS", "5"))
    posted: List[str] = []
    with hammered(served, posted) as answered:
        for _ in range(sleeps):
            before = answered()
            served.hibernate()
            wait_for("requests are answered again", lambda: answered() > before + 4)
    with browser(served) as http:
        counts = http.get("/counts").json()
    assert len(posted) >= sleeps
    assert counts == {name: 1 for name in posted}, "each once, and none that nobody sent"


def test_an_idle_websocket_does_not_delay_sleep(served: Sandbox) -> None:
    began = time.monotonic()
    served.hibernate()
    plain = time.monotonic() - began
    served.wake()
    with open_socket(served) as stream:
        began = time.monotonic()
        served.hibernate()
        took = time.monotonic() - began
        talk = WebSocket(stream, b"")
        assert list(talk) == [] and talk.close_code == 1001
    assert took < plain + 8, f"it took {took:.1f} s, and without a WebSocket {plain:.1f} s"


def test_no_request_fails_while_the_sandbox_is_rolled_back_and_forked(served: Sandbox) -> None:
    with hammered(served) as answered:

        def goes_on(after: str) -> None:
            before = answered()
            wait_for(f"requests are answered after {after}", lambda: answered() > before + 4)

        goes_on("the first one")
        snapshot = served.snapshot()
        goes_on("a snapshot")
        served.rollback(snapshot)
        goes_on("a rollback")
        with served.fork() as child:
            goes_on("a fork")
            with browser(child) as http:
                assert http.get("/child").json()["path"] == "/child", "the child answers for itself"


@contextmanager
def forwarded(sandbox: Sandbox) -> Iterator[str]:
    """Gives the address on this machine that leads to the server."""
    command = [os.environ["PANDASTACK_BIN"], "forward", sandbox.id, f"0:{PORT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            yield forward.stdout.readline().split(" ")[0]
        finally:
            forward.terminate()


def test_forward_connects_to_a_sandbox_port(served: Sandbox) -> None:
    with forwarded(served) as address:
        assert httpx.get(f"http://{address}/forwarded", timeout=60).json()["path"] == "/forwarded"


def test_sleep_closes_a_forwarded_connection_and_the_next_one_wakes(served: Sandbox) -> None:
    with forwarded(served) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as held:
            held.sendall(b"GET /before HTTP/1.1\r\nHost: forwarded\r\n\r\n")
            assert b"/before" in read_until(held, b"}}")
            served.hibernate()
            assert held.recv(4096) == b"", "whoever has the address next would hear it"
        assert httpx.get(f"http://{address}/after", timeout=60).json()["path"] == "/after"
