"""Runs Bash code in one shell. `wire.py` and `driver.py` are the first parts of this program.

The shell is interactive, so that neither a wrong line nor an interrupt ends it, but has no terminal. Without
one there is no job control: an interrupt reaches everything in its process group that runs in the foreground,
and what runs in the background ignores it. The shell reads commands from a pipe. Of each cell there are two:

    CALL=1 eval "$(</proc/../fd/..)" < /dev/null      the code, read from memory of this process
    { builtin printf .. 7 "$?" > /proc/../fd/..; }    exit status of run 7, also after an interrupt
"""

import re
import shlex

OPTIONS = ("--norc", "--noprofile", "--noediting", "-i")
# Time in which the shell handles an interrupt. The next interrupt repeats a question that came too early.
QUESTION_SECONDS = 0.01
# Time after which a lost question is repeated.
CALM_MS = 200
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class Shell:
    """The shell. Its output goes to the standard streams of this process."""

    def __init__(self):
        self.code = os.memfd_create("cell")
        # Held while something is written. The run whose status is asked for, and whether it was interrupted.
        self.lock, self.asked, self.was_hit = threading.RLock(), None, False
        self.heard, self.told = os.pipe()
        # What an interactive shell says about the missing terminal is for nobody.
        errors = os.dup(2)
        self.process = spawn(
            ("bash", *OPTIONS), bufsize=0, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
            pass_fds=(errors,), env={**os.environ, "PS1": "", "PS2": ""},
        )
        self.write(f"export -n PS1 PS2; set +o history +H; exec 2>&{errors} {errors}>&-\n")
        os.close(errors)
        self.poll = select.poll()
        self.poll.register(self.heard, select.POLLIN)
        self.poll.register(os.pidfd_open(self.process.pid), select.POLLIN)

    def write(self, text):
        data = memoryview(text.encode("utf-8", "surrogateescape"))
        with self.lock:
            while data:
                data = data[self.process.stdin.write(data):]

    def run(self, number, code, env):
        """Exit status of the code; `None` if the shell has ended."""
        os.ftruncate(self.code, 0)
        os.pwrite(self.code, code.encode("utf-8", "replace"), 0)
        named = [(name, value) for name, value in env.items() if VARIABLE.fullmatch(name)]
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in named)
        try:
            with self.lock:
                # The empty line ends what a wrong cell left open.
                self.write(f'{given} eval "$(<{place(self.code)})" < /dev/null\n\n')
                self.asked = number
                self.ask(number)
            status = self.answer(number)
            with self.lock:
                self.asked = None
            if self.was_hit:
                self.calm()
        except BrokenPipeError:
            return None
        return status

    def ask(self, name):
        """Asks for the exit status of what was last run. The answer has the name."""
        told = place(self.told)
        self.write(f'\n{{ builtin printf \'%s %s\\n\' {name} "$?" > {told}; }} 2> /dev/null\n')

    def answer(self, name, wait_ms=None):
        """The exit status; `None` if the shell has ended, or if the time is over. Others are passed over."""
        while self.heard in [fd for fd, _ in self.poll.poll(wait_ms)]:
            for line in os.read(self.heard, 4096).decode().splitlines():
                of, status = line.split()
                if of == str(name):
                    return int(status)
        return None

    def interrupt(self, number):
        """Interrupts that run, unless its status is known."""
        try:
            with self.lock:
                if self.asked != number:
                    return
                self.was_hit = True
                os.killpg(self.process.pid, signal.SIGINT)
            # The signal discards what the shell has read of a line, which may be the question.
            time.sleep(QUESTION_SECONDS)
            with self.lock:
                # Another question would change `$?`.
                if self.asked == number:
                    self.ask(number)
        except (BrokenPipeError, ProcessLookupError):
            pass  # The shell has ended, which the run finds out.

    def calm(self):
        """Waits until no interrupt is on its way, which would discard a line of the next run."""
        self.was_hit = False
        while self.process.poll() is None:
            self.ask("calm")
            if self.answer("calm", CALM_MS) is not None:
                return


class Kernel(Driver):
    def run(self, code, env, before):
        if before != self.machine:
            # A copy would draw the numbers that its original draws.
            self.interpreter.write("RANDOM=$SRANDOM\n")
        status = self.interpreter.run(self.count, code, env)
        self.settle()
        if status is None:
            raise Ended
        if self.was_interrupted:
            name, value, what = "Interrupted", "the code was interrupted", "the code was interrupted"
        else:
            name, value, what = "ExecutionError", str(status), f"the code exited with status {status}"
        if status:
            self.wire.send("error", name=name, value=value, traceback=f"{name}: {what}")


Kernel(Shell).serve()
