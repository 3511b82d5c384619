"""Processes by id on a real machine: output by offset, input, signals, limits, terminals, WebSockets."""

from __future__ import annotations

import base64
import json
import os
import pty
import select
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List

import httpx
import pytest

from pandastack import BadRequestError, NotFoundError, PandaStack, Process, Sandbox, SandboxTimeout

from conftest import RUN, error_body, wait_for
from websocket import WebSocket, connect


def test_background_process_is_listed_and_ends(shared: Sandbox) -> None:
    process = shared.start("echo out; echo err >&2; read line; exit 7", stdin_open=True, tag="mine")
    listed = {found.id: found.info for found in shared.processes()}
    assert listed[process.id].tag == "mine" and listed[process.id].state == "running"
    assert not any("warm" in (info.tag or "") for info in listed.values()), "the template's own are not shown"
    process.write("go\n")
    assert process.wait() == 7
    out: List[str] = []
    err: List[str] = []
    assert process.wait(on_stdout=out.append, on_stderr=err.append) == 7
    assert ("".join(out), "".join(err)) == ("out\n", "err\n")
    with pytest.raises(NotFoundError):
        shared.process(999_999)


def test_stdin_with_eof_works_in_every_kind_of_call(shared: Sandbox) -> None:
    text = "grüße\n" * 30_000
    assert shared.exec("cat", stdin=text, timeout_seconds=60).stdout == text
    assert shared.exec("head -c 4", stdin=text).stdout == "grü"
    assert "".join(chunk.text for chunk in shared.exec_stream("cat", stdin=text, timeout_seconds=60)) == text
    process = shared.start("wc -c", stdin_open=True)
    for _ in range(3):
        process.write(b"\x00\xff" * 1000)
    process.close_stdin()
    assert "".join(chunk.text for chunk in process.output()).strip() == "6000"
    with pytest.raises(BadRequestError):
        process.write("late")


def events(raw: httpx.Client, path: str, **options: Any) -> Iterator[Dict[str, Any]]:
    with raw.stream("GET", path, **options) as response:
        assert response.status_code == 200, response.read()
        event: Dict[str, Any] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name] = value
            elif event.get("data"):
                yield {**event, **json.loads(event["data"])}
                event = {}


def test_output_resumes_at_any_offset_and_by_last_event_id(own: Sandbox, raw: httpx.Client) -> None:
    process = own.start("printf 'a€\\377z'; printf E >&2; exit 4")
    assert process.wait() == 4
    path = f"/sandboxes/{own.id}/processes/{process.id}/output"
    whole = b"a\xe2\x82\xac\xffz"
    for offset in range(len(whole) + 1):
        params = {"stdout_offset": offset, "encoding": "base64"}
        seen = [event for event in events(raw, path, params=params)]
        data = b"".join(base64.b64decode(event["data"]) for event in seen if event["event"] == "stdout")
        assert data == whole[offset:]
        assert seen[-1]["event"] == "exit" and seen[-1]["exit_code"] == 4 and seen[-1]["id"] == f"{len(whole)}-1"
    (last,) = events(raw, path, headers={"Last-Event-ID": f"{len(whole)}-1"})
    assert last["event"] == "exit"
    for bad in ({"params": {"stdout_offset": 99}}, {"headers": {"Last-Event-ID": "x"}}, {"params": {"encoding": "x"}}):
        assert error_body(raw.get(path, **bad))["code"] == "bad_request"


def test_discarded_output_is_reported_as_a_gap(own: Sandbox) -> None:
    process = own.start("head -c 3000000 /dev/zero | tr '\\0' x")
    assert process.wait() == 0
    stream = process.output()
    text = "".join(chunk.text for chunk in stream)
    (gap,) = stream.gaps
    assert gap.first == 0 and gap.end + len(text) == 3_000_000 and len(text) == 1024 * 1024


def test_signals_reach_the_process_and_kill_ends_its_whole_tree(own: Sandbox) -> None:
    process = own.start("trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done")
    stream = iter(process.output())
    assert next(stream).text == "ready\n"
    process.signal("INT")
    assert "".join(chunk.text for chunk in stream) == "caught\n" and process.wait() == 5
    hidden = own.start("trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 4321' &); sleep 4321")
    wait_for("both run", lambda: own.exec("pgrep -fc '^sleep 4321'").stdout.strip() == "2")
    hidden.kill()
    assert hidden.wait() == 137
    wait_for("none is left", lambda: own.exec("pgrep -fx 'sleep 4321' || echo none").stdout == "none\n")


def test_a_timeout_kills_detached_and_signal_ignoring_processes(own: Sandbox) -> None:
    hiding = "trap '' TERM INT HUP; (setsid sh -c '(trap \"\" TERM; sleep 5432) & sleep 5432' &); sleep 5432"
    with pytest.raises(SandboxTimeout):
        own.exec(hiding, timeout_seconds=2)
    process = own.start(hiding, timeout_seconds=2)
    with pytest.raises(SandboxTimeout):
        process.wait(on_stdout=print)
    assert process.refresh().info.timed_out
    wait_for("none is left", lambda: own.exec("pgrep -fx 'sleep 5432' || echo none").stdout == "none\n")


def test_process_limits_are_enforced(own: Sandbox) -> None:
    hungry = own.exec("head -c 200m /dev/zero | tail | wc -c", limits={"memory_mb": 24}, timeout_seconds=120)
    assert hungry.exit_code != 0
    forking = own.exec("for i in 1 2 3 4 5 6; do sleep 1 & done; wait", limits={"pids": 3}, timeout_seconds=60)
    assert "fork" in forking.stderr.lower()
    busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; cut -d' ' -f1 /proc/uptime"
    free, slow = (own.exec(busy, limits=limits, timeout_seconds=120) for limits in (None, {"cpu": 0.1}))
    assert slow.duration_ms > 2 * free.duration_ms, (free, slow)
    with pytest.raises(BadRequestError):
        own.exec("true", limits={"cpu": 0})
    assert own.exec("echo alive").stdout == "alive\n"


def test_a_busy_guest_still_responds(own: Sandbox) -> None:
    loops = [own.start("while :; do :; done") for _ in range(6)]
    wait_for("they run", lambda: all(found.info.duration_ms > 500 for found in own.processes()[-6:]))
    began = time.monotonic()
    for _ in range(5):
        assert own.exec("echo here", timeout_seconds=60).stdout == "here\n"
        assert len(own.processes()) >= 6
    assert time.monotonic() - began < 60
    for loop in loops:
        loop.kill()
    assert [loop.wait() for loop in loops] == [137] * 6


@pytest.fixture
def explained(own: Sandbox) -> Iterator[None]:
    """Of a test that waits for what a terminal says: if it waits for long, what the machine and its processes do is printed."""
    def explain() -> None:
        print([process.info for process in own.processes()])
        print(own.exec("ps -eo pid,ppid,pgid,tpgid,stat,wchan:24,tty,time,args", timeout_seconds=60))

    explains = threading.Timer(60, explain)
    explains.start()
    yield
    explains.cancel()


def read_until(stream: Any, wanted: str, seen: str = "") -> str:
    for chunk in stream:
        seen += chunk.text
        if wanted in seen:
            return seen
    raise AssertionError(f"{wanted!r} is not in {seen!r}")


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("explained")
def test_concurrent_terminals_keep_their_own_sizes(own: Sandbox) -> None:
    def session(number: int) -> str:
        terminal = own.start("bash --norc", pty=(20 + number, 70 + number))
        terminal.write(f"stty size; echo term=$TERM; tty\r")
        stream = iter(terminal.output())
        seen = read_until(stream, "/dev/pts/")
        assert f"{20 + number} {70 + number}" in seen and "term=xterm-256color" in seen
        terminal.resize(50, 132)
        terminal.write("stty size; exit 9\r")
        seen = read_until(stream, "50 132", seen)
        assert terminal.wait() == 9
        return seen

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(session, range(3)))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("explained")
def test_a_terminal_can_be_reattached(own: Sandbox) -> None:
    terminal = own.start(pty=(24, 80), user="user")
    assert terminal.info.is_terminal
    terminal.write("echo fir''st; id -un\r")
    stream = terminal.output()
    first = read_until(iter(stream), "first")
    offset = stream.offsets[0]
    stream.close()
    terminal.write("echo sec''ond; exit\r")
    again = own.process(terminal.id)
    rest = "".join(chunk.text for chunk in again.output(stdout_offset=offset))
    assert "second" in rest and "first" not in rest.replace(first, "")
    assert "".join(chunk.text for chunk in again.output()) == first + rest


@pytest.fixture
def socket_of(raw: httpx.Client) -> Any:
    opened: List[WebSocket] = []

    def opener(path: str) -> WebSocket:
        opened.append(connect(os.environ["PANDASTACK_API"], f"/v1{path}", os.environ["PANDASTACK_API_KEY"]))
        return opened[-1]

    yield opener
    for socket in opened:
        socket.close()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("explained")
def test_terminal_on_a_websocket(own: Sandbox, socket_of: Any) -> None:
    socket = socket_of(f"/sandboxes/{own.id}/exec/pty?rows=33&cols=99")
    hello = json.loads(socket.receive())
    socket.send(b"stty size; echo mar''ker\r")
    seen = b""
    while b"marker" not in seen:
        seen += socket.receive()
    assert b"33 99" in seen and hello["offset"] == 0
    socket.close()
    again = socket_of(f"/sandboxes/{own.id}/exec/pty?process={hello['process']}&offset={len(seen)}")
    assert json.loads(again.receive()) == {"process": hello["process"], "offset": len(seen)}
    again.send('{"resize":{"rows":40,"cols":120}}')
    again.send('{"stdin":"stty size; exit 6\\r"}')
    rest, last = b"", None
    for message in again:
        if isinstance(message, str):
            last = json.loads(message)
        else:
            rest += message
    assert b"40 120" in rest and b"marker" not in rest
    assert last is not None and last["exit"] == 6 and again.close_code == 1000


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("explained")
def test_a_raw_terminal_carries_only_bytes_and_hangs_up_on_close(own: Sandbox, socket_of: Any) -> None:
    socket = socket_of(f"/sandboxes/{own.id}/ssh")
    socket.send(b"echo mar''ker\r")
    seen = b""
    while b"marker" not in seen:
        message = socket.receive()
        assert isinstance(message, bytes)
        seen += message
    shells = [found.id for found in own.processes() if found.info.is_terminal]
    socket.close()
    wait_for("the shell is hung up", lambda: all(own.process(shell).info.state == "exited" for shell in shells))


def test_many_commands_on_one_websocket(own: Sandbox, socket_of: Any) -> None:
    socket = socket_of(f"/sandboxes/{own.id}/exec/ws")
    for number in range(20):
        socket.send(json.dumps({"id": f"c{number}", "cmd": f"seq {number} {number + 50}; exit {number}"}))
    socket.send(json.dumps({"id": "cat", "cmd": "cat; exit 33", "stdin_open": True}))
    socket.send(json.dumps({"id": "bad", "cmd": ""}))
    socket.send("nonsense")
    output: Dict[str, str] = {}
    exits: Dict[str, int] = {}
    errors: Dict[str, str] = {}
    while len(exits) < 21:
        message = json.loads(socket.receive())
        if "process" in message and message["id"] == "cat":
            socket.send('{"id":"cat","stdin":"over the wire"}')
            socket.send('{"id":"cat","eof":true}')
        if "data" in message:
            assert message["offset"] == len(output.get(message["id"], ""))
            output[message["id"]] = output.get(message["id"], "") + message["data"]
        if "exit" in message:
            exits[message["id"]] = message["exit"]
        if "error" in message:
            errors[message["id"]] = message["code"]
    for number in range(20):
        assert output[f"c{number}"] == "".join(f"{line}\n" for line in range(number, number + 51))
        assert exits[f"c{number}"] == number
    assert (output["cat"], exits["cat"]) == ("over the wire", 33)
    assert errors == {"bad": "bad_request", "": "bad_request"}


def test_websocket_limits(own: Sandbox, socket_of: Any) -> None:
    socket = socket_of(f"/sandboxes/{own.id}/exec/ws")
    for number in range(65):
        socket.send(json.dumps({"id": str(number), "cmd": "sleep 1000"}))
    messages = [json.loads(socket.receive()) for _ in range(65)]
    refused = [message for message in messages if "error" in message]
    assert [(message["id"], message["code"]) for message in refused] == [("64", "no_capacity")]
    socket.send('{"id":"0","cancel":true}')
    ended = json.loads(socket.receive())
    assert (ended["id"], ended["exit"], ended["signal"]) == ("0", 137, 9)
    socket.send("x" * (1024 * 1024 + 1))
    with pytest.raises((AssertionError, ConnectionError)):
        socket.receive()
    wait_for("all are killed", lambda: own.exec("pgrep -fxc 'sleep 1000'").stdout == "0\n")


def test_commands_end_with_their_websocket_unless_kept(own: Sandbox, socket_of: Any) -> None:
    socket = socket_of(f"/sandboxes/{own.id}/exec/ws")
    socket.send('{"id":"a","cmd":"sleep 1000"}')
    socket.send('{"id":"b","cmd":"sleep 1000","keep":true}')
    started = {message["id"]: message["process"] for message in (json.loads(socket.receive()) for _ in range(2))}
    socket.close()
    assert own.process(started["a"]).wait() == 137
    kept: Process = own.process(started["b"])
    assert kept.info.state == "running"
    kept.kill()


def test_sandbox_shell_opens_an_interactive_shell(shared: Sandbox) -> None:
    screen, keyboard = pty.openpty()
    words = [os.environ["PANDASTACK_BIN"], "sandbox", "shell", shared.id, "--cwd", "/usr/lib"]
    with subprocess.Popen(words, stdin=keyboard, stdout=keyboard, stderr=subprocess.PIPE, text=True) as shell:
        os.close(keyboard)
        try:
            os.write(screen, b"echo $((6 * 7)) $PWD; test -t 0 && exit 3\n")
            seen = ""
            while select.select([screen], [], [], 60)[0]:
                try:
                    seen += os.read(screen, 4096).decode()
                except OSError:
                    # The other end is closed.
                    break
            assert shell.wait(timeout=60) == 3, f"{seen!r} {shell.stderr.read() if shell.stderr else None}"
            assert "42 /usr/lib" in seen
        finally:
            shell.kill()
            os.close(screen)


def test_invalid_process_requests_return_errors(shared: Sandbox, raw: httpx.Client) -> None:
    assert "WebSocket" in error_body(raw.get(f"/sandboxes/{shared.id}/exec/ws"))["error"]
    missing = raw.get(f"/sandboxes/{shared.id}/processes/nonsense")
    assert missing.status_code == 404 and error_body(missing)["code"] == "not_found"
    bad = raw.post(f"/sandboxes/{shared.id}/processes/1/signal", json={"signal": "NOPE"})
    assert error_body(bad)["code"] == "bad_request"


def test_processes_keep_running_in_a_fork(client: PandaStack, own: Sandbox) -> None:
    process = own.start("i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.02; done")
    next(iter(process.output()))
    with own.fork(metadata=RUN) as child:
        expected = "".join(f"{line}\n" for line in range(40))
        for sandbox in (own, child):
            assert "".join(chunk.text for chunk in sandbox.process(process.id).output()) == expected
