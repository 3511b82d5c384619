"""Sleepers and snapshots of an earlier guest program: listed, refused, and restarted from their disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import pytest
from pandastack import ConflictError, PandaStack, Sandbox

from counter import start_counter
from platform_process import Platform, wait_until

ADVISORY = '[[advisory]]\nid = "E2E-1"\ncomponent = "guest"\nbelow = "0.0.2"\n'


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    advisories = tmp_path_factory.mktemp("outdated") / "advisories.toml"
    advisories.write_text(ADVISORY)
    running = Platform(
        "pso", "10.233.0.0/16", "--warm", "base", "--light-sleep-seconds", "0",
        "--outdated", "cold-restart", "--outdated-grace-days", "0", "--outdated-check-seconds", "1",
        "--outdated-only-advisories", "--advisories", str(advisories),
    )
    try:
        yield running.start()
    finally:
        running.stop()


def age(directory: Path) -> None:
    """As if an earlier version had frozen it."""
    manifest = directory / "manifest.json"
    content = json.loads(manifest.read_text())
    assert content["kernel"] and content["guest"]["build"] and content["engine"]["version"], content
    manifest.write_text(json.dumps({**content, "guest": {"version": "0.0.1", "build": "0000000000000000"}}))


def listed(client: PandaStack, of: str) -> Optional[Dict[str, Any]]:
    return next((dict(item) for item in client.outdated()["items"] if item["id"] == of), None)


def verdict(client: PandaStack, of: str) -> Dict[str, Any]:
    """The list's entry of a state, once the policy applies to it."""
    def due() -> Optional[Dict[str, Any]]:
        item = listed(client, of)
        return item if item and item["action"] != "keep" else None
    found = wait_until("a verdict", due, 60)
    assert isinstance(found, dict)
    return found


def new_boot(sandbox: Sandbox) -> str:
    return sandbox.exec("cat /proc/sys/kernel/random/boot_id", timeout_seconds=120, check=True).stdout


def test_an_outdated_state_is_listed_refused_and_restarted(platform: Platform) -> None:
    client, store = platform.client(), platform.data_dir / "store"
    with client.sandboxes.create("base") as sandbox:
        start_counter(sandbox)
        before = new_boot(sandbox)
        snapshot = sandbox.snapshot()
        # Not synced: it is in the memory of the guest alone.
        sandbox.filesystem.write("/srv/kept", "written last")
        sandbox.hibernate()
        assert listed(client, sandbox.id) is None and listed(client, snapshot) is None
        age(store / "sandboxes" / sandbox.id / "sleep")
        age(store / "snapshots" / snapshot)

        item = verdict(client, sandbox.id)
        guest = next(one for one in item["components"] if one["component"] == "guest")
        assert guest["found"].startswith("0.0.1") and guest["advisories"][0]["id"] == "E2E-1", item
        assert "outdated" in [event["kind"] for event in sandbox.events()], "the owner was told"
        assert sandbox.filesystem.read_text("/srv/kept") == "written last"
        assert new_boot(sandbox) != before and not sandbox.exec("cat /dev/shm/count").ok, "it has no memory"
        assert listed(client, sandbox.id) is None

        # A sandbox of the snapshot starts from its disk, too.
        verdict(client, snapshot)
        with client.sandboxes.create(from_snapshot=snapshot) as copy:
            assert new_boot(copy) != before and not copy.exec("cat /dev/shm/count").ok

        # The file that the agent would keep under another policy.
        kept = store / "snapshots" / snapshot / "outdated.json"
        content = json.loads(kept.read_text())
        wait_until("a refusal", lambda: refused(client, snapshot, kept, content), 180)
        with pytest.raises(ConflictError) as failure:
            sandbox.rollback(snapshot)
        assert "outdated guest program 0.0.1" in str(failure.value), failure.value
        assert sandbox.exec("true").ok


def refused(client: PandaStack, snapshot: str, kept: Path, content: Dict[str, Any]) -> bool:
    """Whether a create is refused. Control may have set its own verdict again meanwhile."""
    kept.write_text(json.dumps({**content, "action": "refuse"}))
    try:
        client.sandboxes.create(from_snapshot=snapshot).delete()
    except ConflictError as failure:
        assert failure.code == "snapshot_unusable" and "E2E-1" in str(failure), failure
        return True
    return False
