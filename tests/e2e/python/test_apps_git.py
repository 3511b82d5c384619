"""Apps from a git repository: fetched by the machine that builds, deployed by a push, through crashes of the servers."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import httpx
import pytest
from full_only import times
from git_world import Client, GitServer, Repository, prove_domain
from internet import OTHER, RESOLVER, SERVER as HOST, InternetInABox
from platform_process import Platform, command_lines, wait_until
from ssh_server import SshServer, make_key
from test_apps import Load
from test_published import PUBLISHED

NODE = {
    "package.json": json.dumps({"name": "a", "version": "1.0.0", "scripts": {"start": "node server.js", "build": "node build.js"}}),
    "build.js": "require('fs').writeFileSync('built.txt', 'built ' + process.env.FLAVOUR)",
    "server.js": """
const { readFileSync } = require("fs"), http = require("http");
http.createServer((_, answer) => answer.end(VERSION + " " + readFileSync("built.txt"))).listen(process.env.PORT, "0.0.0.0");
""",
}


def node(version: str) -> Dict[str, str]:
    return {**NODE, "server.js": NODE["server.js"].replace("VERSION", repr(version))}


@pytest.fixture(scope="module")
def internet() -> Iterator[InternetInABox]:
    with InternetInABox() as running:
        yield running


@pytest.fixture(scope="module")
def world(internet: InternetInABox) -> Iterator[Tuple[Platform, Path]]:
    with GitServer() as root:
        running = Platform(
            "pdsg", "10.222.0.0/16", "--warm", "base", "--resolver", RESOLVER, "--challenge-resolver", RESOLVER,
            "--schedules-private-targets",
        )
        try:
            yield running.start(), root
        finally:
            running.stop()


@pytest.fixture(scope="module")
def client(world: Tuple[Platform, Path]) -> Client:
    return Client(world[0])


def test_a_push_deploys_its_commit(world: Tuple[Platform, Path], client: Client) -> None:
    repository = Repository(world[1], "private/shop.git" if (world[1] / "private").mkdir() is None else "")
    first = repository.push(node("one"))
    settings = {"name": "shop", "git_url": repository.url, "webhook_secret": "hush", "env": {"FLAVOUR": "sweet"}}
    client.call("POST", "/apps", 201, json=settings)
    refused = client.ended("shop", client.call("POST", "/apps/shop/deploys", 202)["id"])
    assert refused["status"] == "failed" and "git_token" in refused["build_logs"], refused
    client.call("PATCH", "/apps/shop", 200, json={"git_token": "t0ken"})
    second = repository.push(node("two"))
    # An older commit, by its id.
    asked = client.call("POST", "/apps/shop/deploys", 202, json={"git_ref": first})
    done = client.live("shop", asked["id"])
    assert (done["git_commit"], done["framework"]) == (first, "node")
    assert "t0ken" not in done["build_logs"]
    assert client.page("shop") == "one built sweet"
    told = client.tell_push("shop", "hush", second)
    assert client.live("shop", told["deployment_id"])["git_commit"] == second
    assert client.page("shop") == "two built sweet"
    gone = client.ended("shop", client.call("POST", "/apps/shop/deploys", 202, json={"git_ref": "nope"})["id"])
    assert gone["status"] == "failed" and client.page("shop") == "two built sweet"


class Forge:
    """GitLab or Gitea, as it tells of a push."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url

    def push(self, delivery: str, commit: str, secret: str = "hush", before: str = "0" * 40) -> httpx.Response:
        said = {"ref": "refs/heads/main", "before": before, "after": commit, "commits": [{"id": commit, "message": "change"}]}
        if self.kind == "gitlab":
            body = json.dumps({"object_kind": "push", "checkout_sha": commit, "project_id": 1, **said}).encode()
            headers = {"x-gitlab-event": "Push Hook", "x-gitlab-event-uuid": delivery, "x-gitlab-token": secret}
        else:
            body = json.dumps({"head_commit": said["commits"][0], **said}).encode()  # type: ignore[index]
            proof = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
            headers = {}
            # The host also speaks GitHub's API.
            for name in ("gitea", "github"):
                headers.update({f"x-{name}-event": "push", f"x-{name}-delivery": delivery})
            headers.update({"x-gitea-signature": proof, "x-hub-signature-256": f"sha256={proof}"})
        return httpx.post(self.url, content=body, headers={"content-type": "application/json", **headers}, timeout=60)


@pytest.mark.parametrize("kind", ["gitlab", "gitea"])
def test_pushes_to_gitlab_and_gitea_deploy(world: Tuple[Platform, Path], client: Client, kind: str) -> None:
    repository = Repository(world[1], f"{kind}.git")
    old = repository.push({"index.html": "old"})
    commit = repository.push({"index.html": kind})
    app = client.call("POST", "/apps", 201, json={"name": kind, "git_url": repository.url, "webhook_secret": "hush"})
    forge = Forge(kind, app["webhook_url"])
    assert forge.push("1", commit, "wrong").status_code == 401
    assert client.call("GET", f"/apps/{kind}/deploys", 200)["items"] == []
    told = forge.push("1", commit)
    assert told.status_code == 202, told.text
    again = forge.push("1", commit)
    assert again.status_code == 200 and "already processed" in again.json()["ignored"], again.text
    done = client.live(kind, told.json()["deployment_id"])
    assert (done["trigger"], done["git_commit"]) == ("push", commit)
    assert client.page(kind) == kind
    assert client.call("GET", f"/apps/{kind}", 200)["git_host"] == kind
    # One that comes late changes nothing, although these hosts do not say whether the branch was set back.
    late = client.live(kind, forge.push("0", old).json()["deployment_id"])
    assert late["git_commit"] == commit and "is out of date" in late["build_logs"], late["build_logs"]
    assert client.page(kind) == kind
    repository.git("push", "-q", "-f", str(repository.bare), f"{old}:main", at=repository.clone)
    client.live(kind, forge.push("2", old).json()["deployment_id"])
    assert client.page(kind) == "old", "it was set back"
    # Two at the same instant: whichever is taken last, the branch is what serves.
    pushed = [repository.push({"index.html": text}) for text in ("third", "fourth")]
    with ThreadPoolExecutor(2) as both:
        told = list(both.map(forge.push, ("3", "4"), pushed))
    ended = [client.ended(kind, one.json()["deployment_id"])["status"] for one in told]
    assert "live" in ended and set(ended) <= {"live", "superseded"}, ended
    assert client.page(kind) == "fourth"
    client.call("DELETE", f"/apps/{kind}", 204)


def test_a_push_is_not_lost_when_the_git_host_lags(world: Tuple[Platform, Path], client: Client) -> None:
    (world[1] / "lag").mkdir()
    repository, host = Repository(world[1], "lag/mirror.git"), StatusHost()
    first = repository.push({"index.html": "first"})
    settings = {"git_token": "t0k3n", "git_api_url": f"http://127.0.0.1:{host.server_port}/api", "git_host": "github"}
    app = client.call("POST", "/apps", 201, json={"name": "lagging", "git_url": repository.url, "webhook_secret": "hush", **settings})
    forge = Forge("gitlab", app["webhook_url"])
    client.live("lagging", forge.push("1", first).json()["deployment_id"])
    # The branch still shows where it was; what was pushed is there by its id.
    second = repository.push({"index.html": "second"}, "elsewhere")
    done = client.live("lagging", forge.push("2", second, before=first).json()["deployment_id"])
    assert done["git_commit"] == second and "is out of date" not in done["build_logs"], done["build_logs"]
    assert client.page("lagging") == "second"
    # A missing commit fails, and is not taken for the one that serves.
    gone = client.ended("lagging", forge.push("3", "f" * 40, before=second).json()["deployment_id"])
    assert gone["status"] == "failed" and "could not fetch" in gone["build_logs"], gone
    # A push that is really late: its commit gets a final status.
    third, fourth = (repository.push({"index.html": text}) for text in ("third", "fourth"))
    client.live("lagging", forge.push("4", fourth, before=third).json()["deployment_id"])
    late = client.live("lagging", forge.push("5", third, before=second).json()["deployment_id"])
    assert late["git_commit"] == fourth and "is out of date" in late["build_logs"], late["build_logs"]
    assert client.page("lagging") == "fourth"
    wait_until("the late commit is not pending", lambda: [state for _, state, _ in host.of(third)][-1:] == ["error"], 60)
    assert [state for _, state, _ in host.of(fourth)][-1] == "success"
    # The push in between was not reported, as its message demands: the branch shows the commit before it.
    skipped, last = (repository.push({"index.html": text}, "elsewhere") for text in ("skipped", "last"))
    done = client.live("lagging", forge.push("6", last, before=skipped).json()["deployment_id"])
    assert done["git_commit"] == last and "is out of date" not in done["build_logs"], done["build_logs"]
    host.shutdown()
    client.call("DELETE", "/apps/lagging", 204)


def test_the_published_client_deploys_an_app(world: Tuple[Platform, Path], client: Client) -> None:
    assert (PUBLISHED / "pandastack").is_dir(), f"no published client in {PUBLISHED}: see tests/e2e/README.md"
    (world[1] / "team").mkdir(exist_ok=True)
    repository = Repository(world[1], "team/published.git")
    repository.push({"index.html": "published"})
    config = world[0].client_config()
    api = {"PANDASTACK_API": config["api_url"], "PANDASTACK_API_KEY": config["token"], "PYTHONPATH": str(PUBLISHED)}
    command = [sys.executable, str(Path(__file__).with_name("published_apps.py")), str(PUBLISHED), repository.url]
    ran = subprocess.run(command, env={**os.environ, **api}, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0 and '"passed": true' in ran.stdout, ran.stdout + ran.stderr


def test_a_hostile_repository_hurts_only_its_build(world: Tuple[Platform, Path], client: Client) -> None:
    repository = Repository(world[1], "evil.git")
    os.symlink("/etc/passwd", repository.clone / "index.html")
    (repository.clone / "out").symlink_to("/")
    bomb = {"pandastack.toml": '[app]\nbuild_command = "(while :; do sh -c \'sleep 60\' & done) 2>/dev/null; exit 1"\n',
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% /tmp/pwned\n', **node("evil")}
    repository.push(bomb)
    client.call("POST", "/apps", 201, json={"name": "evil", "git_url": repository.url})
    begun = client.call("POST", "/apps/evil/deploys", 202)["id"]
    wait_until("it builds", lambda: "building:" in client.call("GET", f"/apps/evil/deploys/{begun}", 200)["build_logs"], 200)
    client.http.post(f"/apps/evil/deploys/{begun}/cancel")
    assert client.ended("evil", begun)["status"] in ("failed", "canceled")
    assert not Path("/tmp/pwned").exists()
    client.call("DELETE", "/apps/evil", 204)


#: Takes every process and all memory that it can get. The first one is the last that the machine gives up.
BOMB = """
import os, time
def weigh(score):
    try: open("/proc/self/oom_score_adj", "w").write(score)
    except OSError: pass
weigh("-999")
while True:
    try:
        if os.fork() == 0:
            weigh("1000")
            while True:
                try: os.fork()
                except OSError: pass
    except OSError: pass
    time.sleep(1)
"""
#: How long it may rage.
BOMB_SECONDS = float(times(20, 6))


def test_a_fork_bomb_does_not_affect_other_apps(world: Tuple[Platform, Path], client: Client) -> None:
    beside = Repository(world[1], "beside.git")
    beside.push({"index.html": "beside"})
    client.call("POST", "/apps", 201, json={"name": "beside", "git_url": beside.url})
    assert deploy(client, "beside")["status"] == "live"
    repository = Repository(world[1], "bomb.git")
    repository.push({"pandastack.toml": '[app]\nbuild_command = "echo lit; python3 bomb.py"\n', "bomb.py": BOMB, "index.html": ""})
    client.call("POST", "/apps", 201, json={"name": "bomb", "git_url": repository.url})
    begun = client.call("POST", "/apps/bomb/deploys", 202)["id"]
    show = lambda: client.call("GET", f"/apps/bomb/deploys/{begun}", 200)
    wait_until("it rages", lambda: "\nlit" in show()["build_logs"], 200)
    over = time.monotonic() + BOMB_SECONDS
    shown: List[str] = []

    def rages_no_more() -> bool:
        shown.append(show()["status"])
        return time.monotonic() > over

    with Load({"name": "beside"}, api=client.url) as load:
        wait_until("it raged for a while", rages_no_more, BOMB_SECONDS * 3)
        count = len(load.texts)
        wait_until("the neighbour still answers", lambda: len(load.texts) > count + 8, 60)
    assert set(shown) == {"building"}, "it ended by itself"
    assert load.failures == [] and set(load.texts) == {"beside"}
    client.call("POST", f"/apps/bomb/deploys/{begun}/cancel", 202)
    assert client.ended("bomb", begun)["status"] == "canceled"
    for app in ("bomb", "beside"):
        client.call("DELETE", f"/apps/{app}", 204)


def test_a_deleted_git_branch_keeps_the_live_version(world: Tuple[Platform, Path], client: Client) -> None:
    repository = Repository(world[1], "gone.git")
    repository.push({"index.html": "one"})
    client.call("POST", "/apps", 201, json={"name": "gone", "git_url": repository.url, "webhook_secret": "hush"})
    assert deploy(client, "gone")["status"] == "live"
    second = repository.push({"index.html": "two"})
    # Deleted, and forgotten, between the push and the fetch.
    repository.git("update-ref", "-d", "refs/heads/main", at=repository.bare)
    repository.git("gc", "-q", "--prune=now", at=repository.bare)
    for ended in (client.ended("gone", client.tell_push("gone", "hush", second)["deployment_id"]), deploy(client, "gone")):
        assert ended["status"] == "failed" and "check that the branch exists" in ended["build_logs"], ended["build_logs"]
    assert client.page("gone") == "one"
    client.call("DELETE", "/apps/gone", 204)


def test_app_commands_work_with_a_repository(
    world: Tuple[Platform, Path], internet: InternetInABox, client: Client, tmp_path: Path
) -> None:
    repository = Repository(world[1], "typed.git")
    repository.push(node("one"), "live")
    config = world[0].client_config()
    env = {**os.environ, "PANDASTACK_API_URL": config["api_url"], "PANDASTACK_API_KEY": config["token"]}

    def app(*words: str, typed: str = "", expect: int = 0) -> str:
        command = [os.environ["PANDASTACK_BIN"], "app", *words]
        ran = subprocess.run(command, env=env, cwd=tmp_path, input=typed, capture_output=True, text=True, timeout=600)
        assert ran.returncode == expect, ran.stderr + ran.stdout
        return ran.stdout

    said = ["--env", "FLAVOUR=sweet", "--secret", "TOKEN=s3cret", "--idle-timeout", "600", "--webhook-secret", "hush"]
    url = app("deploy", "--git", repository.url, "--branch", "live", "--name", "typed", *said).strip()
    assert url.startswith("http://typed.localhost") and client.page("typed") == "one built sweet"
    shown = client.call("GET", "/apps/typed", 200)
    assert (shown["idle_timeout_seconds"], shown["git_branch"], "webhook_url" in shown) == (600, "live", True)
    repository.push(node("two"), "live")
    # Settings of an existing app apply too.
    app("deploy", "typed", "--env", "FLAVOUR=sour")
    assert client.page("typed") == "two built sour"
    assert "typed" in app("list") and "server.js" in app("logs", "typed")
    # In the app's directory, with its variables, all of it as it was written, and with its exit code.
    assert app("exec", "typed", "--", "pwd; echo $FLAVOUR; exit 7", expect=7) == "/srv/app\nsour\n"
    assert app("exec", "typed", "--cwd", "/tmp", "pwd") == "/tmp\n"
    assert app("exec", "typed", "-i", "--", "cat", typed="passed on") == "passed on"
    words = [os.environ["PANDASTACK_BIN"], "app", "exec", "typed", "head -c 20000000 /dev/zero | tr '\\0' '\\377'"]
    ran = subprocess.run(words, env=env, capture_output=True, timeout=600)
    assert ran.returncode == 0 and ran.stdout == b"\xff" * 20_000_000, (len(ran.stdout), ran.stderr)
    assert app("env", "set", "typed", "MORE=1") == "MORE\n"
    listed = app("env", "list", "typed")
    assert all(word in listed for word in ("FLAVOUR", "sour", "TOKEN", "MORE")) and "s3cret" not in listed, listed
    prove_domain(internet, app, client, "typed", "www.typed.example")
    answer = httpx.get(client.url + "/", headers={"host": "www.typed.example"}, timeout=60)
    assert answer.text == "two built sour"
    assert app("rollback", "typed").strip() == url and client.page("typed") == "one built sweet"
    assert app("url", "typed").strip() == url
    app("rm", "typed", typed="something else\n", expect=1)
    assert app("rm", "typed", typed="typed\n").strip() == "typed"
    client.call("GET", "/apps/typed", 404)


def test_polling_a_repository_deploys_a_new_commit_once(world: Tuple[Platform, Path], client: Client) -> None:
    repository = Repository(world[1], "polled.git")
    first = repository.push({"index.html": "one"})
    client.call("POST", "/apps", 400, json={"name": "polled", "git_url": repository.url, "poll_seconds": 29})
    settings = {"git_url": repository.url, "webhook_secret": "hush", "poll_seconds": 3600}
    client.call("POST", "/apps", 201, json={"name": "polled", **settings})

    def deployed(count: int) -> Any:
        found = client.call("GET", "/apps/polled/deploys", 200)["items"]
        return found if len(found) == count else None

    (one,) = wait_until("the first commit is found", lambda: deployed(1), 60)  # type: ignore[misc]
    assert (one["trigger"], one["git_commit"]) == ("poll", first)
    client.live("polled", one["id"])
    second = repository.push({"index.html": "two"})
    # Setting it again looks at once.
    client.call("PATCH", "/apps/polled", 200, json={"poll_seconds": 3600})
    two = wait_until("the second commit is found", lambda: deployed(2), 60)[0]  # type: ignore[index]
    assert "polling" in client.tell_push("polled", "hush", second)["ignored"]
    assert client.live("polled", two["id"])["git_commit"] == second
    assert client.page("polled") == "two" and deployed(2)
    client.call("DELETE", "/apps/polled", 204)


#: Says what its build and its run could see.
TELLTALE = {
    "pandastack.toml": '[app]\nbuild_command = "sh see.sh > built.txt"\n',
    "see.sh": 'echo "$OPEN $SECRET $LIVE $TRIAL $SHARED $HIDDEN" | tr -s " "; grep -qEs "s3cret|t0k3n" /proc/[0-9]*/environ && echo leaked; true\n',
    "main.py": """
import os, subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        seen = "VERSION | " + open("built.txt").read() + "| " + subprocess.check_output(["sh", "see.sh"], text=True)
        self.send_response(200); self.end_headers(); self.wfile.write(" ".join(seen.split()).encode())
HTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
""",
}


def telltale(version: str) -> Dict[str, str]:
    return {**TELLTALE, "main.py": TELLTALE["main.py"].replace("VERSION", version)}


class StatusHost(ThreadingHTTPServer):
    """A Git host that records statuses of commits. The first call is answered with an error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StatusHandler)
        self.told: List[Dict[str, Any]] = []
        self.calls = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def of(self, commit: str) -> List[Tuple[str, str, str]]:
        return [(one["context"], one["state"], one["target_url"]) for one in self.told if one["path"].endswith(commit)]


class StatusHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        host: StatusHost = self.server  # type: ignore[assignment]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        host.calls += 1
        if host.calls > 1:
            assert self.headers["authorization"] == "Bearer t0k3n"
            host.told.append({"path": self.path, **body})
        self.send_response(500 if host.calls == 1 else 201)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Hook:
    """A repository's host that tells of pull requests."""

    def __init__(self, client: Client, app: str, secret: str) -> None:
        self.url, self.secret, self.sent = client.call("GET", f"/apps/{app}", 200)["webhook_url"], secret, 0

    def pull(self, action: str, number: int, commit: str, *, head: int = 1, at: str = "", expect: int = 202) -> Dict[str, Any]:
        """Repository 1 tells of a pull request from a branch of `head`."""
        ends = {"head": {"ref": "fix", "sha": commit, "repo": {"id": head}}, "base": {"ref": "main", "repo": {"id": 1}}}
        about = {"title": "A fix", "updated_at": at or f"2026-01-01T00:{self.sent:02}:00Z", **ends}
        body = json.dumps({"action": action, "number": number, "pull_request": about, "repository": {"id": 1}}).encode()
        proof = "sha256=" + hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
        self.sent += 1
        names = {"x-github-event": "pull_request", "x-github-delivery": f"d{self.sent}", "x-hub-signature-256": proof}
        told = httpx.post(self.url, content=body, headers=names, timeout=60)
        assert told.status_code == expect, told.text
        answer: Dict[str, Any] = told.json()
        return answer


def test_a_pull_request_has_a_preview_until_it_is_closed(world: Tuple[Platform, Path], client: Client) -> None:
    (world[1] / "team").mkdir(exist_ok=True)
    repository = Repository(world[1], "team/previewed.git")
    host = StatusHost()
    settings = {"git_token": "t0k3n", "git_api_url": f"http://127.0.0.1:{host.server_port}/api"}
    client.call("POST", "/apps", 201, json={"name": "store", "git_url": repository.url, "webhook_secret": "hush", "env": {"OPEN": "open"}, **settings})
    for key, secret, scope in [("SECRET", True, "all"), ("LIVE", False, "production"), ("TRIAL", False, "preview")]:
        value = "s3cret" if secret else key.lower()
        client.call("PUT", f"/apps/store/env/{key}", 200, json={"value": value, "secret": secret, "scope": scope})
    # Variables of the repository come after the app's own.
    for key, value, secret in [("SHARED", "shared", False), ("HIDDEN", "s3cret2", True), ("TRIAL", "other", False)]:
        client.call("PUT", f"/repos/1/preview-env/{key}", 200, json={"value": value, "secret": secret})
    hook = Hook(client, "store", "hush")
    first = repository.push(telltale("one"), "fix")
    told = hook.pull("opened", 7, first)
    assert told["preview"] == "pr-7-store"
    client.live("pr-7-store", told["deployment_id"])
    assert client.page("pr-7-store") == "one | open s3cret trial shared s3cret2 leaked | open s3cret trial shared s3cret2 leaked"
    (listed,) = client.call("GET", "/apps/store/previews", 200)["items"]
    assert (listed["number"], listed["git_commit"], listed["fork"], listed["status"]) == (7, first, False, "running")
    assert "pr-7-store" not in [app["name"] for app in client.call("GET", "/apps", 200)["items"]]
    client.call("PATCH", "/apps/pr-7-store", 409, json={"port": 1})
    # Forks: not unless allowed, and then without secrets.
    assert "fork" in hook.pull("opened", 8, first, head=2, expect=200)["ignored"]
    client.call("PATCH", "/apps/store", 200, json={"previews": "all"})
    forked = hook.pull("opened", 8, first, head=2)
    second = repository.push(telltale("two"), "fix")
    updated = hook.pull("synchronize", 7, second)
    client.live("pr-8-store", forked["deployment_id"])
    assert client.page("pr-8-store") == "one | open trial shared | open trial shared"
    client.live("pr-7-store", updated["deployment_id"])
    assert client.page("pr-7-store").startswith("two |")
    # The repository's host knows how it went, although it failed at first.
    context, address = "pandastack/store (preview)", client.url.replace("127.0.0.1", "pr-7-store.localhost")
    said = [(context, "pending", address), (context, "success", address)]
    wait_until("the host is told", lambda: host.of(second) == said, 60)
    assert host.told[0]["path"] == f"/api/repos/team/previewed/statuses/{first}"
    host.shutdown()
    # Previews outlive the server, and closing a pull request ends its preview for good.
    machine = client.call("GET", "/apps/store/previews/7", 200)["sandbox_id"]
    kill(world[0], "control")
    wait_until("the server is back", lambda: answers(client, "/apps/store/previews/7"), 60)
    wait_until("it knows its host", world[0].is_ready, 120)
    assert client.page("pr-7-store").startswith("two |")
    late = hook.pull("closed", 7, first, at="2026-01-01T00:00:00Z", expect=200)
    assert "newer" in late["ignored"], "it was opened again, or changed, after that"
    assert client.page("pr-7-store").startswith("two |")
    assert hook.pull("closed", 7, second, at="2026-02-01T00:00:00Z")["preview"] == "pr-7-store"
    wait_until("its machine is gone", lambda: client.http.get(f"/sandboxes/{machine}").status_code == 404, 60)
    wait_until("its rows are gone", lambda: client.http.get("/apps/pr-7-store").status_code == 404, 60)
    assert httpx.get(client.url + "/", headers={"host": "pr-7-store.localhost"}, timeout=60).status_code == 404
    assert "closed" in hook.pull("synchronize", 7, second, expect=200)["ignored"]
    assert [one["number"] for one in client.call("GET", "/apps/store/previews", 200)["items"]] == [8]
    # The rest goes with the app.
    machine = client.call("GET", "/apps/store/previews/8", 200)["sandbox_id"]
    client.call("DELETE", "/apps/store", 204)
    assert client.http.get("/apps/pr-8-store").status_code == 404
    assert client.http.get(f"/sandboxes/{machine}").status_code == 404
    for key in ("SHARED", "HIDDEN", "TRIAL"):
        client.call("DELETE", f"/repos/1/preview-env/{key}", 204)


def answers(client: Client, path: str) -> bool:
    try:
        return client.http.get(path).status_code == 200
    except httpx.HTTPError:
        return False


def kill(platform: Platform, role: str) -> None:
    found = [pid for pid, line in command_lines().items() if f" {role}" in line and str(platform.data_dir) in line]
    assert found, f"no {role} of {platform.data_dir}"
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.parametrize("role", ["control", "agent"])
def test_a_killed_server_neither_loses_nor_hangs_a_deployment(world: Tuple[Platform, Path], client: Client, role: str) -> None:
    repository = Repository(world[1], f"crash-{role}.git")
    slow = {**node("crash"), "build.js": "setTimeout(() => require('fs').writeFileSync('built.txt', ''), 8000); console.log('began')"}
    repository.push(slow)
    app = f"crash-{role}"
    client.call("POST", "/apps", 201, json={"name": app, "git_url": repository.url})
    begun = client.call("POST", f"/apps/{app}/deploys", 202)["id"]
    wait_until("it builds", lambda: "began" in client.call("GET", f"/apps/{app}/deploys/{begun}", 200)["build_logs"], 200)
    kill(world[0], role)
    ended = client.ended(app, begun)
    assert ended["status"] == "live", ended["build_logs"]
    if role == "control":
        assert "starts again" in ended["build_logs"]
    assert client.page(app).startswith("crash")


@pytest.fixture(scope="module")
def ssh(world: Tuple[Platform, Path]) -> Iterator[SshServer]:
    with tempfile.TemporaryDirectory(prefix="pandastack-e2e-ssh-") as root, SshServer(Path(root), world[1]) as server:
        yield server


def deploy(client: Client, app: str) -> Dict[str, Any]:
    return client.ended(app, client.call("POST", f"/apps/{app}/deploys", 202)["id"])


def test_an_ssh_repository_uses_the_apps_own_deploy_key(world: Tuple[Platform, Path], client: Client, ssh: SshServer) -> None:
    repository = Repository(world[1], "keyed.git")
    first = repository.push({"index.html": "one"})
    app = client.call("POST", "/apps", 201, json={"name": "keyed", "git_url": f"git@{HOST}:keyed.git"})
    public = app["git_public_key"]
    assert (app["git_url"], public.split()[0], "git_known_hosts" in app) == (f"git@{HOST}:keyed.git", "ssh-ed25519", False)
    refused = deploy(client, "keyed")
    assert refused["status"] == "failed" and public in refused["build_logs"], "what to do about it"
    ssh.allow(public)
    done = deploy(client, "keyed")
    assert (done["status"], done["git_commit"]) == ("live", first), done["build_logs"]
    assert client.page("keyed") == "one" and len(ssh.accepted()) == 1
    # Nothing secret is stored for it, and the key that the host showed is noted.
    (spec,) = world[0].rows("SELECT spec FROM apps WHERE name = 'keyed'")[0]
    assert "PRIVATE KEY" not in spec
    assert client.call("GET", "/apps/keyed", 200)["git_known_hosts"] == ssh.known_hosts
    # Looking at the repository shows the same key.
    second = repository.push({"index.html": "two"})
    client.call("PATCH", "/apps/keyed", 200, json={"poll_seconds": 3600})
    found = lambda: [one for one in client.call("GET", "/apps/keyed/deploys", 200)["items"] if one.get("git_commit") == second]
    (polled,) = wait_until("the second commit is found", found, 60)  # type: ignore[misc]
    assert (polled["trigger"], client.live("keyed", polled["id"])["status"]) == ("poll", "live")
    # A host that suddenly shows another key is not trusted until a user confirms it.
    client.call("PATCH", "/apps/keyed", 200, json={"poll_seconds": 0})
    known = ssh.new_host_key()
    ssh.restart()
    refused = deploy(client, "keyed")
    assert refused["status"] == "failed" and "git_known_hosts" in refused["build_logs"], refused["build_logs"]
    assert client.page("keyed") == "two"
    client.call("PATCH", "/apps/keyed", 200, json={"git_known_hosts": known})
    assert deploy(client, "keyed")["status"] == "live"
    client.call("DELETE", "/apps/keyed", 204)


def test_a_custom_deploy_key_is_visible_only_to_git(
    world: Tuple[Platform, Path], client: Client, ssh: SshServer, tmp_path: Path
) -> None:
    public = make_key(tmp_path / "key")
    ssh.allow(public)
    repository = Repository(world[1], "given.git")
    # Its build looks for it; the brackets keep it from finding itself.
    look = 'grep -rlse "PRIVATE[ ]KEY" /run /srv /root /tmp /etc > seen || echo none > seen'
    commit = repository.push({"pandastack.toml": f"[app]\nbuild_command = '{look}'\n", "index.html": "given"})
    url = f"ssh://git@{HOST}{world[1]}/given.git"
    assert "without `.pub`" in client.call("POST", "/apps", 400, json={"name": "given", "git_url": url, "git_deploy_key": public})["error"]
    private = (tmp_path / "key").read_text()
    settings = {"git_deploy_key": private, "webhook_secret": "hush", "previews": "all"}
    made = client.call("POST", "/apps", 201, json={"name": "given", "git_url": url, **settings})
    assert made["git_public_key"].split()[:2] == public.split()[:2] and "PRIVATE" not in json.dumps(made)
    done = deploy(client, "given")
    assert done["status"] == "live" and private.splitlines()[1] not in done["build_logs"], done["build_logs"]
    machine = client.call("GET", "/apps/given", 200)["sandbox_id"]
    seen = client.call("POST", f"/sandboxes/{machine}/exec", 200, json={"cmd": "cat /srv/app/seen; ls -d /run/git"})
    assert seen["stdout"] == "none\n", seen
    # A fork's code must not come near the key.
    told = Hook(client, "given", "hush").pull("opened", 3, commit, head=2)
    ended = client.ended("pr-3-given", told["deployment_id"])
    assert ended["status"] == "failed" and "https URL" in ended["error"], ended
    client.call("DELETE", "/apps/given", 204)


def test_submodules_are_fetched_without_credentials_of_other_hosts(world: Tuple[Platform, Path], client: Client) -> None:
    (world[1] / "private").mkdir(exist_ok=True)
    for name in ("private/lib.git", "open.git"):
        Repository(world[1], name).push({"lib.txt": f"of {name}"})
    site = Repository(world[1], "private/site.git")
    site.push({"index.html": "site"})
    site.add_submodule("lib", world[1] / "private/lib.git", "../lib.git")
    site.add_submodule("open", world[1] / "open.git", f"http://{OTHER}:8418/open.git")
    site.push({})
    client.call("POST", "/apps", 201, json={"name": "nested", "git_url": site.url, "git_token": "t0ken"})
    done = deploy(client, "nested")
    assert done["status"] == "live", done["build_logs"]
    assert [client.page("nested", path) for path in ("/lib/lib.txt", "/open/lib.txt")] == ["of private/lib.git", "of open.git"]
    assert httpx.get(client.url + "/lib/.git", headers={"host": "nested.localhost"}, timeout=60).status_code == 404
    # The same repository under another host's name: the token is not for it.
    for path, url in [("lib", f"http://{OTHER}:8418/private/lib.git"), ("lib", "ext::sh -c touch% /tmp/pwned"), ("lib", "file:///srv")]:
        site.git("config", "-f", ".gitmodules", f"submodule.{path}.url", url, at=site.clone)
        site.push({})
        refused = deploy(client, "nested")
        assert refused["status"] == "failed" and "could not fetch a submodule" in refused["build_logs"], refused["build_logs"]
    assert client.page("nested") == "site" and not Path("/tmp/pwned").exists()
    client.call("DELETE", "/apps/nested", 204)
