"""The platform in the outer machine, and what is printed when something in there stalls.

Every wait has an end. A command that misses its deadline ends the run with a report: consoles and logs of
the machines, KVM's counters, the stacks of their threads. Nothing is tried again.
"""

import glob
import json
import os
import pathlib
import subprocess
import time

#: Enough for the slowest step on a starved host; everything in here is emulated twice.
COMMAND_SECONDS_MAX = 300
#: From the start of the platform to its first line, and for an agent to come back.
START_SECONDS_MAX = 180


class Stalled(Exception):
    """A wait reached its deadline."""


class Failed(Exception):
    """A command failed, or printed something else."""


def log(text):
    print(f"[{time.monotonic():8.1f}] {text}", flush=True)


def eventually(what, probe, seconds=START_SECONDS_MAX):
    """The first truthy result of ``probe``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = probe()
        if result:
            return result
        time.sleep(0.2)
    raise Stalled(f"{what}: not within {seconds} s")


class Platform:
    """``pandastack up`` with one engine."""

    def __init__(self, program, engine, name):
        self.program, self.engine = program, engine
        self.data, self.runtime = f"/mnt/{name}", f"/run/{name}"
        self.env = dict(os.environ)
        self.up = None

    def start(self):
        arguments = ["--data-dir", self.data, "--runtime-dir", self.runtime, "--config", "/dev/null"]
        more = ["--cache-dir", "/mnt/cache", "--engine", self.engine, "--slots-ready", "2",
                # Sleepers go to disk at once.
                "--light-sleep-seconds", "0"]
        errors = open(f"{self.data}.log", "ab")
        command = [self.program, "up", "--json", "--no-client-config", *arguments, *more]
        self.up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
        os.set_blocking(self.up.stdout.fileno(), False)
        printed = b""

        def ready():
            nonlocal printed
            printed += self.up.stdout.read() or b""
            return b"\n" in printed or self.up.poll() is not None

        eventually("the platform's first line", ready)
        if b"\n" not in printed:
            said = pathlib.Path(f"{self.data}.log").read_text()
            raise Failed(f"up ended with {self.up.returncode}: {said}")
        first = json.loads(printed.split(b"\n")[0])
        self.env.update(PANDASTACK_API=first["api_url"], PANDASTACK_API_KEY=first["token"])

    def call(self, *arguments, seconds=COMMAND_SECONDS_MAX, fails=False):
        """Output of a client command. With ``fails``, its output when it fails."""
        command = [self.program, *arguments]
        began = time.monotonic()
        try:
            done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, timeout=seconds,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        except subprocess.TimeoutExpired as late:
            what = f"{' '.join(arguments)}: not within {seconds} s; it printed {late.stdout!r}"
            raise Stalled(what) from None
        log(f"    {' '.join(arguments)[:90]} ({time.monotonic() - began:.1f} s)")
        if (done.returncode != 0) != fails:
            raise Failed(f"{' '.join(arguments)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return (done.stdout + done.stderr if fails else done.stdout).strip()

    def json(self, *arguments):
        return json.loads(self.call(*arguments, "--json"))

    def sandbox(self, *arguments, **options):
        return self.call("sandbox", *arguments, **options)

    def run(self, sandbox, script, **options):
        """Output of a shell in a sandbox."""
        return self.sandbox("exec", sandbox, "--", "sh", "-c", script, **options)

    def spawn(self, *arguments):
        """A command that goes on meanwhile."""
        return subprocess.Popen([self.program, *arguments], env=self.env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def machine(self, sandbox):
        """The agent's record of a sandbox's machine."""
        record = json.loads(pathlib.Path(f"{self.data}/store/sandboxes/{sandbox}/record.json").read_text())
        return record["machine"]

    def agent(self):
        """Process of the agent."""
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                words = pathlib.Path(path).read_bytes().split(b"\0")
            except OSError:
                continue
            if words[1:2] == [b"agent"] and self.data.encode() in words:
                return int(path.split("/")[2])
        return None

    def down(self):
        self.call("down", "--purge", "--data-dir", self.data, "--runtime-dir", self.runtime,
                  "--config", "/dev/null")
        self.up.wait(START_SECONDS_MAX)

    def report(self):
        """All that is known about machines that do not answer."""
        patterns = [f"{self.data}.log", f"{self.data}/logs/*.log", f"{self.runtime}/m/*/*.log",
                    f"{self.data}/store/*/*/machine/console*", f"{self.data}/store/.staging/*/*/console*"]
        for path in [path for pattern in patterns for path in glob.glob(pattern)]:
            log(f"--- the end of {path}")
            print(pathlib.Path(path).read_text(errors="replace")[-3000:])
        for pid in processes("firecracker") + processes("qemu-system-x86"):
            log(f"--- threads of {pid}")
            for task in sorted(glob.glob(f"/proc/{pid}/task/*")):
                stat, stack = (pathlib.Path(task, file).read_text() for file in ("stat", "stack"))
                print(f"{stat[:100]}\n{stack}")
        for _ in range(2):
            counters = sorted(pathlib.Path("/sys/kernel/debug/kvm").glob("*exits"))
            log("--- KVM: " + " ".join(f"{path.name}={path.read_text().strip()}" for path in counters))
            time.sleep(2)


def processes(name):
    """Processes whose program has a name."""
    found = []
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            if pathlib.Path(path).read_text().strip() == name:
                found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return sorted(found)


def spares(name):
    """Processes of that name without a machine: they are still in the agent's own control group."""
    return [pid for pid in processes(name) if in_agents_group(pid)]


def machines(name):
    """Processes of that name with a machine."""
    return [pid for pid in processes(name) if not in_agents_group(pid)]


def in_agents_group(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cgroup").read_text().strip().endswith("/agent")
    except OSError:
        return False


def status(pid):
    """Lines of ``/proc/<pid>/status``."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
