"""The npm and PyPI registries, as machines of a platform under test reach them.

Machines know nothing of how this host gets to a registry: names, proxies, certificates. So a relay answers in the small
internet and asks for them what this host's own npm and pip would ask. What it relays is as the registry has it, but for
addresses of further files, which lead through the relay again. Packages never change, so they are kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Dict, Tuple

import httpx
from internet import NAMESPACE, SERVER

PORT = 8600
BASE = f"http://{SERVER}:{PORT}/at"
CACHE = Path(os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack")) / "registry-packages"
PACKAGE = re.compile(r"\.(tgz|whl|tar\.gz|zip)$")
#: Addresses of packages in what registries say of them: npm's JSON, PyPI's pages and JSON.
ADDRESS = re.compile(rb'("tarball": ?"|"url": ?"|href=")(https?)://([^/"]+)')

#: Listens in the namespace and hands the socket over: the relay itself stays where the registries can be reached.
LISTEN = """
import socket, sys
listening = socket.create_server(("0.0.0.0", int(sys.argv[1])))
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"."], [listening.fileno()])
"""


def listen_in(namespace: str, port: int) -> socket.socket:
    """A socket of this process that listens in a network namespace."""
    ours, theirs = socket.socketpair()
    words = ["ip", "netns", "exec", namespace, sys.executable, "-c", LISTEN, str(port), str(theirs.fileno())]
    with ours, theirs:
        subprocess.run(words, pass_fds=[theirs.fileno()], check=True)
        _, (listening,), _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=listening)


def said(words: Tuple[str, ...], default: str) -> str:
    """Output of a program of this host, if it is installed and prints something."""
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 and done.stdout.startswith("http") else default


def relayed(url: str) -> str:
    scheme, rest = url.rstrip("/").split("://", 1)
    return f"{BASE}/{scheme}/{rest}/"


def variables() -> Dict[str, str]:
    """Variables by which npm and pip ask the relay."""
    npm = said(("npm", "config", "get", "registry"), "https://registry.npmjs.org/")
    pypi = said((sys.executable, "-m", "pip", "config", "get", "global.index-url"), "https://pypi.org/simple/")
    return {"npm_config_registry": relayed(npm), "PIP_INDEX_URL": relayed(pypi), "PIP_TRUSTED_HOST": SERVER}


#: Connections are kept: an install asks for hundreds of small things.
UPSTREAM = httpx.Client(verify=ssl.create_default_context(), follow_redirects=True, timeout=120)


def get(url: str, accept: str) -> Tuple[int, str, bytes]:
    """Status, kind and content."""
    kept = CACHE / hashlib.sha256(url.encode()).hexdigest()
    is_package = PACKAGE.search(url) is not None
    if is_package and kept.exists():
        return 200, "application/octet-stream", kept.read_bytes()
    answer = UPSTREAM.get(url, headers={"accept": accept})
    kind, content = answer.headers.get("content-type", "application/octet-stream"), answer.content
    if is_package and answer.status_code == 200:
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{threading.get_ident()}")
        partial.write_bytes(content)
        partial.rename(kept)
        return 200, kind, content
    return answer.status_code, kind, ADDRESS.sub(rb"\1" + BASE.encode() + rb"/\2/\3", content)


class Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        scheme, _, rest = self.path.removeprefix("/at/").partition("/")
        status, kind, content = get(f"{scheme}://{rest}", self.headers.get("accept", "*/*"))
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Registries:
    """`with Registries() as variables:` machines that have these install packages."""

    def __enter__(self) -> Dict[str, str]:
        self.server = ThreadingHTTPServer((SERVER, PORT), Relay, bind_and_activate=False)
        self.server.socket.close()
        self.server.socket = listen_in(NAMESPACE, PORT)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return variables()

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
