"""E2B's suites: what each needs, and how it is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Callable, List, NamedTuple

CACHE = Path(os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack")) / "e2b-suite"
#: Emulated machines are slow; E2B's tests give theirs 30 s.
TEST_SECONDS_MAX = 240
PYTHON_TOOLS = ("pytest", "python-dotenv", "matplotlib")
#: Of the development packages of a JavaScript client, those that its tests import.
JAVASCRIPT_TOOLS = ("@types/node", "@vitest/browser-playwright", "dotenv", "msw", "playwright", "vitest")

#: The directory to run a suite in, and the command that writes its results to a file.
Prepared = Callable[[Path, Path], "tuple[Path, List[str]]"]


class Suite(NamedTuple):
    #: As in `expected-NAME.txt`.
    name: str
    #: The variable with the checkout of its repository.
    variable: str
    #: Where the client is in the checkout.
    package: str
    #: The template that its sandboxes use.
    template: str
    prepare: Prepared


def run(*words: object, **options: object) -> None:
    subprocess.run([str(word) for word in words], check=True, **options)  # type: ignore[call-overload]


def prepared(name: str, key: bytes, make: Callable[[Path], None]) -> Path:
    """A directory in the cache, made once."""
    directory = CACHE / f"{name}-{hashlib.sha256(key).hexdigest()[:16]}"
    if not directory.exists():
        part = directory.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        make(part)
        part.rename(directory)
    return directory


def python(package: Path, report: Path) -> "tuple[Path, List[str]]":
    """A Python with the client of the checkout, and the tools that its tests need."""
    text = (package / "pyproject.toml").read_text()
    manifest = tomllib.loads(text)
    if "dependency-groups" in manifest:
        tools = manifest["dependency-groups"]["dev"]
    else:
        dev = manifest["tool"]["poetry"]["group"]["dev"]["dependencies"]
        tools = [name + version.replace("^", ">=") for name, version in dev.items()]
    tools = [tool for tool in tools if tool.startswith(PYTHON_TOOLS)]

    def make(into: Path) -> None:
        run(sys.executable, "-m", "venv", into)
        run(into / "bin/python", "-m", "pip", "install", "--quiet", package, "pytest-timeout", *tools)

    interpreter = prepared("python", f"{package}\n{text}".encode(), make) / "bin/python"
    return package, [
        str(interpreter), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider",
        "-o", f"timeout={TEST_SECONDS_MAX}", f"--junitxml={report}",
    ]


def javascript(package: Path, report: Path) -> "tuple[Path, List[str]]":
    """A copy of the client with the packages that it and its tests import."""
    text = (package / "package.json").read_text()
    manifest = json.loads(text)
    dev = manifest["devDependencies"]
    manifest["devDependencies"] = {name: dev[name] for name in JAVASCRIPT_TOOLS if name in dev}
    manifest.pop("scripts")

    def make(into: Path) -> None:
        shutil.copytree(package, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
        (into / "package.json").write_text(json.dumps(manifest))
        run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=into)

    copy = prepared("javascript", f"{package}\n{text}".encode(), make)
    # The first two projects' tests; their browser tests need a browser.
    projects = ["unit", "template", "connectionConfig"] if "msw" in dev else []
    return copy, [
        str(copy / "node_modules/.bin/vitest"), "run", *(f"--project={name}" for name in projects),
        f"--testTimeout={TEST_SECONDS_MAX * 1000}", f"--hookTimeout={TEST_SECONDS_MAX * 1000}",
        "--maxWorkers=2", "--reporter=default", "--reporter=junit", f"--outputFile.junit={report}",
    ]


CLIENT, INTERPRETER = "PANDASTACK_E2B_REPO", "PANDASTACK_E2B_INTERPRETER_REPO"
SUITES = (
    Suite("python", CLIENT, "packages/python-sdk", "base", python),
    Suite("javascript", CLIENT, "packages/js-sdk", "base", javascript),
    Suite("interpreter-python", INTERPRETER, "python", "code-interpreter", python),
    Suite("interpreter-javascript", INTERPRETER, "js", "code-interpreter", javascript),
)
