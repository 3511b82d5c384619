"""Requests and responses of apps."""

from __future__ import annotations

import io
import tarfile

import pytest

DEPLOYMENT = {"id": "d1", "app_id": "a1", "status": "queued"}


def test_a_directory_upload_excludes_dependencies_and_git_files(server, client, tmp_path):
    for name in ("index.html", "lib/a.js", "lib/node_modules/b.js", ".git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    server.on("POST", "/v1/apps/shop/deploys", 202, DEPLOYMENT)
    assert client.apps.deploy("shop", directory=tmp_path, clear_cache=True)["id"] == "d1"
    sent = server.requests[-1]
    assert sent.query == {"clear_cache": "1"}
    with tarfile.open(fileobj=io.BytesIO(sent.body)) as archive:
        assert archive.getnames() == ["index.html", "lib", "lib/a.js"]
    client.apps.deploy("shop", git_ref="v1", clear_cache=True)
    assert server.requests[-1].json == {"git_ref": "v1", "clear_cache": True}
    client.apps.deploy("shop")
    assert server.requests[-1].json == {}
    with pytest.raises(NotADirectoryError):
        client.apps.deploy("shop", directory=tmp_path / "index.html")


def test_metrics_and_stages_of_variables(server, client):
    instances = [{"sandbox_id": "s1", "status": "running", "host": {"memory_bytes": 7}}]
    server.on("GET", "/v1/apps/shop/metrics", 200, {"total": {"memory_bytes": 7}, "instances": instances})
    server.on("PUT", "/v1/apps/shop/env/KEY", 200, {"key": "KEY", "stage": "build"})
    server.on("POST", "/v1/apps/shop/env/import", 200, {"imported": 1, "total": 1})
    assert client.apps.metrics("shop")["total"]["memory_bytes"] == 7
    client.apps.set_env("shop", "KEY", "v", secret=True, stage="build")
    assert server.requests[-1].json == {"value": "v", "secret": True, "stage": "build"}
    client.apps.import_env("shop", "A=1")
    assert server.requests[-1].json == {"dotenv": "A=1"}
    server.on("POST", "/v1/apps/shop/keep-awake", 200, {"awake_until": "2026-01-01T00:00:00Z"})
    assert client.apps.keep_awake("shop", 90)["awake_until"].startswith("2026")
    assert server.requests[-1].json == {"seconds": 90}


def test_previews_of_a_repository(server, client):
    server.on("GET", "/v1/preview-repos", 200, {"repos": [{"github_repo_id": 7, "enabled": True}]})
    server.on("POST", "/v1/preview-repos", 200, {"github_repo_id": 7, "enabled": True})
    server.on("DELETE", "/v1/preview-repos/7", 204)
    server.on("GET", "/v1/repos/7/preview-env", 200, {"env": [{"key": "A", "value": "1"}]})
    server.on("PUT", "/v1/repos/7/preview-env/A", 200, {"key": "A", "secret": True})
    server.on("DELETE", "/v1/repos/7/preview-env/A", 204)
    server.on("POST", "/v1/repos/7/preview-env/import", 200, {"imported": 1, "total": 1})
    assert client.apps.enable_preview_repo(7, repo_full_name="me/shop")["enabled"]
    assert server.requests[-1].json == {"github_repo_id": 7, "repo_full_name": "me/shop"}
    assert client.apps.preview_repos()[0]["github_repo_id"] == 7
    client.apps.set_preview_env(7, "A", "v", secret=True)
    assert server.requests[-1].json == {"value": "v", "secret": True}
    assert client.apps.import_preview_env(7, "A=1")["total"] == 1
    assert server.requests[-1].json == {"dotenv": "A=1"}
    assert client.apps.list_preview_env(7)[0]["key"] == "A"
    client.apps.unset_preview_env(7, "A")
    client.apps.disable_preview_repo(7)
    assert [request.path for request in server.requests[-2:]] == ["/v1/repos/7/preview-env/A", "/v1/preview-repos/7"]
