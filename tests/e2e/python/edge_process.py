"""An edge beside a platform, as a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Dict

import httpx
from pandastack import Sandbox
from platform_process import BINARY, free_port, read_text, wait_until

#: Starts a web server in a sandbox.
SERVE = "nohup python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &"


def serve(sandbox: Sandbox) -> Sandbox:
    sandbox.exec(SERVE)
    wait_until("the server listens", lambda: 8000 in [port.port for port in sandbox.ports()], 60)
    return sandbox


class EdgeProcess:
    """Runs until the end of its block. ``arguments`` name the control servers where they are not the environment's own."""

    def __init__(self, environment: Dict[str, str], log: Path, *arguments: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.log = log
        command = [BINARY, "edge", "--edge-listen", self.address, *arguments]
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def __enter__(self) -> "EdgeProcess":
        wait_until("the edge answers", self.is_up, 30)
        return self

    def is_up(self) -> bool:
        assert self.process.poll() is None, read_text(self.log)
        try:
            return httpx.get(f"http://{self.address}/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    def get(self, sandbox: Sandbox) -> int:
        """Status of a request to the sandbox's server."""
        host = f"8000-{sandbox.id}.example.com"
        return httpx.get(f"http://{self.address}/", headers={"Host": host}, timeout=60).status_code

    def __exit__(self, *_: Any) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
