# Generated from _async/commands.py by tools/generate_sync.py: change that file, not this one.
"""Commands that are run to their end. If the caller is cancelled first, they are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from .. import _wire
from .._check import checked
from .._wire import Call, Command
from ..errors import CommandFailed
from ..models import ExecResult
from ._io import Cancelled
from .cancel import abandon, kill_tagged, unique_tag
from .exec_stream import ExecStream
from .transport import Transport

if TYPE_CHECKING:
    from .sandbox import Sandbox

_STDERR_CHARS_SHOWN_MAX = 2000


def run(transport: Transport, processes: str, call: Call, kill_on_cancel: bool) -> ExecResult:
    """Run a command to its end. ``processes`` is the path under which its process can be found."""
    if not kill_on_cancel:
        return ExecResult.from_dict((transport.send(call)).record())
    tag = unique_tag()
    try:
        answer = transport.send(_wire.asking(call, {"tag": tag}))
    except Cancelled:
        abandon(kill_tagged, transport, processes, tag)
        raise
    return ExecResult.from_dict(answer.record())


def stream(
    transport: Transport, processes: str, call: Call, kill_on_cancel: bool
) -> ExecStream:
    """Run a command and stream its output."""
    if not kill_on_cancel:
        return ExecStream.open(transport, call, processes)
    tag = unique_tag()
    try:
        return ExecStream.open(transport, _wire.asking(call, {"tag": tag}), processes, True)
    except Cancelled:
        abandon(kill_tagged, transport, processes, tag)
        raise


def command_failed(cmd: Command, result: ExecResult) -> CommandFailed:
    """The error of a command that was to succeed."""
    shown = result.stderr.strip()[-_STDERR_CHARS_SHOWN_MAX:]
    return CommandFailed(
        f"{_wire.command_line(cmd)!r} exited with {result.exit_code}" + (f": {shown}" if shown else ""),
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
    )


@checked
class SandboxCommands:
    """``sandbox.commands``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def run(self, cmd: Command, timeout: Optional[float] = None) -> ExecResult:
        """Run a command and wait for it to end."""
        return self._sandbox.exec(cmd, timeout)
