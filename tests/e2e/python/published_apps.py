"""Apps with the client `pandastack` 0.10.0 as it is published.

Run by `test_apps_git.py` in a Python that has that client and not the one of this repository, with a repository `team/published` that the
platform's machines reach and whose `index.html` says `published`.
"""

import json
import sys
import urllib.request
from pathlib import Path

import pandastack
from pandastack import Client
from pandastack.exceptions import NotFoundError

assert Path(pandastack.__file__).is_relative_to(sys.argv[1]), pandastack.__file__


def page(client: Client, app: dict) -> str:
    host = app["url"].split("//")[1].rstrip("/").split(":")[0]
    request = urllib.request.Request(client.api_url.rstrip("/").removesuffix("/v1") + "/", headers={"Host": host})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def deploy(client: Client, app: str) -> dict:
    begun = client.apps.deploy(app)
    assert begun["status"] == "queued", begun
    lines = list(client.apps.deploy_logs(app, begun["id"]))
    ended = client.apps.deployment(app, begun["id"])
    assert ended["status"] == "live" and "live" in " ".join(lines), ended
    assert set(lines) <= {line.strip() for line in ended["build_logs"].splitlines()}, "the log is the same"
    return ended


def variables(client: Client, app: str) -> None:
    assert client.apps.set_env(app, "TOKEN", "s3cret", secret=True)["secret"] is True
    assert client.apps.import_env(app, "A=1\nB=2\n")["imported"] == 2
    assert client.apps.update(app, env={"A": "3"}, port=9000)["port"] == 9000
    known = {one["key"]: one["value"] for one in client.apps.list_env(app)}
    assert known["A"] == "3" and known["B"] == "2" and known["TOKEN"] != "s3cret", known
    client.apps.unset_env(app, "B")
    assert "B" not in {one["key"] for one in client.apps.list_env(app)}


def domains(client: Client, app: str) -> None:
    added = client.apps.add_domain(app, "www.published.example")
    assert added["domain"] == "www.published.example" and added["records"], added
    assert client.apps.get_domain(app, added["domain"])["app_id"] == app
    assert [one["domain"] for one in client.apps.domains(app)] == [added["domain"]]
    client.apps.remove_domain(app, added["domain"])
    assert client.apps.domains(app) == []


def repositories(client: Client, app: str) -> None:
    """The app's repository is known by its name: it told no id."""
    client.apps.update(app, previews="off")
    enabled = client.apps.enable_preview_repo(4711, repo_full_name="team/published")
    assert (enabled["github_repo_id"], enabled["enabled"]) == (4711, True), enabled
    assert [(one["github_repo_id"], one["repo_full_name"]) for one in client.apps.preview_repos()] == [(4711, "team/published")]
    assert client.apps.get(app)["previews"] == "branches"
    assert client.apps.set_preview_env(4711, "TOKEN", "s3cret", secret=True)["secret"] is True
    assert client.apps.import_preview_env(4711, "A=1\nB=2\n") == {"imported": 2, "total": 3}
    client.apps.unset_preview_env(4711, "B")
    known = {one["key"]: one["value"] for one in client.apps.list_preview_env(4711)}
    assert set(known) == {"A", "TOKEN"} and known["A"] == "1" and known["TOKEN"] != "s3cret", known
    for key in known:
        client.apps.unset_preview_env(4711, key)
    client.apps.disable_preview_repo(4711)
    assert client.apps.preview_repos() == [] and client.apps.get(app)["previews"] == "off"
    try:
        client.apps.disable_preview_repo(4711)
        raise AssertionError("a repository that is not there was turned off")
    except NotFoundError:
        pass


def main() -> None:
    client = Client()
    made = client.apps.create("published", sys.argv[2], git_branch="main", framework="static", env={"MODE": "fast"})
    app = made["id"]
    assert (made["name"], made["status"], made["env"]) == ("published", "created", {"MODE": "fast"}), made
    assert app in [each["id"] for each in client.apps.list()]
    variables(client, app)
    first = deploy(client, app)
    shown = client.apps.get(app)
    assert shown["status"] == "running" and shown["active_deployment_id"] == first["id"] and shown["sandbox_id"], shown
    assert page(client, shown) == "published"
    second = deploy(client, app)
    back = client.apps.rollback(app)
    list(client.apps.deploy_logs(app, back["id"]))
    assert client.apps.deployment(app, back["id"])["status"] == "live"
    statuses = {one["id"]: one["status"] for one in client.apps.deployments(app)}
    assert statuses[second["id"]] == "rolled_back" and statuses[back["id"]] == "live", statuses
    assert page(client, shown) == "published"
    domains(client, app)
    repositories(client, app)
    client.apps.delete(app)
    try:
        client.apps.get(app)
        raise AssertionError("a deleted app was found")
    except NotFoundError:
        pass
    print(json.dumps({"passed": True}))


main()
