"""A running command whose output is read as it comes."""

from __future__ import annotations

from typing import Any, AsyncIterator, Callable, Optional

from .._exec_events import ExecProgress
from .._sse import EventParser, ServerEvent
from .._wire import STREAM_IDLE_SECONDS_MAX, Call
from ..errors import APIConnectionError, ServerError
from ..models import ExecChunk
from ._io import invoke
from .transport import AsyncByteStream, AsyncTransport


async def server_events(stream: AsyncByteStream) -> AsyncIterator[ServerEvent]:
    """The events of an open answer."""
    parser = EventParser()
    async for chunk in stream.chunks():
        for event in parser.feed(chunk):
            yield event


class AsyncExecStream:
    """Iterate for :class:`~pandastack.ExecChunk`; afterwards ``exit_code`` is set.

    Raises :class:`~pandastack.ExecInterrupted` when the stream ends without an exit code, and
    :class:`~pandastack.SandboxTimeout` when the command ran out of time.
    """

    def __init__(self, stream: AsyncByteStream) -> None:
        self._stream = stream
        self._progress = ExecProgress()
        self._chunks = self._read()

    @classmethod
    async def open(cls, transport: AsyncTransport, call: Call) -> AsyncExecStream:
        """Start the command."""
        return cls(await transport.open_stream(call, idle_seconds_max=STREAM_IDLE_SECONDS_MAX))

    @property
    def exit_code(self) -> Optional[int]:
        """The command's exit code; ``None`` until all output has been read."""
        return self._progress.exit_code

    async def wait(
        self,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
    ) -> int:
        """Read to the end, handing output to the callbacks; returns the exit code."""
        async for chunk in self._chunks:
            callback = on_stdout if chunk.stream == "stdout" else on_stderr
            if callback is not None:
                await invoke(callback, chunk.text)
        if self._progress.exit_code is None:
            raise self._progress.interrupted("the stream was closed here")
        return self._progress.exit_code

    async def close(self) -> None:
        """Stop reading. What becomes of the command is the server's decision."""
        await self._stream.close()

    def __aiter__(self) -> AsyncIterator[ExecChunk]:
        return self._chunks

    async def __aenter__(self) -> AsyncExecStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _read(self) -> AsyncIterator[ExecChunk]:
        try:
            async for event in server_events(self._stream):
                chunk = self._progress.take(event)
                if chunk is not None:
                    yield chunk
                if self._progress.is_over:
                    return
            raise self._progress.interrupted("the server closed it")
        except (APIConnectionError, ServerError) as error:
            raise self._progress.interrupted(error.message) from error
        finally:
            await self._stream.close()
