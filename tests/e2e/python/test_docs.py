"""Code blocks of the documentation run as they are written.

A page is one session: its blocks run in order and share variables. A block with a mark on its fence
(`no-test: reason`, `tested-by: path`) does not run here; `cargo xtask tidy` checks the marks.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Dict, Iterator
from urllib.parse import urlsplit

import pytest

from doc_pages import ROOT, Block, Session, blocks, keeps_promises, pages, steps, title, to_run
from pandastack import ConflictError, NotFoundError, PandaStack

_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_SANDBOX = "from pandastack import PandaStack\nsandbox = PandaStack().sandboxes.create(ttl_seconds=1800)\nprint(sandbox.id)\n"
_ID_GIVEN = "id=$(pandastack sandbox create)"

#: What a page takes for granted, by language.
GIVEN: Dict[str, Dict[str, str]] = {
    "docs/explanation/security.md": {"sh": _ID_GIVEN},
    "docs/how-to/connect-to-a-database.md": {"sh": "pandastack db create shop"},
    "docs/how-to/fork-and-roll-back.md": {
        "python": f"{_SANDBOX}sandbox.filesystem.write('/root/solve.py', 'print(1)')\n"
    },
    "docs/how-to/monitor.md": {"sh": _ID_GIVEN},
    "docs/reference/code-contexts.md": {"python": _SANDBOX},
    "docs/reference/network.md": {"sh": _ID_GIVEN},
    "docs/reference/previews.md": {"python": _SANDBOX},
    "docs/reference/processes.md": {"sh": _ID_GIVEN},
}
#: What a page leaves behind besides sandboxes and snapshots.
LEFT: Dict[str, str] = {
    "docs/how-to/connect-to-a-database.md": "pandastack db rm shop",
    "docs/how-to/deploy-a-function.md": "pandastack fn rm hello",
    "docs/how-to/mount-a-volume.md": "pandastack volume rm data models",
    "docs/how-to/schedule-a-job.md": "pandastack schedule rm report; pandastack schedule rm backup",
    "docs/reference/databases.md": "pandastack db rm shop orders",
    "docs/reference/functions.md": "pandastack fn rm hello",
    "docs/reference/volumes.md": "pandastack volume rm data",
    "docs/tutorials/first-app.md": "pandastack app rm hello-app --yes",
    "docs/tutorials/first-database.md": "pandastack db rm shop experiment before-the-drop",
}


#: Pages of a user's first hour. They run command by command, and the time of each is printed.
FIRST_HOUR = ("README.md", "docs/tutorials/quickstart.md")


@pytest.fixture
def session(page: str, tmp_path: Path, client: PandaStack) -> Iterator[Session]:
    made = Session(tmp_path, os.environ)
    # A page may list what other tests have.
    kept = {one.id for things in (client.sandboxes, client.snapshots) for one in things.list()}
    yield made
    made.close()
    for name in set(_ID.findall(made.log.read_text())) - kept:
        for things in (client.sandboxes, client.snapshots):
            try:
                things.delete(name)
            except (ConflictError, NotFoundError):  # A service deletes its own machines.
                pass
    made.clean_up(LEFT.get(page, "true"))


def of_this_server(text: str) -> str:
    """The text with this server's address instead of the default one."""
    server = urlsplit(os.environ["PANDASTACK_API"])
    return re.sub(r"(127\.0\.0\.1|localhost):8080\b", rf"\g<1>:{server.port}", text)


@pytest.mark.parametrize("page", pages())
def test_page_examples_run_as_shown(page: str, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    for language, text in GIVEN.get(page, {}).items():
        session.run(language, text)
    for block in to_run(of_this_server((ROOT / page).read_text())):
        parts = steps(block) if page in FIRST_HOUR else [block.text]
        printed = ""
        for part in parts:
            began = time.monotonic()
            printed += session.run(block.language, part)
            if page in FIRST_HOUR:
                with capsys.disabled():
                    print(f"\n{page}:{block.line} {time.monotonic() - began:7.2f} s  {title(part)}", end="")
        assert keeps_promises(block, printed), f"{page}:{block.line} promises {block.promised}, not:\n{printed}"


def test_blocks_are_split_into_steps() -> None:
    text = "# first\nid=$(x)   # why\n\nfor i in 1 2\ndo\n  echo $i\ndone\necho a \\\n  b\n# last\n"
    cut = steps(Block(1, "sh", "", text))
    loop = "\nfor i in 1 2\ndo\n  echo $i\ndone\n"
    assert cut == ["# first\nid=$(x)   # why\n", loop, "echo a \\\n  b\n# last\n"]
    assert [title(step) for step in cut] == ["id=$(x)", "for i in 1 2", "echo a \\"]
    text = "import a\n\n# why\nwith a:\n    b()\nc(1,\n  2)\n"
    cut = steps(Block(1, "python", "", text))
    assert cut == ["import a\n\n# why\n", "with a:\n    b()\n", "c(1,\n  2)\n"]
    for page in FIRST_HOUR:
        for block in to_run((ROOT / page).read_text()):
            assert "".join(steps(block)) == block.text and len(steps(block)) <= len(block.text.splitlines())


def test_code_fences_and_expected_output_are_parsed() -> None:
    page = "# A\n```sh\necho 1   # => 1\n```\ntext\n```python no-test: needs a model\nx\n```\n"
    first, second = blocks(page)
    assert first == Block(2, "sh", "", "echo 1   # => 1\n") and second.mark == "no-test: needs a model"
    assert to_run(page) == [first]
    assert keeps_promises(first, "0\n1\n") and not keeps_promises(first, "10\n")
    wild = first._replace(text="x # => a ... c\ny # => d\n")
    assert keeps_promises(wild, "a b c\nd\n") and not keeps_promises(wild, "d\na b c\n")
