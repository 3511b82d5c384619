"""Arguments of a wrong type are refused by name, and nothing is sent."""

from __future__ import annotations

import inspect
import math
from typing import Any, List, Tuple

import pytest

import pandastack
from pandastack import ArgumentTypeError, BadRequestError, Candidate, PandaStack
from pandastack._check import Arguments

#: Arguments that may be anything.
ANYTHING = {("FunctionsAPI", "invoke", "input")}


def public_methods() -> List[Tuple[str, str, Any]]:
    """Every public method that a user calls, with its class."""
    classes = [(name, getattr(pandastack, name)) for name in pandastack.__all__]
    return [
        (name, method, function)
        for name, cls in classes
        if inspect.isclass(cls) and cls.__module__.startswith(("pandastack._sync", "pandastack._async"))
        for method, function in vars(cls).items()
        if inspect.isfunction(function) and not method.startswith("_")
    ]


def test_every_public_method_checks_every_argument():
    methods = public_methods()
    assert {("Sandbox", "exec"), ("AsyncDatabasesAPI", "query")} <= {(cls, name) for cls, name, _ in methods}
    unchecked = []
    for cls, name, function in methods:
        if not hasattr(function, "__wrapped__"):
            unchecked.append(f"{cls}.{name}")
            continue
        for argument, kind in Arguments(function.__wrapped__)._named.items():
            if kind is None and (cls.replace("Async", ""), name, argument) not in ANYTHING:
                unchecked.append(f"{cls}.{name}({argument})")
    assert unchecked == []


@pytest.mark.parametrize(
    "call,sentence",
    [
        (lambda s: s.exec(None), "exec: cmd must be a str or a list of str, not None"),
        (lambda s: s.exec(["echo", 1]), "exec: cmd[1] must be a str, not int"),
        (lambda s: s.exec("x", env={"PORT": 8080}), "exec: env['PORT'] must be a str, not int"),
        (lambda s: s.exec("x", env={1: "a"}), "exec: env keys must be strings, not int"),
        (lambda s: s.exec("x", timeout_seconds="5"), "exec: timeout_seconds must be a number, not str"),
        (lambda s: s.exec("x", math.nan), "exec: timeout_seconds must be a number, not NaN"),
        (lambda s: s.exec("x", check=1), "exec: check must be a bool, not int"),
        (lambda s: s.exec_stream(b"x"), "exec_stream: cmd must be a str or a list of str, not bytes"),
        (lambda s: s.exec_stream("x", on_stdout=""), "exec_stream: on_stdout must be a function, not str"),
        (lambda s: s.start("x", pty=24), "start: pty must be a tuple of 2, not int"),
        (lambda s: s.start("x", pty=(24, "80")), "start: pty[1] must be an int, not str"),
        (lambda s: s.process("7"), "process: process_id must be an int, not str"),
        (lambda s: s.run_code(print), "run_code: code must be a str, not builtin_function_or_method"),
        (lambda s: s.filesystem.write("/a", {"a": 1}), "write: content must be a str or bytes, not dict"),
        (lambda s: s.filesystem.write("/a", 5), "write: content must be a str or bytes, not int"),
        (lambda s: s.filesystem.write(5, "x"), "write: path must be a str, not int"),
        (lambda s: s.filesystem.upload(5, "/a"), "upload: local_path must be a str or a path, not int"),
        (lambda s: list(s.filesystem.watch(None)), "watch: path must be a str, not None"),
        (lambda s: s.fork({"a": 1}), "fork: metadata['a'] must be a str, not int"),
        (lambda s: s.fork_tree("8"), "fork_tree: count must be an int, not str"),
        (lambda s: s.fork_tree(True), "fork_tree: count must be an int, not bool"),
        (lambda s: s.explore("make"), "explore: candidates must be a list of Candidate or str, not str"),
        (lambda s: s.set_network(["a"]), "set_network: network must be a dict or a str, not list"),
        (lambda s: s.set_network({"deny": ""}), "set_network: network['deny'] must be a list of str, not str"),
        (
            lambda s: s.set_lifecycle(checkpoints={"every_seconds": "5"}),
            "set_lifecycle: checkpoints['every_seconds'] must be an int, not str",
        ),
        (lambda s: s.preview_url("80"), "preview_url: port must be an int, not str"),
    ],
)
def test_sandbox_calls_reject_wrong_argument_types(server, sandbox, call, sentence):
    before = len(server.requests)
    with pytest.raises(ArgumentTypeError) as caught:
        call(sandbox)
    assert str(caught.value).split(".", 1)[1] == sentence
    assert isinstance(caught.value, (TypeError, BadRequestError)) and len(server.requests) == before


@pytest.mark.parametrize(
    "call,sentence",
    [
        (lambda c: c.sandboxes.create(cpu="2"), "create: cpu must be an int, not str"),
        (lambda c: c.sandboxes.create(volumes={}), "create: volumes must be a list of dict, not dict"),
        (lambda c: c.sandboxes.get(5), "get: sandbox_id must be a str, not int"),
        (lambda c: c.run(7), "run: cmd must be a str or a list of str, not int"),
        (lambda c: c.set_quota(cpu="2"), "set_quota: cpu must be an int, not str"),
        (lambda c: c.tokens.create("a", allow_from=""), "create: allow_from must be a list of str, not str"),
        (lambda c: c.databases.restore("d", 5), "restore: at must be a str or a datetime, not int"),
        (lambda c: c.databases.query("d", "select 1", "x"), "query: params must be a list, not str"),
        (lambda c: c.volumes.create("data", "10"), "create: size_mb must be an int, not str"),
        (lambda c: c.apps.set_env("a", "PORT", 80), "set_env: value must be a str, not int"),
        (lambda c: c.schedules.create("a", target="x"), "create: target must be a dict, not str"),
        (lambda c: c.functions.deploy_bundle("f", "x"), "deploy_bundle: bundle must be bytes, not str"),
        (lambda c: list(c.templates.build_logs(1)), "build_logs: build_id must be a str, not int"),
    ],
)
def test_client_calls_reject_wrong_argument_types(server, client, call, sentence):
    with pytest.raises(ArgumentTypeError) as caught:
        call(client)
    assert str(caught.value).split(".", 1)[1] == sentence and server.requests == []


def test_the_client_constructor_checks_argument_types():
    with pytest.raises(ArgumentTypeError, match="PandaStack: api_url must be a str, not int"):
        PandaStack(8080)  # type: ignore[arg-type]


def test_argument_checks_preserve_coroutines_and_signatures():
    assert inspect.iscoroutinefunction(pandastack.AsyncSandbox.exec)
    assert list(inspect.signature(pandastack.Sandbox.exec).parameters)[:2] == ["self", "cmd"]


def test_arguments_allowed_by_the_annotations_pass(server, sandbox):
    server.on("POST", "/v1/sandboxes/s1/exec", 200, {"exit_code": 0})
    server.on("PUT", "/v1/sandboxes/s1/fs", 200, {})
    for command in ("a", ["a", "b"], ("a",)):
        assert sandbox.exec(command, 5, env={"A": "b"}, limits={"cpu": 1}).ok
    for content in ("a", b"a", bytearray(b"a"), memoryview(b"a")):
        sandbox.filesystem.write("/a", content)
    assert {request.body for request in server.sent("PUT", "/v1/sandboxes/s1/fs")} == {b"a"}


def test_an_infinite_command_timeout_is_rejected(sandbox):
    with pytest.raises(BadRequestError, match="timeout_seconds must be"):
        sandbox.exec("x", math.inf)


def test_candidates_check_argument_types():
    with pytest.raises(ArgumentTypeError, match="Candidate: score must be a number, not NaN"):
        Candidate.shell("a", "true", score=math.nan)
    with pytest.raises(ArgumentTypeError, match="Candidate: cmd must be a str, not list"):
        Candidate("a", cmd=["true"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "score,why", [(math.nan, "not NaN"), (None, "NoneType"), ("7", "a score must be a number, not str")]
)
def test_a_non_numeric_score_fails_its_branch(server, sandbox, score, why):
    record = {"id": "s2", "template": "base", "cpu": 1, "memory_mb": 512, "status": "running"}
    server.on("POST", "/v1/sandboxes/s1/fork-tree", 201, {"children": [record]})
    server.on("POST", "/v1/sandboxes/s2/exec", 200, {"exit_code": 0})
    server.on("DELETE", "/v1/sandboxes/s2", 204)
    with pytest.raises(pandastack.ExploreError) as caught:
        sandbox.explore(["true"], score_fn=lambda *_: score, capture_files=False)
    (outcome,) = caught.value.outcomes
    assert not outcome.ok and why in outcome.error and outcome.score == 0
    assert server.sent("DELETE", "/v1/sandboxes/s2")
