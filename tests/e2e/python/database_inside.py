"""Inside a database's machine, where users do not get: what happens there is done as the server's administrator, whose password is
derived here as the platform derives it."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path

import psycopg
from psycopg import sql
from platform_process import command_lines

from pandastack import Database

#: The server's own folder that no base backup looks into.
BALLAST = "/var/lib/postgresql/data/pg_stat_tmp"


def join_secret() -> bytes:
    """The secret of the platform under test."""
    port = os.environ["PANDASTACK_API"].rstrip("/").removesuffix("/v1").rsplit(":", 1)[1]
    (line,) = [line for line in command_lines().values() if " control " in line and f":{port} " in f"{line} "]
    found = re.search(r"--link-secret-file (\S+)", line)
    assert found is not None, line
    return Path(found.group(1)).read_text().strip().encode()


def administrator_url(database: Database) -> str:
    mac = hmac.new(join_secret(), digestmod=hashlib.sha256)
    for part in ("1", "derive", "database-administrator", database["id"]):
        mac.update(len(part).to_bytes(8, "big") + part.encode())
    mine = f"app:{database['password']}@"
    return database["connection_url"].replace(mine, f"pandastack:{mac.hexdigest()[:32]}@").replace("/app?", "/postgres?")


def run_inside(database: Database, command: str) -> None:
    """Runs a command as the server's user. One that ends the server ends the connection, which is fine."""
    with psycopg.connect(administrator_url(database), autocommit=True, connect_timeout=120) as connection:
        try:
            connection.execute(f"COPY (SELECT 1) TO PROGRAM {sql.quote(command)}")
        except psycopg.OperationalError as error:
            assert error.sqlstate in (None, "57P01", "57P02"), error


def kill_server(database: Database) -> None:
    """`kill -9` of the server that its sessions are children of."""
    run_inside(database, "kill -9 $(head -n 1 /var/lib/postgresql/data/postmaster.pid)")


def connects_again(url: str) -> bool:
    """Whether a client can connect. A client whose server dies meanwhile is disconnected, and tries again."""
    try:
        with psycopg.connect(url, connect_timeout=120):
            return True
    except psycopg.OperationalError:
        return False


def take_room(database: Database, leave_mb: int) -> None:
    """Takes all of a database's disk but that, without writing a byte."""
    available = f"$(df --output=avail --block-size=1M {BALLAST} | tail -n 1)"
    run_inside(database, f"fallocate -l $(({available} - {leave_mb}))M {BALLAST}/ballast$$")
