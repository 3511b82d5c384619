"""Event streams: the parser on its own, then streamed commands."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from pandastack import ExecInterrupted, NotFoundError, SandboxTimeout, ServerError
from pandastack import _sse
from pandastack._sse import EventParser, ServerEvent

PATH = "/v1/sandboxes/s1/exec/stream"
SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
OUT = b'event: stdout\ndata: {"chunk":"hello"}\n\n'
EXIT = b'event: exit\ndata: {"exit_code":0}\n\n'


def parse(*chunks: bytes):
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    "text,expected",
    [
        ("data: a\n\n", [ServerEvent("message", "a")]),
        ("event: x\ndata: a\ndata: b\n\n", [ServerEvent("x", "a\nb")]),
        (": comment\n\n:\n\ndata:a\n\n", [ServerEvent("message", "a")]),
        ("event: x\r\ndata: a\r\n\r\n", [ServerEvent("x", "a")]),
        ("event: x\rdata: a\r\r", [ServerEvent("x", "a")]),
        ("\ufeffdata: a\n\n", [ServerEvent("message", "a")]),
        ("event: only\n\ndata: a\n\n", [ServerEvent("message", "a")]),
        ("data\n\n", [ServerEvent("message", "")]),
        ("id: 7\nretry: 5\nfoo: bar\ndata:  two spaces\n\n", [ServerEvent("message", " two spaces", "7")]),
        ("data: grüße \u2028 \u0085 🐼\n\n", [ServerEvent("message", "grüße \u2028 \u0085 🐼")]),
        ("data: unfinished\n", []),
    ],
)
def test_the_parser_accepts_chunks_split_anywhere(text, expected):
    raw = text.encode()
    assert parse(raw) == expected
    assert parse(*(raw[i : i + 1] for i in range(len(raw)))) == expected
    for cut in range(len(raw)):
        assert parse(raw[:cut], raw[cut:]) == expected


def test_parser_limit(monkeypatch):
    monkeypatch.setattr(_sse, "EVENT_BYTES_MAX", 64)
    with pytest.raises(ServerError, match="64 bytes"):
        parse(b"data: " + b"x" * 100)
    with pytest.raises(ServerError):
        parse(*[b"data: xxxxxxxxxx\n"] * 10)
    assert len(parse(*[b"data: xxxxxxxxxx\n\n"] * 100)) == 100


def test_iteration(server, sandbox):
    chunks = [b": hello\n\n", OUT, b'event: stderr\ndata: {"chunk":"gr\\u00fc\\u00dfe"}\n\n', b'event: new\ndata: {"x":1}\n\n', EXIT]
    server.on("POST", PATH, 200, chunks=chunks, headers=SSE)
    stream = sandbox.exec_stream("make", timeout_seconds=5)
    assert [(chunk.stream, chunk.text) for chunk in stream] == [("stdout", "hello"), ("stderr", "grüße")]
    assert stream.exit_code == 0
    assert server.requests[-1].headers["accept"] == "text/event-stream"
    assert server.requests[-1].json == {"cmd": "make", "timeout_seconds": 5}


def test_output_arrives_while_the_command_runs(server, sandbox):
    release = threading.Event()
    server.on("POST", PATH, 200, chunks=[OUT, lambda: release.wait(10), EXIT], headers=SSE)
    stream = sandbox.exec_stream("make")
    assert next(iter(stream)).text == "hello"
    assert stream.exit_code is None
    release.set()
    assert stream.wait() == 0


# Event loops close what is dropped of the async one.
@pytest.mark.parametrize("make_client", ["sync"], indirect=True)
def test_an_unfinished_stream_is_freed_without_garbage_collection(server, sandbox):
    release = threading.Event()
    server.on("POST", PATH, 200, chunks=[OUT, lambda: release.wait(10), EXIT], headers=SSE)
    gc.disable()
    try:
        stream = sandbox.exec_stream("make")
        assert next(iter(stream)).text == "hello"
        chunks = weakref.ref(iter(stream))
        del stream
        assert chunks() is None
    finally:
        gc.enable()
        release.set()


def test_callbacks(server, sandbox):
    out, err = [], []
    server.on("POST", PATH, 200, chunks=[OUT, b'event: stderr\ndata: {"chunk":"bad"}\n\nevent: exit\ndata: {"exit_code":7}\n\n'], headers=SSE)
    assert sandbox.exec_stream("make", on_stdout=out.append, on_stderr=err.append) == 7
    assert (out, err) == (["hello"], ["bad"])


def test_a_character_split_across_chunks_is_decoded(server, sandbox):
    raw = 'event: stdout\ndata: {"chunk":"🐼"}\n\n'.encode() + EXIT
    server.on("POST", PATH, 200, chunks=[raw[i : i + 1] for i in range(len(raw))], headers={"Content-Type": "text/event-stream"})
    assert [chunk.text for chunk in sandbox.exec_stream("x")] == ["🐼"]


@pytest.mark.parametrize("drop", [False, True])
def test_missing_exit_event_raises_exec_interrupted(server, sandbox, drop):
    server.on("POST", PATH, 200, chunks=[OUT], drop=drop, headers=SSE)
    with pytest.raises(ExecInterrupted) as caught:
        list(sandbox.exec_stream("make"))
    assert caught.value.partial_stdout == "hello"


@pytest.mark.parametrize(
    "message,kind", [("command timeout after 1 s", SandboxTimeout), ("guest died", ExecInterrupted)]
)
def test_error_event(server, sandbox, message, kind):
    server.on("POST", PATH, 200, chunks=[OUT, b'event: error\ndata: {"error":"%s"}\n\n' % message.encode()], headers=SSE)
    with pytest.raises(kind, match=message):
        list(sandbox.exec_stream("make"))


@pytest.mark.parametrize("data", [b"{}", b'{"exit_code":"0"}', b'{"exit_code":null}'])
def test_exit_event_without_an_exit_code_is_an_error(server, sandbox, data):
    server.on("POST", PATH, 200, chunks=[b"event: exit\ndata: " + data + b"\n\n"], headers=SSE)
    with pytest.raises(ExecInterrupted, match="exit_code"):
        list(sandbox.exec_stream("make"))


def test_error_before_the_first_byte(server, sandbox):
    server.on("POST", PATH, 404, {"error": "no such sandbox", "code": "sandbox_not_found"})
    with pytest.raises(NotFoundError) as caught:
        sandbox.exec_stream("make")
    assert caught.value.code == "sandbox_not_found"


def test_a_silent_stream_is_interrupted(server, sandbox, monkeypatch):
    for module in ("_sync", "_async"):
        monkeypatch.setattr(f"pandastack.{module}.exec_stream.STREAM_IDLE_SECONDS_MAX", 1.0)
    release = threading.Event()
    server.on("POST", PATH, 200, chunks=[OUT, lambda: release.wait(10)], headers=SSE)
    with pytest.raises(ExecInterrupted, match="silent"):
        list(sandbox.exec_stream("make"))
    release.set()


def test_an_endless_stream_times_out(server, sandbox, monkeypatch):
    monkeypatch.setattr("pandastack._wire.EXEC_GRACE_SECONDS", -0.7)
    release = threading.Event()
    server.on("POST", PATH, 200, chunks=[b": ping\n\n", lambda: release.wait(0.05)] * 100, headers=SSE)
    with pytest.raises(SandboxTimeout):
        list(sandbox.exec_stream("make", timeout_seconds=1))
    release.set()


def test_leaving_a_stream_early_raises_nothing(server, client, sandbox):
    release = threading.Event()
    server.on("POST", PATH, 200, chunks=[OUT, lambda: release.wait(10), EXIT], headers=SSE)
    server.on("GET", "/v1/me", 200, {"ok": 1})
    with sandbox.exec_stream("make") as stream:
        for _ in stream:
            break
    release.set()
    assert client.me() == {"ok": 1}
