"""The server of static apps, by itself: a program that is put into their machines and speaks HTTP from sockets up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, Tuple

import httpx
import pytest

from conftest import wait_for

PROGRAM = Path(__file__).parents[3] / "crates/pandastack-apps/src/static_server.py"
LARGE = os.urandom(3_000_000)
#: Whether the name stands for the content.
CACHED = {
    "assets/app-D-9_Obiv.js": True, "assets/main.3f2a9c1b.css": True, "main.3f2a9c1b.css": False, "assets/my-component.js": False,
    "assets/logo-2x.png": False, "assets/img-001.png": False, "assets/shot-2024-01-15.png": False, "assets/app-v2.js": False,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(root: Path, single_page: bool) -> Tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    env = {"STATIC_ROOT": str(root), "STATIC_SINGLE_PAGE": "1" if single_page else "0", "PORT": str(port)}
    program = subprocess.Popen([sys.executable, "-I", "-S", str(PROGRAM)], env=env)
    wait_for("the server listens", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    return program, port


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("static")
    (made / "site/sub dir").mkdir(parents=True)
    (made / "site/assets").mkdir()
    (made / "secret.txt").write_text("not yours")
    site = made / "site"
    for name, text in {
        "index.html": "home", "about.html": "about", "404.html": "nothing here", "empty.txt": "", "sub dir/index.html": "sub",
        "ü.txt": "umlaut", ".env": "TOKEN=s3cret", ".env.html": "s3cret", ".git/config": "s3cret", "sub dir/.htpasswd": "s3cret",
        ".well-known/security.txt": "write to us", ".well-known/.env": "s3cret", **{name: "x" for name in CACHED},
    }.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    (site / "large.bin").write_bytes(LARGE)
    (site / "way-out").symlink_to(made / "secret.txt")
    return site


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[int]:
    program, port = start(root, single_page=False)
    yield port
    program.kill()
    program.wait()


def raw(port: int, request: bytes, pieces: int = 1) -> bytes:
    """Everything that comes back, for a request sent in that many pieces."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(request) // pieces)
        for begin in range(0, len(request), size):
            connection.sendall(request[begin : begin + size])
        received = b""
        try:
            while more := connection.recv(65536):
                received += more
        except ConnectionResetError:
            pass  # The client closed before it had read everything.
        return received


@pytest.mark.parametrize(
    "path, status, text, kind",
    [
        ("/", 200, "home", "text/html; charset=utf-8"),
        ("/about", 200, "about", "text/html; charset=utf-8"),
        ("/about.html?x=1", 200, "about", "text/html; charset=utf-8"),
        ("/sub%20dir/", 200, "sub", "text/html; charset=utf-8"),
        ("/%C3%BC.txt", 200, "umlaut", "text/plain; charset=utf-8"),
        ("/empty.txt", 200, "", "text/plain; charset=utf-8"),
        ("/.well-known/security.txt", 200, "write to us", "text/plain; charset=utf-8"),
        ("/.env", 404, "nothing here", "text/html; charset=utf-8"),
        ("/%2eenv", 404, "nothing here", "text/html; charset=utf-8"),
        ("//.env", 404, "nothing here", "text/html; charset=utf-8"),
        ("/.git/config", 404, "nothing here", "text/html; charset=utf-8"),
        ("/sub%20dir/.htpasswd", 404, "nothing here", "text/html; charset=utf-8"),
        ("/.well-known/.env", 404, "nothing here", "text/html; charset=utf-8"),
        ("/nowhere", 404, "nothing here", "text/html; charset=utf-8"),
        ("/way-out", 404, "nothing here", "text/html; charset=utf-8"),
        ("/%2e%2e/secret.txt", 404, "nothing here", "text/html; charset=utf-8"),
        ("/a%00b", 404, "nothing here", "text/html; charset=utf-8"),
        ("/go/https://x.example/about", 404, "nothing here", "text/html; charset=utf-8"),
        ("/%zz", 404, "nothing here", "text/html; charset=utf-8"),
        ("/" + "a" * 9000, 404, "nothing here", "text/html; charset=utf-8"),
    ],
)
def test_request_paths_map_to_files(server: int, path: str, status: int, text: str, kind: str) -> None:
    answer = httpx.get(f"http://127.0.0.1:{server}{path}")
    assert (answer.status_code, answer.text, answer.headers["content-type"]) == (status, text, kind)
    head = httpx.head(f"http://127.0.0.1:{server}{path}")
    assert (head.status_code, head.content) == (status, b"")
    assert head.headers["content-length"] == str(len(text.encode()))


def test_paths_cannot_escape_the_directory(server: int) -> None:
    for target in (b"/../secret.txt", b"/sub%20dir/../../secret.txt", b"//../secret.txt", b"http://x/../secret.txt"):
        answer = raw(server, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404") and b"not yours" not in answer, target


@pytest.mark.parametrize("name, immutable", CACHED.items())
def test_hashed_files_are_cached_as_immutable_and_others_revalidated(server: int, name: str, immutable: bool) -> None:
    cache = httpx.get(f"http://127.0.0.1:{server}/{name}").headers["cache-control"]
    assert ("immutable" in cache, "must-revalidate" in cache) == (immutable, not immutable)


def test_unchanged_pages_return_not_modified(server: int, root: Path) -> None:
    url = f"http://127.0.0.1:{server}/about"
    tag = httpx.get(url).headers["etag"]
    again = httpx.get(url, headers={"if-none-match": f'W/"x", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    # Another content of the same length and time, as archives with one time for all files have it.
    file = root / "about.html"
    times = file.stat()
    file.write_text("ABOUT")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = httpx.get(url, headers={"if-none-match": tag})
    assert (changed.status_code, changed.text) == (200, "ABOUT")
    file.write_text("about")


@pytest.mark.parametrize(
    "headers, status, first, last",
    [
        ({}, 200, 0, len(LARGE)),
        ({"range": "bytes=10-19"}, 206, 10, 20),
        ({"range": "bytes=2999990-"}, 206, 2999990, len(LARGE)),
        ({"range": "bytes=-7"}, 206, len(LARGE) - 7, len(LARGE)),
        ({"range": "bytes=5-99999999"}, 206, 5, len(LARGE)),
        ({"range": "bytes=3000000-"}, 416, 0, 0),
        ({"range": "bytes=9-3"}, 416, 0, 0),
        ({"range": "bytes=0-1,5-6"}, 200, 0, len(LARGE)),
        ({"range": "lines=1-2"}, 200, 0, len(LARGE)),
        ({"range": "bytes=" + "9" * 5000 + "-"}, 200, 0, len(LARGE)),
        ({"range": "bytes=1-2", "if-range": '"other"'}, 200, 0, len(LARGE)),
    ],
)
def test_ranges_are_served(server: int, headers: Dict[str, str], status: int, first: int, last: int) -> None:
    answer = httpx.get(f"http://127.0.0.1:{server}/large.bin", headers=headers)
    assert (answer.status_code, answer.content == LARGE[first:last]) == (status, True)
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {first}-{last - 1}/{len(LARGE)}"


def test_a_connection_serves_pipelined_requests(server: int) -> None:
    one = b"GET /about HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    request = one * 3 + last
    for pieces in (1, 2, 7, len(request)):
        answer = raw(server, request, pieces)
        assert (answer.count(b"HTTP/1.1 200 OK"), answer.count(b"about"), answer.endswith(b"home")) == (4, 3, True)


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nname : x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000, b"431"),
        # Bytes after a body are never taken for a request.
        (b"GET / HTTP/1.1\r\nContent-Length: 40\r\n\r\nGET /about HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /about HTTP/1.1\r\n\r\n", b"200"),
    ],
)
def test_invalid_requests_close_the_connection(server: int, request_bytes: bytes, status: bytes) -> None:
    answer = raw(server, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status) and b"Connection: close" in answer, answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1 and b"about" not in answer


def test_a_single_page_app_is_served_for_every_path(root: Path) -> None:
    program, port = start(root, single_page=True)
    try:
        assert httpx.get(f"http://127.0.0.1:{port}/users/7").text == "home"
        assert httpx.get(f"http://127.0.0.1:{port}/about").text == "about"
        hidden = httpx.get(f"http://127.0.0.1:{port}/.env")
        assert (hidden.status_code, hidden.text) == (404, "nothing here"), "its page is no answer either"
    finally:
        program.kill()
        program.wait()
