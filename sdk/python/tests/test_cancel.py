"""A cancelled call kills its command, unless it was told not to."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Awaitable, Callable

import pytest

from pandastack import AsyncPandaStack, AsyncSandbox, PandaStack
from pandastack._sync import commands as sync_commands

from conftest import KEY
from wire_server import WireServer

EXEC = "/v1/sandboxes/s1/exec"
STREAM = "/v1/sandboxes/s1/exec/stream"
PROCESSES = "/v1/sandboxes/s1/processes"
SIGNAL = f"{PROCESSES}/7/signal"
SSE = {"Content-Type": "text/event-stream; charset=utf-8", "X-PandaStack-Process": "7"}
OUT = b'event: stdout\ndata: {"chunk":"hello","end":5}\n\n'
RECORD = {"id": "s1", "template": "base", "cpu": 1, "memory_mb": 512, "status": "running"}


class Running:
    """A command that runs until the test is over."""

    def __init__(self, server: WireServer) -> None:
        self.server = server
        self.has_begun = threading.Event()
        self.is_over = threading.Event()
        server.on("GET", "/v1/sandboxes/s1", 200, RECORD)
        server.on("POST", SIGNAL, 204)

    def block(self) -> None:
        self.has_begun.set()
        self.is_over.wait(10)

    def listed_after(self, looks: int) -> None:
        """The process is listed, with the tag that the call gave it, after so many looks at the list."""
        for _ in range(looks):
            self.server.on("GET", PROCESSES, 200, {"processes": [{"id": 3, "tag": "another"}]})
        found = {"id": 7}
        processes = {"processes": [{"id": 3, "tag": None}, found]}
        self.server.on("GET", PROCESSES, 200, processes, before=lambda: found.update(tag=self.tag))

    @property
    def tag(self) -> str:
        return next(each.query["tag"] for each in self.server.requests if "tag" in each.query)

    def cancel(self, call: Callable[[AsyncSandbox], Awaitable[Any]]) -> None:
        """Cancel a call once the command runs, and wait for the end of the call."""

        async def main() -> None:
            async with AsyncPandaStack(base_url=self.server.url, api_key=KEY) as client:
                task = asyncio.ensure_future(call(await client.sandboxes.get("s1")))
                await asyncio.to_thread(self.has_begun.wait, 10)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(main())

    @property
    def was_killed(self) -> bool:
        sent = self.server.sent("POST", SIGNAL)
        assert all(request.json == {"signal": "KILL"} for request in sent)
        return len(sent) == 1


@pytest.fixture
def running(server):
    made = Running(server)
    yield made
    made.is_over.set()


async def read_all(sandbox: AsyncSandbox, **options: Any) -> None:
    async for _ in await sandbox.exec_stream("make", **options):
        pass


@pytest.mark.parametrize("looks", [0, 2])
def test_cancelling_exec_kills_the_process(server, running, looks):
    server.on("POST", EXEC, 200, {"exit_code": 0}, before=running.block)
    running.listed_after(looks)
    running.cancel(lambda sandbox: sandbox.exec("make"))
    assert running.was_killed and running.tag.startswith("exec-")


def test_an_asyncio_timeout_kills_the_command(server, running):
    server.on("POST", EXEC, 200, {"exit_code": 0}, before=running.block)
    running.listed_after(0)

    async def main() -> None:
        async with AsyncPandaStack(base_url=server.url, api_key=KEY) as client:
            sandbox = await client.sandboxes.get("s1")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sandbox.commands.run("make"), 2)

    asyncio.run(main())
    assert running.was_killed


def test_kill_on_cancel_false_leaves_the_command_running(server, running):
    server.on("POST", EXEC, 200, {"exit_code": 0}, before=running.block)
    running.cancel(lambda sandbox: sandbox.exec("make", kill_on_cancel=False))
    assert not running.was_killed and not server.sent("GET", PROCESSES)
    assert server.sent("POST", EXEC)[0].query == {}


@pytest.mark.parametrize("options", [{}, {"on_stdout": print}])
def test_cancelling_a_stream_reader_kills_the_process(server, running, options):
    server.on("POST", STREAM, 200, chunks=[OUT, running.block], headers=SSE)
    running.listed_after(0)  # for a cancellation that comes together with the first byte

    async def call(sandbox: AsyncSandbox) -> None:
        if options:
            await sandbox.exec_stream("make", **options)
        else:
            await read_all(sandbox)

    running.cancel(call)
    assert running.was_killed


def test_kill_on_cancel_false_leaves_a_streamed_command_running(server, running):
    server.on("POST", STREAM, 200, chunks=[OUT, running.block], headers=SSE)
    running.cancel(lambda sandbox: read_all(sandbox, kill_on_cancel=False))
    assert not running.was_killed


def test_cancelling_a_reader_between_chunks_kills_the_process(server, running):
    server.on("POST", STREAM, 200, chunks=[OUT, lambda: running.is_over.wait(10)], headers=SSE)

    async def call(sandbox: AsyncSandbox) -> None:
        async with await sandbox.exec_stream("make") as stream:
            async for _ in stream:
                running.has_begun.set()
                await asyncio.sleep(10)

    running.cancel(call)
    assert running.was_killed


def test_cancelling_before_a_stream_opens_kills_the_process(server, running):
    server.on("POST", STREAM, 200, before=running.block)
    running.listed_after(1)
    running.cancel(read_all)
    assert running.was_killed


def test_cancelling_an_output_reader_keeps_a_background_process(server, running):
    server.on("GET", f"{PROCESSES}/7", 200, {"id": 7, "pid": 9, "state": "running"})
    server.on("GET", f"{PROCESSES}/7/output", 200, chunks=[OUT, running.block], headers=SSE)

    async def call(sandbox: AsyncSandbox) -> None:
        async for _ in await (await sandbox.process(7)).output():
            pass

    running.cancel(call)
    assert not running.was_killed


def test_a_failed_kill_does_not_hide_the_cancellation(server, running):
    server.on("POST", EXEC, 200, {"exit_code": 0}, before=running.block)
    server.on("GET", PROCESSES, 503, {"error": "host is away", "code": "host_unreachable"})
    running.cancel(lambda sandbox: sandbox.exec("make"))
    assert not running.was_killed and len(server.sent("GET", PROCESSES)) == 1


def test_a_keyboard_interrupt_kills_the_command(server, running, monkeypatch):
    client = PandaStack(base_url=server.url, api_key=KEY)
    sandbox, send = client.sandboxes.get("s1"), client._transport.send
    running.listed_after(0)

    def interrupted(call):
        if call.path.endswith("/exec"):
            server.on("POST", EXEC, 200, {"exit_code": 0})
            send(call)
            raise KeyboardInterrupt
        return send(call)

    monkeypatch.setattr(client._transport, "send", interrupted)
    assert sync_commands.Cancelled is KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        sandbox.exec("make")
    assert running.was_killed
    client.close()
