"""Volumes on real machines: what is written stays, one writes, copies are copies."""

from __future__ import annotations

import uuid
from typing import Callable, Dict, Iterator, List

import httpx
import pytest
from pandastack import BadRequestError, ConflictError, NotFoundError, PandaStack, Sandbox

from conftest import RUN, error_body

Attach = Callable[..., Sandbox]


@pytest.fixture
def names(client: PandaStack) -> Iterator[Callable[[str], str]]:
    """Fresh names of volumes; whatever has them is deleted at the end."""
    given: List[str] = []

    def name(start: str) -> str:
        given.append(f"{start}-{uuid.uuid4().hex[:10]}")
        return given[-1]

    yield name
    for made in given:
        try:
            for holder in client.volumes.get(made)["attached_to"]:
                client.sandboxes.delete(holder["sandbox_id"])
            client.volumes.delete(made)
        except NotFoundError:
            pass


def attach(client: PandaStack, name: str, **options: object) -> Sandbox:
    volume: Dict[str, object] = {"name": name, "path": "/data", **options}
    return client.sandboxes.create(template="base", ttl_seconds=900, metadata=RUN, volumes=[volume])


def run(sandbox: Sandbox, command: str) -> str:
    return sandbox.exec(command, timeout_seconds=120, check=True).stdout.strip()


def test_volume_data_outlives_the_sandbox(client: PandaStack, names: Callable[[str], str]) -> None:
    name = names("keep")
    made = client.volumes.create(name, 64)
    assert (made["size_mb"], made["generation"], made["attached_to"]) == (64, 0, [])
    with attach(client, name) as first:
        assert run(first, "findmnt -no FSTYPE,OPTIONS /data || grep ' /data ' /proc/mounts").find("ext4") >= 0
        # Not synced: deleting a sandbox must not cost what its programs were told is written.
        run(first, "echo kept > /data/file")
        assert client.volumes.get(name)["attached_to"] == [{"sandbox_id": first.id, "read_only": False}]
    assert client.volumes.get(name)["attached_to"] == []
    with attach(client, name) as second:
        assert run(second, "cat /data/file") == "kept"
    assert client.volumes.get(name)["generation"] == 2


def test_a_volume_has_one_writer_or_many_readers(client: PandaStack, names: Callable[[str], str]) -> None:
    name = names("lock")
    client.volumes.create(name, 64)
    with attach(client, name) as writer:
        run(writer, "echo shared > /data/file")
        for options in ({}, {"read_only": True}):
            with pytest.raises(ConflictError, match=writer.id):
                attach(client, name, **options)
        with pytest.raises(ConflictError, match=writer.id):
            client.volumes.delete(name)
    with attach(client, name, read_only=True) as one, attach(client, name, read_only=True) as two:
        assert [run(reader, "cat /data/file") for reader in (one, two)] == ["shared", "shared"]
        refused = one.exec("echo no > /data/file", timeout_seconds=60)
        assert not refused.ok and "ead-only" in refused.stderr
        # Not even around the file system: the host has the image open for reading only.
        raw_write = one.exec(
            "d=$(grep ' /data ' /proc/mounts | cut -d' ' -f1); dd if=/dev/zero of=$d bs=4096 count=1 conv=fsync",
            timeout_seconds=60,
        )
        assert not raw_write.ok, raw_write.stderr
        assert run(two, "echo 3 > /proc/sys/vm/drop_caches; cat /data/file") == "shared"
        with pytest.raises(ConflictError, match="reads"):
            attach(client, name)


def test_sleep_and_wake_keep_the_volume(client: PandaStack, names: Callable[[str], str]) -> None:
    name = names("sleep")
    client.volumes.create(name, 64)
    with attach(client, name) as sandbox:
        run(sandbox, "echo before > /data/file; exec 3>/data/open; echo half >&3")
        sandbox.hibernate()
        with pytest.raises(ConflictError, match=sandbox.id):
            attach(client, name)
        assert run(sandbox, "cat /data/file; echo after >> /data/file; cat /data/file").split() == [
            "before", "before", "after",
        ]
        sandbox.pause()
        sandbox.resume()
        assert run(sandbox, "cat /data/file").split() == ["before", "after"]


def test_a_fork_gets_its_own_copy_of_the_volume(client: PandaStack, names: Callable[[str], str]) -> None:
    name = names("fork")
    client.volumes.create(name, 64)
    with attach(client, name) as parent:
        run(parent, "echo both > /data/file; sync")
        with parent.fork() as child:
            run(child, "cat /data/file; echo child >> /data/file; sync")
            run(parent, "echo parent >> /data/file; sync")
            assert run(parent, "cat /data/file").split() == ["both", "parent"]
            assert run(child, "cat /data/file").split() == ["both", "child"]
            copies = [volume for volume in client.volumes.list() if volume["name"].startswith(f"{name}-")]
            assert [volume["attached_to"] for volume in copies] == [[{"sandbox_id": child.id, "read_only": False}]]
            assert copies[0]["delete_with_sandbox"]
        # The copy goes with the child; the original stays with its parent.
        assert not [volume for volume in client.volumes.list() if volume["name"].startswith(f"{name}-")]
        assert client.volumes.get(name)["attached_to"][0]["sandbox_id"] == parent.id


def test_a_sandbox_snapshot_includes_its_volume(client: PandaStack, names: Callable[[str], str]) -> None:
    name = names("snap")
    client.volumes.create(name, 64)
    with attach(client, name) as sandbox:
        run(sandbox, "echo then > /data/file")
        snapshot = sandbox.snapshot()
        run(sandbox, "echo now > /data/file; sync")
        with client.sandboxes.create(from_snapshot=snapshot, metadata=RUN) as copy:
            assert run(copy, "cat /data/file") == "then"
            run(copy, "echo copy > /data/file; sync")
        with pytest.raises(ConflictError, match="volume"):
            sandbox.rollback(snapshot)
        assert run(sandbox, "cat /data/file") == "now"
        client.snapshots.delete(snapshot)


def test_clones_and_snapshots_of_a_volume_in_use(client: PandaStack, names: Callable[[str], str]) -> None:
    name, clone, frozen = names("live"), names("clone"), names("frozen")
    client.volumes.create(name, 64)
    with attach(client, name) as sandbox:
        run(sandbox, "seq 10000 > /data/numbers")
        client.volumes.clone(name, clone)
        client.volumes.snapshot(name, frozen)
        run(sandbox, "echo changed > /data/numbers; sync")
        assert run(sandbox, "cat /data/numbers") == "changed"
    with attach(client, clone) as other:
        assert run(other, "wc -l < /data/numbers") == "10000"
        run(other, "echo own > /data/numbers")
    with pytest.raises(ConflictError, match="snapshot"):
        attach(client, frozen)
    with attach(client, frozen, read_only=True) as reader:
        assert run(reader, "wc -l < /data/numbers") == "10000"
    with pytest.raises(ConflictError):
        client.volumes.grow(frozen, 128)


def test_a_volume_grows_while_attached_or_detached(client: PandaStack, names: Callable[[str], str]) -> None:
    name = names("grow")
    client.volumes.create(name, 32)
    with attach(client, name) as sandbox:
        full = sandbox.exec("dd if=/dev/zero of=/data/big bs=1M count=60 conv=fsync", timeout_seconds=120)
        assert not full.ok and "space" in full.stderr
        grown = client.volumes.grow(name, 128)
        assert grown["size_mb"] == 128
        run(sandbox, "dd if=/dev/zero of=/data/big bs=1M count=60 conv=fsync")
        with pytest.raises(BadRequestError):
            client.volumes.grow(name, 64)
    # Detached, it grows too, and its file system follows when it is next mounted.
    assert client.volumes.grow(name, 192)["size_mb"] == 192
    with attach(client, name) as sandbox:
        run(sandbox, "test $(stat -c %s /data/big) = 62914560")
        assert int(run(sandbox, "df -m --output=size /data | tail -1")) > 150


def test_bad_volumes_are_rejected(client: PandaStack, raw: httpx.Client, names: Callable[[str], str]) -> None:
    name = names("rules")
    for body in ({"name": "Bad Name", "size_mb": 64}, {"name": name, "size_mb": 8}, {"name": name, "size_mb": 65537}):
        assert error_body(raw.post("/volumes", json=body))["code"] == "bad_request"
    client.volumes.create(name, 64, protected=True)
    with pytest.raises(ConflictError):
        client.volumes.create(name, 64)
    with pytest.raises(ConflictError, match="protected"):
        client.volumes.delete(name)
    client.volumes.update(name, protected=False)
    with pytest.raises(NotFoundError):
        attach(client, "no-such-volume")
    for path in ("/", "/proc", "/dev/shm", "/etc", "/usr", "/lib64", "relative", "/a/../b"):
        sent = {"template": "base", "volumes": [{"name": name, "path": path}]}
        assert error_body(raw.post("/sandboxes", json=sent))["code"] == "bad_request"
    many = {"template": "base", "volumes": [{"name": f"v{n}"} for n in range(5)]}
    assert error_body(raw.post("/sandboxes", json=many))["code"] == "bad_request"
    client.volumes.delete(name)
    with pytest.raises(NotFoundError):
        client.volumes.get(name)
