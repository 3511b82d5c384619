"""Requests and responses of databases."""

from __future__ import annotations

import pytest

from pandastack import ConflictError

DATABASE = {"id": "d1", "status": "running", "size": "1g", "connection_url": "postgresql://app:p@127.0.0.1:5432/app"}


def test_create_list_get(server, client):
    server.on("POST", "/v1/databases", 201, DATABASE)
    server.on("GET", "/v1/databases", 200, {"items": [DATABASE]})
    server.on("GET", "/v1/databases/d1", 200, DATABASE)
    assert client.databases.create(label="shop", size="4g")["connection_url"] == DATABASE["connection_url"]
    assert server.requests[0].json == {"label": "shop", "size": "4g"}
    assert [each["id"] for each in client.databases.list()] == ["d1"]
    assert client.databases.get("d1")["status"] == "running"


def test_query_and_changes(server, client):
    rows = {"columns": [{"name": "n", "type": "int4"}], "rows": [[1]], "count": 1, "command": "SELECT"}
    server.on("POST", "/v1/databases/d1/query", 200, rows)
    server.on("PATCH", "/v1/databases/d1", 200, {**DATABASE, "protected": True})
    server.on("POST", "/v1/databases/d1/clone", 201, {**DATABASE, "id": "d2", "cloned_from": "d1"})
    server.on("DELETE", "/v1/databases/d1", 409, {"error": "it is protected", "code": "conflict"})
    assert client.databases.query("d1", "SELECT $1::int", [1], max_rows=5)["rows"] == [[1]]
    assert server.requests[-1].json == {"sql": "SELECT $1::int", "params": [1], "max_rows": 5}
    assert client.databases.update("d1", protected=True)["protected"] is True
    assert client.databases.branch("d1", label="b")["cloned_from"] == "d1"
    with pytest.raises(ConflictError, match="protected"):
        client.databases.delete("d1")


def test_database_logs_are_returned_as_text(server, client):
    server.on("GET", "/v1/databases/d1/logs", 200, "LOG:  grüße\n".encode())
    assert client.databases.logs("d1") == "LOG:  grüße\n"
