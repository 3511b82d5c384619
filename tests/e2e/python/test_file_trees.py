"""Trees of files: ranges, append, attributes, search, archives, watching, signed URLs."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from pathlib import Path
from typing import Dict, Iterator, List

import httpx
import pytest

from conftest import PATIENCE_SECONDS, error_body, wait_for
from pandastack import BadRequestError, FileChange, NotFoundError, PandaStack, Sandbox


@pytest.fixture(scope="module")
def tree(shared: Sandbox) -> str:
    """A small tree with odd names, a link to a directory and a link to itself."""
    shared.exec(
        "mkdir -p '/srv/trees/src/deep er' && cd /srv/trees && printf 'fn main() {}\n// panda\n' > src/main.rs && "
        "printf 'one\nPANDA two\n' > 'src/deep er/übung.rs' && printf 'panda' > notes.txt && "
        "printf 'panda\\0' > binary && ln -s src link && ln -s loop loop",
        check=True,
    )
    return "/srv/trees"


def test_ranges(shared: Sandbox, raw: httpx.Client) -> None:
    shared.filesystem.write("/srv/ranged", bytes(range(100)))
    assert shared.filesystem.read("/srv/ranged", offset=10, length=5) == bytes(range(10, 15))
    assert shared.filesystem.read("/srv/ranged", offset=95) == bytes(range(95, 100))
    url = f"/sandboxes/{shared.id}/fs?path=/srv/ranged"
    part = raw.get(url, headers={"Range": "bytes=-3"})
    assert part.status_code == 206
    assert part.headers["content-range"] == "bytes 97-99/100"
    assert part.headers["content-length"] == "3"
    assert part.content == bytes([97, 98, 99])
    whole = raw.get(url)
    assert (whole.status_code, whole.headers["content-length"]) == (200, "100")
    assert whole.headers["accept-ranges"] == "bytes"
    beyond = raw.get(url, headers={"Range": "bytes=100-"})
    assert beyond.status_code == 416
    assert error_body(beyond)["code"] == "range_not_satisfiable"
    assert raw.get(url, headers={"Range": "bytes=0-1", "If-Range": '"x"'}).status_code == 200


def test_procfs_files_can_be_read(shared: Sandbox) -> None:
    assert "Linux version" in shared.filesystem.read_text("/proc/version")


def test_append_and_modes(shared: Sandbox) -> None:
    files = shared.filesystem
    files.write("/srv/appended", "one", mode=0o600)
    files.write("/srv/appended", "two", append=True)
    assert str(files.read("/srv/appended")) == "onetwo"
    assert files.stat("/srv/appended").permissions == 0o600
    files.write("/srv/appended", "new")
    assert files.stat("/srv/appended").permissions == 0o600, "replacing keeps permissions"
    made = files.write("/srv/users/own", "x", user="user")
    assert made["bytes"] == 1
    assert files.stat("/srv/users/own").owner == "user"


def test_an_interrupted_upload_changes_nothing(shared: Sandbox, raw: httpx.Client) -> None:
    shared.filesystem.write("/srv/whole/file", "old")

    def broken() -> Iterator[bytes]:
        yield b"x" * 1_000_000
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        raw.put(f"/sandboxes/{shared.id}/fs?path=/srv/whole/file", content=broken())
    wait_for(
        "the partial file is gone",
        lambda: [entry.name for entry in shared.filesystem.list("/srv/whole")] == ["file"],
    )
    assert str(shared.filesystem.read("/srv/whole/file")) == "old"


def test_attributes(shared: Sandbox, tree: str) -> None:
    files = shared.filesystem
    assert files.chmod(f"{tree}/notes.txt", 0o751).mode == "-rwxr-x--x"
    assert files.chown(f"{tree}/notes.txt", "user", "1234").owner == "user"
    assert files.stat(f"{tree}/notes.txt").gid == 1234
    files.chmod(f"{tree}/src", 0o700, recursive=True)
    assert files.stat(f"{tree}/src/deep er/übung.rs").permissions == 0o700
    with pytest.raises(BadRequestError):
        files.chown(f"{tree}/notes.txt", "nobody-here")
    with pytest.raises(NotFoundError):
        files.chmod("/srv/not/there", 0o644)


def test_list_find_grep(shared: Sandbox, tree: str) -> None:
    files = shared.filesystem
    paths = [entry.path for entry in files.list(tree, recursive=True)]
    assert f"{tree}/src/deep er/übung.rs" in paths
    assert f"{tree}/link/main.rs" not in paths, "links are not followed"
    assert len(files.list(tree, depth=1)) == 5
    assert [entry.name for entry in files.find(tree, "*.rs")] == ["übung.rs", "main.rs"]
    assert [entry.kind for entry in files.find(tree, "lin?")] == ["symlink"]
    found = files.grep("panda", tree, ignore_case=True)
    assert [(match.path.removeprefix(tree), match.line) for match in found] == [
        ("/notes.txt", 1),
        ("/src/deep er/übung.rs", 2),
        ("/src/main.rs", 2),
    ]
    assert [match.text for match in files.grep("main() {}", tree, fixed=True)] == ["fn main() {}"]
    with pytest.raises(BadRequestError, match="regular expression"):
        files.grep("(", tree)
    with pytest.raises(BadRequestError):
        files.list(tree, recursive=True, limit=10**9)


def test_copy_and_move(shared: Sandbox, tree: str) -> None:
    files = shared.filesystem
    files.copy(tree, "/srv/copies/of/it")
    assert files.stat("/srv/copies/of/it/notes.txt").owner == files.stat(f"{tree}/notes.txt").owner
    files.rename("/srv/copies/of/it", "/dev/shm/else/where", make_parents=True)
    assert str(files.read("/dev/shm/else/where/notes.txt")) == "panda"
    assert not files.exists("/srv/copies/of/it")
    with pytest.raises(BadRequestError, match="into itself"):
        files.copy(tree, f"{tree}/src/self")


def test_directories_are_transferred_as_archives(shared: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "ünter ordner").mkdir(parents=True)
    (source / "ünter ordner" / ("n" * 180)).write_bytes(b"long")
    (source / "tool").write_text("#!/bin/sh\n")
    (source / "tool").chmod(0o755)
    (source / "link").symlink_to("tool")
    large = os.urandom(3_000_000)
    (source / "large").write_bytes(large)
    shared.filesystem.upload_dir(source, "/srv/unpacked/here")
    assert shared.exec("cd /srv/unpacked/here && ./tool && readlink link").stdout == "tool\n"
    shared.filesystem.download_dir("/srv/unpacked/here", tmp_path / "out")
    assert (tmp_path / "out" / "large").read_bytes() == large
    assert (tmp_path / "out" / "ünter ordner" / ("n" * 180)).read_bytes() == b"long"
    assert os.readlink(tmp_path / "out" / "link") == "tool"
    with pytest.raises(NotFoundError):
        shared.filesystem.download_dir("/srv/not/there", tmp_path / "none")


def archive(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for member in members:
            made.addfile(member, io.BytesIO(b"evil"[: member.size]))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
    return info


HOSTILE: Dict[str, List[tarfile.TarInfo]] = {
    "parent": [member("../escaped")],
    "absolute": [member("/srv/escaped")],
    "through a link": [member("out", tarfile.SYMTYPE, "/srv"), member("out/escaped")],
    "through a relative link": [member("out", tarfile.SYMTYPE, ".."), member("out/escaped")],
    "hard link": [member("hard", tarfile.LNKTYPE, "../../etc/shadow")],
    "device": [member("null", tarfile.CHRTYPE)],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_rejected(shared: Sandbox, raw: httpx.Client, case: str) -> None:
    answer = raw.put(f"/sandboxes/{shared.id}/fs/tar?path=/srv/hostile", content=archive(*HOSTILE[case]))
    assert answer.status_code == 400
    assert error_body(answer)["code"] == "bad_request"
    assert not shared.filesystem.exists("/srv/escaped")


def test_a_body_that_is_not_an_archive_is_rejected(shared: Sandbox, raw: httpx.Client) -> None:
    url = f"/sandboxes/{shared.id}/fs/tar?path=/srv/hostile"
    for body in (b"", b"\x1f\x8b" * 1000, archive(member("x"))[:700]):
        assert raw.put(url, content=body).status_code == 400


class Watcher:
    """Collects the changes of a path until `stop`."""

    def __init__(self, sandbox: Sandbox, path: str, resume: str | None = None) -> None:
        self.changes: List[FileChange] = []
        self._stop = threading.Event()
        self._sandbox, self._path, self._resume = sandbox, path, resume
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with PandaStack() as client:
            sandbox = client.sandboxes.get(self._sandbox.id)
            for change in sandbox.filesystem.watch(self._path, resume=self._resume):
                self.changes.append(change)
                if self._stop.is_set():
                    return

    def wait(self, kind: str, path: str) -> FileChange:
        return wait_for(f"{kind} {path}, got {self.changes}", lambda: self.find(kind, path))

    def find(self, kind: str, path: str) -> FileChange | None:
        return next((c for c in self.changes if (c.kind, c.path) == (kind, path)), None)

    def end(self, sandbox: Sandbox) -> None:
        self._stop.set()
        sandbox.filesystem.write(f"{self._path}/the-end", "")
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def test_watch_and_resume(own: Sandbox) -> None:
    files = own.filesystem
    files.mkdir("/srv/watched")
    first = Watcher(own, "/srv/watched")
    # The watch has begun once a change is seen.
    wait_for("the watch", lambda: (files.write("/srv/watched/probe", "x"), first.changes)[1])
    own.exec("mkdir -p '/srv/watched/a/b c' && echo 1 > '/srv/watched/a/b c/ü' && mv /srv/watched/a /srv/watched/z")
    first.wait("created", "/srv/watched/a/b c/ü")
    assert first.wait("renamed", "/srv/watched/a").to == "/srv/watched/z"
    first.end(own)
    last = first.changes[-1].id
    own.exec("rm '/srv/watched/z/b c/ü'", check=True)
    own.hibernate()
    own.wake()
    second = Watcher(own, "/srv/watched", resume=last)
    second.wait("removed", "/srv/watched/z/b c/ü")
    assert not second.find("overflow", "/srv/watched")
    second.end(own)
    unknown = Watcher(own, "/srv/watched", resume="999-1")
    unknown.wait("overflow", "/srv/watched")
    unknown.end(own)


def test_signed_urls(client: PandaStack, shared: Sandbox) -> None:
    files = shared.filesystem
    put = files.signed_url("/srv/sig ned/ü", method="PUT", expires_in_seconds=60)
    assert httpx.put(put, content=b"by url").status_code == 200
    get = files.signed_url("/srv/sig ned/ü", expires_in_seconds=60)
    assert httpx.get(get).content == b"by url"
    assert httpx.get(get, headers={"Range": "bytes=3-"}).content == b"url"
    assert httpx.put(get, content=b"no").status_code == 401
    assert httpx.get(put).status_code == 401
    assert httpx.get(get.replace("path=/srv", "path=/etc")).status_code == 401
    assert httpx.get(get + "&path=/etc/shadow").status_code == 401
    changed = get[:-1] + ("0" if get[-1] != "0" else "1")
    assert httpx.get(changed).status_code == 401
    assert httpx.get(get.replace("/fs?", "/fs/stat?")).status_code == 401
    short = files.signed_url("/srv/sig ned/ü", expires_in_seconds=1)
    wait_for("it expires", lambda: httpx.get(short).status_code == 401)


def test_revoking_a_key_invalidates_its_signed_urls(client: PandaStack, shared: Sandbox) -> None:
    key = client.tokens.create("signer")
    with PandaStack(api_key=key.token) as signer:
        url = signer.sandboxes.get(shared.id).filesystem.signed_url("/etc/hostname")
    assert httpx.get(url).status_code == 200
    client.tokens.revoke(key.prefix)
    assert httpx.get(url).status_code == 401


@pytest.mark.parametrize("path", ["relative", "", "/a\0b", "/" + "x" * 5000])
@pytest.mark.parametrize("rest", ["/fs", "/fs/stat", "/fs/dir", "/fs/find", "/fs/tar", "/fs/watch"])
def test_invalid_paths_are_rejected(shared: Sandbox, raw: httpx.Client, rest: str, path: str) -> None:
    answer = raw.get(f"/sandboxes/{shared.id}{rest}", params={"path": path})
    assert error_body(answer)["code"] == "bad_request", answer.text


def test_path_links_are_followed_and_loops_rejected(shared: Sandbox, tree: str, raw: httpx.Client) -> None:
    files = shared.filesystem
    assert str(files.read(f"{tree}/src/../notes.txt")) == "panda"
    assert str(files.read(f"{tree}/link/main.rs")).startswith("fn main")
    for call in (files.read, files.list, files.find):
        with pytest.raises(BadRequestError, match="symbolic link"):
            call(f"{tree}/loop")
    with pytest.raises(BadRequestError, match="symbolic link"):
        files.write(f"{tree}/loop", "x")
