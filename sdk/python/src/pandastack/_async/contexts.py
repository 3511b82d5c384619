"""Code contexts: interpreters in a sandbox that keep their state between runs."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from .._check import checked
from .. import _wire
from .._fields import need_text, text
from ..context_models import Execution
from ..errors import BadRequestError, NotFoundError
from .transport import AsyncTransport

#: Time of a run that names none; the server's own ends it first.
_RUN_SECONDS_DEFAULT = 30


@checked
class AsyncCodeContext:
    """An interpreter. Variables and imports are kept between runs, including after sleep and in forks."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str, record: Mapping[str, Any]) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self.id = need_text(record, "id", "a code context")
        self.language = text(record, "language", "python")
        self.cwd = text(record, "cwd")

    async def run_code(
        self,
        code: str,
        timeout_seconds: Optional[float] = None,
        *,
        env: Optional[Mapping[str, str]] = None,
    ) -> Execution:
        """Run code. The results include the value of its last expression.

        Running past ``timeout_seconds`` (30) interrupts it and raises :class:`~pandastack.SandboxTimeout`; the
        context stays. ``env`` holds for this run only.
        """
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise BadRequestError(f"timeout_seconds must be more than 0, got {timeout_seconds!r}")
        milliseconds = None if timeout_seconds is None else int(timeout_seconds * 1000)
        body = {"code": code, **_wire.given(timeout_ms=milliseconds, env=None if env is None else dict(env))}
        seconds = timeout_seconds or _RUN_SECONDS_DEFAULT
        call = _wire.Call(
            "POST",
            self._path("/run"),
            body=_wire.encode_json(body),
            content_type="application/json",
            seconds_max=seconds + _wire.EXEC_GRACE_SECONDS,
            is_command=True,
        )
        return Execution.from_dict((await self._transport.send(call)).record())

    async def restart(self) -> None:
        """Restart the interpreter. Its variables are lost."""
        await self._transport.send(_wire.post(self._path("/restart")))

    async def close(self) -> None:
        """Delete the context. Has no effect if it does not exist."""
        try:
            await self._transport.send(_wire.delete(self._path("")))
        except NotFoundError:
            pass

    async def __aenter__(self) -> AsyncCodeContext:
        return self

    async def __aexit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, language={self.language!r})"

    def _path(self, rest: str) -> str:
        return _wire.sandbox_path(self._sandbox_id, f"/repl/sessions/{_wire.segment(self.id, 'context id')}{rest}")
