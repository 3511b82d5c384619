"""Backups of databases on real machines: any instant can be restored, and an impossible restore says why."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from conftest import wait_for
from full_only import times
from platform_process import command_lines, read_text
from test_database_durability import REVIVE_SECONDS_MAX, kill_machine
from test_databases import make

from pandastack import BadRequestError, Database, DatabaseBackups, PandaStack

psycopg = pytest.importorskip("psycopg")

#: A base backup reads all files of a server, and may wait for those of others.
BASE_SECONDS_MAX = 180


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Iterator[Database]:
    made = make(client, "backed up")
    yield made
    client.databases.delete(made["id"])


def first_base(client: PandaStack, database_id: str) -> None:
    wait_for("a base backup", lambda: client.databases.backups(database_id)["healthy"], BASE_SECONDS_MAX)


def archive_dir() -> Path:
    """Directory in which the platform under test keeps its backups."""
    port = os.environ["PANDASTACK_API"].rsplit(":", 1)[1].strip("/")
    lines = {pid: line for pid, line in command_lines().items() if " control " in line and f":{port} " in line}
    (pid,) = lines
    environment = read_text(Path(f"/proc/{pid}/environ"))
    found = re.search(r"PANDASTACK_BACKUPS=file://([^\0]+)", environment)
    assert found is not None, environment
    return Path(found.group(1))


def insert(url: str, number: int) -> datetime:
    """Commits a number and answers a time after which it is there, and before which the next one is not."""
    with psycopg.connect(url, autocommit=True, connect_timeout=REVIVE_SECONDS_MAX) as connection:
        connection.execute("INSERT INTO steps VALUES (%s)", [number])
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        at: datetime = row[0]
        return at


def await_archived(client: PandaStack, database_id: str, at: datetime) -> None:
    """Waits until everything of that second is in the archive."""
    second = at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    archived = lambda: client.databases.backups(database_id)["latest_restorable"][:19] > second
    wait_for("its log is archived", archived, BASE_SECONDS_MAX)


def steps(url: str) -> List[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM steps ORDER BY n")]


def test_any_point_in_time_restores_to_a_new_database(client: PandaStack, database: Database) -> None:
    url = database["connection_url"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE steps (n int)")
    first_base(client, database["id"])
    instants = [insert(url, number) for number in range(5)]
    # The log goes on where a machine ended.
    kill_machine(client, database["id"])
    instants += [insert(url, number) for number in range(5, 10)]

    def restored(number: int) -> List[int]:
        copy = client.databases.restore(database["id"], instants[number], label=f"as of {number}")
        try:
            assert copy["cloned_from"] == database["id"] and copy["password"] != database["password"]
            there = steps(copy["connection_url"])
            # The copy is a database like any other.
            insert(copy["connection_url"], 100)
            return there
        finally:
            client.databases.delete(copy["id"])

    with ThreadPoolExecutor() as at_once:
        # Both sides of the restart, and the last instant, which is still on its way into the archive.
        chosen = [*random.sample(range(5), times(2, 1)), *random.sample(range(5, 9), times(2, 0)), 9]
        found = dict(zip(chosen, at_once.map(restored, chosen)))
    assert found == {number: list(range(number + 1)) for number in chosen}
    assert steps(url) == list(range(10))
    backups = client.databases.backups(database["id"])
    assert (backups["healthy"], backups["following"], backups["retention_days"]) == (True, True, 7)
    assert len(backups["restorable"]) == 1 and backups["base_backups"][0]["size_bytes"] > 1_000_000


def test_a_restore_replays_more_wal_than_one_batch(client: PandaStack, database: Database) -> None:
    """A server gets its log a few files at a time, so the room for a restore does not grow with the log."""
    first_base(client, database["id"])
    with psycopg.connect(database["connection_url"], autocommit=True, connect_timeout=REVIVE_SECONDS_MAX) as connection:
        connection.execute("CREATE TABLE long (n int, body text)")
        connection.execute("ALTER TABLE long ALTER body SET STORAGE EXTERNAL")
        # Six files of 16 MiB.
        connection.execute("INSERT INTO long SELECT n, repeat(md5(n::text), 16384) FROM generate_series(1, 6 * 32) AS n")
        row = connection.execute("SELECT count(*), md5(string_agg(md5(body), '' ORDER BY n)), clock_timestamp() FROM long").fetchone()
        assert row is not None
        # The log ends with something later than the target, which the server must find.
        connection.execute("DROP TABLE long")
    await_archived(client, database["id"], row[2])
    copy = client.databases.restore(database["id"], row[2])
    try:
        with psycopg.connect(copy["connection_url"], connect_timeout=REVIVE_SECONDS_MAX) as connection:
            found = connection.execute("SELECT count(*), md5(string_agg(md5(body), '' ORDER BY n)) FROM long").fetchone()
        assert found == row[:2]
        assert client.databases.stats(copy["id"])["storage_bytes"] == 8 << 30
    finally:
        client.databases.delete(copy["id"])


def test_an_impossible_restore_is_refused_at_once(client: PandaStack, database: Database) -> None:
    first_base(client, database["id"])
    known = len(client.databases.list())
    with pytest.raises(BadRequestError, match="before the earliest time that can be restored"):
        client.databases.restore(database["id"], datetime(2020, 1, 1, tzinfo=timezone.utc))
    with pytest.raises(BadRequestError, match="after the latest time that can be restored"):
        client.databases.restore(database["id"], datetime.now(timezone.utc) + timedelta(hours=1))
    assert len(client.databases.list()) == known


def with_owner(database: Database, statement: str) -> Any:
    """The server's answer to its owner, who may write."""
    with psycopg.connect(database["connection_url"], autocommit=True, connect_timeout=REVIVE_SECONDS_MAX) as connection:
        connection.execute("SET default_transaction_read_only = off")
        answer = connection.execute(statement)
        row = answer.fetchone() if answer.description else None
        return row and row[0]


def test_a_drill_restores_and_checks_a_backup(client: PandaStack, database: Database) -> None:
    first_base(client, database["id"])
    # Session settings that an owner makes are no reason to call the backups broken.
    with_owner(database, "ALTER DATABASE app SET default_transaction_read_only = on")
    try:
        await_archived(client, database["id"], with_owner(database, "SELECT clock_timestamp()"))
        drill = client.databases.drill(database["id"])
    finally:
        with_owner(database, "ALTER DATABASE app RESET default_transaction_read_only")
    assert drill["ok"], drill
    assert client.databases.backups(database["id"])["last_drill"] == drill


@contextmanager
def archive_down(database_id: str) -> Iterator[None]:
    """Nothing gets into the archive of a database's log."""
    folder = archive_dir() / database_id / "wal"
    away = folder.with_name("away")
    folder.rename(away)

    def blocked() -> bool:
        """A file in the place of the folder, which a write in progress may have created again."""
        folder.touch()
        if folder.is_dir():
            subprocess.run(["cp", "-a", f"{folder}/.", str(away)], check=False)
            shutil.rmtree(folder, ignore_errors=True)
        return folder.is_file()

    try:
        wait_for("nothing can be archived", blocked, 30)
        yield
    finally:
        if folder.is_dir():
            shutil.rmtree(folder)
        folder.unlink(missing_ok=True)
        away.rename(folder)


def fail_to_archive(client: PandaStack, database: Database) -> DatabaseBackups:
    """Makes a database write WAL that cannot be archived, and waits until its status says so."""
    with psycopg.connect(database["connection_url"], autocommit=True, connect_timeout=REVIVE_SECONDS_MAX) as connection:
        connection.execute("DROP TABLE IF EXISTS meanwhile")
        connection.execute("CREATE TABLE meanwhile AS SELECT * FROM generate_series(1, 10000)")
    wait_for("it says so", lambda: "failing_since" in client.databases.backups(database["id"]))
    return client.databases.backups(database["id"])


def test_archiving_catches_up_after_an_outage(client: PandaStack, database: Database) -> None:
    first_base(client, database["id"])
    before = client.databases.backups(database["id"])
    with archive_down(database["id"]):
        failing = fail_to_archive(client, database)
        assert failing["healthy"] is False and failing["error"]
    wait_for("it catches up", lambda: caught_up(client, database["id"], before))


def test_unarchived_wal_of_a_sleeping_database_is_reported_until_it_wakes(client: PandaStack, database: Database) -> None:
    """The return of the archive alone does not archive WAL that was written while it was away."""
    first_base(client, database["id"])
    before = client.databases.backups(database["id"])
    with archive_down(database["id"]):
        since = fail_to_archive(client, database)["failing_since"]
        client.databases.pause(database["id"])
    said = lambda: "asleep with WAL that is not archived" in client.databases.backups(database["id"]).get("error", "")
    wait_for("it says so", said)
    backups = client.databases.backups(database["id"])
    assert (backups["healthy"], backups["failing_since"]) == (False, since) and backups["lag_bytes"] > 0, backups
    assert client.databases.get(database["id"])["status"] == "hibernated", "it is not woken for that"
    client.databases.query(database["id"], "SELECT 1")
    wait_for("it catches up", lambda: caught_up(client, database["id"], before))


def caught_up(client: PandaStack, database_id: str, before: DatabaseBackups) -> bool:
    backups = client.databases.backups(database_id)
    return backups["healthy"] and backups["latest_restorable"] > before["latest_restorable"]


def test_backups_do_not_wake_a_database_and_are_deleted_with_it(client: PandaStack) -> None:
    database = make(client, "sleeper")
    first_base(client, database["id"])
    with psycopg.connect(database["connection_url"], autocommit=True) as connection:
        connection.execute("CREATE TABLE steps AS SELECT 7 AS n")
    client.databases.pause(database["id"])
    wait_for("its log is not followed", lambda: not client.databases.backups(database["id"])["following"])
    assert client.databases.get(database["id"])["status"] == "hibernated"
    backups = client.databases.backups(database["id"])
    assert backups["healthy"], backups
    # Nothing changed since it fell asleep; what was committed just before is there, too.
    copy = client.databases.restore(database["id"], datetime.now(timezone.utc))
    assert steps(copy["connection_url"]) == [7]
    client.databases.delete(copy["id"])
    folder = archive_dir() / database["id"]
    assert folder.is_dir()
    client.databases.delete(database["id"])
    assert not folder.exists()
