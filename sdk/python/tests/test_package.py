"""The package as such: generated code is fresh, everything public is documented."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pandastack

ROOT = Path(__file__).resolve().parent.parent


def test_the_generated_sync_client_is_up_to_date():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "generate_sync.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_reference_is_up_to_date():
    document = ROOT.parent.parent / "docs" / "reference"
    if not document.exists():
        pytest.skip("skipped: the package is tested outside of its repository")
    command = [sys.executable, str(ROOT / "tools" / "generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_mypy_passes():
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_import_is_quick(tmp_path):
    """At most 150 ms; on a slow machine, little more than what it stands on. Processor time: others' work does not count."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}

    def seconds(module: str) -> float:
        program = f"import time; began = time.process_time(); import {module}; print(time.process_time() - began)"
        command = [sys.executable, "-c", program]
        return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    seconds("pandastack")  # once, for the compiled files
    pairs = [(seconds("pandastack"), seconds("httpx")) for _ in range(5)]
    ours, httpx = (min(times) for times in zip(*pairs))
    assert ours <= 0.150 or ours <= 2 * httpx, f"import pandastack: {ours * 1000:.0f} ms, httpx: {httpx * 1000:.0f} ms"
