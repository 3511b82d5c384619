"""The package as users get it: built to a wheel, installed from it, with nothing of the clone in sight."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).resolve().parents[3] / "sdk" / "python"
PROGRAM = """
import pathlib, pandastack
package = pathlib.Path(pandastack.__file__).parent
assert str(package).startswith({site!r}), package
assert (package / "py.typed").exists()
print(pandastack.PandaStack().run("echo from a wheel", template="base").stdout, end="")
"""


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_wheel_works_outside_the_repository(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(SDK))
    (wheel,) = tmp_path.glob("pandastack-*.whl")
    site = tmp_path / "site"
    pip("install", "--no-deps", "--target", str(site), str(wheel))
    assert list(site.glob("pandastack-*.dist-info/licenses/LICENSE"))
    environment = {**os.environ, "PYTHONPATH": str(site)}
    program = PROGRAM.format(site=str(site))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300
    )
    assert (done.stdout, done.stderr) == ("from a wheel\n", "")
