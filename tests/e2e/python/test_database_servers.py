"""Acknowledged writes survive kills of the platform's own servers, in the database and in its backups.

Backups are in a bucket here. Databases have names here, and one port for all of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import threading
from datetime import timezone
from typing import Any, Dict, Iterator, List, Optional, Union, cast

import httpx
import pytest
from bucket import AzureContainer, Bucket
from crash_world import Faults
from platform_process import Platform, stays, wait_until

from pandastack import Database, PandaStack, PandaStackError

psycopg = pytest.importorskip("psycopg")

#: A killed server starts again, and a lost machine boots and replays its log, all of it emulated.
BACK_SECONDS_MAX = 150
#: Known by the platform's setting alone, as names below `pg` or `db` would not be. Nothing resolves them; see `on_loopback`.
DOMAIN = "data.test"
#: Longer than it takes until a log that is no longer followed is looked for again.
LOOKED_FOR_SECONDS = 5.0


@pytest.fixture(scope="module", autouse=True)
def on_loopback() -> Iterator[None]:
    """Every client of this file takes names for this machine's, and still says them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGHOSTADDR", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with Bucket() as made:
        yield made


@pytest.fixture(scope="module")
def platform(bucket: Bucket) -> Iterator[Platform]:
    running = Platform("psdb", "10.231.0.0/16", "--warm", "postgres-16", "--postgres-domain", DOMAIN)
    running.environment.update(bucket.environment)
    running.environment["PANDASTACK_FAULT_DIR"] = str(running.root / "faults")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def faults(platform: Platform) -> Faults:
    return Faults(platform.root / "faults")


@pytest.fixture(scope="module")
def client(platform: Platform) -> PandaStack:
    return platform.client()


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Database:
    return first_database(client, "kept")


def first_database(client: PandaStack, label: str) -> Database:
    """The first of a platform."""
    made: List[Database] = []

    def create() -> bool:
        try:
            made.append(client.databases.create(label=label))
        except PandaStackError as error:
            # PostgreSQL is still being prepared.
            assert error.code == "template_baking", error
        return bool(made)

    wait_until("a database", create, 600)
    return made[0]


class Writer:
    """Commits one number after the other, and keeps each that was acknowledged. Cut off, it connects again and goes on."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: List[int] = []
        self.cuts = 0
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> "Writer":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.enough.set()
        self.thread.join(BACK_SECONDS_MAX)
        assert not self.thread.is_alive()

    def run(self) -> None:
        number = 0
        while not self.enough.is_set():
            try:
                with psycopg.connect(self.url, autocommit=True, connect_timeout=BACK_SECONDS_MAX) as connection:
                    while not self.enough.is_set():
                        number += 1
                        connection.execute("INSERT INTO kept VALUES (%s)", [number])
                        self.acknowledged.append(number)
            except psycopg.Error:
                self.cuts += 1
                # No server listens while control restarts.
                self.enough.wait(0.1)

    def goes_on(self) -> None:
        before = len(self.acknowledged)
        wait_until("it is written to", lambda: len(self.acknowledged) >= before + 20, BACK_SECONDS_MAX)


def test_server_kills_lose_no_acknowledged_transaction(platform: Platform, client: PandaStack, database: Database) -> None:
    url = database["connection_url"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int PRIMARY KEY)")
    with Writer(url) as writer:
        writer.goes_on()
        for role in ("agent", "control"):
            platform.kill_role(role)
            writer.goes_on()
    assert writer.cuts > 0, "its connection ends with control"
    with psycopg.connect(url, connect_timeout=BACK_SECONDS_MAX) as connection:
        there = {row[0] for row in connection.execute("SELECT n FROM kept")}
    assert set(writer.acknowledged) <= there
    # Of each that was cut off the last may have been committed without a word.
    assert len(there) <= len(writer.acknowledged) + writer.cuts
    now = client.databases.get(database["id"])
    assert (now["status"], now["sandbox_id"], now["connection_url"]) == ("running", database["sandbox_id"], url)


def session(platform: Platform, database: Database, suffix: str = "", **more: Any) -> Any:
    """One that names its database in the TLS handshake alone, and makes sure whom it talks to."""
    usual: Dict[str, Any] = {
        "host": f"{database['id']}{suffix}.{DOMAIN}", "port": database["port"], "user": "app", "dbname": "app",
        "password": database["password"], "sslmode": "verify-full", "sslrootcert": str(platform.data_dir / "tls/ca.pem"),
        "connect_timeout": BACK_SECONDS_MAX,
    }
    return psycopg.connect(**{**usual, **more})


@pytest.fixture(scope="module")
def two(platform: Platform, client: PandaStack, database: Database) -> Iterator[List[Database]]:
    """Databases that know who they are."""
    made = [client.databases.get(database["id"]), client.databases.create(label="other")]
    for each in made:
        with session(platform, each) as connection:
            connection.execute("CREATE TABLE whose AS SELECT %s AS id", [each["id"]])
    yield made
    client.databases.delete(made[1]["id"])


def whose(connection: Any) -> Any:
    """The database of a connection, and whether its server is reached through the pooler in its machine."""
    with connection:
        return connection.execute("SELECT id, inet_client_addr() IS NULL FROM whose").fetchone()


def test_the_name_in_the_tls_handshake_selects_the_database(platform: Platform, two: List[Database]) -> None:
    assert len({each["port"] for each in two}) == 1, "one port for all"
    for each in two:
        assert each["host"] == f"{each['id']}.{DOMAIN}"
        assert whose(session(platform, each)) == (each["id"], False)
        assert whose(session(platform, each, "-pooler")) == (each["id"], True)
        assert whose(psycopg.connect(each["connection_url"])) == (each["id"], False)
        assert whose(psycopg.connect(each["pooled_url"])) == (each["id"], True)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        session(platform, two[1], password=two[0]["password"])


def test_the_endpoint_option_selects_a_database_or_reports_an_error(platform: Platform, two: List[Database]) -> None:
    unnamed = {"host": "127.0.0.1", "sslmode": "require"}
    for each in two:
        assert whose(session(platform, each, **unnamed, options=f"endpoint={each['id']}")) == (each["id"], False)
        assert whose(session(platform, each, **unnamed, options=f"endpoint={each['id']}-pooler")) == (each["id"], True)
    first, second = two
    for how, said in (
        ({"host": f"no-such-database.{DOMAIN}"}, "FATAL:  database `no-such-database` not found"),
        (unnamed, "FATAL:  the client did not name a database"),
        ({"options": f"endpoint={second['id']}"}, f"FATAL:  the host name names database `{first['id']}`"),
    ):
        with pytest.raises(psycopg.OperationalError, match=re.escape(said)):
            session(platform, first, **how)


def test_http_drivers_select_databases_by_name(platform: Platform, two: List[Database]) -> None:
    """Neon's driver asks `api.<domain>` for the database that its connection string names; others ask the database's own name."""

    def ask(host: str, url: str) -> httpx.Response:
        headers = {"Host": host, "Neon-Connection-String": url}
        body = {"query": "SELECT id FROM whose", "params": []}
        return httpx.post(f"http://127.0.0.1:{platform.port}/sql", json=body, headers=headers, timeout=BACK_SECONDS_MAX)

    for each in two:
        address = f"postgresql://app:{each['password']}@127.0.0.1/app"
        for host, url in ((f"api.{DOMAIN}", each["connection_url"]), (f"{each['id']}.{DOMAIN}", address)):
            answer = ask(host, url)
            assert answer.status_code == 200 and answer.json()["rows"] == [{"id": each["id"]}], answer.text
    unknown = ask(f"api.{DOMAIN}", two[0]["connection_url"].replace(two[0]["id"], "no-such-database"))
    assert unknown.status_code == 400 and "no-such-database" in unknown.text, unknown.text


def leave_a_reset_half_done(platform: Platform, database_id: str) -> None:
    """As control leaves it that is killed between the two halves of a reset: written down, and the server not told."""
    (store,) = platform.data_dir.rglob("control.db")
    change = """UPDATE databases SET spec = json_set(spec, '$.revision', json_extract(spec, '$.revision') + 1,
        '$.reset_pending', json('true')) WHERE id = ?"""
    with sqlite3.connect(store, timeout=30) as connection:
        assert connection.execute(change, [database_id]).rowcount == 1


def connects(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=BACK_SECONDS_MAX):
            return True
    except psycopg.OperationalError:
        return False


def test_wal_followers_do_not_wake_a_database_that_is_falling_asleep(
    client: PandaStack, faults: Faults, two: List[Database]
) -> None:
    """Writing a large machine out takes longer than until its log is looked for again."""
    database_id, point = two[0]["id"], "hibernate.paused"
    following = lambda: client.databases.backups(database_id)["following"]
    is_asleep = lambda: client.databases.get(database_id)["status"] == "hibernated"
    wait_until("its log is followed", following, BACK_SECONDS_MAX)
    faults.arm(point)
    pausing = threading.Thread(target=client.databases.pause, args=(database_id,))
    pausing.start()
    try:
        wait_until("it falls asleep", lambda: faults.reached(point, set()) and not following(), 60)
        # Here and below, the test is that nothing happens for a time.
        falls_asleep = lambda: pausing.is_alive() and not is_asleep()  # noqa: E731
        stays("it falls asleep", falls_asleep, LOOKED_FOR_SECONDS)
    finally:
        faults.clear()
        pausing.join(timeout=60)
    stays("it sleeps", is_asleep, LOOKED_FOR_SECONDS)
    client.databases.query(database_id, "SELECT 1")


@pytest.mark.parametrize("machine", ["there", "lost"])
def test_an_interrupted_credential_reset_is_completed(platform: Platform, client: PandaStack, database: Database, machine: str) -> None:
    before = client.databases.get(database["id"])
    leave_a_reset_half_done(platform, database["id"])
    if machine == "lost":
        for pid in platform.machine_pids(before["sandbox_id"]):
            os.kill(pid, signal.SIGKILL)
    shown = client.databases.get(database["id"])
    assert shown["password"] != before["password"]
    wait_until("the password that is shown works", lambda: connects(shown["connection_url"]), BACK_SECONDS_MAX)
    assert not connects(before["connection_url"])

    def is_done() -> bool:
        ((spec,),) = platform.rows(f"SELECT spec FROM databases WHERE id = '{database['id']}'")
        return not json.loads(spec)["reset_pending"]

    wait_until("it is written down", is_done, 60)


def noted(url: str) -> Optional[str]:
    """The server's own record of resets."""
    with psycopg.connect(url, connect_timeout=BACK_SECONDS_MAX) as connection:
        row = connection.execute("SELECT shobj_description('pandastack'::regrole, 'pg_authid')").fetchone()
    assert row is not None
    return cast(Optional[str], row[0])


def test_a_backup_records_a_credential_reset_of_an_earlier_release(platform: Platform, client: PandaStack, database: Database) -> None:
    """After `database`, so that PostgreSQL is prepared. The password that works is not the one that is shown: its owner chose it since."""
    made = client.databases.create(label="reset long ago")
    try:
        assert noted(made["connection_url"]) is None
        wait_until("a base backup", lambda: client.databases.backups(made["id"])["healthy"], BACK_SECONDS_MAX)
        assert noted(made["connection_url"]) is None, "it was never reset"
        (store,) = platform.data_dir.rglob("control.db")
        with sqlite3.connect(store, timeout=30) as connection:
            change = "UPDATE databases SET spec = json_set(spec, '$.revision', 1) WHERE id = ?"
            assert connection.execute(change, [made["id"]]).rowcount == 1
        client.databases.back_up(made["id"])
        assert noted(made["connection_url"]) == f"{made['id']} 1", "and the password stays"
        again = client.databases.reset_credentials(made["id"])
        client.databases.back_up(made["id"])
        assert noted(again["connection_url"]) == f"{made['id']} 2"
    finally:
        client.databases.delete(made["id"])


def test_backups_restore_from_a_bucket(bucket: Bucket, client: PandaStack, database: Database) -> None:
    check_backups_come_back(bucket, client, database)


def check_backups_come_back(bucket: Union[Bucket, AzureContainer], client: PandaStack, database: Database) -> None:
    """An instant of a database is restored from a store, and what is deleted is gone from there too."""
    backups = lambda: client.databases.backups(database["id"])
    wait_until("a base backup", lambda: backups()["healthy"], BACK_SECONDS_MAX)
    url = client.databases.get(database["id"])["connection_url"]
    with psycopg.connect(url, autocommit=True, connect_timeout=BACK_SECONDS_MAX) as connection:
        connection.execute("CREATE TABLE precious AS SELECT 7 AS n")
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        connection.execute("DROP TABLE precious")
    second = row[0].astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    wait_until("its log is archived", lambda: backups()["latest_restorable"][:19] > second, BACK_SECONDS_MAX)
    names = bucket.names(database["id"])
    assert any(name.endswith("/manifest.json") for name in names) and any(name.startswith("wal/") for name in names), names
    copy = client.databases.restore(database["id"], row[0])
    try:
        assert client.databases.query(copy["id"], "SELECT n FROM precious")["rows"] == [[7]]
        healthy = lambda: client.databases.backups(copy["id"])["healthy"]
        wait_until("it is backed up too", lambda: bucket.names(copy["id"]) and healthy(), BACK_SECONDS_MAX)
    finally:
        client.databases.delete(copy["id"])
    assert bucket.names(copy["id"]) == [] and bucket.names(database["id"]) != []
