"""A counter that lives in a sandbox's memory only: it cannot survive a restart of its machine."""

from __future__ import annotations

from pandastack import Sandbox

from platform_process import wait_until

FILE = "/dev/shm/count"
# Each count replaces the last one whole: a reader never finds an empty file.
PROGRAM = (
    f"nohup sh -c 'i=0; while :; do i=$((i+1)); echo $i > {FILE}.new; mv {FILE}.new {FILE}; sleep 0.1; done'"
    " >/dev/null 2>&1 &"
)


def start_counter(sandbox: Sandbox) -> None:
    sandbox.exec(PROGRAM, check=True)
    wait_until("the counter runs", lambda: sandbox.exec(f"cat {FILE}").ok, 30)


def count(sandbox: Sandbox) -> int:
    return int(sandbox.exec(f"cat {FILE}", timeout_seconds=120, check=True).stdout)
