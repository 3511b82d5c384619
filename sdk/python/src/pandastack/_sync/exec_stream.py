# Generated from _async/exec_stream.py by tools/generate_sync.py: change that file, not this one.
"""A running command whose output is read as it comes."""

from __future__ import annotations

import time
from typing import Any, Iterator, Callable, List, Optional, Tuple

from .._check import checked
from .._exec_events import PROCESS_HEADER, ExecProgress
from .._reconnect import Reconnect
from .._sse import EventParser, ServerEvent
from .._wire import STREAM_IDLE_SECONDS_MAX, Call
from ..errors import APIConnectionError, PandaStackError, ServerError
from ..models import ExecChunk, OutputGap
from ._io import Cancelled, invoke, sleep
from .cancel import abandon, kill_process
from .transport import ByteStream, Transport


def server_events(stream: ByteStream) -> Iterator[ServerEvent]:
    """The events of an open answer."""
    parser = EventParser()
    for chunk in stream.chunks():
        for event in parser.feed(chunk):
            yield event


@checked
class ExecStream:
    """Iterate for :class:`~pandastack.ExecChunk`; afterwards ``exit_code`` is set.

    If the connection breaks, the stream resumes where it broke; the process keeps running. Raises
    :class:`~pandastack.ExecInterrupted` when the stream cannot be taken up and ends without an exit
    code, and :class:`~pandastack.SandboxTimeout` when the command ran out of time. Cancelling the task that
    iterates kills the command, unless the stream was opened with ``kill_on_cancel=False``.
    """

    def __init__(self, source: "_Source") -> None:
        self._source = source
        self._progress = source.progress
        self._chunks = source.read()

    @classmethod
    def open(
        cls,
        transport: Transport,
        call: Call,
        processes: Optional[str] = None,
        kill_on_cancel: bool = False,
    ) -> ExecStream:
        """Start the command. ``processes`` is the path under which its process can be found again."""
        stream = transport.open_stream(call, idle_seconds_max=STREAM_IDLE_SECONDS_MAX)
        process = stream.headers.get(PROCESS_HEADER)
        path = f"{processes}/{process}" if processes and process and process.isdigit() else None
        source = _Source(transport, stream, ExecProgress(path))
        source.to_kill = path if kill_on_cancel else None
        if call.seconds_max is not None:
            source.deadline = time.monotonic() + call.seconds_max
        return cls(source)

    @classmethod
    def attach(cls, transport: Transport, path: str, offsets: Tuple[int, int]) -> ExecStream:
        """Stream a process's output from two byte offsets."""
        progress = ExecProgress(path, offsets)
        stream = transport.open_stream(progress.output_call(None), idle_seconds_max=STREAM_IDLE_SECONDS_MAX)
        return cls(_Source(transport, stream, progress))

    @property
    def process_id(self) -> Optional[int]:
        """The process's id, for ``sandbox.process(id)``; ``None`` if the server does not report it."""
        return self._progress.process_id

    @property
    def offsets(self) -> Tuple[int, int]:
        """Bytes of standard output and standard error received so far: where to resume."""
        return self._progress.offsets

    @property
    def gaps(self) -> List[OutputGap]:
        """Output that was dropped before it was read."""
        return self._progress.gaps

    @property
    def exit_code(self) -> Optional[int]:
        """The command's exit code; ``None`` until all output has been read."""
        return self._progress.exit_code

    def wait(
        self,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
    ) -> int:
        """Read to the end and pass output to the callbacks; returns the exit code."""
        for chunk in self._chunks:
            callback = on_stdout if chunk.stream == "stdout" else on_stderr
            if callback is not None:
                invoke(callback, chunk.text)
        if self._progress.exit_code is None:
            raise self._progress.interrupted("the stream was closed here")
        return self._progress.exit_code

    def close(self) -> None:
        """Stop reading. The command keeps running; ``process_id`` finds it again."""
        self._source.stream.close()

    def __iter__(self) -> Iterator[ExecChunk]:
        return self._chunks

    def __enter__(self) -> ExecStream:
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if isinstance(error, Cancelled):
            self._source.kill()
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(process_id={self.process_id}, exit_code={self.exit_code})"


class _Source:
    """The source of a stream, without a reference to its reader.

    A stream that is dropped half read is therefore freed at once, and not by a later collection of cycles,
    which may come while the HTTP client holds the lock that closing a connection takes.
    """

    def __init__(self, transport: Transport, stream: ByteStream, progress: ExecProgress) -> None:
        self.transport = transport
        self.stream = stream
        self.progress = progress
        self.deadline: Optional[float] = None
        #: Path of a process that ends with its reader.
        self.to_kill: Optional[str] = None

    def kill(self) -> None:
        """Kill the command of a reader that was cancelled, unless it is over or meant to go on."""
        path, self.to_kill = self.to_kill, None
        if path is not None and not self.progress.is_over:
            abandon(kill_process, self.transport, path)

    def read(self) -> Iterator[ExecChunk]:
        retry = Reconnect()
        try:
            while True:
                lost: Optional[PandaStackError] = None
                try:
                    for event in server_events(self.stream):
                        retry.succeeded()
                        chunk = self.progress.take(event)
                        if chunk is not None:
                            yield chunk
                        if self.progress.is_over:
                            return
                except (APIConnectionError, ServerError) as error:
                    lost = error
                self._take_up(retry, lost)
        except Cancelled:
            self.kill()
            raise
        finally:
            self.stream.close()

    def _take_up(self, retry: Reconnect, lost: Optional[PandaStackError]) -> None:
        """Open the stream again where it broke, or raise why not."""
        while True:
            delay = retry.delay_after(lost) if self.progress.process_id is not None else None
            if delay is None:
                raise self.progress.interrupted(lost.message if lost else "the server closed it") from lost
            self.stream.close()
            sleep(delay)
            left = None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)
            try:
                call = self.progress.output_call(left)
                self.stream = self.transport.open_stream(call, idle_seconds_max=STREAM_IDLE_SECONDS_MAX)
                return
            except (APIConnectionError, ServerError) as error:
                lost = error
