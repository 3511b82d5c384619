# Generated from _async/exec_stream.py by tools/generate_sync.py: change that file, not this one.
"""A running command whose output is read as it comes."""

from __future__ import annotations

from typing import Any, Iterator, Callable, Optional

from .._exec_events import ExecProgress
from .._sse import EventParser, ServerEvent
from .._wire import STREAM_IDLE_SECONDS_MAX, Call
from ..errors import APIConnectionError, ServerError
from ..models import ExecChunk
from ._io import invoke
from .transport import ByteStream, Transport


def server_events(stream: ByteStream) -> Iterator[ServerEvent]:
    """The events of an open answer."""
    parser = EventParser()
    for chunk in stream.chunks():
        for event in parser.feed(chunk):
            yield event


class ExecStream:
    """Iterate for :class:`~pandastack.ExecChunk`; afterwards ``exit_code`` is set.

    Raises :class:`~pandastack.ExecInterrupted` when the stream ends without an exit code, and
    :class:`~pandastack.SandboxTimeout` when the command ran out of time.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._progress = ExecProgress()
        self._chunks = self._read()

    @classmethod
    def open(cls, transport: Transport, call: Call) -> ExecStream:
        """Start the command."""
        return cls(transport.open_stream(call, idle_seconds_max=STREAM_IDLE_SECONDS_MAX))

    @property
    def exit_code(self) -> Optional[int]:
        """The command's exit code; ``None`` until all output has been read."""
        return self._progress.exit_code

    def wait(
        self,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
    ) -> int:
        """Read to the end, handing output to the callbacks; returns the exit code."""
        for chunk in self._chunks:
            callback = on_stdout if chunk.stream == "stdout" else on_stderr
            if callback is not None:
                invoke(callback, chunk.text)
        if self._progress.exit_code is None:
            raise self._progress.interrupted("the stream was closed here")
        return self._progress.exit_code

    def close(self) -> None:
        """Stop reading. What becomes of the command is the server's decision."""
        self._stream.close()

    def __iter__(self) -> Iterator[ExecChunk]:
        return self._chunks

    def __enter__(self) -> ExecStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Iterator[ExecChunk]:
        try:
            for event in server_events(self._stream):
                chunk = self._progress.take(event)
                if chunk is not None:
                    yield chunk
                if self._progress.is_over:
                    return
            raise self._progress.interrupted("the server closed it")
        except (APIConnectionError, ServerError) as error:
            raise self._progress.interrupted(error.message) from error
        finally:
            self._stream.close()
