"""One control, two agents: sandboxes land on both, and a host that is gone is shown as gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Dict, Iterator

import httpx
import pytest
from pandastack import PandaStackError

from platform_process import BINARY, Platform, wait_until

SECOND = "second-host"


class SecondAgent:
    """Another agent of the same control, with a data directory and a network of its own."""

    def __init__(self, platform: Platform) -> None:
        self.data_dir = platform.root / "second"
        self.data_dir.mkdir()
        self.runtime_dir = Path("/run/pandastack-pdsb")
        self.environment: Dict[str, str] = {
            **platform.environment,
            "PANDASTACK_DATA_DIR": str(self.data_dir),
            "PANDASTACK_RUNTIME_DIR": str(self.runtime_dir),
            "PANDASTACK_NET_PREFIX": "pdsb",
            "PANDASTACK_SUBNET": "10.217.0.0/16",
        }
        command = [
            BINARY, "agent", "--host", SECOND, "--warm", "base",
            "--control", f"unix:{platform.runtime_dir}/control.sock",
            "--link-secret-file", str(platform.data_dir / "link-secret"),
        ]
        with (platform.root / "second.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=30)

    def remove(self) -> None:
        self.kill()
        subprocess.run([BINARY, "down", "--purge"], env=self.environment, check=True, timeout=120)


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("pdsa", "10.216.0.0/16", "--warm", "base")
    try:
        yield running.start()
    finally:
        running.stop()


def is_reachable(platform: Platform, host: str) -> bool:
    config = json.loads(platform.config_path().read_text())
    headers = {"Authorization": f"Bearer {config['token']}"}
    answer = httpx.get(f"{config['api_url']}/v1/hosts", headers=headers).raise_for_status().json()
    return any(found["id"] == host and found["reachable"] for found in answer["items"])


def test_sandboxes_land_on_both_and_a_lost_host_is_shown_as_lost(platform: Platform) -> None:
    client = platform.client()
    second = SecondAgent(platform)
    made = []
    try:
        wait_until("the second host reports", lambda: is_reachable(platform, SECOND), 60)
        placed: Dict[str, object] = {}

        def lands_on_both() -> bool:
            try:
                sandbox = client.sandboxes.create(template="base")
            except PandaStackError:
                return False  # The second host is still baking.
            made.append(sandbox)
            placed.setdefault(client.sandboxes.get(sandbox.id).raw["host"], sandbox)
            return len(placed) == 2

        wait_until("sandboxes on both hosts", lands_on_both, 180)
        for sandbox in placed.values():
            assert sandbox.exec("echo here").stdout == "here\n"

        lost, kept = placed[SECOND], next(s for host, s in placed.items() if host != SECOND)
        second.kill()
        gone = lambda: not client.sandboxes.get(lost.id).raw["host_reachable"]
        wait_until("the host is shown as gone", gone, 60)
        assert client.sandboxes.get(lost.id).status == "running", "the last known state is kept"
        with pytest.raises(PandaStackError) as refused:
            lost.exec("true")
        assert (refused.value.status, refused.value.code) == (503, "host_unreachable")
        assert kept.exec("true").exit_code == 0
        assert client.sandboxes.create(template="base").exec("true").exit_code == 0, "placement avoids it"
    finally:
        for sandbox in client.sandboxes.list():
            sandbox.delete()
        second.remove()
