"""The `pandastack` client of PyPI, unmodified, in a process that does not have ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import RUN

PROGRAM = Path(__file__).with_name("published_program.py")
#: Where `cargo xtask test` puts it, apart from the packages of the environment.
PUBLISHED = Path(os.environ.get("PANDASTACK_PUBLISHED_CLIENT", Path(sys.prefix) / "published"))


def test_the_published_client_works() -> None:
    assert (PUBLISHED / "pandastack").is_dir(), f"no published client in {PUBLISHED}: see tests/e2e/README.md"
    environment = {**os.environ, "PYTHONPATH": str(PUBLISHED)}
    command = [sys.executable, str(PROGRAM), RUN["e2e"], str(PUBLISHED)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0 and '"passed": true' in ran.stdout, ran.stdout + ran.stderr
