"""Builds of apps: what is kept from one for the next, and sources that are too large for any."""

from __future__ import annotations

import socket
from typing import Any, Dict, Iterator
from urllib.parse import urlsplit

import pytest
from test_apps import API, KEY, Apps, get, read_until, server

#: Bytes of a source at most.
SOURCE_BYTES_MAX = 512 << 20


@pytest.fixture(scope="module")
def apps() -> Iterator[Apps]:
    with Apps() as made:
        yield made


def test_packages_installed_by_a_failed_build_are_reused(apps: Apps) -> None:
    app = apps.create()
    settings = '[app]\ninstall_command = "echo installs"\nbuild_command = "exit {}"\n'
    source = {**server("one"), "requirements.txt": ""}
    failed = apps.finished(apps.upload(app, {**source, "pandastack.toml": settings.format(3)}))
    assert failed["status"] == "failed" and "\ninstalls" in failed["build_logs"], failed
    repaired = apps.live(apps.upload(app, {**source, "pandastack.toml": settings.format(0)}))
    assert "dependencies restored, not reinstalled" in repaired["build_logs"], repaired["build_logs"]
    assert "\ninstalls" not in repaired["build_logs"]


def test_changed_pip_includes_are_reinstalled(apps: Apps) -> None:
    app = apps.create()
    settings = '[app]\ninstall_command = "sed s/^/installs-/ requirements/*.txt"\n'
    source = {**server("one"), "requirements.txt": "-r requirements/prod.txt\n", "pandastack.toml": settings}
    first = apps.live(apps.upload(app, {**source, "requirements/prod.txt": "flask==1\n"}))
    assert "\ninstalls-flask==1" in first["build_logs"], first["build_logs"]
    same = apps.live(apps.upload(app, {**source, "requirements/prod.txt": "flask==1\n"}))
    assert "dependencies restored, not reinstalled" in same["build_logs"], same["build_logs"]
    changed = apps.live(apps.upload(app, {**source, "requirements/prod.txt": "flask==2\n"}))
    assert "\ninstalls-flask==2" in changed["build_logs"], changed["build_logs"]


#: A package that builds itself, so that nothing is fetched for it; its code is found where it was installed alone.
PACKAGED = {
    "pyproject.toml": """
[project]
name = "shop"
version = "1"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
""",
    "backend.py": """
import zipfile
def build_wheel(directory, *_):
    name = "shop-1-py3-none-any.whl"
    with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
        # Its text, not the file: archives of this test have no times, and a wheel knows none before 1980.
        wheel.writestr("shop.py", open("src/shop.py").read())
        wheel.writestr("shop-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: shop\\nVersion: 1\\n")
        wheel.writestr("shop-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("shop-1.dist-info/RECORD", "")
    return name
""",
    "main.py": "import shop\n",
}


def test_cached_dependencies_do_not_hide_changes_to_the_apps_package(apps: Apps) -> None:
    app = apps.create()
    for version in ("one", "two"):
        ended = apps.live(apps.upload(app, {**PACKAGED, "src/shop.py": server(version)["main.py"]}))
        assert get(app).text.startswith(f"{version} "), ended["build_logs"]
    assert "dependencies restored, not reinstalled" in ended["build_logs"], ended["build_logs"]


def test_an_oversized_source_is_rejected_before_upload(apps: Apps) -> None:
    app = apps.create()
    address = urlsplit(API)
    with socket.create_connection((address.hostname, address.port or 80), timeout=60) as stream:
        head = [
            f"POST /v1/apps/{app['id']}/deploys HTTP/1.1",
            f"Host: {address.netloc}",
            f"Authorization: Bearer {KEY}",
            "Content-Type: application/x-tar",
            f"Content-Length: {SOURCE_BYTES_MAX + 1}",
        ]
        stream.sendall("\r\n".join([*head, "", ""]).encode())
        answer = read_until(stream, b"}")
    assert answer.startswith(b"HTTP/1.1 413") and b"leave out build output" in answer, answer
    assert apps.call("GET", f"/apps/{app['id']}/deploys", 200)["items"] == []


#: Takes memory until there is none.
HUNGRY = """
held = []
while True: held.append(b"x" * (8 << 20))
"""
#: Takes what is left of the disk, nearly all of it without writing, and then writes.
SPACIOUS = """
import os
room = os.statvfs("/srv")
with open("/srv/taken", "wb") as taken:
    os.posix_fallocate(taken.fileno(), 0, room.f_bavail * room.f_frsize - (8 << 20))
with open("/srv/more", "wb") as more:
    while True: more.write(bytes(1 << 20))
"""


@pytest.fixture(scope="module")
def one(apps: Apps) -> Dict[str, Any]:
    app = apps.create()
    apps.live(apps.upload(app, server("one")))
    return app


@pytest.mark.parametrize("program, cause", [(HUNGRY, "ran out of memory"), (SPACIOUS, "disk is full")])
def test_a_build_out_of_memory_or_disk_names_the_resource(
    apps: Apps, one: Dict[str, Any], program: str, cause: str
) -> None:
    # The status alone says nothing: tools around the program that was ended have their own.
    settings = '[app]\nbuild_command = "python3 want.py || exit 1"\n'
    ended = apps.finished(apps.upload(one, {**server("two"), "want.py": program, "pandastack.toml": settings}))
    assert ended["status"] == "failed" and cause in ended["error"], ended
    assert get(one).text.startswith("one "), "what serves is left alone"
