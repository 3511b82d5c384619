"""Names are sent, returned and used instead of IDs."""

from __future__ import annotations


def test_sandboxes_are_addressed_by_name(server, client):
    record = {"id": "s1", "template": "base", "status": "running", "name": "web"}
    server.on("POST", "/v1/sandboxes", 201, record)
    server.on("GET", "/v1/sandboxes/web", 200, record)
    assert client.sandboxes.create(template="base", name="web").name == "web"
    assert server.requests[-1].json == {"template": "base", "name": "web"}
    found = client.sandboxes.get("web")
    assert (found.id, found.name) == ("s1", "web")


def test_databases_are_addressed_by_name(server, client):
    named = {"id": "d1", "status": "running", "name": "shop"}
    server.on("POST", "/v1/databases", 201, named)
    server.on("POST", "/v1/databases/shop/clone", 201, {**named, "id": "d2", "name": "copy"})
    assert client.databases.create(name="shop").get("name") == "shop"
    assert server.requests[-1].json == {"name": "shop"}
    client.databases.branch("shop", name="copy")
    assert server.requests[-1].json == {"name": "copy"}
    client.databases.restore("shop", "latest", name="copy")
    assert server.requests[-1].json == {"name": "copy", "target_time": "latest"}
