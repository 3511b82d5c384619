"""The two SDKs have the same surface, each in its language's spelling.

Both sides are read from the generated reference, which tests of both packages hold to the source.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Set

import pytest

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"

#: What one language says in another way, or does not need.
ONLY_PYTHON: Dict[str, str] = {
    "ExecStream.attach": "how the package itself makes one",
    "ExecStream.open": "how the package itself makes one",
    "PandaStack.close": "fetch closes its connections by itself",
    "SandboxFilesystem.listdir": "a name of the published Python client",
    "SandboxFilesystem.readText": "read answers bytes in Python",
}
ONLY_TYPESCRIPT: Dict[str, str] = {
    "ConsoleAPI.loginProvider": "sessions of the web console are for browsers",
    "ConsoleAPI.revoke": "sessions of the web console are for browsers",
    "ConsoleAPI.sessions": "sessions of the web console are for browsers",
    "ConsoleAPI.signIn": "sessions of the web console are for browsers",
    "ConsoleAPI.signOut": "sessions of the web console are for browsers",
    "PandaStack.followEvents": "the web console follows a whole workspace",
    "Sandbox.terminal": "terminals of the web console, which reconnect by themselves",
    "SandboxFilesystem.readBytes": "read answers text in TypeScript",
    "Terminal.close": "see `Sandbox.terminal`",
    "Terminal.resize": "see `Sandbox.terminal`",
    "Terminal.write": "see `Sandbox.terminal`",
    "TemplatesAPI.buildStatus": "a name of the published TypeScript client",
}


def surface(language: str) -> Dict[str, Set[str]]:
    """Calls of every class in a reference."""
    found: Dict[str, Set[str]] = {}
    name = ""
    for line in (REFERENCE / f"{language}.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## (?:`(\w+)`)?", line):
            name = heading.group(1) or ""
        elif name and (call := re.match(r"\| `(\w+)\(", line)):
            found.setdefault(name, set()).add(call.group(1))
    return found


def camel(name: str) -> str:
    """``set_ttl`` as ``setTtl``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def test_both_languages_have_the_same_calls():
    if not REFERENCE.exists():
        pytest.skip("skipped: the package is tested outside of its repository")
    python, typescript = surface("python"), surface("typescript")
    assert {"Sandbox", "SandboxFilesystem", "DatabasesAPI"} <= set(python) & set(typescript)
    ours = {f"{cls}.{camel(call)}" for cls, calls in python.items() for call in calls}
    theirs = {f"{cls}.{call}" for cls, calls in typescript.items() for call in calls}
    missing = {"TypeScript": ours - theirs - set(ONLY_PYTHON), "Python": theirs - ours - set(ONLY_TYPESCRIPT)}
    assert missing == {"TypeScript": set(), "Python": set()}
    stale = [name for name in (*ONLY_PYTHON, *ONLY_TYPESCRIPT) if (name in ours) == (name in theirs)]
    assert stale == [], "exceptions that are none any more"
