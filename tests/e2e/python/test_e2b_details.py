"""Details that E2B's own tests check: errors of killed sandboxes, targets of links."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import e2b_code_interpreter as interpreter
import pytest

from conftest import RUN
from test_e2b import TIMEOUT, e2b


def test_a_kill_ends_commands_and_code_with_its_reason() -> None:
    made = interpreter.Sandbox.create(timeout=TIMEOUT, metadata=RUN)
    made.commands.run("mkdir tree && touch tree/text && ln -s text tree/link")
    assert made.files.get_info("tree/link").symlink_target == "/home/user/tree/text"
    runs = threading.Event()
    program = "import time\nprint('runs', flush=True)\ntime.sleep(1000)"
    with ThreadPoolExecutor(2) as pool:
        try:
            command = pool.submit(made.commands.run("sleep 1000", background=True, timeout=0).wait)
            code = pool.submit(made.run_code, program, on_stdout=lambda _: runs.set(), timeout=TIMEOUT)
            assert runs.wait(TIMEOUT)
        finally:
            made.kill()
        for work, error in ((command, e2b.SandboxNotRunningException), (code, e2b.TimeoutException)):
            with pytest.raises(error, match="sandbox was killed"):
                work.result(60)
