"""A stream gets every byte of its process once, whatever happens to the servers and to the machine."""

from __future__ import annotations

import os
import signal
import time
from threading import Thread
from typing import Callable, Iterator, List

import pytest
from pandastack import APIConnectionError, ConflictError, PandaStackError, Sandbox, ServerError

from platform_process import Platform, stays, wait_until
from stream_in_middle import check_every_byte_once


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("pdss", "10.214.0.0/16", "--warm", "base")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def sandbox(platform: Platform) -> Iterator[Sandbox]:
    made = platform.client().sandboxes.create(template="base")
    try:
        yield made
    finally:
        made.delete()


def sleep_and_wake(platform: Platform, sandbox: Sandbox) -> None:
    sandbox.hibernate()
    wait_until("its machine has ended", lambda: platform.machine_pids(sandbox.id) == [], 30)
    # The stream that is open must not wake it: that nothing happens for a time is what is tested.
    stays("it sleeps", lambda: sandbox.refresh().status == "hibernated", 1)
    sandbox.wake()


def pause_and_resume(platform: Platform, sandbox: Sandbox) -> None:
    sandbox.pause()
    sandbox.resume()


def kill_agent_asleep(platform: Platform, sandbox: Sandbox) -> None:
    sandbox.hibernate()
    platform.kill_role("agent")

    def wakes() -> bool:
        try:
            sandbox.wake()
        except PandaStackError:
            return False
        return True

    wait_until("the new agent wakes it", wakes, 60)


MIDDLES = {
    "kill agent": lambda platform, sandbox: platform.kill_role("agent"),
    "kill control": lambda platform, sandbox: platform.kill_role("control"),
    "hibernate": sleep_and_wake,
    "pause": pause_and_resume,
    "snapshot": lambda platform, sandbox: sandbox.snapshot(),
    "kill agent while asleep": kill_agent_asleep,
}


@pytest.mark.parametrize("name", MIDDLES)
def test_a_stream_delivers_every_byte_once(platform: Platform, sandbox: Sandbox, name: str) -> None:
    middle: Callable[[Platform, Sandbox], object] = MIDDLES[name]
    check_every_byte_once(sandbox, lambda: middle(platform, sandbox))


def test_calls_to_a_dead_machine_fail_at_once(platform: Platform, sandbox: Sandbox) -> None:
    stream = iter(sandbox.exec_stream("echo on; sleep 1000", timeout_seconds=300))
    assert next(stream).text == "on\n"
    (pid,) = platform.machine_pids(sandbox.id)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PandaStackError):
        list(stream)

    def is_refused() -> bool:
        try:
            sandbox.exec("true")
        except ConflictError as refused:
            assert refused.code == "sandbox_failed", refused
            return True
        except PandaStackError:
            # The loss of its machine is not noticed yet.
            return False
        return False

    wait_until("a refusal", is_refused, 60)
    assert time.monotonic() - began < 120, "it did not wait for the end of the stream"


def test_a_control_crash_fails_the_call_and_the_client_recovers(platform: Platform, sandbox: Sandbox) -> None:
    outcomes: List[BaseException] = []

    def call() -> None:
        try:
            sandbox.exec("touch /tmp/begun; sleep 1000", timeout_seconds=30)
        except BaseException as error:
            outcomes.append(error)

    worker = Thread(target=call)
    began = time.monotonic()
    worker.start()
    other = platform.client().sandboxes.get(sandbox.id)
    wait_until("the command began", lambda: other.filesystem.exists("/tmp/begun"), 60)
    platform.kill_role("control")
    worker.join(60)
    assert not worker.is_alive() and time.monotonic() - began < 60
    (error,) = outcomes
    assert isinstance(error, (APIConnectionError, ServerError)), error
    # The same client and its connections: whatever was open to the dead server is not in the way.
    assert sandbox.exec("echo again").stdout == "again\n"
