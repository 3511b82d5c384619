"""What all kernels in Python share: lines of JSON in and out, and what child processes write.

In:  {"run": id, "code": str, "env": {}} and {"cancel": id}
Out: {"id", "type": "started" | "stdout" | "stderr" | "result" | "error" | "ended", ...}

Only ASCII is written, one object per line. What child processes write is caught by pipes in the place of the
standard streams. A kernel's file follows this one in the same program.
"""

import base64
import codecs
import json
import os
import queue
import select
import signal
import threading
import time

TEXT_CHARS_MAX = 1 << 20
# Part of a line that waits for the rest of it, and how long.
LINE_BYTES_MAX = 1 << 16
LINE_SECONDS = 0.5
# Files in which the guest describes the machine, written before a copy of it continues.
MACHINE_FILES = ("/run/pandastack/sandbox_id", "/run/pandastack/generation")


def machine():
    """Whose memory this is: the sandbox, and a number that changes with each copy and restore."""
    found = []
    for path in MACHINE_FILES:
        try:
            with open(path) as file:
                found.append(file.read())
        except OSError:
            found.append("")
    return found


class Wire:
    """The way out: whole lines, one at a time."""

    def __init__(self):
        self.fd = os.dup(1)
        os.set_inheritable(self.fd, False)
        self.lock = threading.RLock()
        self.current = None

    def send(self, kind, **fields):
        line = json.dumps({"id": self.current, "type": kind, **fields}, default=str).encode("ascii") + b"\n"
        with self.lock:
            view = memoryview(line)
            while view:
                view = view[os.write(self.fd, view):]


class Catcher:
    """Reads what children write to a standard stream."""

    def __init__(self, wire, name, fd):
        self.wire, self.name = wire, name
        self.reader, writer = os.pipe()
        os.dup2(writer, fd)
        os.close(writer)
        self.fd = fd
        self.mark = b"\0" + os.urandom(16).hex().encode()
        self.seen = threading.Event()
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        held, until, ready = b"", 0.0, select.poll()
        ready.register(self.reader, select.POLLIN)
        while True:
            # Some programs write a line in pieces.
            if held and not ready.poll(max(0, until - time.monotonic()) * 1000):
                self.tell(held)
                held = b""
            is_first = not held
            held += os.read(self.reader, 65536)
            if is_first:
                until = time.monotonic() + LINE_SECONDS
            while self.mark in held:
                before, held = held.split(self.mark, 1)
                self.tell(before, final=True)
                self.seen.set()
            begun = (n for n in range(min(len(self.mark), len(held)), 0, -1) if held.endswith(self.mark[:n]))
            end = len(held) - next(begun, 0)
            if time.monotonic() < until:
                end = held.rfind(b"\n") + 1 or (end if end > LINE_BYTES_MAX else 0)
            self.tell(held[:end])
            held = held[end:]

    def tell(self, data, final=False):
        # A character may be cut by the end of a read, but not by the end of a run.
        if text := self.decoder.decode(data, final):
            self.wire.send(self.name, text=text, timestamp=time.time_ns())

    def settle(self):
        """Waits until everything written so far was sent."""
        self.seen.clear()
        # A child shares the pipe, and may have made it non-blocking.
        os.set_blocking(self.fd, True)
        os.write(self.fd, self.mark)
        self.seen.wait(5)


def interrupt_group():
    """Interrupts this process and its children."""
    os.killpg(os.getpgrp(), signal.SIGINT)


class Requests:
    """The way in, read beside the execution so that it can be cancelled."""

    def __init__(self, wire, interrupt=interrupt_group):
        self.interrupt = interrupt
        self.source = os.fdopen(os.dup(0), "rb")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self.wire, self.waiting, self.cancelled = wire, queue.Queue(), set()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.source:
            request = json.loads(line)
            if "cancel" not in request:
                self.waiting.put(request)
            elif request["cancel"] == self.wire.current:
                self.interrupt()
            else:
                self.cancelled.add(request["cancel"])
        self.waiting.put(None)

    def next(self):
        while True:
            request = self.waiting.get()
            if request is None:
                return None
            if request["run"] not in self.cancelled:
                return request
            self.cancelled.discard(request["run"])
