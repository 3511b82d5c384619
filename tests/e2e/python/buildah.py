"""Debian's `buildah`, unpacked and not installed: what another builder makes of a Dockerfile."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any, Dict, List

PACKAGES = ("buildah", "libdevmapper1.02.1", "libgpgme11", "libassuan0", "libseccomp2", "patchelf")
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
#: Whatever is pulled here comes from an archive on this disk.
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'


def unpacked(names: "tuple[str, ...]", to: Path) -> Path:
    """The packages, unpacked into a directory of the cache. The program finds its libraries there."""
    if not (to / "complete").exists():
        to.mkdir(parents=True, exist_ok=True)
        script = """apt-get download "$@" || { apt-get update -q && apt-get download "$@"; }
        for package in *.deb; do dpkg -x "$package" .; done; rm ./*.deb"""
        subprocess.run(["sh", "-ec", script, "sh", *names], cwd=to, check=True, capture_output=True)
        # buildah starts itself again without variables.
        paths = ":".join(str(to / path) for path in LIBRARIES)
        change = [to / "usr/bin/patchelf", "--force-rpath", "--set-rpath", paths, to / "usr/bin/buildah"]
        subprocess.run([str(word) for word in change], check=True)
        (to / "complete").touch()
    return to


def cache(name: str) -> Path:
    return Path(os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack")) / name


class Buildah:
    """Builds into a storage of its own. Commands run by `chroot`, as root, on this host."""

    def __init__(self, root: Path) -> None:
        tree = unpacked(PACKAGES, cache("buildah"))
        self.environment = {
            **os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(root),
            "CONTAINERS_REGISTRIES_CONF": str(root / "registries.conf"),
        }
        (root / "registries.conf").write_text("unqualified-search-registries = []\n")
        (root / "policy.json").write_text(POLICY)
        storage = ["--root", str(root / "images"), "--runroot", str(root / "run"), "--storage-driver", "vfs"]
        self.words, self.policy = [str(tree / "usr/bin/buildah"), *storage], str(root / "policy.json")

    def run(self, command: str, *words: str) -> str:
        done = subprocess.run(
            [*self.words, command, *words], env=self.environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"buildah {command}: {done.stderr[-2000:]}{done.stdout[-2000:]}"
        return done.stdout.strip()

    def load(self, archive: Path, name: str) -> None:
        """An image of `docker save`, under a name."""
        pulled = self.run("pull", "-q", "--signature-policy", self.policy, f"docker-archive:{archive}")
        self.run("tag", pulled.splitlines()[-1], name)

    def build(self, directory: Path, *options: str) -> str:
        """The id of the image."""
        words = ["--signature-policy", self.policy, "--pull-never", "--layers", "--format", "docker", "-q"]
        return self.run("build", *words, *options, str(directory)).splitlines()[-1]

    def settings(self, image: str) -> Dict[str, Any]:
        shown = json.loads(self.run("inspect", "--type", "image", image))
        settings: Dict[str, Any] = shown["Docker"]["config"]
        return settings

    def tree(self, image: str) -> Dict[str, str]:
        """The entry at every path of an image, in the form of [`line`]."""
        container = self.run("from", "--signature-policy", self.policy, "--pull-never", image)
        try:
            return tree_of(Path(self.run("mount", container)))
        finally:
            self.run("rm", container)


def line(mode: int, owner: "tuple[int, int]", links: int, rest: str) -> str:
    """A file as text. Directories have as many links as the file system counts."""
    kept = f" {links} links" if stat.S_ISREG(mode) else ""
    return f"{mode:o} {owner[0]}:{owner[1]}{kept} {rest}".strip()


def tree_of(root: Path) -> Dict[str, str]:
    found: Dict[str, str] = {}
    paths: List[Path] = [root]
    for directory, folders, files in os.walk(root):
        paths += [Path(directory) / name for name in (*folders, *files)]
    for path in paths:
        seen = path.lstat()
        rest = ""
        if stat.S_ISLNK(seen.st_mode):
            rest = "-> " + os.readlink(path)
        elif stat.S_ISREG(seen.st_mode):
            rest = hashlib.md5(path.read_bytes()).hexdigest()
        mode = 0o120777 if stat.S_ISLNK(seen.st_mode) else seen.st_mode
        name = "/" + str(path.relative_to(root)) if path != root else "/"
        found[name] = line(mode, (seen.st_uid, seen.st_gid), seen.st_nlink, rest)
    return found
