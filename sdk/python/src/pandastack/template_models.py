"""Builds of templates, as the server describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional

from ._fields import need_text, text


@dataclass(frozen=True)
class TemplateBuild:
    """A template build and its progress."""

    id: str
    name: str
    status: str
    error: Optional[str] = None
    started_at: Optional[str] = None
    ended_at: Optional[str] = None
    size_mb: Optional[int] = None
    bytes: Optional[int] = None
    image_ref: Optional[str] = None
    #: Current phase.
    phase: Optional[str] = None
    log: Optional[List[str]] = None
    #: Tags that the version gets, or has.
    tags: Optional[List[str]] = None
    #: Steps in all, and those that came from an earlier build.
    steps: Optional[int] = None
    cached_steps: Optional[int] = None
    #: Where it failed: ``step``, ``line``, ``instruction``, ``exit_code`` and the last ``output``; with
    #: ``debug``, the ``snapshot_id`` of its machine and the ``config`` of its commands.
    failure: Optional[Dict[str, Any]] = None
    #: The build that a rebuild repeats.
    rebuild_of: Optional[str] = None
    #: What a rebuild changed: ``base_before`` and ``base_after``, ``size_bytes_before`` and
    #: ``size_bytes_after``, and ``packages`` with ``name``, ``before`` and ``after``.
    changes: Optional[Dict[str, Any]] = None
    #: Cause of a failure on the host; operator keys only.
    detail: Optional[str] = None

    @property
    def is_done(self) -> bool:
        """Whether it succeeded."""
        return self.status == "done"

    @property
    def is_failed(self) -> bool:
        """Whether it failed."""
        return self.status == "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether it is over; a status this client does not know means it is still going."""
        return self.is_done or self.is_failed

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TemplateBuild:
        """Read the server's JSON."""
        optional = {
            name: data.get(name)
            for name in cls.__dataclass_fields__
            if name not in ("id", "name", "status")
        }
        return cls(
            id=need_text(data, "id", "a build"),
            name=text(data, "name"),
            status=text(data, "status"),
            **optional,
        )
