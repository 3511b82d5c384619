"""Volumes: durable disks that outlive sandboxes."""

from __future__ import annotations

from typing import Dict, List, Optional, cast

from .._check import checked
from .. import _wire
from .._wire import segment
from ..volume_models import VolumeInfo
from .transport import AsyncTransport


@checked
class AsyncVolumesAPI:
    """``client.volumes``. Attach one with ``sandboxes.create(volumes=[{"name": ..., "path": ...}])``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, name: str, size_mb: int, *, protected: bool = False) -> VolumeInfo:
        """Create an empty volume. Space is allocated as data is written."""
        body = _wire.given(name=name, size_mb=size_mb, protected=protected or None)
        return await self._make("/volumes", body)

    async def list(self) -> List[VolumeInfo]:
        """List volumes by name."""
        answer = await self._transport.send(_wire.get("/volumes"))
        return cast("List[VolumeInfo]", answer.records("volumes"))

    async def get(self, name: str) -> VolumeInfo:
        """Get a volume and the sandbox that uses it."""
        return cast("VolumeInfo", (await self._transport.send(_wire.get(_path(name)))).record())

    async def grow(self, name: str, size_mb: int) -> VolumeInfo:
        """Grow a volume. A running sandbox that uses it sees the new size immediately."""
        body = {"size_mb": size_mb}
        call = _wire.post(_path(name, "/grow"), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        return cast("VolumeInfo", (await self._transport.send(call)).record())

    async def clone(self, name: str, copy: str) -> VolumeInfo:
        """Clone a volume at one point in time, even while a sandbox writes to it."""
        return await self._make(_path(name, "/clone"), {"name": copy})

    async def snapshot(self, name: str, snapshot: Optional[str] = None) -> VolumeInfo:
        """Take a snapshot of a volume: a read-only copy that can be cloned."""
        return await self._make(_path(name, "/snapshot"), _wire.given(name=snapshot))

    async def update(
        self, name: str, *, protected: Optional[bool] = None, delete_with_sandbox: Optional[bool] = None
    ) -> VolumeInfo:
        """Change a volume's deletion protection, or whether it is deleted with its sandbox."""
        body = _wire.given(protected=protected, delete_with_sandbox=delete_with_sandbox)
        return cast("VolumeInfo", (await self._transport.send(_wire.post(_path(name), body, method="PATCH"))).record())

    async def delete(self, name: str) -> None:
        """Delete a volume and its data. Fails while a sandbox uses it."""
        await self._transport.send(_wire.delete(_path(name)))

    async def _make(self, path: str, body: Dict[str, object]) -> VolumeInfo:
        call = _wire.post(path, body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        return cast("VolumeInfo", (await self._transport.send(call)).record())


def _path(name: str, rest: str = "") -> str:
    return f"/volumes/{segment(name, 'volume name')}{rest}"
