"""A process of a sandbox: started, followed, written to and ended by id.

It belongs to the sandbox, not to this client: it outlives connections, restarts of the servers and
sleep. A handle can be made again at any time with ``sandbox.process(id)``.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from .._check import checked
from .. import _wire
from .._reconnect import Reconnect
from ..errors import BadRequestError, PandaStackError
from ..models import ProcessInfo
from ._io import sleep
from .exec_stream import AsyncExecStream
from .transport import AsyncTransport

#: One wait of the server; asked again until the process has ended.
_WAIT_SECONDS = 25


@checked
class AsyncProcess:
    """A handle for one process. ``info`` is the server's last response."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str, info: ProcessInfo) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self.info = info

    @property
    def id(self) -> int:
        """Process ID in this sandbox, and in forks created while it existed."""
        return self.info.id

    @property
    def pid(self) -> int:
        """Process ID in the sandbox's kernel."""
        return self.info.pid

    async def refresh(self) -> AsyncProcess:
        """Refresh this object with the server's current state and return it."""
        answer = await self._transport.send(_wire.get(self._path()))
        self.info = ProcessInfo.from_dict(answer.record())
        return self

    async def output(self, stdout_offset: int = 0, stderr_offset: int = 0) -> AsyncExecStream:
        """Stream its output from two byte offsets. The stream reconnects after a lost connection.

        Output is kept up to a limit; ``stream.gaps`` lists what was dropped.
        """
        offsets = (stdout_offset, stderr_offset)
        return await AsyncExecStream.attach(self._transport, self._path(), offsets)

    async def wait(
        self,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
    ) -> int:
        """Wait for it to end and return the exit code. A callback receives the output that was kept."""
        if on_stdout is not None or on_stderr is not None:
            async with await self.output() as stream:
                return await stream.wait(on_stdout, on_stderr)
        retry = Reconnect()
        while self.info.exit_code is None:
            try:
                call = _wire.get(self._path("/wait"), {"timeout_seconds": str(_WAIT_SECONDS)})
                self.info = ProcessInfo.from_dict((await self._transport.send(call)).record())
                retry.succeeded()
            except PandaStackError as error:
                await _pause(retry, error)
        return self.info.exit_code

    async def write(self, data: Union[str, bytes]) -> None:
        """Write to its standard input. Returns when all bytes are in the pipe."""
        await self._send_input(data.encode("utf-8") if isinstance(data, str) else data, close=False)

    async def close_stdin(self) -> None:
        """Close its standard input. On a terminal, sends Ctrl-D."""
        await self._send_input(b"", close=True)

    async def signal(self, signal: Union[str, int]) -> None:
        """Send a signal, such as ``"INT"``. ``"KILL"`` also kills all processes that the process started."""
        await self._transport.send(_wire.post(self._path("/signal"), {"signal": signal}))

    async def kill(self) -> None:
        """Kill it and every process it started."""
        await self.signal("KILL")

    async def resize(self, rows: int, cols: int) -> None:
        """Resize its terminal."""
        await self._transport.send(_wire.post(self._path("/resize"), {"rows": rows, "cols": cols}))

    async def _send_input(self, data: bytes, close: bool) -> None:
        # Bytes that were taken before a connection broke are not sent again: the server counts them.
        start, retry = self.info.stdin_offset, Reconnect()
        sent, was_repeated = 0, False
        while True:
            try:
                answer = await self._transport.send(_wire.stdin_call(self._path("/stdin"), data[sent:], close))
                self.info = self.info.with_stdin_offset(answer.record())
                return
            except BadRequestError:
                if was_repeated and close and sent == len(data):
                    return  # closed by the attempt whose answer was lost
                raise
            except PandaStackError as error:
                await _pause(retry, error)
            was_repeated = True
            sent = await self._taken_since(start, len(data), retry)

    async def _taken_since(self, start: int, length: int, retry: Reconnect) -> int:
        while True:
            try:
                await self.refresh()
                return min(max(self.info.stdin_offset - start, 0), length)
            except PandaStackError as error:
                await _pause(retry, error)

    def _path(self, rest: str = "") -> str:
        return _wire.sandbox_path(self._sandbox_id, f"/processes/{self.info.id}{rest}")

    def __repr__(self) -> str:
        end = "" if self.info.exit_code is None else f", exit_code={self.info.exit_code}"
        return f"{type(self).__name__}(id={self.id}, state={self.info.state!r}{end})"


async def _pause(retry: Reconnect, error: PandaStackError) -> None:
    delay = retry.delay_after(error)
    if delay is None:
        raise error
    await sleep(delay)
