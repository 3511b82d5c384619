"""Several machines per app: who answers, what a lost one costs, and how their number follows load and settings."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from typing import Any, Dict, Iterator, List, Set

import httpx
import pytest
from platform_process import Platform, wait_until
from test_apps import DEPLOY_SECONDS, Apps, Load

#: Answers with its version and with what tells its process from that of any other machine; in one piece, because an answer that has
#: begun ends with its machine.
SERVER = """
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
WHO = os.urandom(4).hex()
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    def do_GET(self):
        if self.path == "/slow": time.sleep(3)
        body = f"{version} {{WHO}}".encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
class Server(ThreadingHTTPServer):
    request_queue_size = 64
Server(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
"""


def server(version: str) -> Dict[str, str]:
    return {"main.py": SERVER.format(version=version)}


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    own = Platform("psi", "10.201.0.0/16", "--warm", "base")
    try:
        yield own.start()
    finally:
        own.stop()


@pytest.fixture(scope="module")
def apps(platform: Platform) -> Apps:
    config = platform.client_config()
    return Apps(config["api_url"].rstrip("/"), config["token"])


@pytest.fixture(scope="module")
def three(apps: Apps) -> Dict[str, Any]:
    app = apps.create(min_instances=3, max_instances=3)
    apps.live(apps.upload(app, server("one")))
    return app


def instances(apps: Apps, app: Dict[str, Any]) -> Dict[str, str]:
    """Status of each machine that serves."""
    shown = apps.call("GET", f"/apps/{app['id']}", 200)["instances"]
    return {one["sandbox_id"]: one["status"] for one in shown}


def answering(load: Load, version: str, last: int = 60) -> Counter[str]:
    """Number of the last answers that each machine of a version gave."""
    return Counter(text for text in load.texts[-last:] if text.startswith(f"{version} "))


def owned(platform: Platform, app: Dict[str, Any]) -> List[str]:
    """Machines that belong to an app, whatever its record says."""
    query = f"SELECT id FROM sandboxes WHERE owner = 'app:{app['id']}' AND state != 'deleted'"
    return sorted(row[0] for row in platform.rows(query))


def scale(apps: Apps, app: Dict[str, Any], **settings: int) -> Dict[str, Any]:
    """Says how many machines there are to be, and answers the deployment that follows."""
    apps.call("PATCH", f"/apps/{app['id']}", 200, json=settings)
    newest: Dict[str, Any] = apps.call("GET", f"/apps/{app['id']}/deploys", 200)["items"][0]
    assert newest["trigger"] == "scale", newest
    return newest


def test_requests_are_balanced_across_instances(apps: Apps, three: Dict[str, Any]) -> None:
    shown = apps.call("GET", f"/apps/{three['id']}", 200)
    assert [one["status"] for one in shown["instances"]] == ["running"] * 3
    assert shown["instances"][0]["sandbox_id"] == shown["sandbox_id"]
    with Load(three, 6, apps.api) as load:
        # A faster machine gets more, and a busy host lets one stand still for a while.
        shares = lambda: answering(load, "one", 120)
        fair = lambda: len(load.texts) >= 120 and len(shares()) == 3 and min(shares().values()) >= 12
        wait_until("fair shares", fair, 120)
    assert load.failures == []


def test_no_request_fails_while_instances_deploy_and_roll_back(apps: Apps, three: Dict[str, Any]) -> None:
    before = set(instances(apps, three))
    with Load(three, 6, apps.api) as load:
        apps.live(apps.upload(three, server("two")))
        wait_until("three machines of the new version", lambda: len(answering(load, "two")) == 3, 60)
        assert not before & set(instances(apps, three)), "they are new"
        back = apps.live(apps.call("POST", f"/apps/{three['id']}/rollback", 202))
        wait_until("three machines of the old version", lambda: len(answering(load, "one")) == 3, 60)
    assert load.failures == []
    assert set(instances(apps, three)) == before and back["build_logs"].count("responds again") == 3, back


def test_a_dead_instance_is_replaced_without_failed_requests(
    apps: Apps, platform: Platform, three: Dict[str, Any]
) -> None:
    before = instances(apps, three)
    lost = list(before)[0]

    def replaced() -> bool:
        now = instances(apps, three)
        return lost not in now and list(now.values()) == ["running"] * 3

    with Load(three, 6, apps.api) as load:
        wait_until("answers", lambda: len(answering(load, "one")) == 3, 60)
        (pid,) = platform.machine_pids(lost)
        os.kill(pid, signal.SIGKILL)
        wait_until("another machine in its place", replaced, DEPLOY_SECONDS)
        wait_until("answers of all", lambda: len(answering(load, "one")) == 3, 60)
    assert load.failures == []
    newest = apps.call("GET", f"/apps/{three['id']}/deploys", 200)["items"][0]
    assert (newest["trigger"], newest["status"]) == ("recovery", "live")
    kept: Set[str] = set(before) - {lost}
    assert kept < set(instances(apps, three)), "those that were good serve on"


def test_instance_counts_follow_the_limits_and_leak_nothing(
    apps: Apps, platform: Platform, three: Dict[str, Any]
) -> None:
    refused = apps.call("PATCH", f"/apps/{three['id']}", 400, json={"max_instances": 2})
    assert "min_instances" in refused["error"]
    with Load(three, 6, apps.api) as load:
        apps.live(scale(apps, three, min_instances=1, max_instances=1))
        (only,) = instances(apps, three)
        wait_until("one machine answers", lambda: len(answering(load, "one")) == 1, 60)
        # Holds from the next deployment on: machines of one version are alike.
        apps.call("PATCH", f"/apps/{three['id']}", 200, json={"port": 9000})
        apps.live(scale(apps, three, min_instances=1, max_instances=2))
        assert list(instances(apps, three))[0] == only
    assert load.failures == []
    begun = scale(apps, three, max_instances=3)
    wait_until("a machine is being started", lambda: "starting:" in apps.deployment(begun)["build_logs"], 60)
    platform.kill_role("control")
    wait_until("it goes on", lambda: apps.deployment(begun)["status"] == "live", DEPLOY_SECONDS)
    serving = set(instances(apps, three))
    assert len(serving) == 3 and only in serving
    # A version that a rollback left keeps its machines beside those that serve.
    deploys = apps.call("GET", f"/apps/{three['id']}/deploys", 200)["items"]
    uploads = [one["status"] for one in deploys if one["trigger"] == "upload"]
    assert uploads in (["superseded"], ["rolled_back", "superseded"]), "the second is uploaded by a test of --full"
    wait_until("nothing is left over", lambda: len(owned(platform, three)) == 3 * len(uploads), 60)
    assert serving <= set(owned(platform, three))
    apps.call("DELETE", f"/apps/{three['id']}", 204)
    wait_until("nothing is left", lambda: not owned(platform, three), 60)


def test_extra_instances_wake_under_load_and_sleep_when_idle(apps: Apps) -> None:
    app = apps.create(max_instances=2, idle_timeout_seconds=5)
    apps.live(apps.upload(app, server("one")))
    states = lambda: list(instances(apps, app).values())
    wait_until("both sleep", lambda: states() == ["hibernated"] * 2, 60)
    host = {"host": f"{app['name']}.localhost"}
    answers: List[httpx.Response] = []

    # One client: sixteen that begin would arrive one after the other.
    limits = httpx.Limits(max_connections=16)
    web = httpx.Client(base_url=apps.api, headers=host, timeout=60, limits=limits)

    def ask(path: str) -> None:
        answers.append(web.get(path))

    for _ in range(3):
        ask("/")
    assert states() == ["running", "hibernated"], "one is enough"
    crowd = [threading.Thread(target=ask, args=("/slow",)) for _ in range(16)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    web.close()
    assert [one.status_code for one in answers] == [200] * 19
    assert len({one.text for one in answers[3:]}) == 2, "the second machine helped"
    wait_until("both sleep again", lambda: states() == ["hibernated"] * 2, 60)
