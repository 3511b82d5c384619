"""What a database acknowledged is there after the platform's own servers were killed while it was written to."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from typing import Iterator, List

import pytest
from platform_process import Platform, wait_until

from pandastack import Database, PandaStack, PandaStackError

psycopg = pytest.importorskip("psycopg")

#: A killed server begins anew, and a lost machine boots and replays its log, all of it emulated.
BACK_SECONDS_MAX = 150


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("psdb", "10.231.0.0/16", "--warm", "postgres-16")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> PandaStack:
    return platform.client()


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Database:
    made: List[Database] = []

    def create() -> bool:
        try:
            made.append(client.databases.create(label="kept"))
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
                # Nobody listens while control begins anew.
                self.enough.wait(0.1)

    def goes_on(self) -> None:
        before = len(self.acknowledged)
        wait_until("it is written to", lambda: len(self.acknowledged) >= before + 20, BACK_SECONDS_MAX)


def test_killed_servers_lose_nothing_acknowledged(platform: Platform, client: PandaStack, database: Database) -> None:
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


@pytest.mark.parametrize("machine", ["there", "lost"])
def test_a_reset_that_was_cut_off_is_finished(platform: Platform, client: PandaStack, database: Database, machine: str) -> None:
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
