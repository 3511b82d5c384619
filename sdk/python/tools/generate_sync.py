"""Makes ``_sync`` from ``_async``, so that the two clients cannot drift apart.

``python tools/generate_sync.py`` writes, ``--check`` only compares and fails on a difference. Files
whose name begins with ``_io`` are written by hand on both sides.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "pandastack"
HAND_WRITTEN = {"_io.py"}
HEADER = "# Generated from _async/{name} by tools/generate_sync.py: change that file, not this one.\n"

RULES = [
    (re.compile(r"\basync (def|for|with)\b"), r"\1"),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\bAsync(?=[A-Z])"), ""),
    (re.compile(r"\b__a(enter|exit|iter|next)__\b"), r"__\1__"),
    (re.compile(r"\ba(close|iter_bytes)\("), r"\1("),
    (re.compile(r"The async client, from which the sync one is generated"), "The blocking client, generated from the async one"),
]


def to_sync(name: str, source: str) -> str:
    """The sync text of one async module."""
    for pattern, replacement in RULES:
        source = pattern.sub(replacement, source)
    return HEADER.format(name=name) + source


def main() -> int:
    """Write or check every module; returns the exit code."""
    check = "--check" in sys.argv[1:]
    stale = []
    for module in sorted((PACKAGE / "_async").glob("*.py")):
        if module.name in HAND_WRITTEN:
            continue
        target = PACKAGE / "_sync" / module.name
        wanted = to_sync(module.name, module.read_text(encoding="utf-8"))
        if not target.exists() or target.read_text(encoding="utf-8") != wanted:
            stale.append(target.name)
            if not check:
                target.write_text(wanted, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}\nhint: run `python tools/generate_sync.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
