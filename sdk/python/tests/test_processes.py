"""Processes by id, and streams that are taken up where they broke."""

from __future__ import annotations

import pytest

from pandastack import BadRequestError, ExecInterrupted, NotFoundError, SandboxTimeout

STREAM = "/v1/sandboxes/s1/exec/stream"
PROCESSES = "/v1/sandboxes/s1/processes"
OUTPUT = f"{PROCESSES}/7/output"
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-PandaStack-Process": "7"}
RECORD = {"id": 7, "pid": 99, "command": "cat", "state": "running", "stdin_offset": 0}


def out(text: str, end: int, stream: str = "stdout") -> bytes:
    return b'id: x\nevent: %s\ndata: {"chunk":"%s","end":%d}\n\n' % (stream.encode(), text.encode(), end)


EXIT = b'event: exit\ndata: {"exit_code":3}\n\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("pandastack._reconnect.DELAY_SECONDS_MIN", 0.001)


@pytest.mark.parametrize("drop", [False, True])
def test_a_broken_stream_resumes_at_its_offset(server, sandbox, drop):
    server.on("POST", STREAM, 200, chunks=[out("one", 3), out("e", 1, "stderr")], drop=drop, headers=HEADERS)
    server.on("GET", OUTPUT, 503, {"error": "host is away", "code": "host_unreachable"})
    server.on("GET", OUTPUT, 200, chunks=[out("two", 6)], drop=True, headers=HEADERS)
    server.on("GET", OUTPUT, 200, chunks=[out("three", 11), EXIT], headers=HEADERS)
    stream = sandbox.exec_stream("make")
    assert "".join(chunk.text for chunk in stream if chunk.stream == "stdout") == "onetwothree"
    assert (stream.exit_code, stream.process_id, stream.offsets) == (3, 7, (11, 1))
    asked = [(r.query["stdout_offset"], r.query["stderr_offset"]) for r in server.sent("GET", OUTPUT)]
    assert asked == [("3", "1"), ("3", "1"), ("6", "1")]


def test_failed_reconnection_raises_exec_interrupted(server, sandbox, monkeypatch):
    monkeypatch.setattr("pandastack._reconnect.RECONNECT_SECONDS_MAX", 0.01)
    server.on("POST", STREAM, 200, chunks=[out("one", 3)], drop=True, headers=HEADERS)
    server.on("GET", OUTPUT, 502, {"error": "still away", "code": "guest_unavailable"})
    with pytest.raises(ExecInterrupted, match="still away") as caught:
        list(sandbox.exec_stream("make"))
    assert caught.value.partial_stdout == "one"


def test_a_stream_of_a_missing_process_fails_without_retries(server, sandbox):
    server.on("POST", STREAM, 200, chunks=[out("one", 3)], drop=True, headers=HEADERS)
    server.on("GET", OUTPUT, 404, {"error": "no such process", "code": "not_found"})
    with pytest.raises(NotFoundError):
        list(sandbox.exec_stream("make"))
    assert len(server.sent("GET", OUTPUT)) == 1


def test_output_gaps_and_timeouts_are_reported(server, sandbox):
    server.on("GET", f"{PROCESSES}/7", 200, RECORD)
    gap = b'event: gap\ndata: {"stream":"stdout","from":5,"to":50}\n\n'
    late = b'event: exit\ndata: {"exit_code":137,"timed_out":true}\n\n'
    server.on("GET", OUTPUT, 200, chunks=[gap, out("x", 51), late], headers=HEADERS)
    stream = sandbox.process(7).output(stdout_offset=5)
    with pytest.raises(SandboxTimeout):
        list(stream)
    assert [(g.stream, g.first, g.end) for g in stream.gaps] == [("stdout", 5, 50)]
    assert stream.offsets == (51, 0)


def test_start_and_list(server, sandbox):
    server.on("POST", PROCESSES, 201, {**RECORD, "pty": {"rows": 30, "cols": 90}})
    server.on("GET", PROCESSES, 200, {"processes": [RECORD]})
    process = sandbox.start(pty=(30, 90), tag="t")
    assert server.requests[-1].json == {"pty": {"rows": 30, "cols": 90}, "tag": "t"}
    assert (process.id, process.pid, process.info.is_terminal) == (7, 99, True)
    sandbox.start("cat", stdin_open=True, timeout_seconds=1.5, limits={"pids": 3})
    expected = {"cmd": "cat", "stdin_open": True, "timeout_seconds": 2, "limits": {"pids": 3}}
    assert server.requests[-1].json == expected
    assert [found.id for found in sandbox.processes()] == [7]


def test_input_is_not_sent_twice(server, sandbox):
    server.on("GET", f"{PROCESSES}/7", 200, RECORD)
    server.on("GET", f"{PROCESSES}/7", 200, {**RECORD, "stdin_offset": 4})
    server.on("POST", f"{PROCESSES}/7/stdin", drop=True)
    server.on("POST", f"{PROCESSES}/7/stdin", 200, {"offset": 10})
    process = sandbox.process(7)
    process.write("0123456789")
    assert [request.body for request in server.sent("POST", f"{PROCESSES}/7/stdin")] == [b"0123456789", b"456789"]
    assert process.info.stdin_offset == 10


def test_closing_stdin_succeeds_after_a_lost_response(server, sandbox):
    server.on("GET", f"{PROCESSES}/7", 200, RECORD)
    server.on("POST", f"{PROCESSES}/7/stdin", drop=True)
    server.on("POST", f"{PROCESSES}/7/stdin", 400, {"error": "takes no input", "code": "bad_request"})
    sandbox.process(7).close_stdin()
    assert server.sent("POST", f"{PROCESSES}/7/stdin")[0].query == {"close": "true"}
    with pytest.raises(BadRequestError):
        sandbox.process(7).write("late")


def test_wait_signal_and_resize(server, sandbox):
    server.on("GET", f"{PROCESSES}/7", 200, RECORD)
    server.on("GET", f"{PROCESSES}/7/wait", 200, RECORD)
    server.on("GET", f"{PROCESSES}/7/wait", 503, {"error": "away", "code": "host_unreachable"})
    server.on("GET", f"{PROCESSES}/7/wait", 200, {**RECORD, "state": "exited", "exit_code": 5})
    server.on("POST", f"{PROCESSES}/7/signal", 204)
    server.on("POST", f"{PROCESSES}/7/resize", 204)
    process = sandbox.process(7)
    process.signal("INT")
    process.kill()
    process.resize(1, 2)
    assert [r.json for r in server.sent("POST", f"{PROCESSES}/7/signal")] == [{"signal": "INT"}, {"signal": "KILL"}]
    assert server.requests[-1].json == {"rows": 1, "cols": 2}
    assert process.wait() == 5
