"""Details that E2B's own tests check: killed sandboxes, targets of links, metadata, forms of keys."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

import e2b_code_interpreter as interpreter
import httpx
import pytest

from conftest import RUN, wait_for
from test_e2b import API, TIMEOUT, create, e2b, feature


@pytest.fixture
def own_key() -> Iterator[str]:
    def token(*words: str) -> str:
        command = [os.environ["PANDASTACK_BIN"], "token", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    key = token("create", "--label", "e2b", "--format", "e2b")
    yield key
    token("delete", f"pds_{key[4:12]}")


def test_a_kill_ends_commands_and_code_with_its_reason() -> None:
    made = interpreter.Sandbox.create(timeout=TIMEOUT, metadata=RUN)
    made.commands.run("mkdir tree && touch tree/text && ln -s text tree/link")
    assert made.files.get_info("tree/link").symlink_target == "/home/user/tree/text"
    runs = threading.Event()
    program = "import time\nprint('runs', flush=True)\ntime.sleep(1000)"
    with ThreadPoolExecutor(2) as pool:
        try:
            command = pool.submit(made.commands.run("sleep 1000", background=True, timeout=0).wait)
            code = pool.submit(made.run_code, program, on_stdout=lambda _: runs.set(), timeout=TIMEOUT)
            assert runs.wait(TIMEOUT)
        finally:
            made.kill()
        for work, error in ((command, e2b.SandboxNotRunningException), (code, e2b.TimeoutException)):
            with pytest.raises(error, match="sandbox was killed"):
                work.result(60)


@feature(
    "files: metadata", "set by uploads, shown by `get_info`, `list` and `rename`; also as extended attributes"
)
def test_metadata_of_files_is_kept() -> None:
    with create() as made:
        author = {"author": "mish"}
        assert made.files.write("note", "1", metadata=author).metadata == author
        assert made.files.get_info("note").metadata == author
        assert [entry.metadata for entry in made.files.list(".") if entry.name == "note"] == [author]
        assert made.files.rename("note", "kept").metadata == author
        made.commands.run("python3 -c \"import os; os.setxattr('kept', 'user.e2b.by', b'hand')\"")
        assert made.files.get_info("kept").metadata == {**author, "by": "hand"}
        assert made.files.write("kept", "2").metadata is None
        assert made.files.get_info("kept").metadata is None


@feature("files.watch_dir: include_entry", "events with the entry of the file")
def test_watch_events_have_entries() -> None:
    with create() as made:
        made.files.make_dir("watched")
        watch = made.files.watch_dir("watched", include_entry=True, allow_network_mounts=True)
        made.files.write("watched/new", "12345")
        seen = []

        def written() -> bool:
            seen.extend(watch.get_new_events())
            return any(event.name == "new" and event.entry and event.entry.size == 5 for event in seen)

        wait_for("an event with its entry", written)
        watch.stop()


@feature("mask_request_host", "at create, with `${PORT}`")
def test_programs_see_the_host_that_the_creator_chose() -> None:
    server = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f"{self.headers['host']} {self.headers['x-forwarded-host']}".encode())
http.server.HTTPServer(("", 8123), Handler).serve_forever()
"""
    with create(network={"mask_request_host": "own.example:${PORT}"}) as made:
        made.files.write("server.py", server)
        made.commands.run("python3 server.py", background=True, timeout=0)
        host = made.get_host(8123)

        def answer() -> str:
            return httpx.get(API, headers={"Host": host}, timeout=60).text

        wait_for("the server in the sandbox", lambda: answer() == f"own.example:8123 {host}")
    with pytest.raises(e2b.SandboxException, match="must be a host name"):
        create(network={"mask_request_host": "a b"})


@feature("API keys", "also in E2B's form, `pandastack token create --format e2b`")
def test_keys_have_a_form_that_every_client_accepts(own_key: str) -> None:
    assert re.fullmatch("e2b_[0-9a-f]{40}", own_key)
    made = e2b.Sandbox.create("base", timeout=TIMEOUT, metadata=RUN, api_key=own_key, validate_api_key=True)
    try:
        assert made.commands.run("echo 1", timeout=TIMEOUT).stdout == "1\n"
    finally:
        made.kill()
    last = "1" if own_key[-1] == "0" else "0"
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create("base", metadata=RUN, api_key=own_key[:-1] + last)
