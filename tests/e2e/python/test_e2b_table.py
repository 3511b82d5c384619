"""`docs/reference/e2b-compatibility.md` says what the tests of this run proved, and nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from conftest import E2B_PASSED
from test_e2b import MISSING

DOCUMENT = Path(__file__).parents[3] / "docs/reference/e2b-compatibility.md"
BEGIN, END = "<!-- python: generated -->", "<!-- /python -->"


def table(passed: dict) -> str:
    rows = ["| Python client | tested |", "|---|---|"]
    rows += [f"| `{name}` | {'; '.join(part for part in parts if part) or 'yes'} |" for name, parts in passed.items()]
    rows += ["", "| not supported | why |", "|---|---|"]
    rows += [f"| {what} | {why} |" for what, (why, _) in MISSING.items()]
    return "\n".join(rows)


def test_the_e2b_compatibility_table_is_up_to_date(request: pytest.FixtureRequest) -> None:
    collected = [item for item in request.session.items if item.get_closest_marker("e2b")]
    if not collected:
        pytest.skip("skipped: test_e2b.py is not part of this run")
    text = DOCUMENT.read_text()
    wanted = f"{BEGIN}\n\n{table(E2B_PASSED)}\n\n{END}"
    if os.environ.get("PANDASTACK_WRITE_DOCS"):
        DOCUMENT.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: wanted, text, flags=re.S))
        return
    assert wanted in text, "docs/reference/e2b-compatibility.md is stale: run this test with PANDASTACK_WRITE_DOCS=1"
