"""Writes ``docs/reference/python.md`` from signatures and docstrings.

``python tools/generate_reference.py`` writes, ``--check`` only compares and fails on a difference.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any, List, Tuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import pandastack  # noqa: E402

DOCUMENT = ROOT.parent.parent / "docs" / "reference" / "python.md"
HEADER = """# Python

```python
from pandastack import PandaStack

with PandaStack().sandboxes.create(template="base") as sandbox:
    print(sandbox.exec("echo hello").stdout)      # => hello
```

Generated from the docstrings by `sdk/python/tools/generate_reference.py`. `AsyncPandaStack` has the same resources and methods for
`asyncio`, with `await` before each call and `Async` before the names of classes.
"""
#: What a client holds, and what those hand out. Everything else is data.
RESOURCES = (
    "PandaStack", "Sandbox", "SandboxFilesystem", "Process", "ExecStream", "CodeContext", "TemplateRecipe",
)


def summary(thing: Any) -> str:
    """The first paragraph of a docstring on one line, in Markdown."""
    text = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")[0].replace("\n", " ")
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`").replace("|", "\\|")


def signature(name: str, function: Any) -> str:
    """A call as one writes it."""
    text = str(inspect.signature(function))
    text = re.sub(r"\(self(, )?", "(", text)
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text).replace("'", '"')
    return f"{name}{text}".replace("|", "\\|")


def members(cls: type) -> List[Tuple[str, str]]:
    """Methods and properties of a class with what they do, in the order of the source."""
    found = []
    for name, thing in vars(cls).items():
        function = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
        if name.startswith("_") or name == "from_dict" or not inspect.isfunction(function):
            continue
        shown = name if isinstance(thing, property) else signature(name, function)
        found.append((shown, summary(function)))
    return found


def section(title: str, cls: type) -> List[str]:
    """One class."""
    rows = [f"| `{shown}` | {what} |" for shown, what in members(cls)]
    table = ["| call | does |", "|---|---|", *rows, ""] if rows else []
    return [f"## {title}", "", summary(cls), "", *table]


def document() -> str:
    """All of it."""
    public = {name: getattr(pandastack, name) for name in pandastack.__all__}
    classes = {name: value for name, value in public.items() if inspect.isclass(value) and not name.startswith("Async")}
    services = [name for name in classes if name.endswith("API")]
    lines = [HEADER]
    for name in [*RESOURCES, *services]:
        lines += section(f"`{name}`", classes[name])
    errors = [name for name, cls in classes.items() if issubclass(cls, BaseException)]
    lines += ["## Errors", "", "| error | when |", "|---|---|"]
    lines += [f"| `{name}` | {summary(classes[name])} |" for name in errors]
    rest = [name for name in classes if name not in (*RESOURCES, *services, *errors)]
    lines += ["", "## Data", "", "| shape | is |", "|---|---|"]
    lines += [f"| `{name}` | {summary(classes[name])} |" for name in rest]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check; returns the exit code."""
    wanted = document()
    if "--check" not in sys.argv[1:]:
        DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
        DOCUMENT.write_text(wanted, encoding="utf-8")
        return 0
    if not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != wanted:
        print("docs/reference/python.md is stale\nhint: run `python tools/generate_reference.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
