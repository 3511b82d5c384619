"""Snapshots, templates and API keys."""

from __future__ import annotations

import time
from typing import AsyncIterator, Dict, List, Optional, cast

from .. import _wire
from .._wire import segment
from ..errors import RequestTimeout, TemplateBuildError
from ..models import SnapshotInfo, Template, TemplateBuild, Token
from ._io import sleep
from .exec_stream import server_events
from .transport import AsyncTransport


class AsyncSnapshotsAPI:
    """``client.snapshots``. They are taken by ``sandbox.snapshot()``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, sandbox_id: Optional[str] = None) -> List[SnapshotInfo]:
        """List snapshots, newest first, optionally of one sandbox."""
        query = {} if sandbox_id is None else {"sandbox_id": sandbox_id}
        answer = await self._transport.send(_wire.get("/snapshots", query))
        return cast("List[SnapshotInfo]", answer.records("snapshots"))

    async def get(self, snapshot_id: str) -> SnapshotInfo:
        """Get a snapshot."""
        answer = await self._transport.send(_wire.get(f"/snapshots/{segment(snapshot_id, 'snapshot id')}"))
        return cast("SnapshotInfo", answer.record())

    async def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot. Sandboxes created from it stay."""
        await self._transport.send(_wire.delete(f"/snapshots/{segment(snapshot_id, 'snapshot id')}"))


class AsyncTemplatesAPI:
    """``client.templates``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> List[Template]:
        """List templates."""
        answer = await self._transport.send(_wire.get("/templates"))
        return [Template.from_dict(record) for record in answer.records("templates")]

    async def get(self, name: str) -> Template:
        """Get a template."""
        answer = await self._transport.send(_wire.get(f"/templates/{segment(name, 'template name')}"))
        return Template.from_dict(answer.record())

    async def delete(self, name: str) -> None:
        """Delete a template of the workspace. Built-in templates cannot be deleted."""
        await self._transport.send(_wire.delete(f"/templates/{segment(name, 'template name')}"))

    async def builds(self) -> List[TemplateBuild]:
        """List running and finished builds."""
        answer = await self._transport.send(_wire.get("/templates/builds"))
        return [TemplateBuild.from_dict(record) for record in answer.records("builds")]

    async def get_build(self, build_id: str) -> TemplateBuild:
        """Get a template build."""
        answer = await self._transport.send(_wire.get(f"/templates/builds/{segment(build_id, 'build id')}"))
        return TemplateBuild.from_dict(answer.record())

    async def build_logs(self, build_id: str, *, follow: bool = True) -> AsyncIterator[str]:
        """Get the lines of a build's log. With ``follow``, stream until the build ends."""
        query: Dict[str, str] = {"follow": "1"} if follow else {}
        call = _wire.get(f"/templates/builds/{segment(build_id, 'build id')}/logs", query)
        call = _wire.as_event_stream(call, has_limit=False)
        idle = _wire.STREAM_IDLE_SECONDS_MAX
        async with await self._transport.open_stream(call, idle_seconds_max=idle) as stream:
            async for event in server_events(stream):
                if event.name == "done":
                    return
                yield event.data

    async def wait_for_build(
        self, build_id: str, *, poll_interval: float = 2.0, timeout_seconds: float = 1200.0
    ) -> TemplateBuild:
        """Wait until a build ends; :class:`~pandastack.TemplateBuildError` if it failed."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            build = await self.get_build(build_id)
            if build.is_failed:
                raise TemplateBuildError(f"the build of {build.name!r} failed: {build.error}", build=build)
            if build.is_done:
                return build
            if time.monotonic() + poll_interval > deadline:
                raise RequestTimeout(f"the build of {build.name!r} did not finish within {timeout_seconds:g} s")
            await sleep(poll_interval)


class AsyncTokensAPI:
    """``client.tokens``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> List[Token]:
        """List API keys, without their secrets."""
        answer = await self._transport.send(_wire.get("/me/tokens"))
        return [Token.from_dict(record) for record in answer.records("tokens")]

    async def create(
        self, name: str, expires_in_days: Optional[int] = None, scope: Optional[str] = None
    ) -> Token:
        """Create an API key. ``token`` of the result is not shown again. ``scope`` is ``read``, ``sandboxes``
        or ``admin``.
        """
        body: Dict[str, object] = {"label": name}
        if scope is not None:
            body["scope"] = scope
        if expires_in_days is not None:
            body["expires_in_days"] = expires_in_days
        return Token.from_dict((await self._transport.send(_wire.post("/me/tokens", body))).record())

    async def revoke(self, prefix: str) -> None:
        """Revoke a key, named by its public prefix."""
        await self._transport.send(_wire.delete(f"/me/tokens/{segment(prefix, 'token prefix')}"))
