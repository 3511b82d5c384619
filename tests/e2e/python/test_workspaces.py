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
