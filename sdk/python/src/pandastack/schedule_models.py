"""Schedules and their runs, as the server describes them. Earlier releases returned plain dicts, so these are dicts."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict

Overlap = Literal["skip", "queue", "replace", "allow"]
Missed = Literal["skip", "run_once", "run_all"]


class Schedule(TypedDict, total=False):
    """A schedule."""

    id: str
    workspace: str
    name: str
    #: The function it invokes; empty for other targets.
    function_id: str
    #: Five fields; empty for intervals and one-off schedules.
    cron: str
    timezone: str
    every_seconds: int
    at: str
    #: ``{"type": "http" | "command" | "sandbox" | "app" | "function" | "sql" | "template", ...}``
    target: Dict[str, Any]
    overlap: Overlap
    missed: Missed
    missed_max: int
    starting_deadline_seconds: int
    jitter_seconds: int
    timeout_seconds: int
    retries: int
    retry_delay_seconds: int
    alert: Dict[str, Any]
    pause_after_failures: int
    paused: bool
    paused_reason: str
    consecutive_failures: int
    last_run_at: str
    #: Absent when paused or over.
    next_run_at: str
    created_at: str
    updated_at: str


class ScheduleRun(TypedDict, total=False):
    """A run of a schedule. A schedule has at most one run for a time."""

    id: str
    #: Alias of ``id``.
    run_id: str
    schedule_id: str
    function_id: str
    sandbox_id: str
    #: ``queued``, ``running``, ``success``, ``error``, ``timeout``, ``skipped`` or ``cancelled``.
    status: str
    #: ``schedule`` or ``manual``.
    origin: str
    scheduled_for: str
    attempt: int
    exit_code: int
    http_status: int
    stdout: str
    stderr: str
    truncated: bool
    #: Why it failed, was skipped or was cancelled.
    error: str
    #: Earlier times that passed while nothing could run, and get no run.
    missed: int
    duration_ms: int
    started_at: str
    ended_at: str


class NextRuns(TypedDict):
    """Next run times of a schedule."""

    items: List[str]
    #: The same on the clock of the time zone.
    local: List[str]
    timezone: str


def http_target(
    url: str, *, method: Optional[str] = None, headers: Optional[Dict[str, str]] = None, body: Optional[str] = None
) -> Dict[str, Any]:
    """A target that calls a URL."""
    optional = {"method": method, "headers": headers, "body": body}
    return {"type": "http", "url": url, **{name: value for name, value in optional.items() if value is not None}}


def command_target(
    cmd: str, *, sandbox_id: Optional[str] = None, template: Optional[str] = None, **options: Any
) -> Dict[str, Any]:
    """A target that runs a command, in a sandbox or in a fresh one of a template."""
    optional = {"sandbox_id": sandbox_id, "template": template, **options}
    return {"type": "command", "cmd": cmd, **{name: value for name, value in optional.items() if value is not None}}


def rebuild_target(template: str) -> Dict[str, Any]:
    """A target that rebuilds a template, ``NAME`` or ``NAME:TAG``."""
    return {"type": "template", "template": template}
