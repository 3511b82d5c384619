"""Files in and out of a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pandastack import BadRequestError, NotFoundError, Sandbox


@pytest.mark.parametrize(
    "name", ["plain", "with space", "ünïcödé 🐼", "a&b=c?d#e%f+g", "-dash", "quo'te\"s", "new\nline", "x" * 255]
)
def test_files_round_trip_under_any_name(shared: Sandbox, name: str) -> None:
    path = f"/srv/names/{name}"
    content = bytes(range(256))
    assert shared.filesystem.write(path, content)["bytes"] == 256
    assert shared.filesystem.read(path) == content
    assert shared.filesystem.stat(path).size == 256
    assert name in {entry.name for entry in shared.filesystem.list("/srv/names")}
    shared.filesystem.remove(path)
    assert not shared.filesystem.exists(path)


def test_write_truncates_and_may_be_empty(shared: Sandbox) -> None:
    shared.filesystem.write("/srv/short", "something long")
    shared.filesystem.write("/srv/short", "")
    assert shared.filesystem.read("/srv/short") == b""


def test_commands_and_the_file_api_see_the_same_files(shared: Sandbox) -> None:
    shared.filesystem.write("/srv/deep/er/file", "from outside")
    assert shared.exec("cat /srv/deep/er/file").stdout == "from outside"
    shared.exec("printf inside > /srv/deep/er/file", check=True)
    assert str(shared.filesystem.read("/srv/deep/er/file")) == "inside"


def test_directories(shared: Sandbox) -> None:
    files = shared.filesystem
    files.mkdir("/srv/tree/a/b")
    files.mkdir("/srv/tree/a/b")
    files.write("/srv/tree/a/f", "1")
    files.rename("/srv/tree/a/f", "/srv/tree/a/b/g")
    walked = {top: ([d.name for d in dirs], [f.name for f in found]) for top, dirs, found in files.walk("/srv/tree")}
    assert walked == {"/srv/tree": (["a"], []), "/srv/tree/a": (["b"], []), "/srv/tree/a/b": ([], ["g"])}
    assert files.stat("/srv/tree").is_dir
    files.remove("/srv/tree")
    assert not files.exists("/srv/tree")


def test_large_file_by_stream(shared: Sandbox, tmp_path: Path) -> None:
    content = os.urandom(20 * 1024 * 1024)
    (tmp_path / "in").write_bytes(content)
    shared.filesystem.upload(tmp_path / "in", "/srv/large")
    shared.filesystem.download("/srv/large", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content
    shared.filesystem.remove("/srv/large")


@pytest.mark.parametrize("call", ["read", "stat", "list", "remove"])
def test_missing_path(shared: Sandbox, call: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        getattr(shared.filesystem, call)("/srv/not/there")
    assert caught.value.code == "file_not_found"


def test_wrong_kind_of_path(shared: Sandbox) -> None:
    with pytest.raises(BadRequestError):
        shared.filesystem.read("/etc")
    with pytest.raises(BadRequestError):
        shared.filesystem.list("/etc/hostname")
    with pytest.raises(BadRequestError):
        shared.filesystem.write("/etc/hostname/below", "x")
