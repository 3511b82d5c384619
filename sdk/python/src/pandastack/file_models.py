"""Files: entries, matches and changes, and how they are read from the server's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, TypedDict

from ._fields import integer, optional_text, text, text_map


class FileContent(bytes):
    """The bytes of a file. Prints as text.

    A ``bytes`` in every way (length, slices, comparison with ``bytes``, writing to a binary file),
    except that ``str()``, ``print()`` and f-strings show the text.
    """

    @property
    def text(self) -> str:
        """The content as UTF-8 text; bytes that are not UTF-8 become U+FFFD."""
        return self.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class FileInfo:
    """A file or directory. ``mtime`` is in Unix seconds, ``mode`` as the server writes it."""

    name: str
    path: str
    is_dir: bool
    size: int = 0
    mode: str = ""
    mtime: int = 0
    #: ``file``, ``directory``, ``symlink`` or ``other``.
    kind: str = ""
    #: The permission bits of ``mode`` as a number.
    permissions: int = 0
    uid: int = 0
    gid: int = 0
    owner: Optional[str] = None
    group: Optional[str] = None
    #: Target of a symbolic link.
    link_target: Optional[str] = None
    #: Extended attributes whose names begin with ``user.`` and whose values are text.
    xattrs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], parent: str = "") -> FileInfo:
        """Read the server's JSON; ``parent`` completes an entry that has only a name."""
        path = text(data, "path")
        name = text(data, "name") or path.rstrip("/").rpartition("/")[2]
        return cls(
            name=name,
            path=path or f"{parent.rstrip('/')}/{name}",
            is_dir=data.get("is_dir") is True,
            size=integer(data, "size"),
            mode=str(data.get("mode", "")),
            mtime=integer(data, "mtime"),
            kind=text(data, "kind"),
            permissions=integer(data, "permissions"),
            uid=integer(data, "uid"),
            gid=integer(data, "gid"),
            owner=optional_text(data, "owner"),
            group=optional_text(data, "group"),
            link_target=optional_text(data, "link_target"),
            xattrs=text_map(data, "xattrs"),
        )


@dataclass(frozen=True)
class GrepMatch:
    """A matching line."""

    path: str
    line: int
    text: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GrepMatch:
        """Read the server's JSON."""
        return cls(path=text(data, "path"), line=integer(data, "line"), text=text(data, "text"))


@dataclass(frozen=True)
class FileChange:
    """A change of a watched file."""

    #: Give it to ``watch(resume=...)`` to go on after this change.
    id: str
    #: ``created``, ``modified``, ``removed``, ``renamed``, ``attributes`` or ``overflow`` (look again at everything).
    kind: str
    path: str
    #: The new path after a rename.
    to: Optional[str] = None
    is_dir: bool = False
    #: Counts the changes of a watch from 1.
    sequence: int = 0

    @classmethod
    def from_dict(cls, change_id: str, data: Mapping[str, Any]) -> FileChange:
        """Read the server's JSON."""
        return cls(
            id=change_id,
            kind=text(data, "kind"),
            path=text(data, "path"),
            to=optional_text(data, "to"),
            is_dir=data.get("is_dir") is True,
            sequence=integer(data, "sequence"),
        )


class WriteResult(TypedDict, total=False):
    """The response to a file write."""

    path: str
    bytes: int
