"""`kill -9` of control or agent at every step of a template build: it ends, and leaves nothing behind."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from crash_operations import TEMPLATE_POINTS
from crash_world import World
from pandastack import PandaStack
from platform_process import Platform, wait_until

BUILD_SECONDS = 180.0
IN_PROGRESS = ("queued", "running")
#: From here on a version is published, whoever is killed.
PUBLISHED = "control.template.published"
DOCKERFILE = "FROM base\nRUN echo {name} > /etc/first\nRUN cat /etc/first > /etc/second\n"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    platform = Platform("pstc", "10.205.0.0/16", "--warm", "base")
    world = World(platform)
    try:
        yield world.start()
    finally:
        platform.stop()


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[PandaStack]:
    with world.platform.client() as made:
        yield made


def ended(world: World, build: str) -> Dict[str, Any]:
    """The build, once it is over. Its server may be starting."""

    def over() -> Dict[str, Any]:
        answer = world.until_done("the build is shown", "GET", f"/templates/builds/{build}")
        shown: Dict[str, Any] = answer.json()
        return {} if shown["status"] in IN_PROGRESS else shown

    found = wait_until("the build ends", over, BUILD_SECONDS)
    assert isinstance(found, dict)
    return found


def machines(world: World) -> List[str]:
    rows = world.platform.rows("SELECT id FROM sandboxes WHERE owner LIKE 'build:%' AND state != 'deleted'")
    return [str(row[0]) for row in rows]


def unused_layers(world: World) -> List[str]:
    """Snapshots of builds that neither the cache nor a version names."""
    rows = world.platform.rows(
        "SELECT id FROM snapshots WHERE spec LIKE '%\"build:%'"
        " AND id NOT IN (SELECT snapshot_id FROM template_layers)"
        " AND id NOT IN (SELECT snapshot_id FROM template_builds WHERE snapshot_id IS NOT NULL)"
    )
    return [str(row[0]) for row in rows]


@pytest.mark.parametrize("step", TEMPLATE_POINTS)
@pytest.mark.parametrize("victim", ["control", "agent"])
def test_a_kill_during_a_template_build_leaves_nothing(
    world: World, client: PandaStack, tmp_path: Path, victim: str, step: str
) -> None:
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.format(name=name))
    world.faults.arm(step)
    begun = client.templates.build(name, tmp_path).id
    wait_until(f"{step} is reached", lambda: world.faults.reached(step, set()), BUILD_SECONDS)
    world.strike(victim, [])
    shown = ended(world, begun)
    if victim == "control":
        # Not resumed: its steps are in the cache, and the next build goes on from them.
        assert shown["status"] == ("done" if step == PUBLISHED else "failed"), shown
    assert shown["status"] == "done" or "build again" in shown["error"] or victim == "agent", shown
    wait_until("no machine of a build is left", lambda: not machines(world), BUILD_SECONDS)
    wait_until("no layer is kept that nobody uses", lambda: not unused_layers(world), BUILD_SECONDS)

    again = client.templates.build(name, tmp_path).id
    shown = ended(world, again)
    assert shown["status"] == "done", shown
    with client.sandboxes.create(template=name) as sandbox:
        assert sandbox.exec("cat /etc/second").stdout == f"{name}\n"
    client.templates.delete(name)
    wait_until("its layers are deleted", lambda: not unused_layers(world), BUILD_SECONDS)
