"""Two tenants on one installation: what one has, the other neither sees nor reaches; one is suspended and comes back."""

from __future__ import annotations

import os
import time
from typing import Iterator

import pytest
from pandastack import NotFoundError, PandaStack, PermissionDeniedError


@pytest.fixture(scope="module")
def operator() -> Iterator[PandaStack]:
    """The operator's client, where the server lets emulated machines stand between tenants."""
    with PandaStack() as client:
        yield client


def test_a_tenant_is_isolated_suspended_and_resumed(operator: PandaStack) -> None:
    name = f"tenant-{os.getpid()}-{int(time.time())}"
    operator.workspaces.create(name, sandboxes=2)
    try:
        key = operator.tokens.create("tenant", role="owner", workspace=name)
        with PandaStack(api_key=key.token) as tenant:
            box = tenant.sandboxes.create(template="base")
            box.exec("echo kept > /root/note; (sleep 1000 & echo $! > /run/sleeper)", check=True)
            assert box.id not in [other.id for other in operator.sandboxes.list()]
            with pytest.raises(NotFoundError):
                operator.sandboxes.get(box.id)
            with pytest.raises(PermissionDeniedError):
                tenant.workspaces.list()
            began = time.monotonic()
            suspended = operator.workspaces.suspend(name, "a test")
            assert suspended["state"] == "suspended"
            with pytest.raises(PermissionDeniedError, match="a test"):
                box.exec("true")
            assert time.monotonic() - began < 30
            operator.workspaces.resume(name)
            told = box.exec("cat /root/note; kill -0 $(cat /run/sleeper) && echo alive", check=True).stdout
            assert told.split() == ["kept", "alive"], "its memory came back, too"
    finally:
        operator.workspaces.delete(name)
    assert name not in [workspace["id"] for workspace in operator.workspaces.list()]


def test_a_template_is_shared_with_a_tenant(operator: PandaStack) -> None:
    name = f"tenant-{os.getpid()}-{int(time.time())}"
    template = f"shared-{name}"
    operator.workspaces.create(name)
    snapshots = []
    try:
        tenant_key = operator.tokens.create("tenant", role="owner", workspace=name).token
        with operator.sandboxes.create(template="base", env={"GREETING": "hello"}, network="none") as box:
            box.exec("echo from the owner > /etc/note; (sleep 1000 & echo $! > /run/sleeper)", check=True)
            snapshots.append(box.snapshot().id)
        operator.templates.publish(snapshots[0], template)
        shared = f"default/{template}"
        with PandaStack(api_key=tenant_key) as tenant:
            with pytest.raises(NotFoundError):
                tenant.sandboxes.create(template=shared)
            sharing = operator.templates.set_sharing(template, [name]).sharing
            assert sharing == {"public": False, "workspaces": [name]}
            assert shared in [one.name for one in tenant.templates.list()]
            with tenant.sandboxes.create(template=shared) as copy:
                told = copy.exec("cat /etc/note; echo $GREETING; kill -0 $(cat /run/sleeper) && echo alive")
                assert told.stdout.splitlines() == ["from the owner", "hello", "alive"]
                assert copy.network() == {"egress": "all"}, "the owner's policy is the owner's"
                copy.exec("echo changed > /etc/note", check=True)
            dockerfile = f"FROM template://{shared}\nENV GREETING=bonjour\nRUN cat /etc/note > /built\n"
            build = tenant.templates.build("own", dockerfile=dockerfile)
            tenant.templates.wait_for_build(build.id)
            operator.templates.set_sharing(template)
            with pytest.raises(NotFoundError):
                tenant.sandboxes.create(template=shared)
            with tenant.sandboxes.create(template="own") as own:
                told = own.exec("cat /built; echo $GREETING", check=True)
                assert told.stdout.splitlines() == ["from the owner", "bonjour"]
    finally:
        operator.workspaces.delete(name)
        if template in [one.name for one in operator.templates.list()]:
            operator.templates.delete(template)
        for snapshot in snapshots:
            operator.snapshots.delete(snapshot)
