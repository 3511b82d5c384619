"""Schedules: cron, intervals and one-off times."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, cast

from .._check import checked
from .. import _wire
from .._wire import given, segment
from ..schedule_models import Missed, NextRuns, Overlap, Schedule, ScheduleRun
from .transport import AsyncTransport


@checked
class AsyncSchedulesAPI:
    """``client.schedules``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        function_id: Optional[str] = None,
        cron: Optional[str] = None,
        *,
        target: Optional[Mapping[str, Any]] = None,
        timezone: Optional[str] = None,
        every_seconds: Optional[int] = None,
        at: Optional[str] = None,
        paused: bool = False,
        overlap: Optional[Overlap] = None,
        missed: Optional[Missed] = None,
        **options: Any,
    ) -> Schedule:
        """Create a schedule: one of ``cron``, ``every_seconds`` and ``at``; ``target`` or ``function_id``.

        Further options: ``missed_max``, ``starting_deadline_seconds``, ``jitter_seconds``, ``timeout_seconds``,
        ``retries``, ``retry_delay_seconds``, ``alert``, ``pause_after_failures``.
        """
        body = given(
            name=name,
            function_id=function_id,
            cron=cron,
            target=target,
            timezone=timezone,
            every_seconds=every_seconds,
            at=at,
            paused=paused,
            overlap=overlap,
            missed=missed,
            **options,
        )
        return cast("Schedule", (await self._transport.send(_wire.post("/schedules", body))).record())

    async def list(self) -> List[Schedule]:
        """List schedules, oldest first."""
        return cast("List[Schedule]", (await self._transport.send(_wire.get("/schedules"))).records("schedules"))

    async def get(self, schedule_id: str) -> Schedule:
        """Get a schedule."""
        return cast("Schedule", (await self._transport.send(_wire.get(_path(schedule_id)))).record())

    async def update(self, schedule_id: str, **changes: Any) -> Schedule:
        """Change a schedule: the arguments of :meth:`create`. Arguments that are left out stay unchanged."""
        call = _wire.post(_path(schedule_id), given(**changes), method="PATCH")
        return cast("Schedule", (await self._transport.send(call)).record())

    async def pause(self, schedule_id: str) -> Schedule:
        """Pause a schedule."""
        return await self.update(schedule_id, paused=True)

    async def resume(self, schedule_id: str) -> Schedule:
        """Resume a schedule. Missed runs are not started."""
        return await self.update(schedule_id, paused=False)

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule and its history, and cancel runs in progress."""
        await self._transport.send(_wire.delete(_path(schedule_id)))

    async def trigger(self, schedule_id: str, *, wait: bool = True) -> ScheduleRun:
        """Run it now. With ``wait``, return when the run has ended. Its next run times do not change."""
        body: Dict[str, Any] = {} if wait else {"wait": False}
        call = _wire.post(_path(schedule_id, "/trigger"), body, seconds_max=_wire.EXEC_SECONDS_MAX)
        return cast("ScheduleRun", (await self._transport.send(call)).record())

    async def runs(self, schedule_id: str, *, limit: Optional[int] = None) -> List[ScheduleRun]:
        """List runs, newest first."""
        query = {} if limit is None else {"limit": str(limit)}
        answer = await self._transport.send(_wire.get(_path(schedule_id, "/runs"), query))
        return cast("List[ScheduleRun]", answer.records("runs"))

    async def get_run(self, schedule_id: str, run_id: str) -> ScheduleRun:
        """Get a run."""
        path = _path(schedule_id, f"/runs/{segment(run_id, 'run id')}")
        return cast("ScheduleRun", (await self._transport.send(_wire.get(path))).record())

    async def cancel_run(self, schedule_id: str, run_id: str) -> ScheduleRun:
        """Cancel a run."""
        path = _path(schedule_id, f"/runs/{segment(run_id, 'run id')}/cancel")
        return cast("ScheduleRun", (await self._transport.send(_wire.post(path))).record())

    async def next(self, schedule_id: str, count: int = 5) -> NextRuns:
        """Get its next run times."""
        answer = await self._transport.send(_wire.get(_path(schedule_id, "/next"), {"count": str(count)}))
        return cast("NextRuns", answer.record())

    async def preview(
        self,
        cron: Optional[str] = None,
        *,
        timezone: Optional[str] = None,
        every_seconds: Optional[int] = None,
        at: Optional[str] = None,
        after: Optional[str] = None,
        count: int = 5,
    ) -> NextRuns:
        """Preview the run times of a schedule without creating it."""
        body = given(cron=cron, timezone=timezone, every_seconds=every_seconds, at=at, after=after, count=count)
        return cast("NextRuns", (await self._transport.send(_wire.post("/schedules/preview", body))).record())


def _path(schedule_id: str, rest: str = "") -> str:
    return f"/schedules/{segment(schedule_id, 'schedule id')}{rest}"
