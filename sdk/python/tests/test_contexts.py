"""Code contexts over the wire."""

from __future__ import annotations

import pytest

from pandastack import BadRequestError, NotFoundError, SandboxTimeout

CONTEXTS = "/v1/sandboxes/s1/repl/sessions"
CONTEXT = {"id": "c1", "sandbox_id": "s1", "language": "python", "cwd": "/home/user"}


def test_contexts_are_created_listed_restarted_and_deleted(server, sandbox):
    server.on("POST", CONTEXTS, 201, CONTEXT)
    server.on("GET", CONTEXTS, 200, {"items": [CONTEXT]})
    server.on("POST", f"{CONTEXTS}/c1/restart", 200, CONTEXT)
    server.on("DELETE", f"{CONTEXTS}/c1", 204)
    with sandbox.create_code_context("py", cwd="/srv") as context:
        assert server.requests[-1].json == {"language": "python", "cwd": "/srv"}
        assert (context.id, context.language, context.cwd) == ("c1", "python", "/home/user")
        assert [each.id for each in sandbox.code_contexts()] == ["c1"]
        context.restart()
    assert server.requests[-1].method == "DELETE"


def test_a_run_response_is_parsed_with_either_result_format(server, sandbox):
    answer = {
        "stdout": "out", "stderr": "", "exit": 1, "error": "Traceback", "duration_ms": 5,
        "results": [{"text/plain": "1", "application/json": '{"a": 1}'}, {"type": "image/png", "data": "aGk="}],
    }
    server.on("POST", CONTEXTS, 201, CONTEXT)
    server.on("POST", f"{CONTEXTS}/c1/run", 200, answer)
    ran = sandbox.create_code_context().run_code("1", timeout_seconds=1.5, env={"A": "1"})
    assert server.requests[-1].json == {"code": "1", "timeout_ms": 1500, "env": {"A": "1"}}
    assert (ran.stdout, ran.exit_code, ran.error, ran.text, ran.png, ran.truncated) == (
        "out", 1, "Traceback", "1", "aGk=", False)
    assert ran.results[0].json == {"a": 1} and ran.results[1].chart == "aGk=" and ran.logs["stdout"] == "out"


def test_timeouts_and_lost_contexts_have_their_own_errors(server, sandbox):
    server.on("POST", CONTEXTS, 201, CONTEXT)
    server.on("POST", f"{CONTEXTS}/c1/run", 504, {"error": "timeout: the code exceeded 1 ms", "code": "exec_timeout"})
    server.on("POST", f"{CONTEXTS}/c1/run", 404, {"error": "context `c1` not found", "code": "not_found"})
    context = sandbox.create_code_context()
    with pytest.raises(SandboxTimeout):
        context.run_code("1")
    with pytest.raises(NotFoundError):
        context.run_code("1")
    with pytest.raises(BadRequestError):
        context.run_code("1", timeout_seconds=0)
