"""Killed servers and a full disk in the middle of calls: what was queued is made as its policy says, and nothing stays behind."""

from __future__ import annotations

import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

import pytest
from pandastack import APIConnectionError, PandaStackError

from platform_process import RESERVE_BYTES, Platform, fill, wait_until
from test_schedules import Receiver

SOURCE = b"""
import time
def handler(event, context):
    time.sleep(event["seconds"])
    return context.attempt
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("pdsf", "10.213.0.0/16", "--warm", "base", "--schedules-private-targets")
    try:
        yield running.start()
    finally:
        running.stop()


def bundle() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("main.py")
        info.size = len(SOURCE)
        archive.addfile(info, io.BytesIO(SOURCE))
    return packed.getvalue()


def test_a_killed_server_loses_no_queued_call(platform: Platform) -> None:
    functions, receiver = platform.client().functions, Receiver()
    settings = {"retries": 1, "timeout_seconds": 60, "dead_letter_url": receiver.url}
    function = functions.create("slow", "python", entrypoint="main.py", **settings)["id"]
    functions.deploy_bundle(function, bundle())
    assert functions.invoke(function, {"seconds": 0})["output"] == 1
    queued = [functions.invoke(function, {"seconds": 20}, wait=False)["id"] for _ in range(2)]
    wait_until("both run", lambda: all(functions.get_run(function, run)["status"] == "running" for run in queued), 120)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(functions.invoke, function, {"seconds": 30})
        wait_until("three machines", lambda: functions.metrics(function)["instances"] >= 3, 120)
        platform.kill_role("control")
        # Its connection broke: an error that says nothing of the handler, and that the caller may repeat.
        with pytest.raises(APIConnectionError):
            waiting.result()
    wait_until("ready again", platform.is_ready, 120)
    for run in queued:
        ended = functions.wait_for_run(function, run, timeout_seconds=240)
        # The attempt that was cut off counts; the next one has the same id.
        assert (ended["id"], ended["status"], ended["output"], ended["attempt"]) == (run, "success", 2, 2)
    # A call cut off in its last attempt is given up, and says why.
    last = functions.invoke(function, {"seconds": 40}, wait=False)["id"]
    for attempt in (1, 2):
        wait_until("it runs", lambda: functions.get_run(function, last)["attempt"] == attempt, 120)
        wait_until("it runs", lambda: functions.get_run(function, last)["status"] == "running", 120)
        platform.kill_role("control")
        wait_until("ready again", platform.is_ready, 120)
    ended = functions.wait_for_run(function, last, timeout_seconds=120)
    assert (ended["status"], ended["attempt"], ended["dead_letter"]) == ("error", 2, True), ended
    assert ended["error"] == "the server stopped during this attempt", ended
    assert [run["id"] for run in functions.dead_letters(function)] == [last]
    # The receiver was notified, once it answered well.
    wait_until("the notice", lambda: receiver.calls, 60)
    notice = json.loads(receiver.calls[0]["body"])
    assert (notice["event"], notice["run"]["id"], notice["input"]) == ("function.dead_letter", last, {"seconds": 40}), notice
    receiver.server.shutdown()
    # Three servers left machines in the middle of calls; none is there any more, nor its process.
    owned = "SELECT id FROM sandboxes WHERE owner IS NOT NULL AND state <> 'deleted'"
    wait_until("no machine of a function", lambda: functions.metrics(function)["instances"] == 0 and not platform.rows(owned), 120)
    machines = lambda: list((platform.data_dir / "store" / "sandboxes").iterdir())  # noqa: E731
    wait_until("no record of one on the host", lambda: machines() == [], 60)
    functions.delete(function)
    wait_until("no snapshot of the function", lambda: not platform.rows("SELECT id FROM snapshots"), 60)


def test_function_calls_survive_an_agent_kill(platform: Platform) -> None:
    functions = platform.client().functions
    function = functions.create("steady", "python", entrypoint="main.py", timeout_seconds=60)["id"]
    functions.deploy_bundle(function, bundle())
    assert functions.invoke(function, {"seconds": 0})["status"] == "success"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(functions.invoke, function, {"seconds": 5})
        platform.kill_role("agent")
        # Machines outlive the agent, and so does the way to them.
        assert waiting.result()["status"] == "success"
    wait_until("ready again", platform.is_ready, 120)
    assert functions.invoke(function, {"seconds": 0})["status"] == "success"
    functions.delete(function)


def test_a_full_disk_fails_deploys_but_not_calls(platform: Platform) -> None:
    functions = platform.client().functions
    # The machine that answers must not fall asleep while the disk is being filled.
    function = functions.create("full", "python", entrypoint="main.py", idle_seconds=600)["id"]
    try:
        functions.deploy_bundle(function, bundle())
        assert functions.invoke(function, {"seconds": 0})["output"] == 1
        filler = platform.data_dir / "store" / "filler"
        try:
            fill(filler, RESERVE_BYTES // 2)
            with pytest.raises(PandaStackError) as refused:
                functions.deploy_bundle(function, bundle())
            assert refused.value.status == 507 and "version 2 failed to deploy: disk full" in str(refused.value)
            # There is no room for another machine: calls wait for the one that runs.
            with ThreadPoolExecutor(3) as pool:
                runs = list(pool.map(lambda _: functions.invoke(function, {"seconds": 0.5}), range(3)))
            assert [(run["status"], run["version"]) for run in runs] == [("success", 1)] * 3
        finally:
            filler.unlink()
        assert functions.deploy_bundle(function, bundle())["version"] == 3
        assert functions.invoke(function, {"seconds": 0})["version"] == 3
    finally:
        functions.delete(function)
