"""Repositories that a platform's machines reach, and the API of apps as tests call it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict

import httpx
from internet import NAMESPACE, SERVER as HOST, InternetInABox
from platform_process import Platform, wait_until

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

class GitServer:
    """`with GitServer() as root:` bare repositories below `root` are at `http://HOST:8418/name`."""

    def __enter__(self) -> Path:
        self.directory = tempfile.TemporaryDirectory(prefix="pandastack-e2e-git-")
        root = self.directory.name
        words = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", GIT_SERVER, root]
        self.server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": root})
        assert self.server.stdout is not None and self.server.stdout.readline() == "ready\n"
        return Path(root)

    def __exit__(self, *_: object) -> None:
        self.server.kill()
        self.server.wait()
        self.directory.cleanup()


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
            (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
            (self.clone / name).write_text(text)
        self.git("add", "-A", at=self.clone)
        self.git("commit", "-q", "--allow-empty", "-m", "change", at=self.clone)
        self.git("push", "-q", "-f", str(self.bare), f"HEAD:{branch}", at=self.clone)
        return self.git("rev-parse", "HEAD", at=self.clone)

    def add_submodule(self, path: str, bare: Path, url: str) -> None:
        """Puts another repository at a path; clients that fetch it see this address."""
        self.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(bare), path, at=self.clone)
        self.git("config", "-f", ".gitmodules", f"submodule.{path}.url", url, at=self.clone)


class Client:
    def __init__(self, platform: Platform) -> None:
        config = json.loads(platform.config_path().read_text())
        self.url = config["api_url"]
        self.http = httpx.Client(base_url=self.url + "/v1", headers={"authorization": f"Bearer {config['token']}"}, timeout=200)

    def call(self, method: str, path: str, expect: int, **more: Any) -> Any:
        answer = self.http.request(method, path, **more)
        assert answer.status_code == expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def ended(self, app: str, deployment: str, seconds_max: float = 400) -> Dict[str, Any]:
        def over() -> Any:
            try:
                found = self.call("GET", f"/apps/{app}/deploys/{deployment}", 200)
            except httpx.HTTPError:
                return None
            return found if found["status"] not in ("queued", "building", "deploying") else None

        found: Dict[str, Any] = wait_until("the deployment is over", over, seconds_max)  # type: ignore[assignment]
        return found

    def live(self, app: str, deployment: str, seconds_max: float = 400) -> Dict[str, Any]:
        found = self.ended(app, deployment, seconds_max)
        assert found["status"] == "live", found["build_logs"]
        return found

    def page(self, app: str, path: str = "/") -> str:
        answer = httpx.get(self.url + path, headers={"host": f"{app}.localhost"}, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.text

    def tell_push(self, app: str, secret: str, commit: str) -> Dict[str, Any]:
        """Delivers what GitHub would of a push to main."""
        body = json.dumps({"ref": "refs/heads/main", "after": commit}).encode()
        proof = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {"x-github-event": "push", "x-github-delivery": commit, "x-hub-signature-256": proof}
        told = httpx.post(self.call("GET", f"/apps/{app}", 200)["webhook_url"], content=body, headers=headers, timeout=60)
        assert told.status_code in (200, 202), told.text
        answer: Dict[str, Any] = told.json()
        return answer


def prove_domain(internet: InternetInABox, app: Callable[..., str], client: Client, name: str, domain: str) -> None:
    """Adds a domain, which leads nowhere until the record is there that only its owner can make."""
    added = json.loads(app("domains", "add", name, domain, "--json"))
    assert added["status"] == "pending" and "was not found" in added["dns_note"], added
    assert httpx.get(client.url + "/", headers={"host": domain}, timeout=60).status_code == 404
    proof = {record["type"]: record for record in added["records"]}["TXT"]
    internet.publish_text(proof["name"], "pandastack-domain=of-somebody-else")
    assert json.loads(app("domains", "add", name, domain, "--json"))["status"] == "pending"
    internet.publish_text(proof["name"], proof["value"])
    assert json.loads(app("domains", "add", name, domain, "--json"))["status"] == "active"
    assert domain in app("domains", "list", name)
