"""The code blocks of a documentation page, and a session that runs them in order."""

from __future__ import annotations

import ast
import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import List, NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[3]
#: Where code blocks are checked. `cargo xtask tidy` reads the same pages and checks the marks of their fences.
PAGES = ("README.md", "docs", "sdk/python/README.md", "sdk/typescript/README.md")
#: Languages that a session runs.
RUNS = ("sh", "python")
#: Longest time for one block: a build included.
BLOCK_SECONDS_MAX = 300.0
#: Longest time for a session to end.
END_SECONDS_MAX = 60.0

_PYTHON = """
import contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(json.loads(line), "block", "exec"), names)
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), flush=True)
for made in names.values():
    if type(made).__name__ == "Sandbox":
        with contextlib.suppress(Exception):
            made.delete()
"""


class Block(NamedTuple):
    line: int
    language: str
    #: What the fence says after the language: empty, `no-test: reason` or `tested-by: path`.
    mark: str
    text: str

    @property
    def promised(self) -> List[str]:
        """The lines that it prints, according to its comments `# => line`; `...` stands for any text."""
        return re.findall(r"# => (.+)$", self.text, flags=re.MULTILINE)


def pages() -> List[str]:
    """Paths of all pages with a block to run, relative to the root."""
    files: List[Path] = []
    for page in PAGES:
        path = ROOT / page
        files.extend(sorted(path.rglob("*.md")) if path.is_dir() else [path])
    return [str(file.relative_to(ROOT)) for file in files if to_run(file.read_text())]


def to_run(page: str) -> List[Block]:
    return [block for block in blocks(page) if block.language in RUNS and not block.mark]


def blocks(page: str) -> List[Block]:
    found, opened = [], None  # type: List[Block], Optional[Block]
    for number, line in enumerate(page.splitlines(), start=1):
        fence = re.match(r"```(\w*) ?(.*)$", line)
        if fence is None:
            opened = opened and opened._replace(text=f"{opened.text}{line}\n")
        elif opened is None:
            opened = Block(number, fence[1], fence[2], "")
        else:
            found.append(opened)
            opened = None
    return found


def steps(block: Block) -> List[str]:
    """The commands of a block, or its statements; comments and blank lines belong to the next one."""
    lines, found, held = block.text.splitlines(keepends=True), [], ""
    if block.language == "python":
        starts = sorted({node.lineno - 1 for node in ast.parse(block.text).body})
        return ["".join(lines[a:b]) for a, b in zip([0, *starts[1:]], [*starts[1:], len(lines)])]
    for line in lines:
        held += line
        # A comment alone, or the first lines of a loop, are no command yet.
        is_whole = subprocess.run(["bash", "-n"], input=held, text=True, capture_output=True).returncode == 0
        if is_whole and re.search(r"^\s*[^#\s]", held, flags=re.MULTILINE) and not line.endswith("\\\n"):
            found.append(held)
            held = ""
    return [*found[:-1], found[-1] + held] if found else [held]


def title(step: str) -> str:
    """The first line of a step that is no comment, without the comment at its end."""
    line = next((line for line in step.splitlines() if re.match(r"\s*[^#\s]", line)), step)
    return re.sub(r"\s{2,}#.*", "", line).strip()


class Session:
    """One shell and one Python interpreter, which keep their variables from block to block."""

    def __init__(self, scratch: Path, environment: "os._Environ[str]") -> None:
        self._scratch = scratch
        self.log = scratch / "printed"
        self.log.touch()
        programs, work = scratch / "bin", scratch / "work"
        programs.mkdir()
        work.mkdir()
        # The program's output is also kept, so that sandboxes can be deleted afterwards.
        wrapper = programs / "pandastack"
        wrapper.write_text(f'#!/bin/bash\nset -o pipefail\n"$PANDASTACK_BIN" "$@" | tee -a {self.log}\n')
        wrapper.chmod(0o755)
        self._work = work
        self._env = {
            **environment,
            "HOME": str(scratch),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{environment['PATH']}",
        }
        self._shell = _start(["bash", "-eo", "pipefail"], work, self._env)
        self._python = _start([sys.executable, "-uc", _PYTHON], work, self._env)

    def run(self, language: str, text: str) -> str:
        """Output of a block. It must succeed."""
        return self._run_python(text) if language == "python" else self._run_shell(text)

    def _run_shell(self, text: str) -> str:
        block, output = self._scratch / "block.sh", self._scratch / "output"
        block.write_text(text)
        self._shell.stdin.write(f". {block} > {output} 2>&1 < /dev/null; echo done\n")
        self._shell.stdin.flush()
        answer = _read_line(self._shell)
        printed = output.read_text()
        assert answer == "done\n", f"a command failed:\n{text}\nprinted:\n{printed}"
        return printed

    def _run_python(self, text: str) -> str:
        self._python.stdin.write(json.dumps(text) + "\n")
        self._python.stdin.flush()
        printed, error = json.loads(_read_line(self._python) or '["", "the interpreter ended"]')
        assert error is None, f"{error}\nprinted:\n{printed}"
        with self.log.open("a") as log:
            log.write(printed)
        return str(printed)

    def close(self) -> None:
        """Ends both. Sandboxes that Python variables hold are deleted."""
        for process in (self._shell, self._python):
            process.stdin.close()
            try:
                process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def clean_up(self, text: str) -> None:
        """Runs shell commands that may fail."""
        subprocess.run(["bash", "-c", text], cwd=self._work, env=self._env, stdin=subprocess.DEVNULL)


def _start(command: List[str], work: Path, env: "dict[str, str]") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, cwd=work, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )


def _read_line(process: "subprocess.Popen[str]") -> str:
    """The next line of a process, or nothing if it ended."""
    deadline = time.monotonic() + BLOCK_SECONDS_MAX
    while not select.select([process.stdout], [], [], 1.0)[0]:
        assert time.monotonic() < deadline, f"a block takes longer than {BLOCK_SECONDS_MAX:g} s"
    return process.stdout.readline()


def keeps_promises(block: Block, printed: str) -> bool:
    """Whether the promised lines are among the printed ones, in this order."""
    lines = iter(line.strip() for line in printed.splitlines())
    patterns = [".*".join(map(re.escape, line.strip().split("..."))) for line in block.promised]
    return all(any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns)
