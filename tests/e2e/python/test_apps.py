"""Apps: from a source to an address that stays up through deployments, failures and sleep."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import time
import uuid
from typing import Any, Dict, Iterator, List, Optional, Tuple
from urllib.parse import urlsplit

import httpx
import pytest
from platform_process import wait_until
from websocket import WebSocket

API = os.environ["PANDASTACK_API"].rstrip("/")
KEY = os.environ["PANDASTACK_API_KEY"]
#: Emulated machines on a busy box are slow; a healthy deployment needs a fraction of this.
DEPLOY_SECONDS = 240.0
#: How often the clients of most WebSocket libraries say something when there is nothing to say.
PING_SECONDS = 30.0
#: A version that was replaced falls asleep after so many seconds in which nothing comes to it.
DRAIN_IDLE_SECONDS = 60.0

SERVER = """
import os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = ({version!r} + " " + os.environ.get("GREETING", "")).encode()
        if self.path == "/slow": time.sleep(2)
        if self.path == "/socket": return self.talk()
        print("served", self.path, flush=True)
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def talk(self):
        self.send_response(101); self.send_header("Connection", "Upgrade"); self.send_header("Upgrade", "websocket")
        self.end_headers()
        while self.connection.recv(4096): self.connection.sendall(b"{version} ")
        self.close_connection = True
    def log_message(self, *_): pass
ThreadingHTTPServer(({address!r}, int({port})), Handler).serve_forever()
"""

#: A server that names its version to each message on its sockets, and closes them as it should.
SOCKETS = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/socket": return self.talk()
        self.send_response(204); self.end_headers()
    def talk(self):
        self.send_response(101); self.send_header("Connection", "Upgrade"); self.send_header("Upgrade", "websocket")
        self.end_headers()
        self.close_connection = True
        while True:
            heard = self.connection.recv(4096)
            if not heard: return
            if heard[0] == 0x88: return self.connection.sendall(bytes([0x88, 0]))
            self.connection.sendall(bytes([0x81, {length}]) + {version!r})
    def log_message(self, *_): pass
ThreadingHTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
"""


def sockets(version: str) -> Dict[str, str]:
    return {"main.py": SOCKETS.format(version=version.encode(), length=len(version))}


def server(version: str, address: str = "0.0.0.0", port: str = 'os.environ["PORT"]') -> Dict[str, str]:
    return {"main.py": SERVER.format(version=version, address=address, port=port)}


def archive(files: Dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


class Apps:
    """The API of apps, as plainly as it can be called."""

    def __init__(self, api: str = API, key: str = KEY) -> None:
        self.api = api
        self.http = httpx.Client(base_url=api + "/v1", headers={"authorization": f"Bearer {key}"}, timeout=200)
        self.made: List[str] = []

    def __enter__(self) -> "Apps":
        return self

    def __exit__(self, *_: object) -> None:
        for app in self.made:
            self.http.delete(f"/apps/{app}")

    def call(self, method: str, path: str, expect: int, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        assert answer.status_code == expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def create(self, **settings: Any) -> Dict[str, Any]:
        name = "t" + uuid.uuid4().hex[:12]
        app: Dict[str, Any] = self.call("POST", "/apps", 201, json={"name": name, **settings})
        self.made.append(app["id"])
        return app

    def upload(self, app: Dict[str, Any], files: Dict[str, str]) -> Dict[str, Any]:
        deployment: Dict[str, Any] = self.call(
            "POST", f"/apps/{app['id']}/deploys", 202, content=archive(files), headers={"content-type": "application/gzip"}
        )
        assert deployment["status"] == "queued"
        return deployment

    def deployment(self, one: Dict[str, Any]) -> Dict[str, Any]:
        found: Dict[str, Any] = self.call("GET", f"/apps/{one['app_id']}/deploys/{one['id']}", 200)
        return found

    def finished(self, one: Dict[str, Any]) -> Dict[str, Any]:
        """The deployment once it is over, found by following its log."""
        with self.http.stream("GET", f"/apps/{one['app_id']}/deploys/{one['id']}/logs", timeout=DEPLOY_SECONDS) as log:
            text = "".join(log.iter_text())
        assert text.endswith("event: done\ndata: end\n\n"), text[-500:]
        return self.deployment(one)

    def live(self, one: Dict[str, Any]) -> Dict[str, Any]:
        ended = self.finished(one)
        assert ended["status"] == "live", ended["build_logs"]
        return ended


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    with Apps() as made:
        yield made


def get(app: Dict[str, Any], path: str = "/", host: Optional[str] = None) -> httpx.Response:
    return httpx.get(API + path, headers={"host": host or f"{app['name']}.localhost"}, timeout=60)


class Load:
    """Requests without a pause from several clients, and what came of them."""

    def __init__(self, app: Dict[str, Any], clients: int = 4, api: str = API) -> None:
        self.app, self.api = app, api
        self.failures: List[str] = []
        self.texts: List[str] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(clients)]

    def run(self) -> None:
        with httpx.Client(timeout=60) as http:
            while not self.stop.is_set():
                try:
                    answer = http.get(self.api + "/", headers={"host": f"{self.app['name']}.localhost"})
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code} {answer.text[:200]}")
                self.texts.append(answer.text)

    @property
    def answers(self) -> List[str]:
        """First word of each answer."""
        return [text.split(" ")[0] for text in list(self.texts)]

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture(scope="module")
def served(apps: Apps) -> Dict[str, Any]:
    app = apps.create(env={"GREETING": "hello"})
    assert (app["status"], app["url"].startswith("http://" + app["name"])) == ("created", True)
    apps.live(apps.upload(app, server("one")))
    return app


def test_an_uploaded_directory_is_served_at_its_url(apps: Apps, served: Dict[str, Any]) -> None:
    assert get(served).text == "one hello"
    assert get(served, host=f"{served['id']}.localhost").text == "one hello"
    now = apps.call("GET", f"/apps/{served['name']}", 200)
    assert (now["status"], now["framework"]) == ("running", "python")
    log = apps.deployment({"app_id": served["id"], "id": now["active_deployment_id"]})["build_logs"]
    assert "detected python because there is main.py" in log and "==> live" in log
    # Its machine is the service's: not in the list of sandboxes, and not to be deleted by hand.
    listed = [one["id"] for one in apps.call("GET", "/sandboxes", 200)["items"]]
    assert now["sandbox_id"] not in listed
    assert "app" in apps.call("DELETE", f"/sandboxes/{now['sandbox_id']}", 409)["error"]
    assert "service" not in [one["kind"] for one in apps.call("GET", "/snapshots", 200)["snapshots"]]


def test_no_request_fails_during_a_deployment_or_an_instant_rollback(apps: Apps, served: Dict[str, Any]) -> None:
    with Load(served) as load:
        apps.live(apps.upload(served, server("two")))
        wait_until("answers of the new version", lambda: "two" in load.answers[-8:], 30)
        back = apps.call("POST", f"/apps/{served['id']}/rollback", 202)
        began = time.monotonic()
        ended = apps.live(back)
        took = time.monotonic() - began
        wait_until("answers of the old version", lambda: "one" in load.answers[-8:], 30)
    assert load.failures == []
    assert {"one", "two"} <= set(load.answers), "both versions served"
    assert ended["trigger"] == "rollback" and "responds again" in ended["build_logs"]
    statuses = [one["status"] for one in apps.call("GET", f"/apps/{served['id']}/deploys", 200)["items"]]
    assert statuses == ["live", "rolled_back", "superseded"]
    print(f"rollback under load: {took:.2f} s, {len(load.answers)} requests")


def test_an_open_websocket_stays_with_the_version_it_was_opened_on(apps: Apps, served: Dict[str, Any]) -> None:
    """For as long as its client pings; whatever is asked anew goes to the new version."""
    before = get(served).text.split(" ")[0]
    with open_socket(served) as stream:

        def talk() -> str:
            stream.sendall(b"who?")
            return read_until(stream, b" ").decode().strip()

        assert talk() == before
        apps.live(apps.upload(served, server("later")))
        wait_until("answers of the new version", lambda: get(served).text.startswith("later "), 30)
        # The silence between two pings is what is tested: nothing tells of it.
        for _ in range(int(DRAIN_IDLE_SECONDS / PING_SECONDS) + 1):
            time.sleep(PING_SECONDS)
            assert talk() == before, "it moved to another version"
            assert get(served).text.startswith("later ")


def test_a_websocket_of_an_old_version_ends_with_a_close_frame(apps: Apps) -> None:
    app = apps.create()
    apps.live(apps.upload(app, sockets("first")))
    machine = apps.call("GET", f"/apps/{app['id']}", 200)["sandbox_id"]
    with open_socket(app) as stream:
        talk = WebSocket(stream, b"")
        talk.send("who?")
        assert talk.receive() == "first"
        apps.live(apps.upload(app, sockets("second")))
        talk.send("who now?")
        assert talk.receive() == "first"
        # Control does this when the old version was silent for long enough.
        apps.call("POST", f"/sandboxes/{machine}/hibernate", 200)
        assert list(talk) == [] and talk.close_code == 1001
    with open_socket(app) as stream:
        talk = WebSocket(stream, b"")
        talk.send("who?")
        assert talk.receive() == "second"


def open_socket(app: Dict[str, Any]) -> socket.socket:
    address = urlsplit(API)
    stream = socket.create_connection((address.hostname, address.port or 80), timeout=60)
    head = [
        "GET /socket HTTP/1.1",
        f"Host: {app['name']}.localhost",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
    stream.sendall("\r\n".join([*head, "", ""]).encode())
    assert read_until(stream, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
    return stream


def read_until(stream: socket.socket, end: bytes) -> bytes:
    got = b""
    while not got.endswith(end):
        piece = stream.recv(4096)
        assert piece, f"closed after {got!r}"
        got += piece
    return got


def test_a_failing_build_leaves_the_live_version_alone(apps: Apps, served: Dict[str, Any]) -> None:
    before = get(served).text
    broken = {**server("broken"), "pandastack.toml": '[app]\nbuild_command = "echo working; exit 3"\n'}
    ended = apps.finished(apps.upload(served, broken))
    assert ended["status"] == "failed" and "exit code 3" in ended["error"], ended
    assert "working" in ended["build_logs"]
    ended = apps.finished(apps.upload(served, {"readme.md": "nothing here"}))
    assert ended["status"] == "failed" and "package.json" in ended["error"] and "readme.md" in ended["error"]
    ended = apps.finished(apps.upload(served, {"main.py": "raise SystemExit('no database')"}))
    assert ended["status"] == "failed" and "no database" in ended["build_logs"], ended
    assert get(served).text == before


def test_listening_on_the_wrong_address_or_port_fails_with_a_hint(apps: Apps) -> None:
    # Both at once: after a while the log says that nothing listens.
    wrong = [("127.0.0.1", 'os.environ["PORT"]', "listen on 0.0.0.0:8080"), ("0.0.0.0", "3000", "set the app's port to 3000")]
    begun = []
    for address, port, hint in wrong:
        app = apps.create()
        begun.append((app, apps.upload(app, server("x", address, port)), hint))
    for app, deployment, hint in begun:
        ended = apps.finished(deployment)
        assert ended["status"] == "failed" and hint in ended["build_logs"] and hint in ended["error"], ended
        answer = get(app)
        assert answer.status_code == 409 and "deploy it first" in answer.text
        assert apps.call("GET", f"/apps/{app['id']}", 200)["status"] == "error"


def test_deployments_are_cancelled_or_superseded_by_newer_ones(apps: Apps, served: Dict[str, Any]) -> None:
    slow = {**server("slow"), "pandastack.toml": '[app]\nbuild_command = "echo began; sleep 300"\n'}
    first = apps.upload(served, slow)
    wait_until("the build began", lambda: "began\n" in apps.deployment(first)["build_logs"] + "\n", DEPLOY_SECONDS)
    apps.call("POST", f"/apps/{served['id']}/deploys/{first['id']}/cancel", 202)
    assert apps.finished(first)["status"] == "canceled"
    assert "nothing to cancel" in apps.call("POST", f"/apps/{served['id']}/deploys/{first['id']}/cancel", 409)["error"]
    second = apps.upload(served, slow)
    wait_until("the build began", lambda: "began\n" in apps.deployment(second)["build_logs"] + "\n", DEPLOY_SECONDS)
    third = apps.upload(served, server("three"))
    assert apps.finished(second)["status"] == "superseded"
    apps.live(third)
    assert get(served).text == "three hello"


def test_a_restart_applies_variables_without_a_build(apps: Apps, served: Dict[str, Any]) -> None:
    path = f"/apps/{served['id']}/env"
    set_one = apps.call("PUT", f"{path}/GREETING", 200, json={"value": "s3cret", "secret": True, "scope": "all"})
    assert set_one["secret"] is True
    imported = apps.call("POST", f"{path}/import", 200, json={"dotenv": "A=1\nB='two'\n"})
    assert imported == {"imported": 2, "total": 3}
    listed = {one["key"]: one["value"] for one in apps.call("GET", path, 200)["env"]}
    assert listed == {"GREETING": "********", "A": "1", "B": "two"}
    assert "s3cret" not in json.dumps(apps.call("GET", f"/apps/{served['id']}", 200))
    ended = apps.live(apps.call("POST", f"/apps/{served['id']}/restart", 202))
    assert "building" not in ended["build_logs"] and "s3cret" not in ended["build_logs"]
    assert get(served).text.endswith("s3cret")
    apps.call("DELETE", f"{path}/A", 204)
    apps.call("DELETE", f"{path}/A", 404)


def test_updating_a_variable_keeps_its_secret_flag_scope_and_stage(apps: Apps) -> None:
    path = f"/apps/{apps.create()['id']}/env"

    def shown() -> Dict[str, Tuple[Any, ...]]:
        return {one["key"]: (one["value"], one["secret"], one["scope"], one["stage"]) for one in apps.call("GET", path, 200)["env"]}

    apps.call("PUT", f"{path}/TOKEN", 200, json={"value": "s3cret", "secret": True, "scope": "production", "stage": "run"})
    as_it_is = ("********", True, "production", "run")
    set_one = apps.call("PUT", f"{path}/TOKEN", 200, json={"value": "n3w"})
    assert (set_one["secret"], set_one["scope"], set_one["stage"]) == as_it_is[1:]
    apps.call("POST", f"{path}/import", 200, json={"dotenv": 'TOKEN="n3wer"\nKEY="-----BEGIN\n\\"x\\"\n"\n'})
    assert shown() == {"TOKEN": as_it_is, "KEY": ('-----BEGIN\n"x"\n', False, "all", "all")}
    apps.call("PUT", f"{path}/TOKEN", 200, json={"value": "n3west", "secret": False, "stage": "all"})
    assert shown()["TOKEN"] == ("********", True, "production", "all"), "as the request says, but a secret stays one"
    apps.call("DELETE", f"{path}/TOKEN", 204)
    apps.call("PUT", f"{path}/TOKEN", 200, json={"value": "plain"})
    assert shown()["TOKEN"] == ("plain", False, "all", "all")
    for dotenv, part in [
        ("A=1\nB='s3cret", "line 2"),
        ("s3cret-key=1", "line 1"),
        ("A=1\nPORT=3000", "line 2: `PORT` comes from the app's `port` setting"),
    ]:
        error = apps.call("POST", f"{path}/import", 400, json={"dotenv": dotenv, "secret": True})["error"]
        assert part in error and "s3cret" not in error, error
    assert "A" not in shown(), "all of a text or nothing"
    assert "`port`" in apps.call("PUT", f"{path}/PORT", 400, json={"value": "3000"})["error"]


#: Says which variables its build saw, which it sees itself, and whether a secret of the build is in any process beside it.
STAGES = {
    "pandastack.toml": '[app]\nbuild_command = "sh build.sh"\n[env.build]\nFILE_BUILD_STAGE = 1\n[env.run]\nFILE_RUN_STAGE = 1\n',
    # The build ends once the process that it leaves running is up, with its variables.
    "build.sh": """
env | grep _STAGE= | cut -d= -f1 | sort | xargs > built.txt
(setsid sh -c 'echo $$ > left.pid; exec sleep 9999' >/dev/null 2>&1 </dev/null &)
until [ -s left.pid ] && tr '\\0' '\\n' < "/proc/$(cat left.pid)/environ" | grep -q '^BUILD_STAGE=bu1ld$'; do sleep 0.1; done
""",
    "main.py": """
import glob, os
from http.server import BaseHTTPRequestHandler, HTTPServer
def environments():
    for path in glob.glob("/proc/[0-9]*/environ"):
        try: yield open(path, "rb").read()
        except OSError: pass
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        seen = " ".join(sorted(key for key in os.environ if key.endswith("_STAGE")))
        leaked = any(b"bu1ld" in one for one in environments())
        said = f"{open('built.txt').read().strip()} | {seen} | {os.environ['RUN_STAGE']} {leaked}"
        self.send_response(200); self.end_headers(); self.wfile.write(said.encode())
HTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
""",
}


def test_a_variable_of_one_stage_is_not_seen_in_the_other(apps: Apps) -> None:
    app = apps.create(env={"BOTH_STAGE": "1"})
    path = f"/apps/{app['id']}/env"
    build = apps.call("PUT", f"{path}/BUILD_STAGE", 200, json={"value": "bu1ld", "secret": True, "stage": "build"})
    assert build["stage"] == "build" and "deploy again" in build["note"]
    run = apps.call("PUT", f"{path}/RUN_STAGE", 200, json={"value": "one", "secret": True, "stage": "run"})
    assert "restart" in run["note"]
    listed = {one["key"]: one["stage"] for one in apps.call("GET", path, 200)["env"]}
    assert listed == {"BOTH_STAGE": "all", "BUILD_STAGE": "build", "RUN_STAGE": "run"}
    apps.call("PUT", f"{path}/RUN_STAGE", 400, json={"value": "", "stage": "never"})
    apps.live(apps.upload(app, STAGES))
    built, seen = "BOTH_STAGE BUILD_STAGE FILE_BUILD_STAGE", "BOTH_STAGE FILE_RUN_STAGE RUN_STAGE"
    assert get(app).text == f"{built} | {seen} | one False"
    # Variables for the run alone need no build.
    apps.call("PATCH", f"/apps/{app['id']}", 200, json={"env": {"RUN_STAGE": "two", "BUILD_STAGE": "********"}})
    ended = apps.live(apps.call("POST", f"/apps/{app['id']}/restart", 202))
    assert "building" not in ended["build_logs"]
    assert get(app).text == f"{built} | {seen} | two False"


def test_metrics_are_reported_without_waking_the_app(apps: Apps, served: Dict[str, Any]) -> None:
    path = f"/apps/{served['id']}"
    get(served)
    told = apps.call("GET", f"{path}/metrics", 200)
    shown = apps.call("GET", path, 200)
    (one,) = told["instances"]
    assert (one["sandbox_id"], one["status"]) == (shown["sandbox_id"], "running")
    assert one["host"]["memory_bytes"] > 0 and one["guest"]["memory_used_bytes"] > 0
    assert told["deployment_id"] == shown["active_deployment_id"]
    assert told["total"]["memory_bytes"] == one["host"]["memory_bytes"] and told["total"]["cpu_count"] >= 1
    apps.call("POST", f"/sandboxes/{one['sandbox_id']}/hibernate", 200)
    (one,) = apps.call("GET", f"{path}/metrics", 200)["instances"]
    assert one["status"] == "hibernated" and "guest" not in one
    assert apps.call("GET", path, 200)["status"] == "hibernated"
    assert apps.call("GET", f"/apps/{apps.create()['id']}/metrics", 200)["instances"] == []
    ran = subprocess.run([os.environ["PANDASTACK_BIN"], "app", "metrics", served["name"]], capture_output=True, text=True)
    assert ran.returncode == 0 and one["sandbox_id"] in ran.stdout, ran.stderr + ran.stdout


def test_output_can_be_read(apps: Apps, served: Dict[str, Any]) -> None:
    mark = uuid.uuid4().hex
    get(served, f"/{mark}")
    text = lambda: apps.http.get(f"/apps/{served['id']}/runtime-logs", params={"search": mark}).text
    wait_until("it is printed", lambda: text() == f"data: served /{mark}\n\nevent: done\ndata: end\n\n", 60)
    # The error that is looked for counts, not the lines printed after it.
    get(served, "/something-else")
    logs = f"/apps/{served['id']}/runtime-logs"
    wait_until("it is printed", lambda: "/something-else" in apps.http.get(logs, params={"tail": 1}).text, 30)
    wait_until("found", lambda: mark in apps.http.get(logs, params={"search": mark, "tail": 1}).text, 60)


def test_output_can_be_followed(apps: Apps, served: Dict[str, Any]) -> None:
    mark = uuid.uuid4().hex
    get(served, f"/{mark}/0")
    logs = f"/apps/{served['id']}/runtime-logs"
    with apps.http.stream("GET", logs, params={"follow": "1", "search": mark}, timeout=60) as log:
        assert log.status_code == 200
        lines = (line for line in log.iter_lines() if line.startswith("data: "))
        assert next(lines) == f"data: served /{mark}/0", "what it printed before"
        for count in (1, 2, 3):
            get(served, f"/{mark}/{count}")
            assert next(lines) == f"data: served /{mark}/{count}"


def test_a_log_follower_continues_with_the_next_version(apps: Apps, served: Dict[str, Any]) -> None:
    logs = f"/apps/{served['id']}/runtime-logs"
    with apps.http.stream("GET", logs, params={"follow": "1"}, timeout=DEPLOY_SECONDS) as log:
        lines = (line for line in log.iter_lines() if line.startswith("data: "))
        for _ in range(2):
            ended = apps.live(apps.call("POST", f"/apps/{served['id']}/restart", 202))
            assert next(line for line in lines if line.startswith(f"data: ==> deployment {ended['id']} is live now"))
            mark = uuid.uuid4().hex
            get(served, f"/{mark}")
            assert next(line for line in lines if mark in line) == f"data: served /{mark}"


def test_an_unverified_domain_receives_no_traffic(apps: Apps, served: Dict[str, Any]) -> None:
    name = f"www.{uuid.uuid4().hex[:8]}.example"
    added = apps.call("POST", f"/apps/{served['id']}/domains", 201, json={"domain": name.upper()})
    assert (added["status"], [record["name"] for record in added["records"]]) == ("pending", [name, f"_pandastack-challenge.{name}"])
    assert get(served, host=name).status_code == 404
    other = apps.create()
    for claimant in (other, served):
        apps.call("POST", f"/apps/{claimant['id']}/domains", 201, json={"domain": name})
    inside = f"{served['name']}.localhost"
    assert "platform's own" in apps.call("POST", f"/apps/{other['id']}/domains", 400, json={"domain": inside})["error"]
    apps.call("DELETE", f"/apps/{served['id']}/domains/{name}", 204)
    assert get(served, host=name).status_code == 404


def test_an_app_sleeps_and_wakes_on_the_next_request(apps: Apps, served: Dict[str, Any]) -> None:
    machine = apps.call("GET", f"/apps/{served['id']}", 200)["sandbox_id"]
    for _ in range(3):
        apps.call("POST", f"/sandboxes/{machine}/hibernate", 200)
        assert apps.call("GET", f"/apps/{served['id']}", 200)["status"] == "hibernated"
        assert get(served).status_code == 200
    assert apps.call("GET", f"/apps/{served['id']}", 200)["status"] == "running"


def test_a_schedule_wakes_an_app(apps: Apps, served: Dict[str, Any]) -> None:
    machine = apps.call("GET", f"/apps/{served['id']}", 200)["sandbox_id"]
    apps.call("POST", f"/sandboxes/{machine}/hibernate", 200)
    target = {"type": "app", "app_id": served["name"], "path": "/nightly", "method": "GET"}
    made = apps.call("POST", "/schedules", 200, json={"name": served["name"], "every_seconds": 3600, "target": target})
    run = apps.call("POST", f"/schedules/{made['id']}/trigger", 200, json={})
    assert (run["status"], run.get("http_status")) == ("success", 200), run
    assert run["stdout"] == get(served).text
    assert apps.call("GET", f"/apps/{served['id']}", 200)["status"] == "running"
    # This server knows no other method.
    apps.call("PATCH", f"/schedules/{made['id']}", 200, json={"target": {**target, "method": "POST"}})
    run = apps.call("POST", f"/schedules/{made['id']}/trigger", 200, json={})
    assert (run["status"], run.get("http_status")) == ("error", 501), run
    apps.call("DELETE", f"/schedules/{made['id']}", 204)


def test_a_lease_keeps_an_app_awake(apps: Apps, served: Dict[str, Any]) -> None:
    machine = apps.call("GET", f"/apps/{served['id']}", 200)["sandbox_id"]
    apps.call("POST", f"/sandboxes/{machine}/hibernate", 200)
    until = apps.call("POST", f"/apps/{served['id']}/keep-awake", 200, json={"seconds": 600})["awake_until"]
    assert apps.call("GET", f"/apps/{served['id']}", 200)["status"] == "running", "a lease wakes"
    assert apps.call("GET", f"/sandboxes/{machine}/lifecycle", 200)["awake_until"] == until
    command = [os.environ["PANDASTACK_BIN"], "app", "keep-awake", served["name"], "0"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "no lease\n"), ran.stderr
    assert apps.call("GET", f"/sandboxes/{machine}/lifecycle", 200).get("awake_until") is None
    apps.call("POST", f"/apps/{served['id']}/keep-awake", 400, json={"seconds": 86_401})


def test_no_request_fails_while_an_app_sleeps_and_wakes(apps: Apps, served: Dict[str, Any]) -> None:
    machine = apps.call("GET", f"/apps/{served['id']}", 200)["sandbox_id"]
    with Load(served) as load:
        for _ in range(int(os.environ.get("PANDASTACK_TEST_SLEEPS", "5"))):
            before = len(load.texts)
            apps.call("POST", f"/sandboxes/{machine}/hibernate", 200)
            wait_until("requests are answered again", lambda: len(load.texts) > before + 4, 60)
    assert load.failures == []


def test_app_errors_say_what_to_do(apps: Apps, served: Dict[str, Any]) -> None:
    for body, part in [
        ({"name": "api"}, "choose another name"),
        ({"name": "8000-x"}, "begin with a letter"),
        ({"name": "ok", "git_url": "file:///etc"}, "git_url"),
        ({"name": "ok", "cpu": 6400}, "`cpu` must be"),
    ]:
        assert part in apps.call("POST", "/apps", 400, json=body)["error"]
    apps.call("POST", "/apps", 409, json={"name": served["name"]})
    apps.call("GET", "/apps/nope", 404)
    other = apps.create()
    assert "git_url" in apps.call("POST", f"/apps/{other['id']}/deploys", 400)["error"]
    assert "no earlier deployment" in apps.call("POST", f"/apps/{other['id']}/rollback", 409)["error"]


def test_a_webhook_needs_its_secret_and_a_push_to_the_branch(apps: Apps) -> None:
    app = apps.create(git_url="http://127.0.0.1:9/none.git", webhook_secret="hush")
    url = app["webhook_url"]
    push = json.dumps({"ref": "refs/heads/main", "after": "a" * 40}).encode()

    def deliver(body: bytes, delivery: str, secret: bytes = b"hush", event: str = "push") -> httpx.Response:
        signature = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
        headers = {"x-github-event": event, "x-github-delivery": delivery, "x-hub-signature-256": signature}
        return httpx.post(url, content=body, headers={**headers, "content-type": "application/json"}, timeout=60)

    assert deliver(push, "1", b"wrong").status_code == 401
    assert deliver(b"{}", "2", event="ping").json() == {"ignored": "pong"}
    other = json.dumps({"ref": "refs/heads/dev", "after": "a" * 40}).encode()
    assert "not to the app's branch" in deliver(other, "3").json()["ignored"]
    first = deliver(push, "4")
    assert first.status_code == 202
    assert "already processed" in deliver(push, "4").json()["ignored"]
    large = json.dumps({"ref": "refs/tags/v1", "filler": "x" * (20 << 20)}).encode()
    assert deliver(large, "5").status_code == 200
    ended = apps.finished({"app_id": app["id"], "id": first.json()["deployment_id"]})
    assert (ended["status"], ended["trigger"], ended["git_commit"]) == ("failed", "push", "a" * 40)
    assert "fetching the source failed" in ended["error"]


def test_deleting_an_app_deletes_its_machine(apps: Apps) -> None:
    app = apps.create()
    apps.live(apps.upload(app, {"index.html": "<h1>static</h1>", "a.txt": "0123456789"}))
    page = get(app)
    assert page.text == "<h1>static</h1>" and page.headers["content-type"].startswith("text/html")
    again = httpx.get(API + "/", headers={"host": f"{app['name']}.localhost", "if-none-match": page.headers["etag"]})
    assert again.status_code == 304
    part = httpx.get(API + "/a.txt", headers={"host": f"{app['name']}.localhost", "range": "bytes=2-4"})
    assert (part.status_code, part.text) == (206, "234")
    assert get(app, "/none").status_code == 404
    machine = apps.call("GET", f"/apps/{app['id']}", 200)["sandbox_id"]
    apps.call("DELETE", f"/apps/{app['id']}", 204)
    apps.call("GET", f"/apps/{app['id']}", 404)
    apps.call("GET", f"/sandboxes/{machine}", 404)
