"""A database whose disk is full: it can be read, says so, and goes on when it has more room."""

from __future__ import annotations

import os
import subprocess
from typing import Iterator, Tuple

import pytest
from conftest import wait_for
from database_inside import connects_again, kill_server, take_room
from test_database_durability import REVIVE_SECONDS_MAX
from test_databases import make

from pandastack import BadRequestError, Database, PandaStack

psycopg = pytest.importorskip("psycopg")

#: Room left at which a database of 8 GiB becomes read only, and half of it, at which writers are cancelled.
LIMIT_MB = 256
INSERT = "INSERT INTO filled (body) VALUES (%s) RETURNING n"


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Iterator[Database]:
    made = make(client, "full")
    yield made
    client.databases.delete(made["id"])


def fill(url: str) -> Tuple[int, "psycopg.Error"]:
    """Writes until it is refused: the last row that was acknowledged, and the refusal."""
    row = os.urandom(512 * 1024).hex()
    last = 0
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(4 * LIMIT_MB):
            try:
                found = connection.execute(INSERT, [row]).fetchone()
                assert found is not None
                last = found[0]
            except psycopg.Error as error:
                return last, error
    raise AssertionError("nothing stopped it")


def rows(url: str) -> Tuple[int, int]:
    with psycopg.connect(url, connect_timeout=REVIVE_SECONDS_MAX) as connection:
        found = connection.execute("SELECT count(*), sum(length(body)) FROM filled").fetchone()
        assert found is not None
        return (found[0], int(found[1]))


def backed_up(client: PandaStack, database: Database) -> None:
    wait_for("it is backed up", lambda: client.databases.backups(database["id"])["healthy"], REVIVE_SECONDS_MAX)


def test_a_full_disk_makes_a_database_read_only_until_it_grows(client: PandaStack, database: Database) -> None:
    url = database["connection_url"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE filled (n bigserial PRIMARY KEY, body text)")
        connection.execute("ALTER TABLE filled ALTER COLUMN body SET STORAGE EXTERNAL")
    # The first base backup makes the server's log grow, which would take the room that is meant for rows.
    backed_up(client, database)
    take_room(database, LIMIT_MB + 80)
    last, refused = fill(url)
    assert last > 0 and refused.sqlstate == "25006", refused
    grow = f"pandastack db update {database['id']} --storage-mb 16384"
    assert refused.diag.message_hint is not None and "is full" in refused.diag.message_hint and grow in refused.diag.message_hint

    there = rows(url)
    assert there == (last, last * 1024 * 1024), "every row that was acknowledged, and reads go on"
    shown = client.databases.get(database["id"])
    assert shown["status"] == "read_only" and grow in shown["error"], shown
    told = subprocess.run([os.environ["PANDASTACK_BIN"], "db", "get", database["id"]], capture_output=True, text=True, timeout=60)
    assert "read_only" in told.stdout and grow in told.stdout, told
    with pytest.raises(BadRequestError, match="is full"):
        client.databases.query(database["id"], "INSERT INTO filled (body) VALUES ('x')")

    # A client can request a writable transaction, to free room, but cannot fill the disk with it.
    take_room(database, LIMIT_MB // 2 + 20)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("BEGIN READ WRITE")
        connection.execute(INSERT, ["x"])
        with pytest.raises(psycopg.errors.QueryCanceled) as cancelled:
            connection.execute("INSERT INTO filled (body) SELECT repeat('y', 8000) FROM generate_series(1, 1000000)")
        assert "is full" in (cancelled.value.diag.message_hint or ""), cancelled.value.diag
    assert rows(url) == there

    # Next to nothing left, and the server gone: it starts from its reserve, and can be read.
    take_room(database, 2)
    kill_server(database)
    wait_for("it is back", lambda: connects_again(url), REVIVE_SECONDS_MAX)
    assert rows(url) == there
    assert client.databases.get(database["id"])["status"] == "read_only"

    client.databases.update(database["id"], storage_mb=9 << 10)
    assert client.databases.get(database["id"])["status"] == "running"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSERT, ["z"])
    assert rows(url) == (there[0] + 1, there[1] + 1)
    backed_up(client, database)
