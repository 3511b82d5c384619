"""Members of a workspace and their sessions."""

from __future__ import annotations


def test_members_and_their_sessions(server, client):
    ada = {"id": "m1", "email": "ada@example.com", "role": "developer"}
    server.on("GET", "/v1/members", 200, {"items": [ada]})
    server.on("POST", "/v1/members", 201, ada)
    server.on("PATCH", "/v1/members/m1", 200, {**ada, "role": "owner"})
    server.on("DELETE", "/v1/members/m1", 204)
    server.on("GET", "/v1/members/sessions", 200, {"items": [{"id": "pds_a", "member": "m1", "client": "laptop"}]})
    server.on("DELETE", "/v1/members/sessions/pds_a", 204)
    assert client.members.list() == [ada]
    assert client.members.add("ada@example.com") == ada
    assert server.requests[-1].json == {"email": "ada@example.com"}
    client.members.add(subject="s", role="viewer")
    assert server.requests[-1].json == {"subject": "s", "role": "viewer"}
    assert client.members.set_role("m1", "owner")["role"] == "owner"
    assert (server.requests[-1].method, server.requests[-1].json) == ("PATCH", {"role": "owner"})
    assert client.members.sessions()[0]["client"] == "laptop"
    client.members.revoke("pds_a")
    client.members.remove("m1")
    assert [request.method for request in server.requests[-2:]] == ["DELETE", "DELETE"]


def test_outdated_states(server, client):
    server.on("GET", "/v1/outdated", 200, {"items": [{"kind": "sandbox", "id": "s1"}], "complete": True})
    assert client.outdated()["items"][0]["id"] == "s1"
    assert server.requests[-1].query == {}
    client.outdated(all=True)
    assert server.requests[-1].query == {"all": "true"}
