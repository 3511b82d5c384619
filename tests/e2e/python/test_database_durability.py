"""Acknowledged writes survive the loss of a database's machine."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple

import httpx
import pytest
from conftest import wait_for
from database_inside import connects_again, kill_server
from platform_process import command_lines
from test_databases import make, psql

from pandastack import BadRequestError, Database, NotFoundError, PandaStack

psycopg = pytest.importorskip("psycopg")

#: A lost machine boots again and replays its log, both emulated.
REVIVE_SECONDS_MAX = 150


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Iterator[Database]:
    made = make(client, "durable")
    yield made
    client.databases.delete(made["id"])


def kill_machine(client: PandaStack, database_id: str) -> None:
    """`kill -9` of the emulator of a database."""
    machine = client.databases.get(database_id)["sandbox_id"]
    (pid,) = [pid for pid, line in command_lines().items() if "qemu-system" in line and has_file_of(pid, machine)]
    os.kill(pid, signal.SIGKILL)


def has_file_of(pid: int, machine: str) -> bool:
    try:
        return any(machine in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def write_until_cut(url: str, acknowledged: List[int], begun: Callable[[], Any]) -> None:
    """Commits one number after the other, and notes each that was acknowledged, until the connection breaks."""
    with psycopg.connect(url, autocommit=True, connect_timeout=REVIVE_SECONDS_MAX) as connection:
        number = max(acknowledged, default=0)
        try:
            while True:
                number += 1
                connection.execute("INSERT INTO kept VALUES (%s)", [number])
                acknowledged.append(number)
                if len(acknowledged) % 20 == 0:
                    begun()
        except psycopg.OperationalError:
            return


def numbers(url: str) -> List[int]:
    """Rows of the database. A client is held while the machine is replaced, and tries again after that."""
    def read() -> Optional[Tuple[List[int]]]:
        try:
            with psycopg.connect(url, connect_timeout=REVIVE_SECONDS_MAX) as connection:
                return ([row[0] for row in connection.execute("SELECT n FROM kept ORDER BY n")],)
        except psycopg.OperationalError as error:
            if "try again shortly" not in str(error):
                raise
            return None

    found = wait_for("the database answers", read, REVIVE_SECONDS_MAX)
    assert found is not None
    return found[0]


def test_a_machine_kill_loses_no_acknowledged_transaction(client: PandaStack, database: Database) -> None:
    url = database["connection_url"]
    assert psql(url, "-c", "CREATE TABLE kept (n int PRIMARY KEY)").returncode == 0
    before = client.databases.get(database["id"])["sandbox_id"]
    acknowledged: List[int] = []
    enough = threading.Event()
    writer = threading.Thread(target=write_until_cut, args=(url, acknowledged, enough.set))
    writer.start()
    assert enough.wait(60)
    kill_machine(client, database["id"])
    writer.join(60)
    assert not writer.is_alive()
    there = numbers(url)
    # The last one may have been committed without a word.
    assert there in (acknowledged, [*acknowledged, len(acknowledged) + 1])
    now = client.databases.get(database["id"])
    assert (now["status"], now["connection_url"]) == ("running", url) and now["sandbox_id"] != before
    with pytest.raises(NotFoundError):
        client.sandboxes.get(before)
    assert psql(url, "-c", "INSERT INTO kept VALUES (0)").returncode == 0


def test_a_killed_postgres_is_restarted(client: PandaStack, raw: httpx.Client, database: Database) -> None:
    """The machine runs on without its server: only clients notice, which connect again and wait."""
    url = database["connection_url"]
    acknowledged = numbers(url)
    machine = client.databases.get(database["id"])["sandbox_id"]
    enough = threading.Event()
    before = len(acknowledged)
    writer = threading.Thread(target=write_until_cut, args=(url, acknowledged, enough.set))
    writer.start()
    assert enough.wait(60)
    kill_server(database)
    writer.join(60)
    assert not writer.is_alive() and len(acknowledged) > before
    wait_for("it is back", lambda: connects_again(url), REVIVE_SECONDS_MAX)
    there = numbers(url)
    assert there in (acknowledged, [*acknowledged, acknowledged[-1] + 1])
    assert client.databases.get(database["id"])["sandbox_id"] == machine
    # Through the pooler too; a follower of the log notices by itself.
    assert psql(database["pooled_url"], "-c", "SELECT 1").stdout == "1\n"
    starts = lambda: raw.get(f"/databases/{database['id']}/logs").text.count("database system is ready to accept connections")
    known = starts()
    kill_server(database)
    wait_for("it is back though nobody asked", lambda: starts() > known)


def test_a_branch_keeps_its_own_data_across_sleep_and_a_crash(client: PandaStack, database: Database) -> None:
    """The copy of a revived database has a volume of its own: it outlives its machine, its sleep, and its original's writes."""
    branch = client.databases.branch(database["id"])
    try:
        url = branch["connection_url"]
        assert psql(url, "-c", "INSERT INTO kept VALUES (-1)").returncode == 0
        assert psql(database["connection_url"], "-c", "INSERT INTO kept VALUES (-2)").returncode == 0
        client.databases.pause(branch["id"])
        assert -1 in numbers(url)
        kill_machine(client, branch["id"])
        wait_for("it is noticed", lambda: client.databases.get(branch["id"])["status"] != "running")
        there = numbers(url)
        assert -1 in there and -2 not in there
    finally:
        client.databases.delete(branch["id"])
    assert -1 not in numbers(database["connection_url"])


def test_a_renamed_database_and_a_new_password_survive_a_machine_kill(client: PandaStack) -> None:
    """The platform's own way in is not the tenant's: another password and no database of the first name are the tenant's business."""
    made = make(client, "own ways")
    try:
        url = made["connection_url"]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
            connection.execute("CREATE DATABASE side")
        with psycopg.connect(url.replace("/app?", "/side?"), autocommit=True) as connection:
            inside = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'app'"
            wait_for("the first session has ended", lambda: connection.execute(inside).fetchone() == (0,))
            connection.execute("ALTER DATABASE app RENAME TO mine")
            connection.execute("ALTER ROLE app PASSWORD 'chosen'")
        mine = url.replace(f":{made['password']}@", ":chosen@").replace("/app?", "/mine?")
        before = client.databases.get(made["id"])["sandbox_id"]
        kill_machine(client, made["id"])
        wait_for("it is noticed", lambda: client.databases.get(made["id"])["status"] != "running")
        assert numbers(mine) == [7]
        assert client.databases.get(made["id"])["sandbox_id"] != before
        # The server itself says what is the matter with the first ones.
        assert "password authentication failed" in psql(url, "-c", "SELECT 1").stderr
        assert 'database "app" does not exist' in psql(mine.replace("/mine?", "/app?"), "-c", "SELECT 1").stderr
        copy = client.databases.branch(made["id"])
        try:
            assert numbers(copy["connection_url"].replace("/app?", "/mine?")) == [7]
        finally:
            client.databases.delete(copy["id"])
        again = client.databases.reset_credentials(made["id"])
        assert numbers(again["connection_url"].replace("/app?", "/mine?")) == [7]
    finally:
        client.databases.delete(made["id"])


def test_database_storage_grows_online(client: PandaStack, database: Database) -> None:
    before = client.databases.stats(database["id"])
    assert 0 < before["storage_used_bytes"] < before["storage_bytes"] == 8 << 30
    client.databases.update(database["id"], storage_mb=9 << 10)
    assert client.databases.stats(database["id"])["storage_bytes"] == 9 << 30
    # A client that asks for more storage need not know that it sleeps.
    client.databases.pause(database["id"])
    client.databases.update(database["id"], storage_mb=10 << 10)
    assert client.databases.stats(database["id"])["storage_bytes"] == 10 << 30
    with pytest.raises(BadRequestError):
        client.databases.update(database["id"], storage_mb=8 << 10)
    assert client.volumes.list() == [], "its volume is its own"


def test_resizing_a_database_keeps_its_data_and_url(client: PandaStack, database: Database) -> None:
    url = database["connection_url"]
    before = numbers(url)
    # The first machine of a size waits until that is baked, which may take longer than clients are held.
    client.databases.delete(make(client, "large", size="2g")["id"])
    waiting = threading.Thread(target=client.databases.update, args=(database["id"],), kwargs={"size": "2g"})
    waiting.start()
    wait_for("its server stopped", lambda: client.databases.get(database["id"])["status"] != "running" or not waiting.is_alive())
    assert numbers(url) == before, "who connects meanwhile is held"
    waiting.join()
    resized = client.databases.get(database["id"])
    assert (resized["size"], resized["connection_url"]) == ("2g", url)
    buffers = client.databases.query(database["id"], "SELECT pg_size_bytes(current_setting('shared_buffers')) > 400 * 1024 * 1024")
    assert buffers["rows"] == [[True]]
    with pytest.raises(BadRequestError, match="size"):
        client.databases.update(database["id"], size="3g")
