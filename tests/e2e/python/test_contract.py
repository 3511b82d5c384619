"""Keys, error bodies, and invalid input: always a 4xx with a code and a sentence."""

from __future__ import annotations

import os
import uuid
from typing import Any, Dict

import httpx
import pytest

from pandastack import AuthError, BadRequestError, NotFoundError, PandaStack, Sandbox

from conftest import RUN, error_body

NOBODY = "00000000-0000-4000-8000-000000000000"


def test_unknown_sandbox(client: PandaStack) -> None:
    with pytest.raises(NotFoundError) as caught:
        client.sandboxes.get(NOBODY)
    error = caught.value
    assert (error.status, error.code) == (404, "not_found") and error.request_id


def test_unknown_template(client: PandaStack) -> None:
    with pytest.raises((BadRequestError, NotFoundError)) as caught:
        client.sandboxes.create("no-such-template")
    assert caught.value.code and "no-such-template" in str(caught.value)


def test_bad_request_has_a_code(client: PandaStack) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.sandboxes.create("base", ttl_seconds=10**12)
    assert (caught.value.status, caught.value.code) == (400, "bad_request")


@pytest.mark.parametrize("key", ["pds_" + "0" * 32, "nonsense", "pds_"])
def test_wrong_key(key: str) -> None:
    with PandaStack(api_key=key) as stranger, pytest.raises(AuthError) as caught:
        stranger.sandboxes.list()
    assert (caught.value.status, caught.value.code) == (401, "unauthorized")


def test_no_key() -> None:
    base = os.environ["PANDASTACK_API"].rstrip("/").removesuffix("/v1")
    assert error_body(httpx.get(f"{base}/v1/sandboxes"))["code"] == "unauthorized"
    assert httpx.get(f"{base}/healthz").status_code == 200


def test_tokens(client: PandaStack) -> None:
    made = client.tokens.create("e2e")
    assert made.token is not None and made.token.startswith("pds_")
    assert made.prefix in {token.prefix for token in client.tokens.list()}
    with PandaStack(api_key=made.token) as other:
        assert other.me()
        client.tokens.revoke(made.prefix)
        with pytest.raises(AuthError):
            other.me()
    with pytest.raises(NotFoundError):
        client.tokens.revoke(made.prefix)


def test_templates(client: PandaStack) -> None:
    names = {template.name for template in client.templates.list()}
    assert {"base", "code-interpreter"} <= names
    assert client.templates.get("base").name == "base"
    with client.sandboxes.create("ubuntu-24.04", metadata=RUN) as sandbox:
        assert sandbox.exec("true").ok


def test_idempotency_key(client: PandaStack, raw: httpx.Client) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"template": "base", "metadata": RUN}
    first, second = (raw.post("/sandboxes", json=body, headers=headers) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert first.json()["id"] == second.json()["id"]
    other = raw.post("/sandboxes", json={**body, "ttl_seconds": 77}, headers=headers)
    assert other.status_code == 409 and error_body(other)["code"] == "idempotency_conflict"
    client.sandboxes.delete(first.json()["id"])


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b'"x"', b"null x", b"\xff\xfe", b'{"template":5}', b'{"template":""}', b'{"template":"../base"}',
        b'{"template":"base","ttl_seconds":-1}', b'{"template":"base","ttl_seconds":"x"}', b'{"template":"base","ttl_seconds":1e300}',
        b'{"template":"base","ttl_seconds":0}', b'{"template":"base","metadata":[1]}', b'{"template":"base","metadata":{"a":1}}',
        b'{"template":"base","metadata":{"a":"' + b"x" * 5000 + b'"}}', b'{"from_snapshot":"nope"}',
        b'{"template":"base","on_timeout":"explode"}', b'{"template":"base","env":{"A=B":"x"}}',
        b'{"template":"base","env":{"A":"a\\u0000b"}}', b'{"a":' * 5000, b'{"template":"' + b"x" * (2 << 20) + b'"}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_bad_create(raw: httpx.Client, body: bytes) -> None:
    error_body(raw.post("/sandboxes", content=body, headers={"Content-Type": "application/json"}))


@pytest.mark.parametrize(
    "body",
    [
        {}, {"cmd": ""}, {"cmd": "   "}, {"cmd": 5}, {"cmd": None}, {"cmd": "a\0b"}, {"cmd": "true", "argv": ["true"]}, {"argv": []},
        {"argv": "true"}, {"cmd": "true", "timeout_seconds": 0}, {"cmd": "true", "timeout_seconds": -1},
        {"cmd": "true", "timeout_seconds": 10**9}, {"cmd": "true", "timeout_seconds": "x"}, {"cmd": "true", "cwd": "relative"},
        {"cmd": "true", "user": "no-such-user"}, {"cmd": "true", "cwd": "/no/such/dir"}, {"cmd": "true", "env": {"": "x"}},
        {"cmd": "x" * (200 * 1024)},
    ],
    ids=lambda body: repr(body)[:60],
)
@pytest.mark.parametrize("route", ["exec", "exec/stream"])
def test_bad_exec(raw: httpx.Client, shared: Sandbox, route: str, body: Dict[str, Any]) -> None:
    error_body(raw.post(f"/sandboxes/{shared.id}/{route}", json=body))


@pytest.mark.parametrize("path", [None, "", "relative", "/a\0b", "/" + "x" * 300, "/" + "x/" * 5000])
@pytest.mark.parametrize("method,route", [("GET", "fs"), ("PUT", "fs"), ("DELETE", "fs"), ("GET", "fs/stat"), ("POST", "fs/mkdir")])
def test_bad_path(raw: httpx.Client, shared: Sandbox, method: str, route: str, path: Any) -> None:
    params = {} if path is None else {"path": path}
    content = b"x" if method == "PUT" else None
    error_body(raw.request(method, f"/sandboxes/{shared.id}/{route}", params=params, content=content))


@pytest.mark.parametrize(
    "method,route,body",
    [
        ("GET", "/sandboxes/not-a-uuid", None), ("GET", "/sandboxes/%00", None), ("GET", "/sandboxes/..%2f..", None),
        ("GET", f"/sandboxes/{'x' * 3000}", None), ("DELETE", f"/sandboxes/{NOBODY}", None), ("GET", "/no/such/route", None),
        ("PUT", "/sandboxes", None), ("GET", "/snapshots/nope", None), ("DELETE", f"/snapshots/{NOBODY}", None),
        ("GET", "/templates/nope", None), ("DELETE", "/me/tokens/nope", None), ("POST", "/run", {}),
        ("POST", "/run", {"cmd": "true", "template": "nope"}), ("POST", f"/sandboxes/{NOBODY}/exec", {"cmd": "true"}),
        ("POST", f"/sandboxes/{NOBODY}/fork", None), ("POST", f"/sandboxes/{NOBODY}/wake", None),
        ("POST", "{shared}/fork-tree", {}), ("POST", "{shared}/fork-tree", {"count": 0}), ("POST", "{shared}/fork-tree", {"count": -1}),
        ("POST", "{shared}/fork-tree", {"count": 10**6}), ("POST", "{shared}/fork-tree", {"count": "x"}),
        ("POST", "{shared}/promote", {"tree_id": 5}), ("POST", "{shared}/promote", {}),
        ("POST", "{shared}/rollback", {"snapshotid": "x"}), ("POST", "{shared}/hibernate", {"keeps": "disk"}),
        ("POST", "{shared}/snapshots", {"ttl": 1}), ("POST", "{shared}/snapshots", {"name": ""}), ("POST", "{shared}/fork", {"count": 0}),
        ("POST", "{shared}/fork-tree", {"count": 1, "n": 1}), ("POST", "{shared}/promote", {"cleanup": True}),
        ("PATCH", "{shared}/lifecycle", {"ttl_seconds": -5}), ("PATCH", "{shared}/lifecycle", {"persistent": "maybe"}),
        ("GET", "{shared}/logs?stream=sideways", None), ("GET", "{shared}/events?tail=x", None),
        ("POST", "{shared}/fs/rename", {"from": "/x"}), ("POST", "{shared}/fs/rename", {"from": "a", "to": "b"}),
        ("POST", "/me/tokens", {"expires_in_days": -1}), ("POST", "/me/tokens", {"label": "x" * 100_000}),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_bad_routes_and_bodies(raw: httpx.Client, shared: Sandbox, method: str, route: str, body: Any) -> None:
    error_body(raw.request(method, route.format(shared=f"/sandboxes/{shared.id}"), json=body))


def test_empty_body_counts_as_an_empty_object(raw: httpx.Client, own: Sandbox) -> None:
    for headers in ({}, {"Content-Type": "application/json"}, {"Content-Type": "text/plain;charset=UTF-8"}):
        answer = raw.post(f"/sandboxes/{own.id}/wake", content=b"", headers=headers)
        assert answer.status_code == 200, answer.text


def test_the_sandbox_survives_invalid_requests(shared: Sandbox) -> None:
    assert shared.refresh().status == "running"
    assert shared.exec("echo fine").stdout == "fine\n"
