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
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

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
        running = Platform("pdsg", "10.222.0.0/16", "--warm", "base", "--resolver", RESOLVER)
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
