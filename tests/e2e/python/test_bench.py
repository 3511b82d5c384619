"""`pandastack bench` on real machines: it measures, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import List

from conftest import wait_for
from pandastack import PandaStack

COMMAND = [os.environ["PANDASTACK_BIN"], "bench", "--template", "base", "--json"]
LABEL = "pandastack.bench"


def made(client: PandaStack) -> List[str]:
    return [sandbox.id for sandbox in client.sandboxes.list() if LABEL in sandbox.metadata]


def test_bench_measures_and_cleans_up(client: PandaStack) -> None:
    done = subprocess.run([*COMMAND, "--count", "2", "--concurrency", "2"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert report["rounds"] == 2 and set(figures) == {"create", "create_and_exec", "exec", "fork", "delete"}
    assert all(0 < figure["p50_ms"] <= figure["p90_ms"] <= figure["p99_ms"] for figure in figures.values())
    assert figures["create"]["p50_ms"] < figures["create_and_exec"]["p50_ms"]
    assert made(client) == []


def test_ctrl_c_deletes_all_sandboxes(client: PandaStack) -> None:
    running = subprocess.Popen([*COMMAND, "--", "sleep 1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for("the first sandbox", lambda: made(client), 600)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=120)
    finally:
        running.kill()
    assert (running.returncode, json.loads(stdout)["interrupted"]) == (130, True), stderr
    assert made(client) == []
