"""Server-sent events from bytes, without any I/O.

Feed chunks as they come, cut anywhere; complete events come out. A character is decoded only once
its whole line is there, so a chunk border inside a UTF-8 sequence is harmless. Comments (keep-alive
lines) and unknown fields are dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional

from .errors import ServerError

#: A longer event is refused: the server cuts output into chunks far below this.
EVENT_BYTES_MAX = 32 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name (``message`` if unnamed) and its data."""

    name: str
    data: str
    #: Position at which the stream can be resumed, if the server sent one.
    id: str = ""

    def payload(self) -> Optional[Dict[str, Any]]:
        """The data as a JSON object, or ``None`` if it is anything else."""
        try:
            parsed = json.loads(self.data)
        except ValueError:
            return None
        return parsed if isinstance(parsed, dict) else None


class EventParser:
    """Incremental parser of one event stream."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._scanned = 0
        self._skip_lf = False
        self._at_start = True
        self._name = ""
        self._id = ""
        self._data: List[str] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Take one chunk; yield the events it completes."""
        self._pending += chunk
        for line in self._lines():
            event = self._line(line)
            if event is not None:
                yield event
        if len(self._pending) + self._data_bytes > EVENT_BYTES_MAX:
            raise ServerError(f"the server sent an event longer than {EVENT_BYTES_MAX} bytes")

    def _lines(self) -> Iterator[bytes]:
        """Complete lines, ended by LF, CRLF or CR."""
        while True:
            if self._skip_lf and self._pending:
                if self._pending[0] == 0x0A:
                    del self._pending[0]
                self._skip_lf = False
            end = self._find_line_end()
            if end < 0:
                self._scanned = len(self._pending)
                return
            line = bytes(self._pending[:end])
            self._skip_lf = self._pending[end] == 0x0D
            del self._pending[: end + 1]
            self._scanned = 0
            yield line

    def _find_line_end(self) -> int:
        ends = [self._pending.find(mark, self._scanned) for mark in (b"\n", b"\r")]
        return min((end for end in ends if end >= 0), default=-1)

    def _line(self, line: bytes) -> Optional[ServerEvent]:
        if self._at_start:
            self._at_start = False
            line = line[len(_BOM) :] if line.startswith(_BOM) else line
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(value.decode("utf-8", "replace"))
            self._data_bytes += len(value) + 1
        return None  # also for a comment (empty name) and for fields we do not use

    def _dispatch(self) -> Optional[ServerEvent]:
        event = ServerEvent(self._name or "message", "\n".join(self._data), self._id) if self._data else None
        self._name, self._data, self._data_bytes = "", [], 0
        return event
