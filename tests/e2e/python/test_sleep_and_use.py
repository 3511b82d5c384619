"""Sandboxes that are used while they fall asleep, stand still or go back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pandastack import PandaStack, PandaStackError, Sandbox

from conftest import wait_for


def runs(sandbox: Sandbox, word: str) -> bool:
    return any(word in process.info.command for process in sandbox.processes() if process.info.state == "running")


def test_a_command_continues_after_sleep(own: Sandbox) -> None:
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(own.exec, "echo begun >> /root/log; sleep 3; cat; exit 7", stdin="its input", timeout_seconds=120)
        # The process exists before its first line has run.
        wait_for("its first line", lambda: own.exec("test -s /root/log").exit_code == 0)
        own.hibernate()
        assert own.exec("cat /root/log", timeout_seconds=120).stdout == "begun\n"
        result = long.result(120)
    assert (result.stdout, result.exit_code) == ("its input", 7)
    assert own.exec("cat /root/log").stdout == "begun\n", "it ran once"


def test_commands_wait_while_a_sandbox_falls_asleep(own: Sandbox) -> None:
    def use(number: int) -> int:
        answered = 0
        while time.monotonic() < until:
            assert own.exec(f"echo {number} >> /root/log; echo {number}", timeout_seconds=120).stdout == f"{number}\n"
            answered += 1
        return answered

    until = time.monotonic() + 12
    with ThreadPoolExecutor(2) as pool:
        users = [pool.submit(use, number) for number in range(2)]
        while time.monotonic() < until:
            own.hibernate()
        # A command that fell asleep halfway continues when it wakes.
        own.wake()
        answered = [user.result(120) for user in users]
    assert own.exec("wc -l < /root/log", timeout_seconds=120).stdout.strip() == str(sum(answered)), "none ran twice"


def test_a_paused_sandbox_can_be_copied_repeatedly(client: PandaStack, own: Sandbox) -> None:
    own.exec("echo kept > /dev/shm/kept", check=True)
    own.pause()
    first, second = own.snapshot(), own.snapshot()
    with own.fork() as child:
        assert child.exec("cat /dev/shm/kept", timeout_seconds=60).stdout == "kept\n"
    own.hibernate()
    assert own.exec("cat /dev/shm/kept", timeout_seconds=120).stdout == "kept\n"
    with own.fork() as child:
        assert child.exec("cat /dev/shm/kept", timeout_seconds=60).stdout == "kept\n"
    for snapshot in (first, second):
        with client.sandboxes.create(from_snapshot=snapshot) as copy:
            assert copy.exec("cat /dev/shm/kept", timeout_seconds=60).stdout == "kept\n"


def test_calls_interrupted_by_a_rollback_report_it(own: Sandbox) -> None:
    snapshot = own.snapshot()
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(own.exec, "sleep 61", timeout_seconds=120)
        wait_for("it runs", lambda: runs(own, "sleep 61"))
        own.rollback(snapshot)
        with pytest.raises(PandaStackError) as ended:
            long.result(60)
    assert "rolled back" in str(ended.value)


def test_the_clock_is_correct_after_a_boot_from_disk(own: Sandbox) -> None:
    own.hibernate(keep="disk")
    own.wake()
    asked = time.time()
    told = float(own.exec("date +%s.%N", timeout_seconds=120).stdout)
    assert asked - 2 < told < time.time() + 2
