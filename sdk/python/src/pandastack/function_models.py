"""Functions, as the server describes them."""

from __future__ import annotations

from typing import Any, Dict, List, TypedDict


class FunctionInfo(TypedDict, total=False):
    """A function. Unknown fields are kept."""

    id: str
    name: str
    workspace: str
    runtime: str
    entrypoint: str
    template: str
    code_size: int
    env: Dict[str, str]
    #: Names of its secrets.
    secrets: List[str]
    public: bool
    url: str
    #: The version that is called; 0 before the first one.
    version: int
    is_ready: bool
    #: ``building``, ``ready`` or ``failed``.
    deploy_status: str
    deploy_error: str
    aliases: Dict[str, Dict[str, Any]]
    timeout_seconds: int
    concurrency: int
    max_instances: int
    queue_max: int
    idle_seconds: int
    isolation: str
    retries: int
    max_age_seconds: int
    #: Absent where they are the template's.
    cpu: int
    memory_mb: int
    dead_letter_url: str
    created_at: str
    updated_at: str


class FunctionVersion(TypedDict, total=False):
    """An immutable version of a function."""

    version: int
    status: str
    error: str
    entrypoint: str
    code_sha256: str
    code_size: int
    build_ms: int
    dependencies_reused: bool
    created_at: str


class FunctionRun(TypedDict, total=False):
    """A call of a function."""

    id: str
    function_id: str
    sandbox_id: str
    #: The schedule that made it.
    schedule_id: str
    kind: str
    #: ``queued``, ``running``, ``success``, ``error`` or ``timeout``.
    status: str
    exit_code: int
    stdout: str
    stderr: str
    #: Value that the handler returned.
    output: Any
    error: str
    duration_ms: float
    billed_ms: int
    wait_ms: float
    cold: bool
    memory_peak_mb: int
    version: int
    attempt: int
    dead_letter: bool
    #: Number of notifications sent to ``dead_letter_url``.
    notices: int
    next_attempt_at: str
    started_at: str
    ended_at: str


class FunctionMetrics(TypedDict, total=False):
    """Duration percentiles and error rates of calls."""

    period: int
    total: int
    errors: int
    error_rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cold_start_rate: float
    billed_ms: int
    instances: int
    waiting: int
