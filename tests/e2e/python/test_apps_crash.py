"""`kill -9` of control or agent at every step of a deployment, of control at every step of a delivery: the old version serves or the
new one, and nothing hangs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterator, List

import httpx
import pytest
from crash_operations import APP_POINTS
from crash_world import World
from platform_process import Platform, wait_until
from test_apps import DEPLOY_SECONDS, Apps

#: Versions beside the live one that are kept.
VERSIONS_KEPT = 3
UNDER_WAY = ("queued", "building", "deploying")
#: From here on the new version serves.
SWITCHED = ("control.deploy.switched", "control.deploy.ended")
DEPLOY_STEPS = [point for point in APP_POINTS if point.startswith("control.deploy.")]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    platform = Platform("psap", "10.204.0.0/16", "--warm", "base")
    world = World(platform)
    try:
        yield world.start()
    finally:
        platform.stop()


@pytest.fixture(scope="module")
def apps(world: World) -> Apps:
    config = world.platform.client_config()
    return Apps(config["api_url"].rstrip("/"), config["token"])


@pytest.fixture(scope="module")
def served(apps: Apps) -> Dict[str, Any]:
    app = apps.create(min_instances=1)
    apps.live(apps.upload(app, {"index.html": "first"}))
    return app


def page(apps: Apps, app: Dict[str, Any]) -> str:
    answer = httpx.get(apps.api + "/", headers={"host": f"{app['name']}.localhost"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def hold(world: World, point: str) -> Path:
    gate = wait_until(f"{point} is reached", lambda: world.faults.reached(point, set()), DEPLOY_SECONDS)
    assert isinstance(gate, Path)
    return gate


def owned(world: World, app: Dict[str, Any]) -> List[str]:
    """States of the machines that belong to an app, whatever its record says."""
    query = f"SELECT state FROM sandboxes WHERE owner = 'app:{app['id']}' AND state != 'deleted'"
    return sorted(str(row[0]) for row in world.platform.rows(query))


@pytest.mark.parametrize("step", DEPLOY_STEPS)
def test_a_control_kill_during_a_deploy_leaves_one_live_version(
    world: World, apps: Apps, served: Dict[str, Any], step: str
) -> None:
    before = page(apps, served)
    world.faults.arm(step)
    begun = apps.upload(served, {"index.html": step})
    hold(world, step)
    assert page(apps, served) in ([before, step] if step in SWITCHED else [before])
    world.strike("control", [])
    wait_until("it is over", lambda: apps.deployment(begun)["status"] not in UNDER_WAY, DEPLOY_SECONDS)
    ended = apps.deployment(begun)
    assert ended["status"] == "live", ended["build_logs"]
    assert page(apps, served) == step
    versions = apps.call("GET", f"/apps/{served['id']}/deploys", 200)["items"]
    assert [one["id"] for one in versions if one["status"] == "live"] == [begun["id"]]


@pytest.mark.parametrize("step", [point for point in APP_POINTS if point.startswith("control.hook.")])
def test_a_control_kill_neither_loses_nor_repeats_a_webhook(world: World, apps: Apps, step: str) -> None:
    app = apps.create(git_url="http://127.0.0.1:9/none.git", webhook_secret="hush")
    headers = {"x-gitlab-event": "Push Hook", "x-gitlab-event-uuid": "1", "x-gitlab-token": "hush"}
    body = json.dumps({"ref": "refs/heads/main", "after": "a" * 40})

    def deliver(seconds_max: float = 60) -> httpx.Response:
        return httpx.post(app["webhook_url"], content=body, headers=headers, timeout=seconds_max)

    world.faults.arm(step)
    with ThreadPoolExecutor(1) as host:
        cut_off = host.submit(deliver, DEPLOY_SECONDS)
        hold(world, step)
        assert not cut_off.done(), "it is answered before it was carried out"
        world.strike("control", [])
        # Either the server is gone, or the proxy in front of it answers: never a success.
        try:
            assert cut_off.result(DEPLOY_SECONDS).status_code >= 500
        except httpx.TransportError:
            pass
    again = deliver()
    assert again.status_code == (202 if step == "control.hook.proved" else 200), again.text
    assert "already processed" in deliver().json()["ignored"]
    assert len(apps.call("GET", f"/apps/{app['id']}/deploys", 200)["items"]) == 1


def test_machines_left_over_after_kills_sleep_or_are_deleted(world: World, apps: Apps, served: Dict[str, Any]) -> None:
    # An old version sleeps a minute after its last request; deliveries were tested meanwhile.
    # Machines of this app never sleep while they serve, so one that was not told otherwise would stay awake.
    kept = min(len(apps.call("GET", f"/apps/{served['id']}/deploys", 200)["items"]) - 1, VERSIONS_KEPT)
    expect = sorted(["running", *["hibernated"] * kept])
    wait_until("old versions sleep, and nothing else is there", lambda: owned(world, served) == expect, 180)


@pytest.mark.parametrize("step", DEPLOY_STEPS)
def test_an_agent_kill_during_a_deploy_leaves_one_live_version(
    world: World, apps: Apps, served: Dict[str, Any], step: str
) -> None:
    before, new = page(apps, served), f"agent {step}"
    world.faults.arm(step)
    begun = apps.upload(served, {"index.html": new})
    hold(world, step)
    world.strike("agent", [])
    wait_until("it is over", lambda: apps.deployment(begun)["status"] not in UNDER_WAY, DEPLOY_SECONDS)
    ended = apps.deployment(begun)
    # Requests to its machine are lost with the agent: the deployment may fail, but it reports that and leaves
    # the serving version alone.
    assert ended["status"] == "live" or (ended["status"] == "failed" and step not in SWITCHED), ended["build_logs"]
    expect = new if ended["status"] == "live" else before
    wait_until("it answers", lambda: shows(apps, served, expect), 120)
    versions = apps.call("GET", f"/apps/{served['id']}/deploys", 200)["items"]
    assert len([one for one in versions if one["status"] == "live"]) == 1, versions
    assert not [one for one in versions if one["status"] in UNDER_WAY], versions


def shows(apps: Apps, app: Dict[str, Any], text: str) -> bool:
    """Whether the app answers with that page. A new agent may still be adopting its machines."""
    try:
        answer = httpx.get(apps.api + "/", headers={"host": f"{app['name']}.localhost"}, timeout=60)
    except httpx.TransportError:
        return False
    assert answer.status_code in (200, 502, 503), answer.text
    return answer.status_code == 200 and answer.text == text
