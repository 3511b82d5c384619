"""The tests that run in the outer machine: ``tests.py SETTINGS``. They print what cargo's tests print.

The tests of one engine use each other's sandboxes, because every create takes seconds here. So the first
one that fails ends the part.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback

from lab import Failed, Platform, Stalled, eventually, log, machines, spares, status

#: An address that a sandbox may reach: outside of this machine, and in no private network.
OUTSIDE = "9.9.9.2"

#: Processes that an agent starts ahead.
SPARES = 4

#: A server that greets whoever connects.
GREETER = """
import socket
server = socket.create_server(("", 80))
while True:
    connection, _ = server.accept()
    connection.sendall(b"open\\n")
    connection.close()
"""

#: A process with a given user: prints what it can do to another process, and which paths it can read.
TRESPASSER = """
import ctypes, os, sys
user, other = map(int, sys.argv[1:3])
os.setgroups([])
os.setgid(user)
os.setuid(user)
found = [path for path in sys.argv[3:] if os.access(path, os.R_OK)]
PTRACE_ATTACH = 16
if ctypes.CDLL(None).ptrace(PTRACE_ATTACH, other, 0, 0) == 0:
    found.append("ptrace")
try:
    os.kill(other, 0)
    found.append("kill")
except PermissionError:
    pass
print(*found)
"""


def expect(condition, *shown):
    if not condition:
        raise Failed(" ".join(map(str, shown)))


def equal(found, wanted):
    expect(found == wanted, f"{found!r} instead of {wanted!r}")


class Part:
    """Tests of one engine."""

    def __init__(self, settings, engine):
        self.settings, self.full = settings, settings["full"]
        self.platform = Platform(settings["pandastack"], engine, engine)
        self.sandbox = self.child = self.snapshot = None

    def starts(self):
        self.platform.start()

    def builds_a_template(self):
        self.platform.call("template", "build", "base", seconds=900)

    def creates(self):
        self.sandbox = self.platform.sandbox("create")
        found = self.platform.json("sandbox", "get", self.sandbox)
        equal(found["isolation"], "hardware")
        equal(found["boot_mode"], "restore")

    def executes(self):
        equal(self.platform.run(self.sandbox, "echo kept > /root/word; echo hello"), "hello")
        equal(self.platform.run(self.sandbox, "exit 3", fails=True), "")

    def copies_files(self):
        source, back = pathlib.Path("/run/sent"), pathlib.Path("/run/back")
        source.write_bytes(os.urandom(200_000))
        self.platform.sandbox("cp", str(source), f"{self.sandbox}:/root/sent")
        self.platform.sandbox("cp", f"{self.sandbox}:/root/sent", str(back))
        expect(source.read_bytes() == back.read_bytes(), "the file came back changed")

    def keeps_a_stream_through_a_snapshot(self):
        count = 12
        script = f"i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo $i; sleep 1; done"
        stream = self.platform.spawn("sandbox", "exec", self.sandbox, "--", "sh", "-c", script)
        equal(stream.stdout.readline(), "1\n")
        self.snapshot = self.platform.sandbox("snapshot", self.sandbox)
        expect(stream.poll() is None, "the command ended before the snapshot was there")
        printed, _ = stream.communicate(timeout=120)
        equal(printed.split(), [str(number) for number in range(2, count + 1)])
        equal(stream.returncode, 0)

    def pauses_and_resumes(self):
        self.platform.sandbox("pause", self.sandbox)
        self.platform.sandbox("resume", self.sandbox)
        equal(self.platform.run(self.sandbox, "cat /root/word"), "kept")

    def hibernates_and_wakes(self):
        before = self.platform.machine(self.sandbox)["pid"]
        self.platform.sandbox("hibernate", self.sandbox)
        gone = lambda: not pathlib.Path(f"/proc/{before}").exists()
        eventually("the end of a hibernated sandbox's process", gone, 60)
        self.platform.sandbox("wake", self.sandbox)
        equal(self.platform.run(self.sandbox, "cat /root/word"), "kept")

    def rolls_back(self):
        self.platform.run(self.sandbox, "echo lost > /root/word")
        self.platform.sandbox("rollback", self.sandbox, self.snapshot)
        equal(self.platform.run(self.sandbox, "cat /root/word"), "kept")

    def forks(self):
        self.child = self.platform.sandbox("fork", self.sandbox)
        script = ("cat /root/word /proc/sys/kernel/hostname /etc/machine-id; "
                  "head -c 16 /dev/urandom | od -An -tx1")
        ours, childs = (self.platform.run(id, script).splitlines() for id in (self.sandbox, self.child))
        equal((ours[0], childs[0]), ("kept", "kept"))
        for one, other in zip(ours[1:], childs[1:]):
            expect(one != other, "parent and child share", one)

    def applies_network_policies(self):
        dial = f"exec 3<>/dev/tcp/{OUTSIDE}/80 && head -n 1 <&3"
        reach = f"timeout 10 bash -c '{dial}' 2>/dev/null || echo closed"
        ip = lambda *words: subprocess.run(["ip", *words], check=True)
        ip("netns", "add", "outside")
        ip("link", "add", "lab0", "type", "veth", "peer", "name", "lab1", "netns", "outside")
        ip("addr", "add", "9.9.9.1/24", "dev", "lab0")
        ip("link", "set", "lab0", "up")
        ip("-n", "outside", "addr", "add", f"{OUTSIDE}/24", "dev", "lab1")
        ip("-n", "outside", "link", "set", "lab1", "up")
        server = subprocess.Popen(["ip", "netns", "exec", "outside", "python3", "-c", GREETER])
        try:
            listening = lambda: ":80 " in subprocess.run(
                ["ip", "netns", "exec", "outside", "ss", "-lnt"], capture_output=True, text=True).stdout
            eventually("the server outside", listening)
            equal(self.platform.run(self.sandbox, reach), "open")
            self.platform.sandbox("network", "set", self.sandbox, "--network", "none")
            equal(self.platform.run(self.sandbox, reach), "closed")
            self.platform.sandbox("network", "set", self.sandbox, "--allow", f"{OUTSIDE}:80")
            equal(self.platform.run(self.sandbox, reach), "open")
            # The host's own services are never reachable.
            port = self.platform.env["PANDASTACK_API"].rsplit(":", 1)[1]
            to_host = reach.replace(f"{OUTSIDE}/80", f"9.9.9.1/{port}")
            equal(self.platform.run(self.sandbox, to_host), "closed")
        finally:
            server.kill()
            ip("link", "del", "lab0")
            ip("netns", "del", "outside")

    def keeps_a_volume(self):
        self.platform.call("volume", "create", "data", "--size-mb", "64")
        holder = self.platform.sandbox("create", "--volume", "data:/data")
        self.platform.run(holder, "echo durable > /data/word; sync")
        self.platform.sandbox("hibernate", holder)
        self.platform.sandbox("wake", holder)
        equal(self.platform.run(holder, "cat /data/word"), "durable")
        self.platform.call("volume", "grow", "data", "128")
        size = int(self.platform.run(holder, "df --output=size -m /data | tail -n 1"))
        expect(size > 100, f"the guest sees {size} MiB of a volume of 128")
        self.platform.sandbox("rm", holder)
        reader = self.platform.sandbox("create", "--volume", "data:/data")
        equal(self.platform.run(reader, "cat /data/word"), "durable")
        self.platform.sandbox("rm", reader)

    def adopts_after_a_kill(self):
        agent, machine = self.platform.agent(), self.platform.machine(self.sandbox)["pid"]
        os.kill(agent, signal.SIGKILL)
        eventually("another agent", lambda: self.platform.agent() not in (None, agent))
        agent_log = pathlib.Path(f"{self.platform.data}/logs/agent.log")
        eventually("the adoption of the machines", lambda: "took over the sandboxes" in agent_log.read_text())
        eventually("the host", lambda: self.platform.json("host", "list")[0]["reachable"])
        equal(self.platform.run(self.sandbox, "cat /root/word"), "kept")
        equal(self.platform.machine(self.sandbox)["pid"], machine)
        expect("ERROR" not in agent_log.read_text(), "the agent logged an error")

    def deletes(self):
        self.platform.sandbox("rm", *[id for id in (self.sandbox, self.child) if id])
        gone = lambda: not machines("firecracker") and not machines("qemu-system-x86")
        eventually("the end of all machines", gone, 30)

    def give_way(self):
        """Makes room for the next part after a failure, as far as that is possible."""
        try:
            self.platform.down()
        except Exception as error:
            log(f"the platform did not stop: {error}")

    def stops(self):
        self.platform.down()
        left = [path for path in (self.platform.data, self.platform.runtime) if os.path.exists(path)]
        expect(not left, "left behind:", left)


class Firecracker(Part):
    #: What a jail contains besides devices.
    JAIL = {"api.sock", "console", "dev", "disk", "firecracker", "firecracker.pid", "memory", "metrics",
            "run", "state", "v.sock", "volume0", "volume1", "volume2", "volume3"}
    DEVICES = {"kvm", "net", "urandom", "userfaultfd"}

    def __init__(self, settings):
        super().__init__(settings, "firecracker")

    def installs(self):
        self.platform.call("engine", "install", "firecracker", "--from", self.settings["firecracker"],
                           "--data-dir", self.platform.data)

    def jails_every_sandbox(self):
        """One process of its own user for each sandbox, which sees nothing of the host."""
        pids = {id: self.platform.machine(id)["pid"] for id in (self.sandbox, self.child)}
        equal(sorted(pids.values()), machines("firecracker"))
        users = {status(pid)["Uid"] for pid in pids.values()}
        equal(len(users), len(pids))
        for sandbox, pid in pids.items():
            self.is_jailed(sandbox, pid)
        for reader in pids.values():
            for other in pids.values():
                self.cannot_reach(reader, other)

    def is_jailed(self, sandbox, pid):
        lines = status(pid)
        for name in ("Uid", "Gid"):
            expect(all(int(id) >= 0x7000_0000 for id in lines[name].split()), name, lines[name])
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            equal(int(lines[name], 16), 0)
        equal((lines["NoNewPrivs"], lines["Seccomp"], lines["Groups"].strip()), ("1", "2", ""))
        equal(lines["NSpid"].split()[1:], ["1"])
        for space in ("mnt", "pid", "net", "ipc", "uts"):
            expect(os.readlink(f"/proc/{pid}/ns/{space}") != os.readlink(f"/proc/1/ns/{space}"), space)
        root = set(os.listdir(f"/proc/{pid}/root"))
        expect(root <= self.JAIL, "the jail contains", root - self.JAIL)
        devices = set(os.listdir(f"/proc/{pid}/root/dev"))
        expect(devices <= self.DEVICES, "the jail has the devices", devices - self.DEVICES)
        mounts = [line.split() for line in pathlib.Path(f"/proc/{pid}/mounts").read_text().splitlines()]
        places = {mount[1].lstrip("/") for mount in mounts}
        expect(places <= self.JAIL | {""}, "the jail has the mounts", mounts)
        for mount in mounts:
            if mount[1] in ("/memory", "/state"):
                expect("ro" in mount[3].split(","), "writable:", mount)
        group = pathlib.Path(f"/proc/{pid}/cgroup").read_text().strip()
        expect(group.endswith(f"/{sandbox}"), "the process is in the group", group)

    def cannot_reach(self, reader, other):
        """A process with the user of one jail can neither signal nor trace the process of another, nor read
        the host's secrets. That is what holds even if all else of a jail is broken."""
        user = int(status(reader)["Uid"].split()[0])
        if reader == other:
            return
        paths = [f"/proc/{other}/mem", f"/proc/{other}/root/disk", f"{self.platform.data}/link-secret",
                 f"{self.platform.data}/control/bootstrap-token", f"{self.platform.data}/store/sandboxes"]
        command = [sys.executable, "-c", TRESPASSER, str(user), str(other), *paths]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        equal((done.stdout.strip(), done.stderr), ("", ""))

    def starts_processes_ahead(self):
        """A sandbox gets a process that was there before it, and another one is started for the next."""
        eventually("processes started ahead", lambda: len(spares("firecracker")) == SPARES)
        ahead = spares("firecracker")
        sandbox = self.platform.sandbox("create")
        expect(self.platform.machine(sandbox)["pid"] in ahead, "the sandbox has a process of its own making")
        self.platform.sandbox("rm", sandbox)
        eventually("another one ahead", lambda: len(spares("firecracker")) == SPARES)

    def fails_without_the_binary(self):
        binary = pathlib.Path(self.platform.data, "engines/firecracker/firecracker")
        away = binary.with_name("away")
        binary.rename(away)
        try:
            said = self.platform.sandbox("create", fails=True)
            expect("firecracker" in said.lower() and "engine install" in said, said)
        finally:
            away.rename(binary)

    def forks_a_tree(self):
        children = self.platform.sandbox("fork", self.sandbox, "--count", "3").split()
        equal(len(children), 3)
        for child in children:
            equal(self.platform.run(child, "cat /root/word"), "kept")
        self.platform.sandbox("rm", *children)

    def creates_again_and_again(self):
        for _ in range(5):
            sandbox = self.platform.sandbox("create")
            equal(self.platform.run(sandbox, "echo hello"), "hello")
            self.platform.sandbox("rm", sandbox)

    def tests(self):
        short = [self.installs, self.starts, self.builds_a_template, self.creates, self.executes,
                 self.copies_files, self.keeps_a_stream_through_a_snapshot, self.hibernates_and_wakes,
                 self.forks, self.jails_every_sandbox, self.starts_processes_ahead,
                 self.applies_network_policies,
                 self.adopts_after_a_kill, self.fails_without_the_binary, self.deletes]
        if not self.full:
            return short
        last = short.pop()
        return [*short, self.pauses_and_resumes, self.rolls_back, self.keeps_a_volume, self.forks_a_tree,
                self.creates_again_and_again, last, self.stops]


class Qemu(Part):
    def __init__(self, settings):
        super().__init__(settings, "qemu")

    def uses_kvm(self):
        machine = self.platform.machine(self.sandbox)
        command = pathlib.Path(f"/proc/{machine['pid']}/cmdline").read_text()
        expect("-accel\0kvm" in command, command)
        # Emulated guests have none, because it slows them down.
        equal(self.platform.run(self.sandbox, "cat /proc/sys/kernel/randomize_va_space"), "2")

    def tests(self):
        return [self.starts, self.builds_a_template, self.creates, self.uses_kvm, self.executes,
                self.keeps_a_stream_through_a_snapshot, self.pauses_and_resumes, self.hibernates_and_wakes,
                self.rolls_back, self.forks, self.keeps_a_volume, self.adopts_after_a_kill, self.deletes,
                self.stops]


def run_part(part):
    """Numbers of passed and failed tests."""
    passed = 0
    tests = part.tests()
    for test in tests:
        name, began = f"{part.platform.engine}::{test.__name__}", time.monotonic()
        try:
            test()
        except Exception as error:
            print(f"test {name} ... FAILED", flush=True)
            known = isinstance(error, (Failed, Stalled))
            log(f"{type(error).__name__}: {error}" if known else traceback.format_exc())
            part.platform.report()
            left = tests[tests.index(test) + 1:]
            log(f"not run: {' '.join(test.__name__ for test in left)}")
            part.give_way()
            return passed, 1
        passed += 1
        print(f"test {name} ... ok", flush=True)
        log(f"{name} took {time.monotonic() - began:.1f} s")
    return passed, 0


def main():
    settings = json.loads(pathlib.Path(sys.argv[1]).read_text())
    parts = [Firecracker(settings)]
    if settings["full"]:
        parts.append(Qemu(settings))
    chosen = settings.get("only")
    passed = failed = 0
    for part in parts:
        if chosen and part.platform.engine != chosen:
            continue
        counts = run_part(part)
        passed, failed = passed + counts[0], failed + counts[1]
    outcome = "FAILED" if failed else "ok"
    print(f"test result: {outcome}. {passed} passed; {failed} failed; 0 ignored", flush=True)


if __name__ == "__main__":
    main()
