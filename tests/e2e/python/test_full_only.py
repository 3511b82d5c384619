"""The table of what only a full run has names tests that are there."""

from __future__ import annotations

from pathlib import Path

from full_only import FULL_ONLY


def test_the_full_only_table_names_existing_tests() -> None:
    here = Path(__file__).parent
    for test in FULL_ONLY:
        file, _, name = test.partition("[")[0].partition("::")
        assert f"\ndef {name}(" in (here / file).read_text(), test
