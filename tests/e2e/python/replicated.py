"""A platform as a fleet has it: two control servers on one PostgreSQL, and an agent that knows both."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, List

from pandastack import PandaStack

from platform_process import BINARY, READY_SECONDS_MAX, Platform, free_port, read_text, seed_store, wait_until

POSTGRES_PROGRAMS = os.environ.get("PANDASTACK_TEST_POSTGRES_BIN")
NOBODY = 65534


class Postgres:
    """A server on a socket in a directory, which refuses to run as root."""

    def __init__(self, root: Path) -> None:
        self.dir = root / "postgres"
        self.dir.mkdir()
        os.chown(self.dir, NOBODY, NOBODY)
        for directory in (root, *root.parents):
            assert os.stat(directory).st_mode & 0o1 or directory == root, f"nobody may not enter {directory}"
        root.chmod(0o711)
        self.run("initdb", "--username=postgres", "--auth=trust", "--no-sync")
        options = f"-k {self.dir} -c listen_addresses= -c fsync=off"
        self.run("pg_ctl", "start", "--wait", "--log", str(self.dir / "log"), "--options", options)
        self.url = f"postgres:///postgres?user=postgres&host={self.dir}"

    def run(self, program: str, *arguments: str) -> None:
        command = [f"{POSTGRES_PROGRAMS}/{program}", "--pgdata", str(self.dir / "data"), *arguments]
        # `pg_ctl` passes its outputs to the server, so a reader of them would wait for its end.
        subprocess.run(
            command, cwd=self.dir, env={"TZ": "UTC"}, user=NOBODY, group=NOBODY, extra_groups=[], check=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "--mode=immediate")


class Control:
    """One of the control servers."""

    def __init__(self, platform: "ReplicatedPlatform", name: str) -> None:
        self.name, self.platform = name, platform
        self.port = free_port()
        self.data_dir = platform.root / name
        self.runtime_dir = Path(f"/run/pandastack-{platform.prefix}-{name}")
        self.environment: Dict[str, str] = {
            **platform.environment,
            "PANDASTACK_DATABASE_URL": platform.postgres.url,
            "PANDASTACK_DATA_DIR": str(self.data_dir),
            "PANDASTACK_RUNTIME_DIR": str(self.runtime_dir),
            "PANDASTACK_POSTGRES_LISTEN": f"127.0.0.1:{free_port()}",
        }
        self.log = platform.root / f"{name}.log"

    def start(self) -> "Control":
        secret = str(self.platform.secret)
        command = [BINARY, "control", "--listen", f"127.0.0.1:{self.port}", "--link-secret-file", secret]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        wait_until(f"{self.name} serves (log: {self.log})", lambda: self.answers("healthz"), 60)
        return self

    def answers(self, path: str) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"control ended: {read_text(self.log)[-4000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    @property
    def socket(self) -> str:
        return f"unix:{self.runtime_dir}/control.sock"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> PandaStack:
        return PandaStack(api_key=self.platform.token(), base_url=self.url)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=30)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


class ReplicatedPlatform(Platform):
    """The same interface as a platform on one box."""

    def start(self) -> "ReplicatedPlatform":
        self.data_dir.mkdir()
        seed_store(self.data_dir)
        self.secret = self.data_dir / "link-secret"
        self.secret.write_bytes(subprocess.run([BINARY, "join-secret"], capture_output=True, check=True).stdout)
        self.secret.chmod(0o600)
        self.postgres = Postgres(self.root)
        # The first one on an empty database makes the first key, and leads.
        self.controls: List[Control] = []
        for name in ("a", "b"):
            self.controls.append(Control(self, name).start())
        self.port = self.controls[0].port
        command = [BINARY, "agent", "--control", ",".join(control.socket for control in self.controls), *self.arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        wait_until(f"ready (log: {self.log})", self.is_ready, READY_SECONDS_MAX)
        return self

    def token(self) -> str:
        return (self.controls[0].data_dir / "control/bootstrap-token").read_text().strip()

    def client(self) -> PandaStack:
        return self.controls[0].client()

    def stop(self) -> None:
        for control in getattr(self, "controls", []):
            control.stop()
        if hasattr(self, "postgres"):
            self.postgres.stop()
        super().stop()
