"""Runs a program in a fork of a preloaded interpreter, or in this interpreter.

Arguments: the name of the preloaded interpreter's socket, and the program.

The template `code-interpreter` runs a preloaded interpreter. It refuses if a new interpreter would differ,
because of its variables or because libraries were replaced. Other templates have none. In both cases the
program runs here. This process waits for its fork and exits with the same status.
"""

import _signal
# `socket` takes longer to import than everything else here.
import _socket
import marshal
import os
import struct
import sys

# Longest wait for a fork.
FORK_SECONDS_MAX = 10.0


def status_of_fork(name, program):
    """Forks and waits. Returns the wait status of the fork, or `None` if there is no fork."""
    server = _socket.socket(_socket.AF_UNIX)
    server.settimeout(FORK_SECONDS_MAX)
    try:
        server.connect("\0" + name)
        wanted = marshal.dumps({
            "interpreter": [sys.executable, sys.version, sys.prefix, list(sys.flags), sys.path],
            "environment": dict(os.environ),
            "directory": os.getcwd(),
            "program": program,
        })
        streams = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))
        server.sendmsg([struct.pack("I", len(wanted))], [streams])
        server.sendall(wanted)
        forked = server.recv(1) == b"y"
    except OSError:
        forked = False
    if not forked:
        # A late fork fails to answer and exits before it reads the input of this interpreter.
        server.close()
        return None
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    server.settimeout(None)
    status = b""
    while len(status) < 4 and (more := server.recv(4 - len(status))):
        status += more
    # Without a status, the preloaded interpreter died before the fork did.
    return struct.unpack("i", status)[0] if len(status) == 4 else _signal.SIGKILL


def end_with(status):
    """Exits with the status of the fork."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


name, program = sys.argv[1:]
del sys.argv[1:]
status = status_of_fork(name, program)
if status is not None:
    end_with(status)
exec(compile(program, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
