# Generated from _async/databases.py by tools/generate_sync.py: change that file, not this one.
"""Managed databases."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Dict, List, Optional, Sequence, Union, cast

from .._check import checked
from .. import _wire
from .._fields import SecretRecord
from .._wire import segment
from ..database_models import (
    Database,
    DatabaseBackups,
    DatabaseBaseBackup,
    DatabaseConnection,
    DatabaseDrill,
    DatabaseRows,
    DatabaseStats,
)
from ..errors import RequestTimeout, ServerError
from ._io import sleep
from .transport import Transport

#: A query's own limit ends it before this does.
QUERY_SECONDS_MAX = 660.0
#: How long a restore, a base backup or a drill is waited for.
RESTORE_SECONDS = 4 * 3600.0
#: Between two looks at a restore.
RESTORE_LOOK_SECONDS = 1.0


def _path(database_id: str, action: str = "") -> str:
    return f"/databases/{segment(database_id, 'database id')}{action}"


@checked
class DatabasesAPI:
    """``client.databases``: PostgreSQL, each in its own machine."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        *,
        name: Optional[str] = None,
        label: Optional[str] = None,
        size: Optional[str] = None,
        cpu: Optional[int] = None,
        always_on: Optional[bool] = None,
        protected: Optional[bool] = None,
    ) -> Database:
        """Create a database. It accepts queries at ``connection_url`` when this returns.

        ``name`` is unique in the workspace and can be used instead of the ID. ``size`` is its memory,
        such as ``4g``.
        """
        body = _wire.given(
            name=name, label=label, size=size, cpu=cpu, always_on=always_on, protected=protected
        )
        call = _wire.create("/databases", body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        return self._send(call)

    def list(self) -> List[Database]:
        """List databases, oldest first, without credentials."""
        answer = self._transport.send(_wire.get("/databases"))
        return [cast("Database", SecretRecord(record)) for record in answer.records("items")]

    def get(self, database_id: str) -> Database:
        """Get a database by ID or name, with its connection details. Does not wake it."""
        return self._send(_wire.get(_path(database_id)))

    def connection(self, database_id: str) -> DatabaseConnection:
        """Get the connection details."""
        answer = self._transport.send(_wire.get(_path(database_id, "/connection")))
        return cast("DatabaseConnection", SecretRecord(answer.record()))

    def query(
        self,
        database_id: str,
        sql: str,
        params: Sequence[Any] = (),
        *,
        database: Optional[str] = None,
        timeout_ms: Optional[int] = None,
        max_rows: Optional[int] = None,
    ) -> DatabaseRows:
        """Run one statement with ``params`` for ``$1``, ``$2``, ... Wakes the database."""
        body: Dict[str, Any] = {"sql": sql, "params": list(params)}
        body.update(_wire.given(database=database, timeout_ms=timeout_ms, max_rows=max_rows))
        call = _wire.post(_path(database_id, "/query"), body, seconds_max=QUERY_SECONDS_MAX)
        return cast("DatabaseRows", (self._transport.send(call)).record())

    def update(
        self,
        database_id: str,
        *,
        label: Optional[str] = None,
        always_on: Optional[bool] = None,
        protected: Optional[bool] = None,
        storage_mb: Optional[int] = None,
        size: Optional[str] = None,
    ) -> Database:
        """Update a database. Arguments that are left out stay unchanged. Storage can only grow. A new ``size``
        moves the server to another machine: sessions end and new ones wait.
        """
        body = _wire.given(
            label=label, always_on=always_on, protected=protected, storage_mb=storage_mb, size=size
        )
        call = _wire.post(_path(database_id), body, seconds_max=_wire.MACHINE_SECONDS_MAX, method="PATCH")
        return self._send(call)

    def branch(
        self, database_id: str, *, name: Optional[str] = None, label: Optional[str] = None
    ) -> Database:
        """Copy a running database. The copy has its own credentials."""
        body = _wire.given(name=name, label=label)
        call = _wire.create(_path(database_id, "/clone"), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        return self._send(call)

    def restore(
        self,
        database_id: str,
        at: Union[str, datetime],
        *,
        name: Optional[str] = None,
        label: Optional[str] = None,
        timeout_seconds: float = RESTORE_SECONDS,
    ) -> Database:
        """Restore a database from its backups to the time ``at``, or to ``"latest"``, as a new database.

        ``at`` is RFC 3339, or a ``datetime`` with a time zone; ``"latest"`` is everything that was committed.
        The new database accepts queries when this returns.
        """
        time_sent = at if isinstance(at, str) else at.isoformat()
        body = _wire.given(name=name, label=label, target_time=time_sent)
        call = _wire.create(_path(database_id, "/clone"), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        database = self._send(call)
        deadline = time.monotonic() + timeout_seconds
        while database["status"] == "provisioning":
            if time.monotonic() > deadline:
                raise RequestTimeout(f"database {database['id']} was not restored within {timeout_seconds:g} s")
            sleep(RESTORE_LOOK_SECONDS)
            database = self.get(database["id"])
        if database["status"] == "failed":
            raise ServerError(database.get("error") or "the restore failed", hint="look at client.databases.backups()")
        return database

    def backups(self, database_id: str) -> DatabaseBackups:
        """Get the restorable period and the state of a database's backups. Does not wake it."""
        answer = self._transport.send(_wire.get(_path(database_id, "/backups")))
        return cast("DatabaseBackups", answer.record())

    def back_up(self, database_id: str) -> DatabaseBaseBackup:
        """Take a base backup now. Daily ones are automatic."""
        call = _wire.post(_path(database_id, "/backups"), seconds_max=RESTORE_SECONDS)
        return cast("DatabaseBaseBackup", (self._transport.send(call)).record())

    def drill(self, database_id: str) -> DatabaseDrill:
        """Test the backups: restore the latest state, check every table and index, and delete it."""
        call = _wire.post(_path(database_id, "/backups/drill"), seconds_max=RESTORE_SECONDS)
        return cast("DatabaseDrill", (self._transport.send(call)).record())

    def failover(self, database_id: str) -> Database:
        """Fail over a database whose host does not respond to a copy restored from its backups."""
        call = _wire.post(_path(database_id, "/failover"), seconds_max=RESTORE_SECONDS)
        return self._send(call)

    def reset_credentials(self, database_id: str) -> Database:
        """Set a new password. The old one stops working."""
        return self._act(database_id, "/reset-credentials")

    def pause(self, database_id: str) -> Database:
        """Put a database to sleep. The next connection wakes it."""
        return self._act(database_id, "/pause")

    def wake(self, database_id: str) -> Database:
        """Wake a database; it is awake when this returns."""
        return self._act(database_id, "/wake")

    def stats(self, database_id: str) -> DatabaseStats:
        """Get a database's statistics. Wakes it."""
        answer = self._transport.send(_wire.get(_path(database_id, "/stats")))
        return cast("DatabaseStats", answer.record())

    def logs(self, database_id: str) -> str:
        """Get the end of the server's log. Wakes the database."""
        seconds_max = _wire.MACHINE_SECONDS_MAX
        call = _wire.Call("GET", _path(database_id, "/logs"), accept="text/plain", seconds_max=seconds_max)
        return (self._transport.send(call)).body.decode("utf-8", "replace")

    def delete(self, database_id: str) -> None:
        """Delete a database and its data. Fails if it is protected."""
        self._transport.send(_wire.delete(_path(database_id)))

    def _act(self, database_id: str, action: str) -> Database:
        call = _wire.post(_path(database_id, action), seconds_max=_wire.MACHINE_SECONDS_MAX)
        return self._send(call)

    def _send(self, call: _wire.Call) -> Database:
        return cast("Database", SecretRecord((self._transport.send(call)).record()))
