"""Databases, as the API returns them."""

from __future__ import annotations

from typing import Any, Dict, List, TypedDict


class DatabaseConnection(TypedDict, total=False):
    """Connection details of a database."""

    host: str
    port: int
    database: str
    username: str
    password: str
    connection_url: str
    #: Through the pooler, for many short connections.
    pooled_url: str
    broker_url: str
    broker_token: str


class Database(DatabaseConnection, total=False):
    """A managed database; in lists without credentials."""

    id: str
    #: ``provisioning``, ``running``, ``read_only`` (its disk is full: see ``error``), ``hibernated``, ``recovering``,
    #: ``failed`` or ``deleting``.
    status: str
    template: str
    #: Unique in the workspace; can be used instead of the ID.
    name: str
    label: str
    created_at: str
    size: str
    always_on: bool
    protected: bool
    sandbox_id: str
    cloned_from: str
    #: Current step while the database is being restored.
    step: str
    error: str
    #: Whether another copy could take over.
    failover_available: bool


class DatabaseRows(TypedDict):
    """Rows of a result. ``int8`` and ``numeric`` are strings, because JSON numbers lose digits."""

    #: Each has ``name`` and ``type``.
    columns: List[Dict[str, str]]
    rows: List[List[Any]]
    count: int
    command: str
    truncated: bool
    duration_ms: int


class DatabaseStats(TypedDict):
    """Statistics of a database."""

    size_bytes: int
    connections: int
    active: int
    connections_max: int
    commits: int
    rollbacks: int
    cache_hit_percent: int
    version: str
    #: Room for data.
    storage_bytes: int
    #: Bytes of it on the host's disk; a branch shares with its original until either is written.
    storage_used_bytes: int


#: Every instant of it can be restored.
RestorablePeriod = TypedDict("RestorablePeriod", {"from": str, "to": str})


class DatabaseBaseBackup(TypedDict):
    """A base backup: a copy of all files, from which WAL is replayed."""

    name: str
    started_at: str
    finished_at: str
    size_bytes: int
    version: str


class DatabaseDrill(TypedDict, total=False):
    """The result of a backup test. If ``ok`` is false, ``error`` says why."""

    at: str
    ok: bool
    took_ms: int
    error: str


class DatabaseBackups(TypedDict, total=False):
    """The restorable period and the state of a database's backups."""

    healthy: bool
    following: bool
    last_archived_wal: str
    last_archived_at: str
    lag_bytes: int
    failing_since: str
    error: str
    earliest_restorable: str
    latest_restorable: str
    restorable: List[RestorablePeriod]
    base_backups: List[DatabaseBaseBackup]
    retention_days: int
    last_drill: DatabaseDrill
