"""The package as such: generated code is fresh, everything public is documented."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pandastack

ROOT = Path(__file__).resolve().parent.parent


def test_sync_client_is_fresh():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "generate_sync.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version():
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', project, re.M).group(1) == pandastack.__version__


def test_every_public_name_is_documented():
    missing = []
    for name in pandastack.__all__:
        value = getattr(pandastack, name)
        if not inspect.isclass(value):
            continue
        if not (value.__doc__ or "").strip():
            missing.append(name)
        for member, thing in vars(value).items():
            function = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
            if not member.startswith("_") and inspect.isfunction(function) and not function.__doc__:
                missing.append(f"{name}.{member}")
    assert missing == []
