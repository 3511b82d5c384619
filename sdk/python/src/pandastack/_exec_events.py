"""The events of an exec stream and their meaning, without any I/O.

    stdout | stderr   {"chunk": text, "end": n}             output, in order, up to that byte
    gap               {"stream", "from": n, "to": n}        output that is gone
    exit              {"exit_code": n, "timed_out": bool}   the end
    error             {"error": text}                       the end, without an exit code

Anything else is skipped, so that servers may add events. A stream that ends without ``exit`` is an
interruption, never a success.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Tuple

from ._sse import ServerEvent
from ._wire import Call, as_event_stream, get
from .errors import ExecInterrupted, PandaStackError, SandboxTimeout, ServerError, is_timeout_message
from ._fields import optional_integer
from .models import ExecChunk, OutputGap, OutputStream

#: The end of each stream's output that an interruption reports.
PARTIAL_OUTPUT_CHARS_MAX = 1024 * 1024
#: Names the process of a stream.
PROCESS_HEADER = "x-pandastack-process"


class ExecProgress:
    """State of one streamed command."""

    def __init__(self, path: Optional[str] = None, offsets: Tuple[int, int] = (0, 0)) -> None:
        self.exit_code: Optional[int] = None
        self.gaps: List[OutputGap] = []
        self._path = path
        self._ends: Dict[OutputStream, int] = {"stdout": offsets[0], "stderr": offsets[1]}
        self._tails: Dict[OutputStream, str] = {"stdout": "", "stderr": ""}

    @property
    def is_over(self) -> bool:
        """Whether the exit code has arrived."""
        return self.exit_code is not None

    @property
    def process_id(self) -> Optional[int]:
        """The process's id, if the server sent its path."""
        return int(self._path.rpartition("/")[2]) if self._path else None

    @property
    def offsets(self) -> Tuple[int, int]:
        """Offsets at which to continue."""
        return self._ends["stdout"], self._ends["stderr"]

    def output_call(self, seconds_max: Optional[float]) -> Call:
        """Query that asks for the output not seen yet."""
        query = {"stdout_offset": str(self._ends["stdout"]), "stderr_offset": str(self._ends["stderr"])}
        call = as_event_stream(get(f"{self._path}/output", query), has_limit=False)
        return replace(call, seconds_max=seconds_max, is_command=True)

    def take(self, event: ServerEvent) -> Optional[ExecChunk]:
        """Account for one event; returns the output in it, raises what it reports."""
        payload = event.payload()
        if payload is None:
            return None
        if event.name == "error":
            raise self._error(payload.get("error"), payload.get("code"))
        if event.name == "exit":
            self.exit_code = optional_integer(payload, "exit_code")
            if self.exit_code is None:
                raise ServerError("the server's exit event has no 'exit_code'")
            if payload.get("timed_out") is True:
                raise self._error("the command was killed by its timeout", "exec_timeout")
            return None
        if event.name == "gap":
            self._take_gap(payload)
            return None
        text = payload.get("chunk")
        if not isinstance(text, str) or event.name not in ("stdout", "stderr"):
            return None
        stream: OutputStream = "stdout" if event.name == "stdout" else "stderr"
        self._ends[stream] = optional_integer(payload, "end") or self._ends[stream]
        return self._chunk(stream, text) if text else None

    def _take_gap(self, payload: Dict[str, Any]) -> None:
        stream: OutputStream = "stderr" if payload.get("stream") == "stderr" else "stdout"
        first, end = optional_integer(payload, "from"), optional_integer(payload, "to")
        if first is not None and end is not None:
            self.gaps.append(OutputGap(stream, first, end))
            self._ends[stream] = end

    def interrupted(self, why: str) -> ExecInterrupted:
        """The error of a stream that ended too early."""
        return ExecInterrupted(
            f"the command's stream ended before its exit code: {why}",
            partial_stdout=self._tails["stdout"],
            partial_stderr=self._tails["stderr"],
        )

    def _chunk(self, stream: OutputStream, text: str) -> ExecChunk:
        self._tails[stream] = (self._tails[stream] + text)[-PARTIAL_OUTPUT_CHARS_MAX:]
        return ExecChunk(stream, text)

    def _error(self, reported: object, code: object) -> PandaStackError:
        message = reported if isinstance(reported, str) and reported else "the server gave no reason"
        if code == "exec_timeout" or is_timeout_message(message):
            return SandboxTimeout(message, hint="raise timeout_seconds, or run the command in the background")
        return self.interrupted(message)
