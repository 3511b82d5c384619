"""What the events of an exec stream mean, without any I/O.

    stdout | stderr   {"chunk": text}      output, in order
    exit              {"exit_code": n}     the end
    error             {"error": text}      the end, without an exit code

Anything else is skipped, so that servers may add events. A stream that ends without ``exit`` is an
interruption, never a success.
"""

from __future__ import annotations

from typing import Dict, Optional

from ._sse import ServerEvent
from .errors import ExecInterrupted, PandaStackError, SandboxTimeout, ServerError, is_timeout_message
from .models import ExecChunk, OutputStream, optional_integer

#: The end of each stream's output that an interruption reports.
PARTIAL_OUTPUT_CHARS_MAX = 1024 * 1024


class ExecProgress:
    """State of one streamed command."""

    def __init__(self) -> None:
        self.exit_code: Optional[int] = None
        self._tails: Dict[OutputStream, str] = {"stdout": "", "stderr": ""}

    @property
    def is_over(self) -> bool:
        """Whether the exit code has arrived."""
        return self.exit_code is not None

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
            return None
        text = payload.get("chunk")
        if not isinstance(text, str) or not text:
            return None
        if event.name == "stdout":
            return self._chunk("stdout", text)
        return self._chunk("stderr", text) if event.name == "stderr" else None

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
