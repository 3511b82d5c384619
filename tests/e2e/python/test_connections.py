"""Connections of a sandbox to the outside, after it is copied."""

from __future__ import annotations

import os
import select
import subprocess
from typing import Iterator

import pytest

from pandastack import Sandbox

from conftest import PATIENCE_SECONDS, wait_for

#: Once those of 6to4 relays: of the internet for a sandbox's rules, and nobody's today.
HOST, WORLD, PORT = "192.88.99.1", "192.88.99.2", 9000

#: Accepts one connection, says so, and passes on what it is told.
SERVER = f"""
import socket, sys
server = socket.create_server(("{WORLD}", {PORT}))
print("listening", flush=True)
peer, _ = server.accept()
print("accepted", flush=True)
for line in sys.stdin:
    peer.sendall(line.encode())
"""

#: Connects, waits for an answer, and keeps a file that says how far it is.
CLIENT = f"""
import socket
def say(text):
    with open("/dev/shm/said", "w") as file:
        file.write(text)
peer = socket.create_connection(("{WORLD}", {PORT}))
say("connected")
try:
    say(peer.recv(100).decode() or "closed")
except OSError as error:
    say(type(error).__name__)
"""


@pytest.fixture()
def world() -> Iterator["subprocess.Popen[str]"]:
    """A server on the far side of the host, in a network of its own."""
    if os.geteuid() != 0:
        pytest.skip("making a network namespace needs root")
    name, link = f"pdsw{os.getpid()}", f"pdsw{os.getpid()}"[:13]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", f"{link}a", "type", "veth", "peer", "name", "world0", "netns", name)
        ip("address", "add", f"{HOST}/30", "dev", f"{link}a")
        ip("link", "set", f"{link}a", "up")
        ip("-n", name, "address", "add", f"{WORLD}/30", "dev", "world0")
        ip("-n", name, "link", "set", "world0", "up")
        ip("-n", name, "route", "add", "default", "via", HOST)
        command = ["ip", "netns", "exec", name, "python3", "-c", SERVER]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert line_of(server) == "listening"
                yield server
            finally:
                server.kill()
    finally:
        ip("netns", "delete", name)


def line_of(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], PATIENCE_SECONDS)
    assert ready, "the server has nothing to say"
    return server.stdout.readline().strip()


def said(sandbox: Sandbox) -> str:
    return sandbox.exec("cat /dev/shm/said 2>/dev/null || true").stdout


def test_a_fork_does_not_inherit_open_connections(own: Sandbox, world: "subprocess.Popen[str]") -> None:
    own.filesystem.write("/tmp/client.py", CLIENT)
    own.exec("setsid python3 /tmp/client.py > /dev/null 2>&1 < /dev/null &", check=True)
    assert line_of(world) == "accepted"
    wait_for("the client knows that it is connected", lambda: said(own) == "connected")

    child = own.fork()
    wait_for("the child's copy is reset", lambda: said(child) == "ConnectionAbortedError")

    assert said(own) == "connected"
    assert world.stdin is not None
    world.stdin.write("still there\n")
    world.stdin.flush()
    wait_for("the parent's connection works", lambda: said(own).strip() == "still there")
    child.delete()
