"""Templates that are built again, and moved through a file."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
import uuid
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from image_registry import Image
from platform_process import BINARY
from test_image_builds import base_layer, busybox

from conftest import RUN
from pandastack import NotFoundError, PandaStack, rebuild_target

__all__ = ["busybox"]

#: A package whose version is new with every build.
DOCKERFILE = """\
FROM oci-layout://image
COPY greeting /srv/greeting
RUN mkdir -p /var/lib/dpkg && printf 'Package: e2e\\nStatus: install ok installed\\nVersion: %s\\n' \\
    "$(cat /proc/sys/kernel/random/uuid)" > /var/lib/dpkg/status
ENV GREETING=hello
WORKDIR /srv
USER user
"""
START = "touch /tmp/up && exec sleep 100000"


@pytest.fixture
def names(client: PandaStack) -> Iterator[List[str]]:
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    made = [name, f"{name}-moved"]
    yield made
    for name in made:
        try:
            client.templates.delete(name)
        except NotFoundError:
            pass


@pytest.fixture
def directory(busybox: bytes, tmp_path: Path) -> Path:
    """Build files with an image, which has a file with an attribute."""
    layer = base_layer(busybox).folder("srv")
    entry = tarfile.TarInfo("srv/marked")
    entry.mode, entry.uid, entry.pax_headers = 0o4750, 7, {"SCHILY.xattr.user.kind": "text"}
    layer.archive.addfile(entry, io.BytesIO())
    with tarfile.open(fileobj=io.BytesIO(Image.of([layer.tar()], {}).docker_archive())) as archive:
        archive.extractall(tmp_path / "build/image")
    (tmp_path / "build/greeting").write_text("hi\n")
    (tmp_path / "build/Dockerfile").write_text(DOCKERFILE)
    return tmp_path / "build"


def pandastack(*words: str) -> Any:
    done = subprocess.run([BINARY, "--json", *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def exported_files(path: Path) -> "dict[str, tarfile.TarInfo]":
    """The files of the only layer of an exported template."""
    with tarfile.open(path) as archive:
        read = lambda name: archive.extractfile(name).read()  # type: ignore[union-attr]
        blob = lambda digest: read("blobs/" + digest.replace(":", "/"))
        [manifest] = json.loads(read("index.json"))["manifests"]
        [layer] = json.loads(blob(manifest["digest"]))["layers"]
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(layer["digest"])))) as files:
            return {entry.name: entry for entry in files}


def test_a_template_is_rebuilt_and_moved(
    client: PandaStack, names: List[str], directory: Path, tmp_path: Path
) -> None:
    name, moved = names
    first = client.templates.build(
        name, directory, keep_inputs=True, start_command=START, ready={"file": "/tmp/up"}
    )
    client.templates.wait_for_build(first.id, poll_interval=0.2)
    built = pandastack("template", "rebuild", name)
    [package] = built["changes"]["packages"]
    assert package["name"] == "e2e" and package["before"] != package["after"], built
    assert built["changes"]["base_before"] == built["changes"]["base_after"] is not None, built
    version = client.templates.get(name).version or {}
    assert (version["build_id"], version["changes"]) == (built["id"], built["changes"])
    assert built["cached_steps"] == 0

    # What the schedule runs is the same; the tests of control run it.
    schedule = pandastack("template", "rebuild", name, "--every", "24h")
    changed = pandastack("template", "rebuild", name, "--cron", "@yearly")
    assert (changed["id"], changed["target"]) == (schedule["id"], rebuild_target(name)), changed
    pandastack("template", "rebuild", name, "--off")
    assert schedule["id"] not in [one["id"] for one in client.schedules.list()]

    # The file is an image, which any installation makes a template of.
    file = tmp_path / "template.tar"
    exported = pandastack("template", "export", name, str(file))
    assert exported["size_bytes"] == file.stat().st_size
    files = exported_files(file)
    marked = files["srv/marked"]
    kind = marked.pax_headers.get("SCHILY.xattr.user.kind")
    assert (marked.mode, marked.uid, kind) == (0o4750, 7, "text"), marked
    assert {"proc", "srv/greeting", "bin/sh"} <= set(files), sorted(files)
    assert not {"etc/hosts", "etc/resolv.conf"} & set(files)
    assert not [path for path in files if path.startswith(("proc/", "sys/", "dev/", "run/"))]
    again = [BINARY, "template", "export", name, str(file)]
    refused = subprocess.run(again, capture_output=True, text=True)
    assert refused.returncode != 0 and "--force" in refused.stderr, refused
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build", file.name], "nothing else is left"
    imported = pandastack("template", "import", str(file), "--name", moved)
    assert imported["version"]["start_command"] == START, imported
    for template in names:
        with client.sandboxes.create(template=template, metadata=RUN) as sandbox:
            shown = sandbox.exec("cat greeting /proc/[0-9]*/comm; echo $GREETING; pwd; id -u")
            lines = shown.stdout.split("\n")
            assert (lines[0], lines[-4:-1]) == ("hi", ["hello", "/srv", "1000"]), shown
            assert "sleep" in lines, shown
