# Generated from _async/schedules.py by tools/generate_sync.py: change that file, not this one.
"""Schedules: cron, intervals and one-off times."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, cast

from .._check import checked
from .. import _wire
from .._wire import given, segment
from ..schedule_models import Missed, NextRuns, Overlap, Schedule, ScheduleRun
from .transport import Transport


@checked
class SchedulesAPI:
    """``client.schedules``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
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
        return cast("Schedule", (self._transport.send(_wire.post("/schedules", body))).record())

    def list(self) -> List[Schedule]:
        """List schedules, oldest first."""
        return cast("List[Schedule]", (self._transport.send(_wire.get("/schedules"))).records("schedules"))

    def get(self, schedule_id: str) -> Schedule:
        """Get a schedule."""
        return cast("Schedule", (self._transport.send(_wire.get(_path(schedule_id)))).record())

    def update(self, schedule_id: str, **changes: Any) -> Schedule:
        """Change a schedule: the arguments of :meth:`create`. Arguments that are left out stay unchanged."""
        call = _wire.post(_path(schedule_id), given(**changes), method="PATCH")
        return cast("Schedule", (self._transport.send(call)).record())

    def pause(self, schedule_id: str) -> Schedule:
        """Pause a schedule."""
        return self.update(schedule_id, paused=True)

    def resume(self, schedule_id: str) -> Schedule:
        """Resume a schedule. Missed runs are not started."""
        return self.update(schedule_id, paused=False)

    def delete(self, schedule_id: str) -> None:
        """Delete a schedule and its history, and cancel runs in progress."""
        self._transport.send(_wire.delete(_path(schedule_id)))

    def trigger(self, schedule_id: str, *, wait: bool = True) -> ScheduleRun:
        """Run it now. With ``wait``, return when the run has ended. Its next run times do not change."""
        body: Dict[str, Any] = {} if wait else {"wait": False}
        call = _wire.post(_path(schedule_id, "/trigger"), body, seconds_max=_wire.EXEC_SECONDS_MAX)
        return cast("ScheduleRun", (self._transport.send(call)).record())

    def runs(self, schedule_id: str, *, limit: Optional[int] = None) -> List[ScheduleRun]:
        """List runs, newest first."""
        query = {} if limit is None else {"limit": str(limit)}
        answer = self._transport.send(_wire.get(_path(schedule_id, "/runs"), query))
        return cast("List[ScheduleRun]", answer.records("runs"))

    def get_run(self, schedule_id: str, run_id: str) -> ScheduleRun:
        """Get a run."""
        path = _path(schedule_id, f"/runs/{segment(run_id, 'run id')}")
        return cast("ScheduleRun", (self._transport.send(_wire.get(path))).record())

    def cancel_run(self, schedule_id: str, run_id: str) -> ScheduleRun:
        """Cancel a run."""
        path = _path(schedule_id, f"/runs/{segment(run_id, 'run id')}/cancel")
        return cast("ScheduleRun", (self._transport.send(_wire.post(path))).record())

    def next(self, schedule_id: str, count: int = 5) -> NextRuns:
        """Get its next run times."""
        answer = self._transport.send(_wire.get(_path(schedule_id, "/next"), {"count": str(count)}))
        return cast("NextRuns", answer.record())

    def preview(
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
        return cast("NextRuns", (self._transport.send(_wire.post("/schedules/preview", body))).record())


def _path(schedule_id: str, rest: str = "") -> str:
    return f"/schedules/{segment(schedule_id, 'schedule id')}{rest}"
