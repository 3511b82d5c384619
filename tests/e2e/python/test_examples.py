"""Every example does what it says: each line it prints is the comment beside its `print`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/python"
#: Builds and bakes included.
SECONDS_MAX = 300


def promised(source: str) -> List[str]:
    return re.findall(r"^\s*print\(.*\)  # (.+)$", source, flags=re.MULTILINE)


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples_print_their_documented_output(name: str) -> None:
    program = EXAMPLES / name
    lines = promised(program.read_text())
    assert lines, f"{name} promises nothing"
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert (ran.stdout.splitlines(), ran.returncode) == (lines, 0), ran.stderr
