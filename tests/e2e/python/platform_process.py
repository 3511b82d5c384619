"""A whole platform of a test's own: its processes, its data directory, its network.

Tests that kill servers or count what is left need one that nobody else uses.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Callable, ClassVar, Dict, List, Optional

from pandastack import PandaStack

BINARY = os.environ["PANDASTACK_BIN"]
READY_SECONDS_MAX = 600.0
#: An image of a store in which templates are baked; without it, every platform bakes its own.
SEED = os.environ.get("PANDASTACK_TEST_STORE")
#: Lines of each log of a platform that are shown with a failed test.
LOG_LINES_SHOWN = 60
#: What the store keeps free for what must still be written when it is full.
RESERVE_BYTES = 64 << 20


def wait_until(what: str, condition: Callable[[], object], seconds_max: float) -> object:
    """Asks until the answer is true. The only place that waits by looking again: no event of another process's
    insides reaches a test."""
    deadline = time.monotonic() + seconds_max
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds_max:.0f} s")
        time.sleep(0.05)


def stays(what: str, condition: Callable[[], object], seconds: float) -> None:
    """Asks for a while, and the answer is always true. For tests of time itself, or of something that must
    not happen: no event tells that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"{what}: not for {seconds:g} s"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def command_lines() -> Dict[int, str]:
    """Every process's command line, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            text = read_text(entry / "cmdline").replace("\0", " ").strip()
            if text:
                found[int(entry.name)] = text
    return found


def open_files(pid: int) -> List[str]:
    """Open files of a process; none, if it is gone."""
    try:
        return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def has_open(pid: int, directory: Path) -> bool:
    """Whether a process has a file below the directory open."""
    return any(target.startswith(f"{directory}/") for target in open_files(pid))


def fill(filler: Path, left_bytes: int) -> None:
    """Takes space until so much is left. The file system gives back what was deleted a little later, so look again."""
    with filler.open("wb") as file:
        size = 0
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 2:
            space = os.statvfs(filler)
            more = space.f_bavail * space.f_frsize - left_bytes
            if more > 1 << 20:
                os.posix_fallocate(file.fileno(), size, more)
                size += more
                quiet_since = time.monotonic()
            time.sleep(0.1)


def seed_store(data_dir: Path) -> None:
    """Lets an agent with a new data directory begin with templates that are baked."""
    image = data_dir / "store.xfs"
    if SEED is None or image.exists():
        return
    data_dir.mkdir(exist_ok=True)
    copy = data_dir / "store.xfs.making"
    subprocess.run(["cp", SEED, str(copy)], check=True)
    # The kernel mounts no two file systems with the same id.
    subprocess.run(["xfs_admin", "-U", "generate", str(copy)], check=True, capture_output=True)
    copy.rename(image)


class Platform:
    """`pandastack up` on a directory, port and network of its own."""

    #: Those that were started and not stopped. Their logs explain a failed test.
    running: ClassVar[List["Platform"]] = []

    def __init__(self, prefix: str, subnet: str, *arguments: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="pandastack-e2e-"))
        # Control runs as a user of its own, which must be able to pass.
        self.root.chmod(0o711)
        self.data_dir = self.root / "data"
        self.runtime_dir = Path("/run") / f"pandastack-{prefix}"
        self.port = free_port()
        self.prefix = prefix
        self.binary = BINARY
        self.arguments = list(arguments)
        self.log = self.root / "up.log"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PANDASTACK_")},
            "PANDASTACK_CACHE_DIR": os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack"),
            "HOME": str(self.root),
            "PANDASTACK_NET_PREFIX": prefix,
            "PANDASTACK_SUBNET": subnet,
            "PANDASTACK_RUNTIME_DIR": str(self.runtime_dir),
            "PANDASTACK_DATA_DIR": str(self.data_dir),
            # Tests create workspaces beside many sandboxes, which would then need all of their memory.
            "PANDASTACK_MEMORY_PROMISED_PERCENT": "8",
        }
        self.process: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> "Platform":
        seed_store(self.data_dir)
        command = [self.binary, "up", "--listen", f"127.0.0.1:{self.port}", *self.arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        if self not in Platform.running:
            Platform.running.append(self)
        wait_until(f"ready (log: {self.log})", self.is_ready, READY_SECONDS_MAX)
        wait_until("the client's configuration", self.config_path().exists, 30)
        return self

    def log_tails(self) -> Dict[str, str]:
        """The last lines of every log."""
        paths = [self.log, *sorted((self.data_dir / "logs").glob("*.log"))]
        return {path.name: "\n".join(read_text(path).splitlines()[-LOG_LINES_SHOWN:]) for path in paths}

    def config_path(self) -> Path:
        return self.root / ".config/pandastack/config.json"

    def is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"`pandastack up` ended: {read_text(self.log)[-4000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def client_config(self) -> Dict[str, str]:
        config: Dict[str, str] = json.loads(self.config_path().read_text())
        return config

    def client(self) -> PandaStack:
        config = self.client_config()
        return PandaStack(api_key=config["token"], base_url=config["api_url"])

    def role_pid(self, role: str) -> int:
        """The process that plays a role."""
        def find() -> Optional[int]:
            for pid, line in command_lines().items():
                words = line.split()
                mine = str(self.data_dir) in read_text(Path(f"/proc/{pid}/environ"))
                if mine and len(words) > 1 and words[0].endswith("pandastack") and words[1] == role:
                    return pid
            return None
        pid = wait_until(f"a process of role {role}", find, 30)
        assert isinstance(pid, int)
        return pid

    def kill_role(self, role: str) -> int:
        """`kill -9`, and returns once another process plays the role and the platform is ready."""
        old = self.role_pid(role)
        os.kill(old, signal.SIGKILL)
        wait_until(f"the old {role} is gone", lambda: self.is_gone(old), 30)
        wait_until(f"a new {role}", lambda: self.role_pid(role) != old, 60)
        wait_until("ready again", self.is_ready, 120)
        return old

    @staticmethod
    def is_gone(pid: int) -> bool:
        return read_text(Path(f"/proc/{pid}/stat")).split(")")[-1].split()[:1] in ([], ["Z"])

    def machine_pids(self, sandbox_id: str = "") -> List[int]:
        """Emulator processes that write to our data directory: all of them, or those of one sandbox."""
        below = self.data_dir / "store" / "sandboxes" / sandbox_id if sandbox_id else self.data_dir
        emulators = (pid for pid, line in command_lines().items() if "qemu-system" in line)
        return sorted(pid for pid in emulators if has_open(pid, below))

    def rows(self, query: str) -> List[tuple]:
        database = next(self.data_dir.rglob("*.db"), None) or next(self.data_dir.rglob("*.sqlite"))
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as store:
            return store.execute(query).fetchall()

    def footprint(self) -> Dict[str, object]:
        """Everything that a leak would grow."""
        run = lambda *words: subprocess.run(words, capture_output=True, text=True, check=True).stdout
        links = [line for line in run("ip", "-o", "link").splitlines() if f" {self.prefix}-" in line]
        store = self.data_dir / "store"
        base = store if store.exists() else self.data_dir
        kinds = ["sandboxes", "snapshots"]
        files = sorted(str(path) for kind in kinds for path in base.rglob(f"{kind}/*"))
        host = read_text(self.data_dir / "host-id").strip()
        cgroups = [p for p in Path("/sys/fs/cgroup").glob(f"**/pandastack/{host}/*") if p.is_dir()]
        return {
            "machines": len(self.machine_pids()),
            "links": len(links),
            "namespaces": len(list(self.runtime_dir.glob("netns/*"))),
            "runtime dirs": len(list(self.runtime_dir.glob("m/*"))),
            "mounts": read_text(Path("/proc/self/mountinfo")).count(self.prefix),
            "rules": run("nft", "-j", "list", "ruleset").count(f'"pandastack_{self.prefix}"'),
            "files": files,
            "cgroups": len(cgroups),
        }

    def await_zygote(self, template: str) -> None:
        """Returns when a template's zygote is made and written down, so that the next agent would take it over."""
        record = self.data_dir / "store" / "zygotes" / template / "record.json"
        wait_until(f"a zygote of {template}", record.exists, 300)

    def stop(self) -> None:
        """Ends the platform and removes all it made."""
        if self in Platform.running:
            Platform.running.remove(self)
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)
        down = subprocess.run(
            [self.binary, "down", "--purge"], env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert down.returncode == 0, f"{down.stdout}{down.stderr}{read_text(self.log)[-2000:]}"
        shutil.rmtree(self.root, ignore_errors=True)
