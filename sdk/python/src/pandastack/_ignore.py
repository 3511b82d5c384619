"""``.dockerignore``: which files of a build directory are left out. No network here."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import List, Pattern, Tuple, Union


class Ignore:
    """The patterns of a ``.dockerignore`` file. The last one that matches a path counts; ``!`` brings a file back."""

    def __init__(self, text: str = "") -> None:
        self._rules: List[Tuple[bool, Pattern[str]]] = []
        for line in text.lstrip("\ufeff").splitlines():
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            keep = line.startswith("!")
            pattern = line[1:].strip() if keep else line
            parts = [part for part in posixpath.normpath("/" + pattern).split("/") if part]
            if parts:
                self._rules.append((keep, _regex(parts)))
        #: Whether a file below an excluded directory may still be wanted.
        self.may_keep_below = any(keep for keep, _ in self._rules)

    @classmethod
    def of(cls, directory: Union[str, Path]) -> "Ignore":
        """The patterns of a directory; none if it has no such file."""
        try:
            with open(os.path.join(directory, ".dockerignore"), encoding="utf-8", errors="replace") as file:
                return cls(file.read())
        except FileNotFoundError:
            return cls()

    def excludes(self, path: str) -> bool:
        """Whether a path, relative to the directory, is excluded."""
        excluded = False
        for keep, regex in self._rules:
            if keep == excluded and regex.fullmatch(path):
                excluded = not keep
        return excluded


def _regex(parts: List[str]) -> Pattern[str]:
    """A pattern, which also matches everything below a matching path."""
    text = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            text += ".*" if last else "(?:.*/)?"
        else:
            text += _name(part) + ("" if last else "/")
    return re.compile(f"(?:{text})(?:/.*)?", re.S)


def _name(part: str) -> str:
    """One part of a pattern; its wildcards stay within a name."""
    out, at = "", 0
    while at < len(part):
        char = part[at]
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and "]" in part[at + 2 :]:
            end = part.index("]", at + 2)
            inner = part[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out += f"[^{inner[1:]}]" if inner[0] in "^!" else f"[{inner}]"
            at = end
        elif char == "\\" and at + 1 < len(part):
            at += 1
            out += re.escape(part[at])
        else:
            out += re.escape(char)
        at += 1
    return out
