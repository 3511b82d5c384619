"""Apps from a git repository: fetched by the machine that builds, deployed by a push, through crashes of the servers."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import httpx
import pytest
from internet import NAMESPACE, SERVER as HOST, InternetInABox, RESOLVER
from platform_process import Platform, command_lines, wait_until

#: Serves bare repositories by git's own program; with a password for those below /private.
GIT_SERVER = r"""
import base64, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit
backend = os.path.join(subprocess.check_output(["git", "--exec-path"], text=True).strip(), "git-http-backend")
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self): self.serve()
    do_POST = do_GET
    def serve(self):
        url = urlsplit(self.path)
        given = self.headers.get("Authorization", "")
        if url.path.startswith("/private") and given != "Basic " + base64.b64encode(b"x-access-token:t0ken").decode():
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(401); self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0"); self.end_headers(); return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip; body = gzip.decompress(body)
        env = {**os.environ, "GIT_PROJECT_ROOT": sys.argv[1], "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": url.path,
               "QUERY_STRING": url.query, "REQUEST_METHOD": self.command, "CONTENT_LENGTH": str(len(body)),
               "CONTENT_TYPE": self.headers.get("Content-Type", ""), "REMOTE_ADDR": "x",
               "GIT_PROTOCOL": self.headers.get("Git-Protocol", "")}
        done = subprocess.run([backend], input=body, env=env, capture_output=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = [line.decode().split(": ", 1) for line in head.split(b"\r\n") if line]
        status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
        self.send_response(status)
        for name, value in lines:
            if name != "Status": self.send_header(name, value)
        self.send_header("Content-Length", str(len(content))); self.end_headers(); self.wfile.write(content)
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("0.0.0.0", 8418), Handler)
print("ready", flush=True)
server.serve_forever()
"""

NODE = {
    "package.json": json.dumps({"name": "a", "version": "1.0.0", "scripts": {"start": "node server.js", "build": "node build.js"}}),
    "build.js": "require('fs').writeFileSync('built.txt', 'built ' + process.env.FLAVOUR)",
    "server.js": """
const { readFileSync } = require("fs"), http = require("http");
http.createServer((_, answer) => answer.end(VERSION + " " + readFileSync("built.txt"))).listen(process.env.PORT, "0.0.0.0");
""",
}


class Repository:
    """A bare repository on this machine, and a clone to push from."""

    def __init__(self, root: Path, name: str) -> None:
        self.bare, self.clone = root / name, root / (name.replace("/", "-") + ".clone")
        self.git("init", "-q", "--bare", "-b", "main", str(self.bare), at=root)
        self.git("init", "-q", "-b", "main", str(self.clone), at=root)
        self.url = f"http://{HOST}:8418/{name}"

    @staticmethod
    def git(*words: str, at: Path) -> str:
        who = ["-c", "user.name=e2e", "-c", "user.email=e2e@example.com"]
        return subprocess.run(["git", *who, *words], cwd=at, check=True, capture_output=True, text=True).stdout.strip()

    def push(self, files: Dict[str, str], branch: str = "main") -> str:
        for name, text in files.items():
            (self.clone / name).write_text(text)
        self.git("add", "-A", at=self.clone)
        self.git("commit", "-q", "--allow-empty", "-m", "change", at=self.clone)
        self.git("push", "-q", "-f", str(self.bare), f"HEAD:{branch}", at=self.clone)
        return self.git("rev-parse", "HEAD", at=self.clone)


def node(version: str) -> Dict[str, str]:
    return {**NODE, "server.js": NODE["server.js"].replace("VERSION", repr(version))}


@pytest.fixture(scope="module")
def world() -> Iterator[Tuple[Platform, Path]]:
    with InternetInABox(), tempfile.TemporaryDirectory(prefix="pandastack-e2e-git-") as root:
        words = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", GIT_SERVER, root]
        served = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": root})
        assert served.stdout is not None and served.stdout.readline() == "ready\n"
        running = Platform("pdsg", "10.222.0.0/16", "--warm", "base", "--resolver", RESOLVER, "--schedules-private-targets")
        try:
            yield running.start(), Path(root)
        finally:
            running.stop()
            served.kill()
            served.wait()


class Client:
    def __init__(self, platform: Platform) -> None:
        config = json.loads(platform.config_path().read_text())
        self.url = config["api_url"]
        self.http = httpx.Client(base_url=self.url + "/v1", headers={"authorization": f"Bearer {config['token']}"}, timeout=200)

    def call(self, method: str, path: str, expect: int, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        assert answer.status_code == expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def ended(self, app: str, deployment: str) -> Dict[str, Any]:
        def over() -> Any:
            try:
                found = self.call("GET", f"/apps/{app}/deploys/{deployment}", 200)
            except httpx.HTTPError:
                return None
            return found if found["status"] not in ("queued", "building", "deploying") else None

        found: Dict[str, Any] = wait_until("the deployment is over", over, 400)  # type: ignore[assignment]
        return found

    def live(self, app: str, deployment: str) -> Dict[str, Any]:
        found = self.ended(app, deployment)
        assert found["status"] == "live", found["build_logs"]
        return found

    def page(self, app: str) -> str:
        answer = httpx.get(self.url + "/", headers={"host": f"{app}.localhost"}, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture(scope="module")
def client(world: Tuple[Platform, Path]) -> Client:
    return Client(world[0])


def test_a_push_deploys_its_commit(world: Tuple[Platform, Path], client: Client) -> None:
    repository = Repository(world[1], "private/shop.git" if (world[1] / "private").mkdir() is None else "")
    first = repository.push(node("one"))
    settings = {"name": "shop", "git_url": repository.url, "webhook_secret": "hush", "env": {"FLAVOUR": "sweet"}}
    client.call("POST", "/apps", 201, json=settings)
    refused = client.ended("shop", client.call("POST", "/apps/shop/deploys", 202)["id"])
    assert refused["status"] == "failed" and "git_token" in refused["build_logs"], refused
    client.call("PATCH", "/apps/shop", 200, json={"git_token": "t0ken"})
    done = client.live("shop", client.call("POST", "/apps/shop/deploys", 202)["id"])
    assert (done["git_commit"], done["framework"]) == (first, "node")
    assert "t0ken" not in done["build_logs"]
    assert client.page("shop") == "one built sweet"
    second = repository.push(node("two"))
    body = json.dumps({"ref": "refs/heads/main", "after": second}).encode()
    signature = "sha256=" + hmac.new(b"hush", body, hashlib.sha256).hexdigest()
    headers = {"x-github-event": "push", "x-github-delivery": "1", "x-hub-signature-256": signature}
    hook = client.call("GET", "/apps/shop", 200)["webhook_url"]
    told = httpx.post(hook, content=body, headers=headers, timeout=60)
    assert told.status_code == 202, told.text
    assert client.live("shop", told.json()["deployment_id"])["git_commit"] == second
    assert client.page("shop") == "two built sweet"
    # An older commit, by its id.
    client.live("shop", client.call("POST", "/apps/shop/deploys", 202, json={"git_ref": first})["id"])
    assert client.page("shop") == "one built sweet"
    gone = client.ended("shop", client.call("POST", "/apps/shop/deploys", 202, json={"git_ref": "nope"})["id"])
    assert gone["status"] == "failed" and client.page("shop") == "one built sweet"


def test_a_hostile_repository_hurts_only_its_build(world: Tuple[Platform, Path], client: Client) -> None:
    repository = Repository(world[1], "evil.git")
    os.symlink("/etc/passwd", repository.clone / "index.html")
    (repository.clone / "out").symlink_to("/")
    bomb = {"pandastack.toml": '[app]\nbuild_command = "(while :; do sh -c \'sleep 60\' & done) 2>/dev/null; exit 1"\n',
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% /tmp/pwned\n', **node("evil")}
    repository.push(bomb)
    client.call("POST", "/apps", 201, json={"name": "evil", "git_url": repository.url})
    begun = client.call("POST", "/apps/evil/deploys", 202)["id"]
    wait_until("it builds", lambda: "building:" in client.call("GET", f"/apps/evil/deploys/{begun}", 200)["build_logs"], 200)
    client.http.post(f"/apps/evil/deploys/{begun}/cancel")
    assert client.ended("evil", begun)["status"] in ("failed", "canceled")
    assert not Path("/tmp/pwned").exists()
    client.call("DELETE", "/apps/evil", 204)


def test_looking_at_a_repository_deploys_a_new_commit_once(world: Tuple[Platform, Path], client: Client) -> None:
    repository = Repository(world[1], "polled.git")
    first = repository.push({"index.html": "one"})
    client.call("POST", "/apps", 400, json={"name": "polled", "git_url": repository.url, "poll_seconds": 29})
    settings = {"git_url": repository.url, "webhook_secret": "hush", "poll_seconds": 3600}
    client.call("POST", "/apps", 201, json={"name": "polled", **settings})

    def deployed(count: int) -> Any:
        found = client.call("GET", "/apps/polled/deploys", 200)["items"]
        return found if len(found) == count else None

    (one,) = wait_until("the first commit is found", lambda: deployed(1), 60)  # type: ignore[misc]
    assert (one["trigger"], one["git_commit"]) == ("poll", first)
    client.live("polled", one["id"])
    second = repository.push({"index.html": "two"})
    # Setting it again looks at once.
    client.call("PATCH", "/apps/polled", 200, json={"poll_seconds": 3600})
    two = wait_until("the second commit is found", lambda: deployed(2), 60)[0]  # type: ignore[index]
    body = json.dumps({"ref": "refs/heads/main", "after": second}).encode()
    signature = "sha256=" + hmac.new(b"hush", body, hashlib.sha256).hexdigest()
    headers = {"x-github-event": "push", "x-github-delivery": "1", "x-hub-signature-256": signature}
    hook = client.call("GET", "/apps/polled", 200)["webhook_url"]
    assert "looking" in httpx.post(hook, content=body, headers=headers, timeout=60).json()["ignored"]
    assert client.live("polled", two["id"])["git_commit"] == second
    assert client.page("polled") == "two" and deployed(2)
    client.call("DELETE", "/apps/polled", 204)


#: Says what its build and its run could see.
TELLTALE = {
    "pandastack.toml": '[app]\nbuild_command = "sh see.sh > built.txt"\n',
    "see.sh": 'echo "$OPEN $SECRET $LIVE $TRIAL" | tr -s " "; grep -qEs "s3cret|t0k3n" /proc/[0-9]*/environ && echo leaked; true\n',
    "main.py": """
import os, subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        seen = "VERSION | " + open("built.txt").read() + "| " + subprocess.check_output(["sh", "see.sh"], text=True)
        self.send_response(200); self.end_headers(); self.wfile.write(" ".join(seen.split()).encode())
HTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
""",
}


def telltale(version: str) -> Dict[str, str]:
    return {**TELLTALE, "main.py": TELLTALE["main.py"].replace("VERSION", version)}


class StatusHost(ThreadingHTTPServer):
    """What a repository's host is told of commits. The first call is answered with an error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StatusHandler)
        self.told: List[Dict[str, Any]] = []
        self.calls = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def of(self, commit: str) -> List[Tuple[str, str, str]]:
        return [(one["context"], one["state"], one["target_url"]) for one in self.told if one["path"].endswith(commit)]


class StatusHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        host: StatusHost = self.server  # type: ignore[assignment]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        host.calls += 1
        if host.calls > 1:
            assert self.headers["authorization"] == "Bearer t0k3n"
            host.told.append({"path": self.path, **body})
        self.send_response(500 if host.calls == 1 else 201)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Hook:
    """A repository's host that tells of pull requests."""

    def __init__(self, client: Client, app: str, secret: str) -> None:
        self.url, self.secret, self.sent = client.call("GET", f"/apps/{app}", 200)["webhook_url"], secret, 0

    def pull(self, action: str, number: int, commit: str, *, head: int = 1, at: str = "", expect: int = 202) -> Dict[str, Any]:
        ends = {"head": {"ref": "fix", "sha": commit, "repo": {"id": head}}, "base": {"ref": "main", "repo": {"id": 1}}}
        about = {"title": "A fix", "updated_at": at or f"2026-01-01T00:{self.sent:02}:00Z", **ends}
        body = json.dumps({"action": action, "number": number, "pull_request": about}).encode()
        proof = "sha256=" + hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
        self.sent += 1
        names = {"x-github-event": "pull_request", "x-github-delivery": f"d{self.sent}", "x-hub-signature-256": proof}
        told = httpx.post(self.url, content=body, headers=names, timeout=60)
        assert told.status_code == expect, told.text
        answer: Dict[str, Any] = told.json()
        return answer


def test_a_pull_request_has_a_preview_until_it_is_closed(world: Tuple[Platform, Path], client: Client) -> None:
    (world[1] / "team").mkdir()
    repository = Repository(world[1], "team/previewed.git")
    host = StatusHost()
    settings = {"git_token": "t0k3n", "git_api_url": f"http://127.0.0.1:{host.server_port}/api"}
    client.call("POST", "/apps", 201, json={"name": "store", "git_url": repository.url, "webhook_secret": "hush", "env": {"OPEN": "open"}, **settings})
    for key, secret, scope in [("SECRET", True, "all"), ("LIVE", False, "production"), ("TRIAL", False, "preview")]:
        value = "s3cret" if secret else key.lower()
        client.call("PUT", f"/apps/store/env/{key}", 200, json={"value": value, "secret": secret, "scope": scope})
    hook = Hook(client, "store", "hush")
    first = repository.push(telltale("one"), "fix")
    told = hook.pull("opened", 7, first)
    assert told["preview"] == "pr-7-store"
    client.live("pr-7-store", told["deployment_id"])
    assert client.page("pr-7-store") == "one | open s3cret trial leaked | open s3cret trial leaked"
    (listed,) = client.call("GET", "/apps/store/previews", 200)["items"]
    assert (listed["number"], listed["git_commit"], listed["fork"], listed["status"]) == (7, first, False, "running")
    assert "pr-7-store" not in [app["name"] for app in client.call("GET", "/apps", 200)["items"]]
    client.call("PATCH", "/apps/pr-7-store", 409, json={"port": 1})
    # Forks: not unless allowed, and then without secrets.
    assert "fork" in hook.pull("opened", 8, first, head=2, expect=200)["ignored"]
    client.call("PATCH", "/apps/store", 200, json={"previews": "all"})
    forked = hook.pull("opened", 8, first, head=2)
    second = repository.push(telltale("two"), "fix")
    updated = hook.pull("synchronize", 7, second)
    client.live("pr-8-store", forked["deployment_id"])
    assert client.page("pr-8-store") == "one | open trial | open trial"
    client.live("pr-7-store", updated["deployment_id"])
    assert client.page("pr-7-store").startswith("two |")
    # The repository's host knows how it went, although it failed at first.
    context, address = "pandastack/store (preview)", client.url.replace("127.0.0.1", "pr-7-store.localhost")
    said = [(context, "pending", address), (context, "success", address)]
    wait_until("the host is told", lambda: host.of(second) == said, 60)
    assert host.told[0]["path"] == f"/api/repos/team/previewed/statuses/{first}"
    host.shutdown()
    # They outlive the server, and closing one ends it wholly and for good.
    machine = client.call("GET", "/apps/store/previews/7", 200)["sandbox_id"]
    kill(world[0], "control")
    wait_until("the server is back", lambda: answers(client, "/apps/store/previews/7"), 60)
    assert client.page("pr-7-store").startswith("two |")
    late = hook.pull("closed", 7, first, at="2026-01-01T00:00:00Z", expect=200)
    assert "newer" in late["ignored"], "it was opened again, or changed, after that"
    assert client.page("pr-7-store").startswith("two |")
    assert hook.pull("closed", 7, second, at="2026-02-01T00:00:00Z")["preview"] == "pr-7-store"
    wait_until("its machine is gone", lambda: client.http.get(f"/sandboxes/{machine}").status_code == 404, 60)
    wait_until("its rows are gone", lambda: client.http.get("/apps/pr-7-store").status_code == 404, 60)
    assert httpx.get(client.url + "/", headers={"host": "pr-7-store.localhost"}, timeout=60).status_code == 404
    assert "closed" in hook.pull("synchronize", 7, second, expect=200)["ignored"]
    assert [one["number"] for one in client.call("GET", "/apps/store/previews", 200)["items"]] == [8]
    # The rest goes with the app.
    machine = client.call("GET", "/apps/store/previews/8", 200)["sandbox_id"]
    client.call("DELETE", "/apps/store", 204)
    assert client.http.get("/apps/pr-8-store").status_code == 404
    assert client.http.get(f"/sandboxes/{machine}").status_code == 404


def answers(client: Client, path: str) -> bool:
    try:
        return client.http.get(path).status_code == 200
    except httpx.HTTPError:
        return False


def kill(platform: Platform, role: str) -> None:
    found = [pid for pid, line in command_lines().items() if f" {role}" in line and str(platform.data_dir) in line]
    assert found, f"no {role} of {platform.data_dir}"
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.parametrize("role", ["control", "agent"])
def test_a_killed_server_neither_loses_nor_hangs_a_deployment(world: Tuple[Platform, Path], client: Client, role: str) -> None:
    repository = Repository(world[1], f"crash-{role}.git")
    slow = {**node("crash"), "build.js": "setTimeout(() => require('fs').writeFileSync('built.txt', ''), 8000); console.log('began')"}
    repository.push(slow)
    app = f"crash-{role}"
    client.call("POST", "/apps", 201, json={"name": app, "git_url": repository.url})
    begun = client.call("POST", f"/apps/{app}/deploys", 202)["id"]
    wait_until("it builds", lambda: "began" in client.call("GET", f"/apps/{app}/deploys/{begun}", 200)["build_logs"], 200)
    kill(world[0], role)
    ended = client.ended(app, begun)
    assert ended["status"] == "live", ended["build_logs"]
    if role == "control":
        assert "begins again" in ended["build_logs"]
    assert client.page(app).startswith("crash")
