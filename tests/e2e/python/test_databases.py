"""Managed PostgreSQL on real machines, with the clients that people use."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any, Dict, Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from conftest import error_body, wait_for
from database_inside import administrator_url, run_inside

from pandastack import ConflictError, Database, NotFoundError, PandaStack

asyncpg = pytest.importorskip("asyncpg")
psycopg = pytest.importorskip("psycopg")

#: How long a database may be without work.
IDLE_SECONDS = 300
#: The eight that are promised.
EXTENSIONS = ["vector", "pg_stat_statements", "pg_trgm", "ltree", "hstore", "uuid-ossp", "pgcrypto", "unaccent"]


@pytest.fixture(scope="module")
def database(client: PandaStack) -> Iterator[Database]:
    """One database for tests that leave it as it is."""
    made = make(client, "shared")
    yield made
    client.databases.delete(made["id"])


def make(client: PandaStack, label: str, **more: Any) -> Database:
    """A database; the first one of a host waits until PostgreSQL is prepared there."""
    patient = PandaStack(max_create_retry_seconds=600)
    with patient:
        return patient.databases.create(label=label, **more)


def psql(url: str, *arguments: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    command = ["psql", url, "-XAtq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def test_a_database_accepts_queries_when_create_returns(client: PandaStack, database: Database) -> None:
    assert database["status"] == "running"
    ran = psql(database["connection_url"], "-c", "SELECT 40 + 2")
    assert (ran.stdout, ran.returncode) == ("42\n", 0), ran.stderr
    rows = client.databases.query(database["id"], "SELECT $1::int + 1 AS n, $2::text AS t", [41, "x"])
    assert (rows["rows"], rows["count"], [c["type"] for c in rows["columns"]]) == ([[42, "x"]], 1, ["int4", "text"])
    assert client.databases.get(database["id"])["connection_url"] == database["connection_url"]
    listed = next(each for each in client.databases.list() if each["id"] == database["id"])
    assert "password" not in listed and "connection_url" not in listed


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([os.environ["PANDASTACK_BIN"], "db", *arguments], capture_output=True, text=True, timeout=60)


def test_the_cli_lists_and_shows_databases_and_opens_psql(client: PandaStack, database: Database) -> None:
    listed = command("list")
    assert listed.returncode == 0, listed.stderr
    assert any(database["id"] in line and "shared" in line for line in listed.stdout.splitlines()), listed.stdout
    assert database["password"] not in listed.stdout
    shown = command("get", database["id"])
    assert shown.returncode == 0 and database["connection_url"] in shown.stdout, shown.stdout + shown.stderr
    assert "no-such-database" in command("get", "no-such-database").stderr
    if shutil.which("psql") is None:
        pytest.skip("this host has no psql for `db psql`")
    # By its label too, as people write it.
    for name in (database["id"], "shared"):
        ran = command("psql", name, "--", "-XAtqc", "SELECT 6 * 7")
        assert (ran.stdout, ran.returncode) == ("42\n", 0), ran.stderr
    assert command("psql", "shared", "--pooled", "--", "-XAtqc", "SELECT 1").stdout == "1\n"


def test_an_idle_database_falls_asleep_and_a_busy_one_stays_awake(client: PandaStack) -> None:
    """An open connection is no work, and neither is following its log; a query is, however long nothing is heard of it."""
    made = make(client, "idle")
    try:
        wait_for("its first backup is taken", lambda: client.databases.backups(made["id"])["healthy"], 180)
        with psycopg.connect(made["connection_url"], autocommit=True) as connection:
            assert connection.execute("SELECT 1 FROM pg_sleep(%s)", [IDLE_SECONDS + 7]).fetchone() == (1,)
            # A check of its free space, once after a write, puts it off.
            wait_for("it sleeps", lambda: client.databases.get(made["id"])["status"] == "hibernated", 2 * IDLE_SECONDS + 110)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert psql(made["connection_url"], "-c", "SELECT 1").stdout == "1\n"
    finally:
        client.databases.delete(made["id"])


def test_drivers_work_directly_and_through_the_pooler(database: Database) -> None:
    for url in (database["connection_url"], database["pooled_url"]):
        with psycopg.connect(url) as connection:
            for _ in range(8):  # Past the point where it prepares statements.
                found = connection.execute("SELECT count(*) FROM pg_class WHERE oid > %s", (0,), prepare=True).fetchone()
                assert found is not None and found[0] > 100

    async def through_asyncpg(url: str) -> int:
        connection = await asyncpg.connect(url)
        try:
            prepared = await connection.prepare("SELECT $1::int * 2")
            return int(await prepared.fetchval(21))
        finally:
            await connection.close()

    for url in (database["connection_url"], database["pooled_url"]):
        assert asyncio.run(through_asyncpg(url)) == 42


def test_the_tokio_postgres_driver_works(database: Database) -> None:
    """`tokio-postgres` with the installation's authority: prepared statements, transactions, cancelling, both ways in."""
    program = Path(os.environ["PANDASTACK_BIN"]).with_name("pandastack-e2e-tokio-postgres")
    named = f"hostaddr=127.0.0.1 port={database['port']} user=app password={database['password']} dbname=app sslmode=require"
    ways = [f"host={name}.pg.localhost {named}" for name in (database["id"], f"{database['id']}-pooler")]
    ran = subprocess.run([program, *ways, os.environ["PANDASTACK_CA"]], capture_output=True, text=True, timeout=90)
    assert (ran.stdout, ran.returncode) == ("direct: ok\npooled: ok\n", 0), ran.stderr


def test_the_template_session_and_its_port_are_closed(database: Database) -> None:
    """The session that its makers had open before the machine was copied is used up, and its port is closed."""
    run_inside(database, "! grep -q ':1539 .* 0A ' /proc/net/tcp")

    def alone() -> bool:  # Whoever asks for its room comes and goes.
        with psycopg.connect(administrator_url(database)) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'pandastack' AND backend_type = 'client backend'"
            ).fetchone()
            return found == (1,)

    wait_for("the administrator is alone", alone)


def test_the_owner_can_create_every_supported_extension(database: Database) -> None:
    with psycopg.connect(database["connection_url"], autocommit=True) as connection:
        connection.execute("CREATE DATABASE second")
    url = database["connection_url"].replace("/app?", "/second?")
    with psycopg.connect(url, autocommit=True) as connection:
        for name in EXTENSIONS:
            connection.execute(f'CREATE EXTENSION IF NOT EXISTS "{name}"')
        connection.execute("CREATE TABLE items (v vector(3))")
        connection.execute("INSERT INTO items VALUES ('[1,2,3]'), ('[3,2,1]')")
        connection.execute("CREATE INDEX ON items USING hnsw (v vector_l2_ops)")
        nearest = connection.execute("SELECT v::text FROM items ORDER BY v <-> '[1,2,2]' LIMIT 1").fetchone()
        assert nearest == ("[1,2,3]",)


def test_a_tenant_is_not_a_superuser(database: Database) -> None:
    with psycopg.connect(database["connection_url"], autocommit=True) as connection:
        for forbidden in (
            "COPY (SELECT 1) TO PROGRAM 'id'",
            "ALTER SYSTEM SET archive_command = 'id'",
            "CREATE ROLE root SUPERUSER",
            "SELECT rolpassword FROM pg_authid",
            "SELECT pg_read_file('/etc/passwd')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)
    for role in ("pandastack", "pandastack_pooler"):
        for url in (database["connection_url"], database["pooled_url"]):
            for password in ("pandastack", "", database["password"]):
                foreign = url.replace(f"app:{database['password']}@", f"{role}:{password}@")
                assert psql(foreign, "-w", "-c", "SELECT 1").returncode != 0, (role, password)


def test_verify_full_works_with_the_installation_ca(database: Database, tmp_path: Any) -> None:
    authority = os.environ.get("PANDASTACK_CA")
    if not authority:
        pytest.skip("PANDASTACK_CA does not name the authority's certificate")
    parts = urlsplit(database["connection_url"])
    for host in (f"{database['id']}.pg.localhost", f"{database['id']}-pooler.pg.localhost"):
        plain = f"host={host} hostaddr=127.0.0.1 port={parts.port} user=app dbname=app sslmode=verify-full sslrootcert={authority}"
        ran = psql(plain, "-c", "SELECT 'named'", env={**os.environ, "PGPASSWORD": database["password"]})
        assert ran.stdout == "named\n", ran.stderr
    wrong = f"host=x.example.com hostaddr=127.0.0.1 port={parts.port} user=app sslmode=verify-full"
    assert "certificate verify failed" in psql(f"{wrong} sslrootcert=/etc/ssl/certs/ca-certificates.crt").stderr


def test_connection_errors_say_what_to_do(database: Database) -> None:
    url = database["connection_url"]
    for wrong, said in (
        (url.replace("sslmode=require", "sslmode=disable"), "sslmode=require"),
        (url.replace(database["id"], "no-such-database"), "this port does not belong to database `no-such-database`"),
        (url.replace(database["id"], "no-such-database"), "use the port of that database; `pandastack db url`"),
        (url.replace(database["password"], "wrong"), "password authentication failed"),
        (url.replace("/app?", "/none?"), 'database "none" does not exist'),
    ):
        ran = psql(wrong, "-c", "SELECT 1")
        assert ran.returncode == 2 and said in ran.stderr, ran.stderr


def first_message(database: Database, version: int, alpn: str, startup: Dict[str, str]) -> bytes:
    """First answer to a client that begins with TLS at once."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols([alpn])
    words = b"".join(f"{name}\0{value}\0".encode() for name, value in startup.items()) + b"\0"
    packet = struct.pack("!II", len(words) + 8, version) + words
    with socket.create_connection((database["host"], database["port"]), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname=f"{database['id']}.pg.localhost") as secure:
            secure.sendall(packet)
            return secure.recv(4096)


def test_direct_tls_and_newer_protocol_versions_are_negotiated(database: Database) -> None:
    startup = {"user": "app", "database": "app"}
    assert first_message(database, 196608, "postgresql", startup)[:1] == b"R", "asked for a password"
    newer = first_message(database, 196610, "postgresql", {**startup, "_pq_.unknown": "1"})
    assert newer[:1] == b"v" and struct.unpack("!I", newer[5:9]) == (196608,) and b"_pq_.unknown" in newer
    assert b"ALPN" in first_message(database, 196608, "", startup)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        first_message(database, 196608, "http/1.1", startup)


def test_malformed_startup_messages_close_the_connection(database: Database) -> None:
    for sent, said in (
        (b"GET / HTTP/1.1\r\n\r\n", b"another protocol"),
        (struct.pack("!II", 8, 2 << 16), b"version 2.0"),
        (struct.pack("!II", 10_005, 196608), b"10005 bytes"),
        (struct.pack("!IIII", 16, 80877102, 1, 2), b""),  # A cancel of nobody's query.
    ):
        with socket.create_connection((database["host"], database["port"]), timeout=30) as plain:
            plain.sendall(sent)
            answer = b""
            while part := plain.recv(4096):
                answer += part
        assert said in answer and (answer[:1] == b"E" or not said), answer


def test_a_query_is_cancelled(database: Database) -> None:
    running = subprocess.Popen(
        ["psql", database["connection_url"], "-XAtqc", "SELECT pg_sleep(300)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )

    def sleeps() -> bool:
        found = psql(database["connection_url"], "-c", "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(300)'")
        return found.stdout.strip() == "1"

    wait_for("the query runs", sleeps)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert "canceling statement due to user request" in said, said


def test_a_query_over_http_has_limits(client: PandaStack, raw: httpx.Client, database: Database) -> None:
    path = f"/databases/{database['id']}/query"
    assert "57014" in error_body(raw.post(path, json={"sql": "SELECT pg_sleep(60)", "timeout_ms": 500}))["error"]
    assert "42P01" in error_body(raw.post(path, json={"sql": "SELECT * FROM nowhere"}))["error"]
    assert error_body(raw.post(path, json={"sql": " "}))["code"] == "bad_request"
    assert error_body(raw.post(path, json={"sql": "SELECT 1", "max_rows": 0}))["code"] == "bad_request"
    large = raw.post(path, json={"sql": "SELECT repeat('x', 20000000)"})
    assert error_body(large)["code"] == "body_too_large"
    rows = client.databases.query(database["id"], "SELECT generate_series(1, 10)", max_rows=3)
    assert (len(rows["rows"]), rows["truncated"]) == (3, True)
    changed = "CREATE TABLE many (n int)", "INSERT INTO many SELECT generate_series(1, 10) RETURNING n", "SELECT count(*)::int FROM many", "DROP TABLE many"
    _, inserted, counted, _ = [client.databases.query(database["id"], sql, max_rows=3) for sql in changed]
    assert (inserted["command"], inserted["count"], inserted["truncated"]) == ("INSERT", 3, True)
    assert counted["rows"] == [[10]]
    for copy in ("COPY pg_class FROM STDIN", "/* x */ copy (SELECT 1) to stdout"):
        assert "0A000" in error_body(raw.post(path, json={"sql": copy}))["error"]
    ended = raw.post(path, json={"sql": "SELECT pg_terminate_backend(pg_backend_pid())"})
    assert ended.status_code == 503 and "57P01" in ended.json()["error"]
    names = client.databases.query(database["id"], "SELECT datname, pg_sleep(0) FROM pg_database LIMIT 1")["columns"]
    assert [column["type"] for column in names] == ["name", "void"]


def test_the_broker_accepts_only_its_own_token(database: Database) -> None:
    url = f"{database['broker_url']}/v1/query"
    good = httpx.post(url, json={"sql": "SELECT 1 AS one"}, headers={"Authorization": f"Bearer {database['broker_token']}"})
    assert good.json()["rows"] == [[1]], good.text
    for token in ("wrong", os.environ["PANDASTACK_API_KEY"]):
        refused = httpx.post(url, json={"sql": "SELECT 1"}, headers={"Authorization": f"Bearer {token}"})
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")


def neon(database: Database, body: Dict[str, Any], **headers: str) -> httpx.Response:
    api = os.environ["PANDASTACK_API"].rstrip("/").removesuffix("/v1")
    sent = {"Neon-Connection-String": database["connection_url"], **headers}
    return httpx.post(f"{api}/sql", json=body, headers=sent, timeout=60)


def test_the_neon_protocol_over_http(database: Database) -> None:
    answer = neon(database, {"query": "SELECT $1::int AS n, NULL AS z", "params": ["7"]}, **{"Neon-Raw-Text-Output": "true", "Neon-Array-Mode": "true"}).json()
    assert (answer["rows"], answer["rowCount"], answer["command"]) == ([["7", None]], 1, "SELECT")
    assert [field["dataTypeID"] for field in answer["fields"]] == [23, 25]
    objects = neon(database, {"query": "SELECT 1 AS n, '{1,2}'::int[] AS a, 9007199254740993 AS big", "params": []}).json()
    assert objects["rows"] == [{"n": 1, "a": [1, 2], "big": "9007199254740993"}]
    batch = {"queries": [{"query": "SELECT 1 AS one", "params": []}, {"query": "SHOW transaction_isolation", "params": []}]}
    results = neon(database, batch, **{"Neon-Batch-Isolation-Level": "Serializable"}).json()["results"]
    assert results[1]["rows"] == [{"transaction_isolation": "serializable"}]
    failed = neon(database, {"query": "SELECT nothing", "params": []})
    assert (failed.status_code, failed.json()["code"]) == (400, "42703")
    assert neon(database, {"query": "SELECT 1"}, **{"Neon-Connection-String": "postgres://x"}).status_code == 400


def test_a_sleeping_database_wakes_for_new_connections(client: PandaStack, database: Database) -> None:
    with psycopg.connect(database["connection_url"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept AS SELECT 7 AS n")
        assert client.databases.pause(database["id"])["status"] == "hibernated"
        with pytest.raises(psycopg.OperationalError, match="went to sleep|connection"):
            connection.execute("SELECT 1")
    assert client.databases.get(database["id"])["status"] == "hibernated"
    answers = []

    def ask() -> None:
        answers.append(psql(database["connection_url"], "-c", "SELECT n FROM kept").stdout)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["7\n"] * 4
    assert client.databases.get(database["id"])["status"] == "running"


def test_a_pause_ends_an_http_query_without_waking_the_database(client: PandaStack, raw: httpx.Client, database: Database) -> None:
    answers = []

    def ask() -> None:
        sent = {"sql": "SELECT pg_sleep(45) AS paused", "timeout_ms": 60_000}
        answers.append(raw.post(f"/databases/{database['id']}/query", json=sent, timeout=90))

    thread = threading.Thread(target=ask)
    thread.start()
    running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%AS paused' AND pid <> pg_backend_pid()"
    wait_for("the query runs", lambda: psql(database["connection_url"], "-c", running).stdout.strip() == "1")
    assert client.databases.pause(database["id"])["status"] == "hibernated"
    thread.join(timeout=30)
    assert [answer.status_code for answer in answers] == [503] and "57P01" in answers[0].json()["error"]
    assert client.databases.get(database["id"])["status"] == "hibernated"


@pytest.mark.parametrize("way", ["query", "broker", "sql"])
def test_a_query_over_http_wakes_a_sleeping_database(client: PandaStack, database: Database, way: str) -> None:
    assert client.databases.pause(database["id"])["status"] == "hibernated"
    if way == "query":
        assert client.databases.query(database["id"], "SELECT 6 * 7")["rows"] == [[42]]
    elif way == "broker":
        token = {"Authorization": f"Bearer {database['broker_token']}"}
        asked = httpx.post(f"{database['broker_url']}/v1/query", json={"sql": "SELECT 6 * 7"}, headers=token, timeout=60)
        assert asked.json()["rows"] == [[42]], asked.text
    else:
        asked = neon(database, {"query": "SELECT 6 * 7 AS n", "params": []})
        assert asked.json()["rows"] == [{"n": 42}], asked.text
    assert client.databases.get(database["id"])["status"] == "running"


def test_a_new_password_replaces_the_old_one(client: PandaStack) -> None:
    made = make(client, "reset")
    try:
        changed = client.databases.reset_credentials(made["id"])
        assert changed["password"] != made["password"] and changed["broker_token"] != made["broker_token"]
        assert psql(changed["connection_url"], "-c", "SELECT 1").stdout == "1\n"
        assert "password authentication failed" in psql(made["connection_url"], "-c", "SELECT 1").stderr
        assert psql(changed["pooled_url"], "-c", "SELECT 1").stdout == "1\n"
    finally:
        client.databases.delete(made["id"])


def test_a_branch_copies_the_data_and_diverges(client: PandaStack, database: Database) -> None:
    with psycopg.connect(database["connection_url"], autocommit=True) as connection:
        connection.execute("CREATE TABLE branched AS SELECT generate_series(1, 1000) AS n")
        copy = client.databases.branch(database["id"], label="branch")
        try:
            assert copy["cloned_from"] == database["id"] and copy["password"] != database["password"]
            connection.execute("INSERT INTO branched VALUES (1001)")
            assert psql(copy["connection_url"], "-c", "SELECT count(*) FROM branched").stdout == "1000\n"
            assert psql(copy["connection_url"], "-c", "DROP TABLE branched").returncode == 0
            assert connection.execute("SELECT count(*) FROM branched").fetchone() == (1001,)
            foreign = copy["connection_url"].replace(copy["password"], database["password"])
            assert "password authentication failed" in psql(foreign, "-c", "SELECT 1").stderr
        finally:
            client.databases.delete(copy["id"])


def test_protection_and_ownership(client: PandaStack, raw: httpx.Client, database: Database) -> None:
    client.databases.update(database["id"], protected=True)
    with pytest.raises(ConflictError, match="protected"):
        client.databases.delete(database["id"])
    client.databases.update(database["id"], protected=False)
    machine = database["sandbox_id"]
    assert machine not in [sandbox.id for sandbox in client.sandboxes.list()]
    assert "database" in error_body(raw.delete(f"/sandboxes/{machine}"))["error"]
    assert "database" in error_body(raw.post(f"/sandboxes/{machine}/exec", json={"cmd": "id"}))["error"]
    with pytest.raises(NotFoundError):
        client.databases.get("no-such-database")
    assert error_body(raw.post("/databases", json={"size": "900g"}))["code"] == "bad_request"
    assert error_body(raw.post("/databases", json={"label": "x" * 257}))["code"] == "bad_request"


def test_stats_and_logs(client: PandaStack, raw: httpx.Client, database: Database) -> None:
    stats = client.databases.stats(database["id"])
    assert stats["version"].startswith("16.") and stats["size_bytes"] > 1_000_000 and stats["connections_max"] == 100
    psql(database["connection_url"], "-c", "SELECT 1/0")
    wait_for("it is logged", lambda: "division by zero" in raw.get(f"/databases/{database['id']}/logs").text)


def test_a_deleted_database_is_unreachable(client: PandaStack) -> None:
    made = make(client, "gone")
    client.databases.delete(made["id"])
    with pytest.raises(NotFoundError):
        client.databases.get(made["id"])
    wait_for("refused", lambda: "Connection refused" in psql(made["connection_url"], "-c", "SELECT 1").stderr)
    assert parse_qs(urlsplit(made["connection_url"]).query)["options"] == [f"endpoint={made['id']}"]


def test_a_dedicated_port_selects_the_database(client: PandaStack, database: Database) -> None:
    """For clients that send neither a host name nor an option."""
    own = {"host": "127.0.0.1", "user": "app", "dbname": "app", "sslmode": "require"}
    other = make(client, "other")
    try:
        assert other["port"] != database["port"]
        for made in (database, other):
            with psycopg.connect(**own, port=made["port"], password=made["password"]) as session:
                session.execute("CREATE TABLE IF NOT EXISTS whose AS SELECT %s AS id", [made["id"]])
                assert session.execute("SELECT id FROM whose").fetchall() == [(made["id"],)]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(**own, port=other["port"], password=database["password"])
    finally:
        client.databases.delete(other["id"])


def test_a_schedule_runs_sql(client: PandaStack, database: Database) -> None:
    target = {"type": "sql", "database_id": database["id"], "sql": "select 6 * 7 as answer"}
    schedule = client.schedules.create("sql", cron="0 0 1 1 *", target=target)
    try:
        run = client.schedules.trigger(schedule["id"])
        assert run["status"] == "success" and "42" in run["stdout"] and "answer" in run["stdout"], run
        client.schedules.update(schedule["id"], target={**target, "sql": "select nothing"})
        failed = client.schedules.trigger(schedule["id"])
        assert failed["status"] == "error" and "nothing" in failed["error"], failed
    finally:
        client.schedules.delete(schedule["id"])
