"""A platform whose operations can be held at a named step, and whose processes can be killed meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Dict, List, Optional, Set

import httpx

from platform_process import Platform, open_files, read_text, wait_until

#: Longest wait for an answer: longer than the servers wait for each other.
ANSWER_SECONDS_MAX = 150.0
#: How long servers may take to bring everything in order after a kill.
RECOVERY_SECONDS_MAX = 300.0
TTL_SECONDS = 3600
#: Something on the disk, something in memory, and a process that answers: all that a sandbox is.
FURNISH = """
echo {label} > /root/kept; echo {label} > /dev/shm/kept; mkfifo /dev/shm/in /dev/shm/out
nohup sh -c 'while read word < /dev/shm/in; do echo $word {label} > /dev/shm/out; done' > /dev/null 2>&1 &
"""
LOOK = "cat /root/kept /dev/shm/kept; echo ping > /dev/shm/in; cat /dev/shm/out"


class Faults:
    """The FIFOs at which the servers' operations stand still."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        directory.mkdir()
        # Control, which renames and opens them, is not root.
        directory.chmod(0o777)

    def arm(self, point: str) -> None:
        os.mkfifo(self.dir / point)
        os.chmod(self.dir / point, 0o666)

    def reached(self, point: str, but: Set[Path]) -> Optional[Path]:
        """Location of an operation at that point, apart from known ones."""
        return next((gate for gate in self.dir.glob(f"{point}.reached.*") if gate not in but), None)

    def release(self, gate: Path) -> None:
        """Lets an operation go on, if the server that it stands in still lives."""
        holder = int(gate.name.split(".")[-2])
        wait_until(f"{gate.name} goes on", lambda: Platform.is_gone(holder) or self.open(gate), 30)

    @staticmethod
    def open(gate: Path) -> bool:
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            # The server has renamed it and not opened it yet.
            assert error.errno == errno.ENXIO, error
            return False
        return True

    def clear(self) -> None:
        """Lets everything go on, and holds nothing more."""
        for gate in self.dir.iterdir():
            if ".reached." in gate.name:
                self.release(gate)
            gate.unlink()


def is_removed(group: Path) -> bool:
    """Removes a control group, which the kernel refuses while a process in it is still being ended."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


class World:
    """The platform, its API without a client that would repeat calls by itself, and what it has on the host."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.faults = Faults(platform.root / "faults")
        platform.environment["PANDASTACK_FAULT_DIR"] = str(self.faults.dir)
        self.store = platform.data_dir / "store"

    def start(self) -> "World":
        self.platform.start()
        self.token = self.platform.client_config()["token"]
        self.platform.await_zygote("base")
        return self

    def request(
        self, method: str, path: str, body: Optional[Dict[str, object]] = None, key: Optional[str] = None
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **({"Idempotency-Key": key} if key else {})}
        url = f"http://127.0.0.1:{self.platform.port}/v1{path}"
        return httpx.request(method, url, json=body, headers=headers, timeout=ANSWER_SECONDS_MAX)

    def expect(self, method: str, path: str, body: Optional[Dict[str, object]] = None) -> Dict[str, object]:
        answer = self.request(method, path, body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    def until_done(self, what: str, method: str, path: str, body: object = None, key: Optional[str] = None) -> httpx.Response:
        """Makes a call until it is done. A server that is starting, or still at the first one's remains, says so."""
        seen: List[str] = []

        def done() -> Optional[httpx.Response]:
            try:
                answer = self.request(method, path, body, key)  # type: ignore[arg-type]
            except httpx.TransportError as error:
                seen.append(repr(error))
                return None
            seen.append(f"{answer.status_code} {answer.text}")
            gone = method == "DELETE" and answer.status_code == 404
            return answer if answer.is_success or gone else None

        try:
            answer = wait_until(what, done, RECOVERY_SECONDS_MAX)
        except AssertionError as late:
            raise AssertionError(f"{late}; the last answers: {seen[-3:]}") from late
        assert isinstance(answer, httpx.Response)
        return answer

    def make(self, label: str) -> str:
        """A sandbox with something on its disk and in its memory."""
        body = {"template": "base", "ttl_seconds": TTL_SECONDS, "metadata": {"cell": label}}
        made = str(self.expect("POST", "/sandboxes", body)["id"])
        ran = self.expect("POST", f"/sandboxes/{made}/exec", {"cmd": FURNISH.format(label=label)})
        assert ran["exit_code"] == 0, ran
        return made

    def run(self, sandbox: str, command: str) -> str:
        ran = self.expect("POST", f"/sandboxes/{sandbox}/exec", {"cmd": command, "timeout_seconds": 120})
        return str(ran["stdout"])

    def fate(self, sandbox: str, command: str, expected: Set[str]) -> str:
        """State of a sandbox: alive with its data, failed, or gone."""
        seen: List[str] = []

        def told() -> Optional[str]:
            try:
                body: Dict[str, object] = {"cmd": command, "timeout_seconds": 120}
                answer = self.request("POST", f"/sandboxes/{sandbox}/exec", body)
            except httpx.TransportError as error:
                seen.append(repr(error))
                return None
            seen.append(f"{answer.status_code} {answer.text}")
            assert answer.status_code != 500, f"not what a crash may leave: {answer.text}"
            if answer.status_code == 200:
                assert answer.json()["stdout"] in expected, f"{answer.text}, not {expected}"
                return "alive"
            if answer.status_code == 404:
                return "gone"
            return "failed" if answer.json().get("code") == "sandbox_failed" else None

        try:
            return str(wait_until(f"the fate of {sandbox}", told, RECOVERY_SECONDS_MAX))
        except AssertionError as late:
            raise AssertionError(f"{late}; the last answers: {seen[-3:]}") from late

    def sandboxes(self, label: str = "") -> Dict[str, str]:
        """States of sandboxes by id: all of them, or those with a label."""
        items = self.expect("GET", "/sandboxes")["items"]
        assert isinstance(items, list)
        return {item["id"]: item["status"] for item in items if label in ("", item["metadata"].get("cell"))}

    def snapshots(self, sandbox: str = "") -> List[str]:
        listed = self.expect("GET", f"/snapshots?sandbox_id={sandbox}" if sandbox else "/snapshots")["snapshots"]
        assert isinstance(listed, list)
        return [snapshot["id"] for snapshot in listed]

    def machines(self, sandbox: str) -> List[int]:
        """Processes of a sandbox's machine. A fork has files of its parent open too, but not the disk."""
        return self.holders(f"sandboxes/{sandbox}/machine/disk")

    def zygotes(self) -> List[int]:
        return self.holders("zygotes/*/machine/disk")

    def holders(self, pattern: str) -> List[int]:
        disks = [str(disk) for disk in self.store.glob(pattern)]
        return [pid for pid in self.platform.machine_pids() if any(disk in open_files(pid) for disk in disks)]

    def names(self, kind: str) -> Set[str]:
        return {entry.name for entry in (self.store / kind).glob("*")}

    def strike(self, victim: str, machines: List[int]) -> None:
        """Kills, and lets what stands in the survivors go on."""
        everything = victim in ("processes", "power")
        roles = [role for role in ("control", "agent") if everything or role == victim]
        pids = [self.platform.role_pid(role) for role in roles]
        if everything:
            assert self.platform.process is not None
            pids = [self.platform.process.pid, *pids, *self.platform.machine_pids()]
        elif victim == "zygote":
            pids = self.zygotes()
        elif victim == "machine":
            pids = machines
        assert pids, f"nothing to kill for {victim}"
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # A machine that is being ended anyway, or ends with the one before it.
                assert pid not in machines, f"{pid} is not there to be killed"
        if everything:
            self.platform.process.wait(timeout=30)
        wait_until("the killed are gone", lambda: all(self.platform.is_gone(pid) for pid in pids), 30)
        self.faults.clear()
        if victim == "power":
            self.forget()
        if everything:
            self.platform.start()
        else:
            self.await_roles(dict(zip(roles, pids)))

    def await_roles(self, old: Dict[str, int]) -> None:
        for role, pid in old.items():
            wait_until(f"a new {role}", lambda: self.platform.role_pid(role) != pid, 60)
        wait_until("ready again", self.platform.is_ready, 120)

    def forget(self) -> None:
        """Removes, as a power loss would, mounts, namespaces, links, rules, sockets and control groups."""
        here = (str(self.platform.root), str(self.platform.runtime_dir))
        mounts = [line.split()[4] for line in read_text(Path("/proc/self/mountinfo")).splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(here)]):
            # The killed are gone when their first thread is; others may still close its files.
            unmount = lambda: subprocess.run(["umount", mount], capture_output=True).returncode == 0
            wait_until(f"{mount} is unmounted", unmount, 60)
        shutil.rmtree(self.platform.runtime_dir, ignore_errors=True)
        table = f"pandastack_{self.platform.prefix}"
        subprocess.run(["nft", "delete", "table", "inet", table], capture_output=True, check=False)
        # The other end of each went with its namespace, which the kernel ends a little later.
        links = Path("/sys/class/net")
        wait_until("no links", lambda: not list(links.glob(f"{self.platform.prefix}-*")), 60)
        host = read_text(self.platform.data_dir / "host-id").strip()
        groups = [group for group in Path("/sys/fs/cgroup").glob(f"**/pandastack/{host}/**/") if group.name != host]
        for group in sorted(groups, key=lambda group: len(group.parts), reverse=True):
            wait_until(f"{group} is removed", lambda: is_removed(group), 60)
