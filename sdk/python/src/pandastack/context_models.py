"""Results of code that ran in a context."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from ._fields import integer, text


@dataclass(frozen=True)
class Result:
    """A value that the code displayed, in one or more formats."""

    #: Every representation by media type; pictures are in base64.
    data: Dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Read the server's JSON: a map of media types, or one as ``type`` and ``data``."""
        pairs = {data["type"]: data.get("data", "")} if "type" in data else data
        return cls({str(kind): str(value) for kind, value in pairs.items()})

    @property
    def text(self) -> Optional[str]:
        """Plain text."""
        return self.data.get("text/plain")

    @property
    def html(self) -> Optional[str]:
        """HTML, as of a table."""
        return self.data.get("text/html")

    @property
    def markdown(self) -> Optional[str]:
        """Markdown."""
        return self.data.get("text/markdown")

    @property
    def png(self) -> Optional[str]:
        """A PNG picture in base64."""
        return self.data.get("image/png")

    @property
    def jpeg(self) -> Optional[str]:
        """A JPEG picture in base64."""
        return self.data.get("image/jpeg")

    @property
    def svg(self) -> Optional[str]:
        """An SVG picture."""
        return self.data.get("image/svg+xml")

    @property
    def json(self) -> Optional[Any]:
        """Parsed JSON; the text itself if it is none."""
        raw = self.data.get("application/json")
        if raw is None:
            return None
        try:
            return json.loads(raw)
        except ValueError:
            return raw

    @property
    def chart(self) -> Optional[str]:
        """The first picture that there is."""
        return self.png or self.jpeg or self.svg


@dataclass(frozen=True)
class Execution:
    """The result of a run. If the code raised an exception, see :attr:`error`."""

    results: List[Result] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""
    #: The exception with its traceback.
    error: Optional[str] = None
    exit_code: int = 0
    duration_ms: int = 0
    #: Output or results were more than an answer holds.
    truncated: bool = False
    #: How many runs the context has seen, this one included.
    execution_count: int = 0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Execution:
        """Read the server's JSON."""
        results = data.get("results")
        items = [item for item in results if isinstance(item, dict)] if isinstance(results, list) else []
        return cls(
            results=[Result.from_dict(item) for item in items],
            stdout=text(data, "stdout"),
            stderr=text(data, "stderr"),
            error=text(data, "error") or None,
            exit_code=integer(data, "exit") or integer(data, "exit_code"),
            duration_ms=integer(data, "duration_ms"),
            truncated=data.get("truncated") is True,
            execution_count=integer(data, "execution_count"),
        )

    @property
    def logs(self) -> Dict[str, str]:
        """Output of the run, by stream."""
        return {"stdout": self.stdout, "stderr": self.stderr}

    @property
    def text(self) -> Optional[str]:
        """Text of the first result that has one."""
        return next((result.text for result in self.results if result.text is not None), None)

    @property
    def png(self) -> Optional[str]:
        """The first PNG picture."""
        return next((result.png for result in self.results if result.png is not None), None)
