"""Requests and responses of functions."""

from __future__ import annotations

import io
import tarfile

FUNCTION = {"id": "f1", "name": "hello", "entrypoint": "main.py", "version": 1, "is_ready": True, "deploy_status": "ready"}


def test_a_directory_is_packed_and_an_archive_is_sent_unchanged(server, client, tmp_path):
    server.on("GET", "/v1/functions", 200, {"items": [FUNCTION]})
    server.on("GET", "/v1/functions/hello", 200, FUNCTION)
    server.on("POST", "/v1/functions/hello/deploy", 200, FUNCTION)
    (tmp_path / "code" / "node_modules").mkdir(parents=True)
    (tmp_path / "code" / "main.py").write_text("def handler(event, context): return 1\n")
    (tmp_path / "code" / "node_modules" / "left.js").write_text("")
    assert client.functions.deploy("hello", "python", tmp_path / "code")["version"] == 1
    sent = [request for request in server.requests if request.path.endswith("/deploy")]
    with tarfile.open(fileobj=io.BytesIO(sent[0].body)) as archive:
        assert archive.getnames() == ["main.py"]
    (tmp_path / "made.zip").write_bytes(b"PK as it is")
    client.functions.deploy("hello", "python", tmp_path / "made.zip")
    sent = [request for request in server.requests if request.path.endswith("/deploy")]
    assert sent[1].body == b"PK as it is"


def test_dead_letters(server, client):
    server.on("GET", "/v1/functions/f1/runs", 200, {"items": [{"id": "r1", "dead_letter": True}]})
    server.on("POST", "/v1/functions/f1/redrive", 202, {"redriven": 7, "left": 0})
    server.on("POST", "/v1/functions/f1/runs/r1/redrive", 202, {"id": "r1", "status": "queued"})
    assert [run["id"] for run in client.functions.dead_letters("f1")] == ["r1"]
    assert server.requests[-1].query["dead_letter"] == "true"
    assert client.functions.redrive("f1") == 7
    assert client.functions.redrive("f1", "r1") == 1
