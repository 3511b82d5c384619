"""Requests and responses, call by call."""

from __future__ import annotations

import io
import tarfile

import pytest

import pandastack
from pandastack import BadRequestError, CommandFailed, FileContent, NotFoundError, ServerError

from conftest import KEY

SANDBOX = {
    "id": "s1", "template": "base", "cpu": 1, "memory_mb": 512, "status": "running", "metadata": {"a": "b"},
    "engine": "qemu", "isolation": "emulated", "boot_ms": 7, "field_of_the_future": [1],
}


def test_create_sends_only_the_given_arguments(server, client):
    server.on("POST", "/v1/sandboxes", 201, SANDBOX)
    sandbox = client.sandboxes.create(template="code-interpreter", ttl_seconds=600, metadata={"task": "x"})
    request = server.requests[0]
    assert request.json == {"template": "code-interpreter", "ttl_seconds": 600, "metadata": {"task": "x"}}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert len(request.headers["idempotency-key"]) >= 16
    assert (sandbox.id, sandbox.status, sandbox.boot_ms, sandbox.isolation) == ("s1", "running", 7, "emulated")
    assert sandbox.raw["field_of_the_future"] == [1]


def test_create_defaults_and_snapshot(server, client):
    server.on("POST", "/v1/sandboxes", 201, SANDBOX)
    client.sandboxes.create(from_snapshot=pandastack.Snapshot("snap"), persistent=True, volumes=[{"name": "v"}])
    assert server.requests[0].json == {
        "template": "code-interpreter", "persistent": True, "from_snapshot": "snap", "volumes": [{"name": "v"}],
    }


@pytest.mark.parametrize("wrap", [lambda items: items, lambda items: {"items": items}])
def test_list_responses_may_be_bare_or_wrapped(server, client, wrap):
    server.on("GET", "/v1/sandboxes", 200, wrap([SANDBOX, SANDBOX]))
    assert [sandbox.id for sandbox in client.sandboxes.list()] == ["s1", "s1"]


def test_exec(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/exec", 200, {"stdout": "1024\n", "stderr": "", "exit_code": 0, "duration_ms": 9})
    result = sandbox.exec("python -c 'print(2 ** 10)'", timeout_seconds=30)
    assert (result.stdout, result.stderr, result.exit_code, result.duration_ms) == ("1024\n", "", 0, 9)
    assert server.requests[-1].json == {"cmd": "python -c 'print(2 ** 10)'", "timeout_seconds": 30}


def test_exec_options(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/exec", 200, {"stdout": "", "stderr": "no", "exit_code": 3})
    assert sandbox.exec(["echo", "a b"], 1.2, cwd="/srv", env={"A": "1"}, user="user").exit_code == 3
    assert server.requests[-1].json == {
        "cmd": "echo 'a b'", "timeout_seconds": 2, "cwd": "/srv", "env": {"A": "1"}, "user": "user",
    }
    with pytest.raises(CommandFailed) as caught:
        sandbox.exec("false", check=True)
    assert (caught.value.exit_code, caught.value.stderr) == (3, "no")


@pytest.mark.parametrize("cmd,timeout", [("", None), ("  ", None), ([], None), ("true", 0), ("true", -1)])
def test_exec_rejects_invalid_arguments_before_sending(server, sandbox, cmd, timeout):
    sent = len(server.requests)
    with pytest.raises(BadRequestError):
        sandbox.exec(cmd, timeout)
    assert len(server.requests) == sent


def test_exec_response_without_exit_code_is_an_error(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/exec", 200, {"stdout": "x"})
    with pytest.raises(ServerError, match="exit_code"):
        sandbox.exec("true")


def test_run_code_quotes_the_program(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/exec", 200, {"stdout": "", "stderr": "", "exit_code": 0})
    sandbox.run_code("print('hi')")
    assert server.requests[-1].json["cmd"] == "python3 -c 'print('\"'\"'hi'\"'\"')'"
    with pytest.raises(BadRequestError):
        sandbox.run_code("x", language="cobol")


def test_run(server, client):
    server.on("POST", "/v1/run", 200, {"stdout": "ok", "stderr": "", "exit_code": 0, "sandbox_id": "gone"})
    result = client.run("echo ok", template="base", timeout_seconds=5)
    assert (result.stdout, result.exit_code, result.sandbox_id) == ("ok", 0, "gone")
    assert server.requests[0].json == {"cmd": "echo ok", "timeout_seconds": 5, "template": "base"}
    assert "idempotency-key" in server.requests[0].headers


def test_read_returns_bytes_that_print_as_text(server, sandbox):
    server.on("GET", "/v1/sandboxes/s1/fs", 200, "grüße".encode() + b"\xff")
    content = sandbox.filesystem.read("/srv/a b&c.txt")
    assert isinstance(content, bytes) and isinstance(content, FileContent)
    assert content == "grüße".encode() + b"\xff"
    assert str(content) == f"{content}" == "grüße\ufffd"
    assert server.requests[-1].query == {"path": "/srv/a b&c.txt"}


def test_write_text_and_bytes(server, sandbox):
    server.on("PUT", "/v1/sandboxes/s1/fs", 200, {"path": "/x", "bytes": 2})
    assert sandbox.filesystem.write("/x", "ü") == {"path": "/x", "bytes": 2}
    sandbox.filesystem.write("/x", b"\x00\xff")
    sandbox.filesystem.write("/x", b"")
    assert [r.body for r in server.sent("PUT", "/v1/sandboxes/s1/fs")] == ["ü".encode(), b"\x00\xff", b""]
    assert server.requests[-1].headers["content-type"] == "application/octet-stream"


def test_upload_and_download(server, sandbox, tmp_path):
    content = bytes(range(256)) * 4096
    local, back, steps = tmp_path / "in", tmp_path / "out", []
    local.write_bytes(content)
    server.on("PUT", "/v1/sandboxes/s1/fs", 200, {"path": "/x", "bytes": len(content)})
    server.on("GET", "/v1/sandboxes/s1/fs", 200, content)
    sandbox.filesystem.upload(local, "/x", on_progress=lambda done, total: steps.append((done, total)))
    assert server.requests[-1].body == content
    assert steps[-1] == (len(content), len(content)) and len(steps) > 1
    sandbox.filesystem.download("/x", back, on_progress=lambda done, total: steps.append((done, total)))
    assert back.read_bytes() == content and steps[-1] == (len(content), len(content))


def test_broken_download_leaves_nothing(server, sandbox, tmp_path):
    server.on("GET", "/v1/sandboxes/s1/fs", 200, chunks=[b"half"], drop=True)
    with pytest.raises(pandastack.APIConnectionError):
        sandbox.filesystem.download("/x", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_list_stat_exists(server, sandbox):
    entry = {"name": "f", "is_dir": False, "size": 3, "mode": "0644", "mtime": 5}
    server.on("GET", "/v1/sandboxes/s1/fs/dir", 200, {"path": "/srv", "entries": [entry]})
    server.on("GET", "/v1/sandboxes/s1/fs/dir", 200, {"path": "/srv", "entries": None})
    server.on("GET", "/v1/sandboxes/s1/fs/stat", 200, entry)
    server.on("GET", "/v1/sandboxes/s1/fs/stat", 404, {"error": "no such file", "code": "file_not_found"})
    server.on("GET", "/v1/sandboxes/s1/fs/stat", 404, {"error": "no such sandbox", "code": "not_found"})
    assert [e.path for e in sandbox.filesystem.list("/srv")] == ["/srv/f"]
    assert sandbox.filesystem.listdir() == []
    assert sandbox.filesystem.stat("/srv/f").size == 3
    assert sandbox.filesystem.exists("/srv/f") is False
    with pytest.raises(NotFoundError):
        sandbox.filesystem.exists("/srv/f")


def test_mkdir_remove_rename_walk(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/fs/mkdir", 204)
    server.on("POST", "/v1/sandboxes/s1/fs/rename", 204)
    server.on("DELETE", "/v1/sandboxes/s1/fs", 204)
    server.on("GET", "/v1/sandboxes/s1/fs/dir", 200, {"entries": [{"name": "d", "is_dir": True}, {"name": "f", "is_dir": False}]})
    server.on("GET", "/v1/sandboxes/s1/fs/dir", 200, {"entries": []})
    sandbox.filesystem.mkdir("/d")
    assert server.requests[-1].query == {"path": "/d"}
    sandbox.filesystem.rename("/d", "/e")
    assert server.requests[-1].json == {"from": "/d", "to": "/e"}
    sandbox.filesystem.remove("/e")
    assert server.requests[-1].query == {"path": "/e"}
    walked = [(top, [d.name for d in dirs], [f.name for f in files]) for top, dirs, files in sandbox.filesystem.walk("/")]
    assert walked == [("/", ["d"], ["f"]), ("/d", [], [])]


@pytest.mark.parametrize("path", ["", "relative"])
def test_relative_paths_are_rejected(sandbox, path):
    with pytest.raises(BadRequestError, match="absolute"):
        sandbox.filesystem.read(path)


CHILD = {**SANDBOX, "id": "c1", "metadata": {"fork_tree_id": "t", "fork_parent_id": "s1"}}


@pytest.mark.parametrize("body", [CHILD, {"sandbox": CHILD}, {"children": [CHILD]}, {"children": ["c1"]}])
def test_fork_accepts_every_response_shape(server, sandbox, body):
    server.on("POST", "/v1/sandboxes/s1/fork", 201, body)
    assert sandbox.fork().id == "c1"
    assert server.requests[-1].body == b""
    sandbox.fork({"why": "because"})
    assert server.requests[-1].json == {"metadata": {"why": "because"}}
    keys = [r.headers["idempotency-key"] for r in server.sent("POST", "/v1/sandboxes/s1/fork")]
    assert len(set(keys)) == 2


@pytest.mark.parametrize("name", ["children", "items", "sandboxes", None])
def test_fork_tree_accepts_every_response_shape(server, sandbox, name):
    children = [{**CHILD, "id": f"c{i}"} for i in range(3)]
    server.on("POST", "/v1/sandboxes/s1/fork-tree", 201, {name: children, "tree_id": "t"} if name else children)
    assert [child.id for child in sandbox.fork_tree(3)] == ["c0", "c1", "c2"]
    assert server.requests[-1].json == {"count": 3}
    for count in (0, -1, True, 1.5):
        with pytest.raises(BadRequestError):
            sandbox.fork_tree(count)


def test_promote_snapshot_and_snapshots(server, client, sandbox):
    server.on("POST", "/v1/sandboxes/s1/promote", 200, {"winner": "s1", "tree_id": "t", "deleted": ["c2"]})
    server.on("POST", "/v1/sandboxes/s1/snapshots", 201, {"snapshot_id": "sn", "sandbox_id": "s1"})
    server.on("GET", "/v1/snapshots", 200, {"snapshots": [{"id": "sn"}]})
    server.on("DELETE", "/v1/snapshots/sn", 204)
    result = sandbox.promote(cleanup_siblings=True)
    assert server.requests[-1].json == {"cleanup_siblings": True}
    assert (result["deleted"], result["failures"]) == (["c2"], {})
    snapshot = sandbox.snapshot()
    assert snapshot == snapshot.id == "sn" and snapshot.info["sandbox_id"] == "s1"
    assert server.requests[-1].body == b""
    sandbox.snapshot("named", {"a": "b"}, replace_name=True)
    assert server.requests[-1].json == {"name": "named", "replace_name": True, "metadata": {"a": "b"}}
    assert [s["id"] for s in client.snapshots.list(sandbox_id="s1")] == ["sn"]
    assert server.requests[-1].query == {"sandbox_id": "s1"}
    client.snapshots.delete(snapshot)


def test_lifecycle(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/hibernate", 200, {"status": "hibernated"})
    server.on("POST", "/v1/sandboxes/s1/wake", 200, {"status": "running"})
    server.on("POST", "/v1/sandboxes/s1/pause", 204)
    server.on("POST", "/v1/sandboxes/s1/resume", 204)
    server.on("PATCH", "/v1/sandboxes/s1/lifecycle", 200, {"ttl_seconds": 60, "persistent": False, "idle_seconds": 0})
    seen = []
    for move in (sandbox.hibernate, sandbox.wake, sandbox.pause, sandbox.resume):
        move()
        seen.append(sandbox.status)
    assert seen == ["hibernated", "running", "paused", "running"]
    assert sandbox.set_ttl(60)["ttl_seconds"] == 60
    assert server.requests[-1].json == {"ttl_seconds": 60}
    sandbox.set_persistent(True)
    assert server.requests[-1].json == {"persistent": True}
    sandbox.set_lifecycle(idle_timeout_seconds=9, on_timeout="hibernate")
    assert server.requests[-1].json == {"idle_timeout_seconds": 9, "on_timeout": "hibernate"}
    sandbox.hibernate(keep="disk")
    assert server.requests[-1].json == {"keep": "disk"}
    server.on("POST", "/v1/sandboxes/s1/keep-awake", 200, {"awake_until": "2026-01-01T00:00:00Z"})
    assert sandbox.keep_awake(90)["awake_until"].startswith("2026")
    assert server.requests[-1].json == {"seconds": 90}


def test_network_policies(server, client, sandbox):
    server.on("GET", "/v1/sandboxes/s1/network", 200, {"egress": "all"})
    server.on("PUT", "/v1/sandboxes/s1/network", 200, {"egress": "none", "allow": ["*.a.test"]})
    assert sandbox.network() == {"egress": "all"}
    assert sandbox.set_network({"allow": ["*.a.test"]})["egress"] == "none"
    assert server.requests[-1].json == {"allow": ["*.a.test"]}
    sandbox.set_network("none")
    assert server.requests[-1].json == {"egress": "none"}
    server.on("POST", "/v1/sandboxes", 201, {"id": "s2", "status": "running"})
    client.sandboxes.create(network="none", visibility="private")
    sent = server.requests[-1].json
    assert (sent["network"], sent["visibility"]) == ({"egress": "none"}, "private")


def test_workspace(server, client):
    answer = {"id": "default", "default_visibility": "private"}
    server.on("GET", "/v1/me/workspace", 200, answer)
    server.on("PATCH", "/v1/me/workspace", 200, answer)
    assert client.workspace() == answer
    assert client.set_workspace(default_visibility="private") == answer
    assert server.requests[-1].json == {"default_visibility": "private"}


def test_rollback_and_lineage(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/rollback", 200, {"id": "s1", "status": "running"})
    assert sandbox.rollback("snap").status == "running"
    assert server.requests[-1].json == {"snapshot_id": "snap"}
    sandbox.rollback()
    assert server.requests[-1].json == {}
    server.on("GET", "/v1/sandboxes/s1/lineage", 200, {"id": "s1", "ancestors": ["p"], "children": [], "siblings": []})
    assert sandbox.lineage()["ancestors"] == ["p"]


def test_ports_and_previews(server, make_client, sandbox):
    server.on("GET", "/v1/sandboxes/s1/ports", 200, {"ports": [80, {"port": 8000, "label": "web"}, "junk", None]})
    assert [(p.port, p.label) for p in sandbox.ports()] == [(80, None), (8000, "web")]
    own_port = server.url.rpartition(":")[2]
    assert sandbox.preview_urls()[80] == f"http://80-s1.localhost:{own_port}"
    with pytest.raises(ValueError):
        sandbox.preview_url(0)
    elsewhere = make_client(preview_host="previews.example")
    assert elsewhere.sandboxes.get("s1").preview_url(80, scheme="https") == "https://80-s1.previews.example"


def test_workspaces_and_their_keys(server, client):
    shop = {"id": "shop", "state": "active", "quota": {"cpu": 4}, "used": {"cpu": 0}}
    server.on("POST", "/v1/workspaces", 201, shop)
    server.on("GET", "/v1/workspaces", 200, {"items": [shop]})
    server.on("POST", "/v1/workspaces/shop/suspend", 200, {**shop, "state": "suspended"})
    server.on("POST", "/v1/workspaces/shop/resume", 200, shop)
    server.on("PUT", "/v1/workspaces/shop/quota", 200, {"quota": {"cpu": 8}})
    server.on("DELETE", "/v1/workspaces/shop", 204)
    server.on("POST", "/v1/workspaces/shop/tokens", 201, {"token": "pds_s", "prefix": "pds_a", "role": "owner"})
    server.on("POST", "/v1/me/tokens/pds_a/rotate", 201, {"token": "pds_t", "prefix": "pds_b", "replaces": "pds_a"})
    assert client.workspaces.create("shop", cpu=4)["quota"] == {"cpu": 4}
    assert server.requests[-1].json == {"id": "shop", "quota": {"cpu": 4}}
    assert client.workspaces.list()[0]["id"] == "shop"
    assert client.workspaces.suspend("shop", "unpaid")["state"] == "suspended"
    assert server.requests[-1].json == {"reason": "unpaid"}
    assert client.workspaces.resume("shop")["state"] == "active"
    assert client.workspaces.set_quota("shop", cpu=8)["quota"] == {"cpu": 8}
    made = client.tokens.create("ci", role="owner", allow_from=["10.0.0.0/8"], workspace="shop")
    assert (made.role, made.token) == ("owner", "pds_s")
    assert server.requests[-1].json == {"label": "ci", "role": "owner", "allow_from": ["10.0.0.0/8"]}
    assert client.tokens.rotate("pds_a", overlap_seconds=0).replaces == "pds_a"
    assert server.requests[-1].json == {"overlap_seconds": 0}
    client.workspaces.delete("shop")


def test_a_build_excludes_files_in_dockerignore(server, client, tmp_path):
    for name in ["Dockerfile", "src/a.py", "src/a.pyc", "node_modules/x/index.js", "docs/b.md", "docs/keep.md"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("FROM base\n")
    (tmp_path / ".dockerignore").write_text("# big\nnode_modules\n**/*.pyc\ndocs/*\n!docs/keep.md\n")
    server.on("POST", "/v1/templates/builds", 202, {"id": "b1", "name": "t", "status": "queued"})
    server.on("PUT", "/v1/templates/builds/b1/files", 204)
    server.on("POST", "/v1/templates/builds/b1/start", 400, {"error": {"code": "bad_request", "message": "line 1"}})
    server.on("POST", "/v1/templates/builds/b1/cancel", 202)
    with pytest.raises(pandastack.BadRequestError):
        client.templates.build("t", tmp_path)
    sent = server.sent("PUT", "/v1/templates/builds/b1/files")[0].body
    with tarfile.open(fileobj=io.BytesIO(sent)) as archive:
        names = archive.getnames()
    assert names == [".dockerignore", "Dockerfile", "docs", "docs/keep.md", "src", "src/a.py"]
    assert len(server.sent("POST", "/v1/templates/builds/b1/cancel")) == 1, "nobody starts it"


def test_templates_tokens_me(server, client):
    server.on("GET", "/v1/templates", 200, [{"name": "base", "cpu": 1, "tools": ["git"]}])
    server.on("GET", "/v1/me/tokens", 200, [{"prefix": "pds_abcd", "label": "ci"}])
    server.on("POST", "/v1/me/tokens", 200, {"token": "pds_secret", "prefix": "pds_secr", "label": "x"})
    server.on("DELETE", "/v1/me/tokens/pds_secr", 204)
    server.on("GET", "/v1/me", 200, {"email": "a@b"})
    assert client.templates.list()[0].tools == ["git"]
    assert client.tokens.list()[0].name == "ci"
    made = client.tokens.create("x", expires_in_days=3)
    assert made.token == "pds_secret" and "pds_secret" not in repr(made)
    assert server.requests[-1].json == {"label": "x", "expires_in_days": 3}
    client.tokens.revoke(made.prefix)
    assert client.me() == {"email": "a@b"}


def test_builds(server, client):
    server.on("GET", "/v1/templates/builds/b1", 200, {"id": "b1", "name": "t", "status": "unheard-of"})
    server.on("GET", "/v1/templates/builds/b1", 200, {"id": "b1", "name": "t", "status": "done"})
    server.on("GET", "/v1/templates/builds/b2", 200, {"id": "b2", "name": "t", "status": "failed", "error": "no space"})
    lines = [b"data: one\n\n", b'data: {"error":"just a line"}\n\nevent: done\ndata: end\n\ndata: never\n\n']
    server.on("GET", "/v1/templates/builds/b1/logs", 200, chunks=lines)
    assert client.templates.wait_for_build("b1", poll_interval=0.01).is_done
    with pytest.raises(pandastack.TemplateBuildError, match="no space"):
        client.templates.wait_for_build("b2")
    assert list(client.templates.build_logs("b1")) == ["one", '{"error":"just a line"}']


def test_ids_cannot_escape_their_path_segment(server, client):
    with pytest.raises(NotFoundError):
        client.sandboxes.get("../me")
    assert server.requests[-1].path == "/v1/sandboxes/..%2Fme"
    sent = len(server.requests)
    for bad in ("", ".", ".."):
        with pytest.raises(BadRequestError):
            client.sandboxes.delete(bad)
    assert len(server.requests) == sent


def test_with_block_deletes_the_sandbox(server, client, sandbox):
    server.on("DELETE", "/v1/sandboxes/s1", 204)
    with sandbox:
        pass
    assert len(server.sent("DELETE", "/v1/sandboxes/s1")) == 1
    assert sandbox.status == "deleted"


def test_with_block_error_is_not_hidden_by_a_failed_delete(server, sandbox):
    server.on("DELETE", "/v1/sandboxes/s1", 500, {"error": "broken"})
    with pytest.raises(KeyError):
        with sandbox:
            raise KeyError("mine")
    with pytest.raises(ServerError):
        with sandbox:
            pass


def test_refresh(server, sandbox):
    server.on("GET", "/v1/sandboxes/s1", 200, {"id": "s1", "status": "hibernated", "residency": "disk"})
    sandbox.refresh()  # the first scripted answer is still queued once
    assert sandbox.refresh().residency == "disk" and sandbox.status == "hibernated"


def test_logs_and_events(server, sandbox):
    server.on("GET", "/v1/sandboxes/s1/logs", 200, b"one\ntwo\n", headers={"Content-Type": "text/plain; charset=utf-8"})
    server.on("GET", "/v1/sandboxes/s1/logs", 200, chunks=[b'data: {"line":"a"}\n\n', b": ping\n\n", b'data: {"chunk":"b\\n"}\n\n', b"data: raw\n\n"])
    server.on("GET", "/v1/sandboxes/s1/events", 200, {"events": [{"kind": "created"}]})
    server.on("GET", "/v1/sandboxes/s1/events", 200, chunks=[b'event: event\ndata: {"kind":"woken"}\n\n'])
    assert list(sandbox.logs()) == ["one", "two"]
    assert server.requests[-1].query == {"stream": "both", "follow": "false"}
    assert list(sandbox.logs(stream="stdout", follow=True)) == ["a", "b", "raw"]
    assert server.requests[-1].query == {"stream": "stdout", "follow": "true"}
    assert sandbox.events(tail=5) == [{"kind": "created"}]
    assert list(sandbox.follow_events()) == [{"kind": "woken"}]


def test_archives_are_uploaded_and_downloaded_unchanged(server, sandbox, tmp_path):
    server.on("PUT", "/v1/sandboxes/s1/fs/tar", 200, {"path": "/srv", "bytes": 3})
    server.on("GET", "/v1/sandboxes/s1/fs/tar", 200, b"tar")
    (tmp_path / "in.tar").write_bytes(b"abc")
    assert sandbox.filesystem.upload_archive(tmp_path / "in.tar", "/srv") == {"path": "/srv", "bytes": 3}
    assert server.requests[-1].body == b"abc" and server.requests[-1].headers["content-type"] == "application/x-tar"
    sandbox.filesystem.download_archive("/srv", tmp_path / "out.tar")
    assert (tmp_path / "out.tar").read_bytes() == b"tar"
