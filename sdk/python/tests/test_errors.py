"""Errors, retries and time limits."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone

import pytest

import pandastack
from pandastack._retry import CapacityRetry, parse_budget
from pandastack._retry_after import parse_retry_after
from pandastack.errors import error_from_response

BODY = {"error": "no room", "code": "no_capacity", "request_id": "r-1"}
MADE = {"id": "s1", "cpu": 1, "memory_mb": 512, "status": "running"}


@pytest.mark.parametrize(
    "status,kind",
    [
        (400, pandastack.BadRequestError), (401, pandastack.AuthError), (403, pandastack.PermissionDeniedError),
        (404, pandastack.NotFoundError), (409, pandastack.ConflictError), (422, pandastack.BadRequestError),
        (429, pandastack.RateLimitError), (500, pandastack.ServerError), (501, pandastack.ServerError),
        (503, pandastack.ServerError),
    ],
)
def test_status_codes_map_to_error_classes(server, client, status, kind):
    server.on("GET", "/v1/me", status, BODY)
    with pytest.raises(pandastack.PandaStackError) as caught:
        client.me()
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.request_id) == (status, "no_capacity", "r-1")
    assert "no room" in str(error) and "r-1" in str(error)
    assert len(server.requests) == 1


def test_legacy_error_classes_still_match(server, client):
    server.on("GET", "/v1/me", 403, BODY)
    with pytest.raises(pandastack.BadRequestError):
        client.me()
    assert pandastack.PandastackError is pandastack.PandaStackError
    assert issubclass(pandastack.RequestTimeout, TimeoutError)


@pytest.mark.parametrize(
    "body,shown",
    [
        (b'{"message":"from elsewhere"}', "from elsewhere"), (b'{"error":{"deep":1}}', '{"deep": 1}'),
        (b"<html>502</html>", "<html>502</html>"), (b"", "HTTP 502"), (b"[1]", "[1]"), (b"\xff\xfe", "HTTP 502"),
    ],
)
def test_any_error_body_is_readable(body, shown):
    error = error_from_response(502, {"x-request-id": "h-1"}, body, what="GET /v1/me")
    assert shown in str(error) and error.request_id == "h-1"


def test_the_error_message_ends_with_a_hint(server, client):
    server.on("GET", "/v1/me", 401, {"error": "bad key"})
    with pytest.raises(pandastack.AuthError) as caught:
        client.me()
    assert str(caught.value).splitlines()[-1].startswith("hint: set PANDASTACK_API_KEY")


@pytest.mark.parametrize("status,headers", [(503, {"Retry-After": "0"}), (429, {"Retry-After": "0"}), (507, {})])
def test_a_refused_create_is_retried_under_one_key(server, make_client, monkeypatch, status, headers):
    monkeypatch.setattr("pandastack._retry.JITTER_SECONDS_MAX", (0.0,))
    seen = []
    client = make_client(on_create_retry=seen.append)
    server.on("POST", "/v1/sandboxes", status, BODY, headers=headers)
    server.on("POST", "/v1/sandboxes", 201, MADE)
    assert client.sandboxes.create().id == "s1"
    first, second = server.sent("POST", "/v1/sandboxes")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body
    assert [(event.attempt, event.status_code) for event in seen] == [(1, status)]


@pytest.mark.parametrize(
    "status,headers,body",
    [
        (503, {}, BODY), (503, {"Retry-After": "0"}, b"upstream down"), (429, {}, BODY), (500, {"Retry-After": "0"}, BODY),
        (502, {}, BODY), (503, {"Retry-After": "3600"}, BODY),
    ],
)
def test_other_errors_are_not_retried(server, client, status, headers, body):
    server.on("POST", "/v1/sandboxes", status, body, headers=headers)
    with pytest.raises(pandastack.PandaStackError):
        client.sandboxes.create()
    assert len(server.requests) == 1


def test_retries_can_be_switched_off(server, make_client):
    server.on("POST", "/v1/sandboxes", 503, BODY, headers={"Retry-After": "0"})
    with pytest.raises(pandastack.CapacityError) as caught:
        make_client(max_create_retry_seconds=0).sandboxes.create()
    assert caught.value.retry_after_seconds == 0 and len(server.requests) == 1


def test_exec_is_never_retried(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/exec", 503, BODY, headers={"Retry-After": "0"})
    with pytest.raises(pandastack.CapacityError):
        sandbox.exec("true")
    assert len(server.sent("POST", "/v1/sandboxes/s1/exec")) == 1


def refusal(status, retry_after, code=None):
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    body = b'{"error":"x","code":"%s"}' % (code or "c").encode()
    return error_from_response(status, headers, body, what="POST /v1/sandboxes")


def test_retry_budget_and_backoff():
    now = [0.0]
    retry = CapacityRetry(60.0, clock=lambda: now[0], dice=lambda: 1.0)
    assert [retry.delay_after(refusal(503, 5)) for _ in range(6)] == [6, 7, 9, 13, 20, 20]
    now[0] = 50.0
    assert retry.delay_after(refusal(503, 5)) == 10.0  # cut to what is left
    assert retry.delay_after(refusal(503, 11)) is None
    assert retry.delay_after(refusal(507, None)) is not None
    now[0] = 200.0
    assert retry.delay_after(refusal(503, 5)) is None
    assert retry.delay_after(refusal(503, 5, "template_baking")) is not None


def test_disk_full_is_retried_after_a_short_delay():
    assert CapacityRetry(60.0, dice=lambda: 0.0).delay_after(refusal(507, None)) == 0.5


@pytest.mark.parametrize(
    "value,expected",
    [(None, None), ("5", 5.0), (" 0.5 ", 0.5), ("-1", 0.0), ("nan", None), ("inf", None), ("soon", None), ("", None),
     ("Thu, 01 Jan 1970 00:01:00 GMT", 60.0)],
)
def test_retry_after(value, expected):
    assert parse_retry_after(value, now=datetime(1970, 1, 1, tzinfo=timezone.utc)) == expected


@pytest.mark.parametrize("value,expected", [(None, 60.0), ("", 60.0), ("x", 60.0), ("0", 0.0), ("7", 7.0), ("-3", 0.0), ("nan", 60.0)])
def test_budget_from_the_environment(value, expected):
    assert parse_budget(value) == expected


@pytest.mark.parametrize("status,message,kind", [
    (504, "command hit its timeout of 1 s", pandastack.SandboxTimeout),
    (500, "context deadline exceeded", pandastack.SandboxTimeout),
    (500, "read: i/o timeout", pandastack.ServerError),
    (408, "timeout", pandastack.BadRequestError),
])
def test_command_timeout(server, sandbox, status, message, kind):
    server.on("POST", "/v1/sandboxes/s1/exec", status, {"error": message})
    with pytest.raises(pandastack.PandaStackError) as caught:
        sandbox.exec("sleep 9", timeout_seconds=1)
    assert type(caught.value) is kind


def test_a_silent_server_times_out(server, make_client):
    release = threading.Event()
    server.on("GET", "/v1/me", 200, {}, before=lambda: release.wait(10))
    started = time.monotonic()
    with pytest.raises(pandastack.RequestTimeout):
        make_client(timeout=1).me()
    release.set()
    assert time.monotonic() - started < 8
    assert len(server.requests) == 1


def test_a_trickling_server_times_out(server, make_client):
    release = threading.Event()
    server.on("GET", "/v1/me", 200, chunks=[b" ", lambda: release.wait(0.15)] * 40)
    started = time.monotonic()
    with pytest.raises(pandastack.RequestTimeout):
        make_client(timeout=1).me()
    release.set()
    assert time.monotonic() - started < 5


def test_no_server(make_client):
    with pytest.raises(pandastack.APIConnectionError) as caught:
        make_client(base_url="http://127.0.0.1:1").me()
    assert "127.0.0.1:1" in str(caught.value) and "pandastack up" in str(caught.value)


def test_broken_connection_read_is_resent_once(server, client):
    server.on("GET", "/v1/me", drop=True)
    server.on("GET", "/v1/me", 200, {"ok": True})
    assert client.me() == {"ok": True}
    server.on("GET", "/v1/templates", drop=True)
    with pytest.raises(pandastack.APIConnectionError):
        client.templates.list()
    assert len(server.sent("GET", "/v1/templates")) == 2


def test_broken_connection_exec_is_not_resent(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/exec", drop=True)
    with pytest.raises(pandastack.APIConnectionError):
        sandbox.exec("true")
    assert len(server.sent("POST", "/v1/sandboxes/s1/exec")) == 1


def test_delete_succeeds_after_a_lost_response(server, client):
    server.on("DELETE", "/v1/sandboxes/s1", drop=True)
    server.on("DELETE", "/v1/sandboxes/s1", 404, {"error": "gone"})
    client.sandboxes.delete("s1")
    with pytest.raises(pandastack.NotFoundError):
        client.sandboxes.delete("s1")


def test_redirects_do_not_carry_the_key(server, client):
    server.on("GET", "/v1/me", 302, headers={"Location": "http://elsewhere.example/"})
    with pytest.raises(pandastack.ServerError, match="elsewhere.example"):
        client.me()
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"not json", b"[1]", b'"x"'])
def test_malformed_responses_raise_server_error(server, client, body):
    server.on("GET", "/v1/sandboxes/s1", 200, body)
    with pytest.raises(pandastack.ServerError):
        client.sandboxes.get("s1")


@pytest.mark.parametrize("body", [{}, {"id": None}, {"id": 5}])
def test_a_sandbox_response_without_an_id_is_an_error(server, client, body):
    server.on("GET", "/v1/sandboxes/s1", 200, body)
    with pytest.raises(pandastack.ServerError, match="'id'"):
        client.sandboxes.get("s1")


def test_invalid_field_values_fall_back_to_defaults(server, client):
    odd = b'{"id":"s1","cpu":null,"memory_mb":1e999,"status":null,"metadata":null,"boot_ms":"x"}'
    server.on("GET", "/v1/sandboxes/s1", 200, odd)
    sandbox = client.sandboxes.get("s1")
    assert (sandbox.cpu, sandbox.memory_mb, sandbox.metadata, sandbox.boot_ms) == (0, 0, {}, None)


def test_response_size_limit(server, client, monkeypatch):
    monkeypatch.setattr("pandastack._wire.FILE_BODY_BYTES_MAX", 10)
    server.on("GET", "/v1/sandboxes/s1", 200, MADE)
    server.on("GET", "/v1/sandboxes/s1/fs", 200, b"x" * 11)
    with pytest.raises(pandastack.ServerError, match="longer than 10 bytes"):
        client.sandboxes.get("s1").filesystem.read("/x")
