"""Requests of template builds."""

from __future__ import annotations


def test_a_build_sends_steps_and_tag_options(server, client):
    server.on("POST", "/v1/templates/builds", 202, {"id": "b1", "name": "t", "status": "queued"})
    steps = [{"run": {"command": "make", "no_cache": True}}, {"user": "app"}]
    client.templates.build("t", dockerfile="FROM base", steps=steps, tags=["v1"], keep_latest=True)
    start = {"dockerfile": "FROM base", "steps": steps}
    assert server.requests[-1].json == {"name": "t", "tags": ["v1"], "keep_latest": True, "start": start}
