"""Drives an interpreter that is a process of its own. The lines in and out are those of `wire.py`, the first
part of this program; a language's file follows this one.

`Interpreter` speaks to one that runs a kernel of ours. Both open files of this process, by /proc:

    program  the kernel
    orders   a pipe to it: `run` begins a run, `on` takes note of an event
    request  memory: the code, its file name, a seed or nothing, names and values of variables.
             It is empty after an interrupt
    answers  a pipe from it: `begun`, `event`s and `done`
    event    memory: its kind, names and values of its fields

Strings in memory have their length before them, as 32 bits.
"""

import struct
import subprocess

# Time after which a run that goes on is interrupted again.
INTERRUPT_SECONDS = 1.0
LENGTH = struct.Struct(">I")


def packed(strings):
    encoded = (text.encode("utf-8", "replace") for text in strings)
    return b"".join(LENGTH.pack(len(data)) + data for data in encoded)


def unpacked(data):
    found, at = [], 0
    while at < len(data):
        (length,), at = LENGTH.unpack_from(data, at), at + LENGTH.size
        found.append(data[at:at + length])
        at += length
    return found


def shown(name, data):
    """A field of an event."""
    if name == "png":
        return base64.b64encode(data).decode("ascii")
    return data == b"true" if name == "is_main_result" else data.decode("utf-8", "replace")


def place(fd):
    return f"/proc/{os.getpid()}/fd/{fd}"


def spawn(argv, **options):
    """Starts a program in a process group of its own, with interrupts as in a program in the foreground."""
    # Programs inherit that interrupts are ignored, as they are in a program in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(argv, start_new_session=True, **options)
    signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    return process


class Ended(Exception):
    """The interpreter has ended."""


class Interpreter:
    def __init__(self, program, argv):
        self.request, self.event = os.memfd_create("request"), os.memfd_create("event")
        self.orders, self.answers = os.pipe(), os.pipe()
        # Held while orders are written. The run that may be interrupted.
        self.lock, self.active = threading.Lock(), None
        kernel = os.memfd_create("kernel")
        files = [place(fd) for fd in (self.orders[0], self.request, self.answers[1], self.event)]
        os.pwrite(kernel, program(files).encode(), 0)
        self.process = spawn(argv(place(kernel), files), stdin=subprocess.DEVNULL)
        self.poll = select.poll()
        for fd in (self.answers[0], os.pidfd_open(self.process.pid)):
            self.poll.register(fd, select.POLLIN)

    def order(self, word):
        os.write(self.orders[1], word + b"\n")

    def run(self, number, request):
        """Events of a run: kinds and fields. What follows an event waits until it was handled."""
        data = packed(request)
        os.ftruncate(self.request, len(data))
        os.pwrite(self.request, data, 0)
        self.order(b"run")
        # Before that, an interrupt would end an interpreter that is starting.
        self.answer()
        with self.lock:
            self.active = number
        while self.answer() == b"event":
            kind, *fields = unpacked(os.pread(self.event, os.fstat(self.event).st_size, 0))
            names = [name.decode() for name in fields[::2]]
            yield kind.decode(), {name: shown(name, data) for name, data in zip(names, fields[1::2])}
            with self.lock:
                self.order(b"on")
        with self.lock:
            self.active = None

    def answer(self):
        if self.answers[0] not in [fd for fd, _ in self.poll.poll()]:
            raise Ended
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self.answers[0], 1)
        return line.strip()

    def interrupt(self, number):
        """Interrupts that run, unless it has ended."""
        with self.lock:
            if self.active == number and self.process.poll() is None:
                os.ftruncate(self.request, 0)
                self.hit()

    def hit(self):
        os.killpg(self.process.pid, signal.SIGINT)


class Driver:
    """Runs requests one after the other in an interpreter."""

    def __init__(self, begin, catcher=Catcher):
        self.wire = Wire()
        self.catchers = [catcher(self.wire, name, fd) for name, fd in (("stdout", 1), ("stderr", 2))]
        self.interpreter = begin()
        self.was_interrupted = False
        self.requests = Requests(self.wire, self.interrupt)
        self.count = 0
        self.machine = machine()

    def interrupt(self):
        self.was_interrupted = True
        threading.Thread(target=self.interrupt_run, args=(self.wire.current, self.count), daemon=True).start()

    def interrupt_run(self, run, number):
        while run is not None and self.wire.current == run:
            self.interpreter.interrupt(number)
            # An interpreter goes on if the program that it waited for took the interrupt, or just ended.
            time.sleep(INTERRUPT_SECONDS)

    def serve(self):
        while (request := self.requests.next()) is not None:
            self.was_interrupted = False
            self.count += 1
            self.wire.current = request["run"]
            self.wire.send("started", execution_count=self.count)
            before, self.machine = self.machine, machine()
            try:
                self.run(request["code"], request.get("env") or {}, before)
            except Ended:
                self.settle()
                code = self.interpreter.process.wait()
                os._exit(code if code >= 0 else 128 - code)
            self.settle()
            self.wire.send("ended")
            self.wire.current = None

    def settle(self):
        for catcher in self.catchers:
            catcher.settle()

    def run(self, code, env, before):
        """Runs code. `before` is the machine of the last run."""
        # In another sandbox, the interpreter would draw the numbers that its original draws.
        seed = "" if before[0] == self.machine[0] else str(int.from_bytes(os.urandom(4)) >> 1)
        request = [code, f"<cell-{self.count}>", seed, *(text for pair in env.items() for text in pair)]
        for kind, fields in self.interpreter.run(self.count, request):
            # What was written first is told first.
            self.settle()
            self.wire.send(kind, **fields)
