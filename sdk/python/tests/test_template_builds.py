"""Requests of template builds."""

from __future__ import annotations

import pytest

from pandastack import ArgumentTypeError, BadRequestError, TemplateRecipe, rebuild_target


def test_a_build_sends_steps_and_tag_options(server, client):
    server.on("POST", "/v1/templates/builds", 202, {"id": "b1", "name": "t", "status": "queued"})
    steps = [{"run": {"command": "make", "no_cache": True}}, {"user": "app"}]
    client.templates.build("t", dockerfile="FROM base", steps=steps, tags=["v1"], keep_latest=True)
    start = {"dockerfile": "FROM base", "steps": steps}
    assert server.requests[-1].json == {"name": "t", "tags": ["v1"], "keep_latest": True, "start": start}


def test_a_recipe_is_sent_as_base_and_steps(server, client):
    server.on("POST", "/v1/templates/builds", 202, {"id": "b1", "name": "t", "status": "queued"})
    common = TemplateRecipe("python:3.12").env({"A": "1"}).workdir("/app")
    recipe = common.copy("a", "b", dest=".", mode="755").run("make", user="root", no_cache=True).user("app")
    client.templates.build("t", recipe=recipe.start("python app.py", ready={"port": 80}))
    steps = [
        {"env": {"A": "1"}},
        {"workdir": "/app"},
        {"copy": {"sources": ["a", "b"], "dest": ".", "mode": "755"}},
        {"run": {"command": "make", "user": "root", "no_cache": True}}, {"user": "app"},
    ]
    start = {"dockerfile": "FROM python:3.12\n", "steps": steps}
    start = {**start, "start_command": "python app.py", "ready": {"port": 80}}
    assert server.requests[-1].json == {"name": "t", "start": start}
    client.templates.build("t", recipe=common)
    assert server.requests[-1].json["start"]["steps"] == steps[:2], "unchanged"


def test_a_recipe_excludes_a_dockerfile_and_a_base_is_one_name(server, client):
    with pytest.raises(BadRequestError, match="a recipe has its own"):
        client.templates.build("t", recipe=TemplateRecipe(), dockerfile="FROM base")
    for base in ("", "a b", "base\nRUN x"):
        with pytest.raises(BadRequestError, match="is not the name"):
            TemplateRecipe(base)
    with pytest.raises(ArgumentTypeError, match="run: command must be a str"):
        TemplateRecipe().run(1)
    assert server.requests == []


def test_a_template_is_rebuilt_now_and_on_a_schedule(server, client):
    changes = {"previous_build_id": "b0", "base": "base", "size_bytes_before": 1, "size_bytes_after": 2}
    answer = {"id": "b1", "name": "t", "status": "done", "rebuild_of": "b0", "changes": changes}
    server.on("POST", "/v1/templates/t%3Av1/rebuild", 202, answer)
    build = client.templates.rebuild("t:v1")
    assert (build.rebuild_of, build.changes) == ("b0", changes)
    assert rebuild_target("t") == {"type": "template", "template": "t"}


def test_kept_inputs_and_keys_of_aws_are_sent(server, client):
    server.on("POST", "/v1/templates/builds", 202, {"id": "b1", "name": "t", "status": "queued"})
    login = {"registry": "1.dkr.ecr.test", "username": "k", "password": "s", "aws_region": "eu-central-1"}
    client.templates.build("t", dockerfile="FROM base", registries=[login], keep_inputs=True)
    sent = server.requests[-1].json
    assert (sent["keep_inputs"], sent["start"]["registries"]) == (True, [login])
