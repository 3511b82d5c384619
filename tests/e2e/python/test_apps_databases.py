"""Databases attached to apps: reachable only from the machine that serves, through sleep of either."""

from __future__ import annotations

from typing import Any, Dict, Iterator
from urllib.parse import quote

import pytest
from platform_process import wait_until
from test_apps import Apps, get

from pandastack import Database, PandaStack

#: As much of a PostgreSQL client as a password and a query need; machines have nothing but Python's own library.
POSTGRES = r'''
import base64, hashlib, hmac, os, socket, struct
from urllib.parse import parse_qs, urlsplit

class Failed(Exception):
    pass

class Session:
    def __init__(self, url):
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        words = {"user": parts.username, "database": parts.path[1:], **{k: v[0] for k, v in parse_qs(parts.query).items() if k == "options"}}
        body = struct.pack("!I", 196608) + b"".join(k.encode() + b"\0" + v.encode() + b"\0" for k, v in words.items()) + b"\0"
        self.socket.sendall(struct.pack("!I", len(body) + 4) + body)
        self.log_in(parts.password)
        while self.message()[0] != b"Z":
            pass

    def send(self, kind, body):
        self.socket.sendall(kind + struct.pack("!I", len(body) + 4) + body)

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise Failed("the connection ended")
            data += more
        return data

    def message(self):
        kind, size = struct.unpack("!cI", self.read(5))
        body = self.read(size - 4)
        if kind == b"E":
            fields = {part[:1]: part[1:].decode() for part in body.split(b"\0") if part}
            raise Failed(fields[b"C"] + " " + fields[b"M"])
        return kind, body

    def log_in(self, password):
        assert struct.unpack("!I", self.message()[1][:4])[0] == 10, "SCRAM"
        mine = "n=,r=" + base64.b64encode(os.urandom(18)).decode()
        first = b"SCRAM-SHA-256\0" + struct.pack("!I", len(mine) + 3) + b"n,," + mine.encode()
        self.send(b"p", first)
        theirs = self.message()[1][4:].decode()
        told = dict(part.split("=", 1) for part in theirs.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(told["s"]), int(told["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        last = "c=biws,r=" + told["r"]
        proof = hmac.digest(hashlib.sha256(key).digest(), ",".join([mine, theirs, last]).encode(), "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, proof))).decode()
        self.send(b"p", (last + ",p=" + proof).encode())

    def query(self, sql):
        self.send(b"Q", sql.encode() + b"\0")
        found, kind = "", b""
        while kind != b"Z":
            kind, body = self.message()
            if kind == b"D":
                found = body[6:].decode()
        return found

def attempt(work):
    try:
        return work()
    except (Failed, OSError) as error:
        return "failed: " + str(error)
'''

SERVER = r'''
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import unquote
from postgres import Session, attempt
held = []
def answer(path):
    if path.startswith("/query/"):
        return attempt(lambda: Session(os.environ["DATABASE_URL"]).query(unquote(path[7:])))
    if path == "/hold":
        held.append(Session(os.environ["DATABASE_URL"]))
        return "held"
    if path == "/held":
        return attempt(lambda: held[-1].query("SELECT 7"))
    return os.environ.get("DATABASE_URL", "none")
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = answer(self.path).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
HTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
'''

BUILD = '[app]\nbuild_command = "test -z \\"$DATABASE_URL\\""\n'


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    with Apps() as made:
        yield made


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Iterator[Database]:
    with PandaStack(max_create_retry_seconds=600) as patient:
        made = patient.databases.create(label="attached")
    yield made
    client.databases.delete(made["id"])


def page(app: Dict[str, Any], path: str) -> str:
    answer = get(app, path)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_database_is_reachable_only_by_its_app(apps: Apps, client: PandaStack, database: Database) -> None:
    app, id = apps.create(min_instances=1), database["id"]
    way, query = f"/apps/{app['id']}/databases/{id}", "/query/" + quote("SELECT 40 + 2")
    apps.call("PUT", f"/apps/{app['id']}/env/TAKEN", 200, json={"value": "x"})
    apps.call("PUT", way, 409, json={"env": "TAKEN"})
    apps.call("PUT", way, 400, json={"env": "no name"})
    apps.call("PUT", f"/apps/{app['id']}/databases/nothing", 404, json={})
    attached = {"database": id, "env": "DATABASE_URL", "scope": "production", "build": False}
    assert apps.call("PUT", way, 200, json={}) == attached
    assert apps.call("GET", f"/apps/{app['id']}", 200)["databases"] == [attached]
    apps.call("PUT", f"/apps/{app['id']}/env/DATABASE_URL", 400, json={"value": "x"})
    live = apps.live(apps.upload(app, {"main.py": SERVER, "postgres.py": POSTGRES, "pandastack.toml": BUILD}))
    assert page(app, query) == "42"
    # The database sleeps, and wakes for the app as for any client.
    client.databases.pause(id)
    assert client.databases.get(id)["status"] == "hibernated"
    assert page(app, query) == "42"
    # The same address leads others nowhere, whatever they know; the app nowhere else.
    url = page(app, "/")
    with client.sandboxes.create(template="base") as other:
        other.filesystem.write("/root/postgres.py", POSTGRES)
        script = f"from postgres import *; print(attempt(lambda: Session({url!r}).query('SELECT 1')))"
        said = other.exec(["python3", "-c", script], cwd="/root")
        assert "is not attached to this app" in said.stdout, (said.stdout, said.stderr)
    machine = live["sandbox_id"]
    foreign = url.replace(id, "0" * len(id))
    script = f"from postgres import *; print(attempt(lambda: Session({foreign!r}).query('SELECT 1')))"
    ran = apps.call("POST", f"/sandboxes/{machine}/exec", 200, json={"argv": ["python3", "-c", script], "cwd": "/srv/app"})
    assert "is not attached to this app" in ran["stdout"], ran
    # The app sleeps, too: its connection ended meanwhile, which it is told, and the next one is made.
    assert page(app, "/hold") == "held" and page(app, "/held") == "7"
    apps.call("POST", f"/sandboxes/{machine}/hibernate", 200)
    assert page(app, "/held").startswith("failed"), "at once, not when it has waited for an answer"
    assert page(app, query) == "42"


def test_a_detached_database_is_unreachable_at_once(apps: Apps, client: PandaStack, database: Database) -> None:
    app, id = apps.call("GET", f"/apps/{apps.made[0]}", 200), database["id"]
    assert page(app, "/hold") == "held" and page(app, "/held") == "7"
    refused = apps.call("DELETE", f"/databases/{id}", 409)
    assert f"attached to app `{app['name']}`" in refused["error"], refused
    apps.call("DELETE", f"/apps/{app['id']}/databases/{id}", 204)
    apps.call("DELETE", f"/apps/{app['id']}/databases/{id}", 404)
    wait_until("its session ends", lambda: page(app, "/held").startswith("failed"), 30)
    assert "is not attached to this app" in page(app, "/query/SELECT")
    restarted = apps.call("POST", f"/apps/{app['id']}/restart", 202)
    apps.live(restarted)
    assert page(app, "/") == "none"


def test_a_min_instances_change_takes_effect_at_once(apps: Apps) -> None:
    app = apps.call("GET", f"/apps/{apps.made[0]}", 200)
    look = f"/sandboxes/{app['sandbox_id']}/lifecycle"
    assert app["min_instances"] == 1 and apps.call("GET", look, 200)["idle_timeout_seconds"] > 86_400
    apps.call("PATCH", f"/apps/{app['id']}", 400, json={"min_instances": 2})
    apps.call("PATCH", f"/apps/{app['id']}", 200, json={"min_instances": 0, "idle_timeout_seconds": 60})
    assert apps.call("GET", look, 200)["idle_timeout_seconds"] == 60
    apps.call("POST", f"/sandboxes/{app['sandbox_id']}/hibernate", 200)
    changed = apps.call("PATCH", f"/apps/{app['id']}", 200, json={"min_instances": 1})
    assert changed["status"] == "running", "it was woken"
