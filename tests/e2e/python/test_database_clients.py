"""Clients of databases that bring programs or libraries of their own: pgbench, and a libpq that is newer than Debian's."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import pytest
from conftest import wait_for
from full_only import times
from test_databases import make

from pandastack import Database, PandaStack

psycopg = pytest.importorskip("psycopg")

#: The first libpq that begins with TLS at once, and asks for a cancel over TLS.
LIBPQ_TLS = 170000
newer_libpq = pytest.mark.skipif(psycopg.pq.version() < LIBPQ_TLS, reason=f"psycopg has libpq {psycopg.pq.version()}, which is below {LIBPQ_TLS}")
#: Long enough to be seen and cancelled; one that is not cancelled ends by itself.
SLEEP = "SELECT pg_sleep(60)"
#: Everything of a run, emulated on a busy machine.
RUN_SECONDS_MAX = 180
CLIENTS, TRANSACTIONS_EACH = 4, times(full=15, always=4)


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Iterator[Database]:
    made = make(client, "clients")
    yield made
    client.databases.delete(made["id"])


@pytest.fixture(scope="module")
def pgbench() -> Path:
    """Debian's, unpacked and not installed: its package is a server's."""
    directory = Path(os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack")) / "postgresql-15"
    program = directory / "usr/lib/postgresql/15/bin/pgbench"
    if not program.exists():
        directory.mkdir(parents=True, exist_ok=True)
        script = """apt-get download postgresql-15 || { apt-get update -q && apt-get download postgresql-15; }
        dpkg -x postgresql-15_*.deb . && rm postgresql-15_*.deb"""
        subprocess.run(["sh", "-ec", script], cwd=directory, check=True, capture_output=True)
    return program


def run(program: Path, *arguments: str) -> str:
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_pgbench_with_prepared_statements_directly_and_through_the_pooler(pgbench: Path, database: Database) -> None:
    """Through the pooler each transaction may get another server connection, where its statements must be prepared too."""
    run(pgbench, "--initialize", "--quiet", "--scale=1", database["connection_url"])
    done = CLIENTS * TRANSACTIONS_EACH
    load = ["--no-vacuum", f"--client={CLIENTS}", f"--transactions={TRANSACTIONS_EACH}"]
    for url in (database["connection_url"], database["pooled_url"]):
        for protocol in ("simple", "extended", "prepared"):
            printed = run(pgbench, f"--protocol={protocol}", *load, url)
            assert f"actually processed: {done}/{done}\n" in printed, printed
            assert re.search(r"failed transactions: 0 ", printed), printed
    with psycopg.connect(database["connection_url"]) as connection:
        history = connection.execute("SELECT count(*) FROM pgbench_history").fetchone()
        balances = connection.execute(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
        ).fetchone()
    assert (history, balances) == ((6 * done,), (True,))


def test_verify_full_works_with_the_printed_address(database: Database) -> None:
    with psycopg.connect(
        host="127.0.0.1", port=database["port"], user="app", dbname="app", password=database["password"],
        sslmode="verify-full", sslrootcert=os.environ["PANDASTACK_CA"],
    ) as connection:
        assert connection.execute("SELECT 6 * 7").fetchone() == (42,)


def test_a_dump_with_extension_comments_can_be_restored(database: Database) -> None:
    with psycopg.connect(database["connection_url"]) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements WITH SCHEMA public")
        connection.execute("COMMENT ON EXTENSION pg_stat_statements IS 'statistics of SQL statements'")


@newer_libpq
@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_a_newer_libpq_connects_with_either_tls_negotiation(database: Database, negotiation: str) -> None:
    """Connects as psql 17 and later do, by the library that they use."""
    for name in (database["id"], f"{database['id']}-pooler"):
        with psycopg.connect(
            host=f"{name}.pg.localhost", hostaddr="127.0.0.1", port=database["port"], user="app", dbname="app",
            password=database["password"], sslmode="verify-full", sslrootcert=os.environ["PANDASTACK_CA"],
            sslnegotiation=negotiation,
        ) as connection:
            assert connection.execute("SELECT 6 * 7", prepare=True).fetchone() == (42,)


@newer_libpq
def test_a_newer_libpq_cancels_over_tls(database: Database) -> None:
    """Older ones cancel in plain text, like psql; over TLS a client waits until the connection ends."""
    url = database["connection_url"]
    with psycopg.connect(url, autocommit=True) as connection, ThreadPoolExecutor() as aside:
        sleeping = aside.submit(connection.execute, SLEEP)
        wait_for("the query runs", lambda: sleeps(url))
        connection.cancel_safe(timeout=30)
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(timeout=30)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def sleeps(url: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE query = %s AND state = 'active'", [SLEEP]).fetchone()
        return found == (1,)
