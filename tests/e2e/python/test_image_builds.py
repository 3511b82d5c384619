"""Templates from container images: of a registry that this test runs, and of archives."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import uuid
from pathlib import Path
from typing import Iterator, Optional

import e2b
import httpx
import pytest
from image_registry import HOST, LOGIN, REGISTRY, Image, Layer, Registry
from internet import RESOLVER, InternetInABox
from platform_process import BINARY, Platform, wait_until
from test_private_mirror import certificates

from pandastack import PandaStack, TemplateBuildError

TOOLS = ("sh", "cat", "id", "ls", "stat", "touch", "readlink", "sleep", "pwd", "mkdir")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n"
#: These images have no bash, whose login shell E2B's builder runs.
BASH = b'#!/bin/sh\nexec /bin/sh "$@"\n'


@pytest.fixture(scope="module")
def busybox() -> bytes:
    """Debian's, unpacked and not installed: one static program."""
    directory = Path(os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack")) / "busybox-static"
    if not (directory / "bin/busybox").exists():
        directory.mkdir(parents=True, exist_ok=True)
        script = """name=busybox-static
        apt-get download $name || { apt-get update -q && apt-get download $name; }
        dpkg -x ${name}_*.deb . && rm ${name}_*.deb"""
        subprocess.run(["sh", "-ec", script], cwd=directory, check=True, capture_output=True)
    return (directory / "bin/busybox").read_bytes()


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Iterator["list[str]"]:
    directory = tmp_path_factory.mktemp("images")
    certificates(directory, HOST)
    with InternetInABox():
        yield ["--guest-ca-bundle", str(directory / "ca.pem")]


@pytest.fixture(scope="module")
def registry(flags: "list[str]") -> Iterator[Registry]:
    running = Registry(Path(flags[1]).with_name("server.pem"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def platform(flags: "list[str]", registry: Registry) -> Iterator[Platform]:
    running = Platform("pdsi", "10.238.0.0/16", "--warm", "base", "--resolver", RESOLVER, *flags)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[PandaStack]:
    with platform.client() as made:
        yield made


def base_layer(busybox: bytes) -> Layer:
    layer = Layer().folder("./", 0o755).folder("bin").add("bin/busybox", busybox, 0o755)
    for name in TOOLS:
        layer.link(f"bin/{name}", "busybox")
    layer.add("bin/bash", BASH, 0o755).folder("etc").add("etc/passwd", PASSWD)
    layer.add("etc/group", b"user:x:1000:\n")
    return layer.folder("home").folder("home/user", owner=(1000, 1000)).folder("tmp", 0o1777)


def name_of() -> str:
    return f"e2e-{uuid.uuid4().hex[:8]}"


def command_line(platform: Platform, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([BINARY, *words], env=platform.environment, capture_output=True, text=True)


def build(client: PandaStack, name: str, dockerfile: str, **options: object) -> "list[str]":
    """Builds; the log."""
    began = client.templates.build(name, dockerfile=dockerfile, **options)  # type: ignore[arg-type]
    log = [str(line) for line in client.templates.build_logs(began.id)]
    client.templates.wait_for_build(began.id, poll_interval=0.2)
    return log


def test_an_image_becomes_a_template(
    platform: Platform, client: PandaStack, registry: Registry, busybox: bytes
) -> None:
    first = base_layer(busybox).add("gone", b"x").folder("opaque").add("opaque/old", b"x")
    first.folder("usr").folder("usr/lib").link("lib", "usr/lib").add("run/kept", b"r")
    first.add("dev/null", kind=tarfile.CHRTYPE)
    second = Layer().add(".wh.gone").add("opaque/.wh..wh..opq").add("opaque/new", b"n")
    second.add("lib/through-a-link", b"l", 0o4750, owner=(1000, 7)).link("up", "../../../../etc/passwd")
    settings = {"Env": ["GREETING=hi there", "PATH=/bin"], "User": "user", "WorkingDir": "/opaque",
                "Cmd": ["/bin/sh"], "Labels": {"a": "b"}}
    image = Image.of([first.tar(), second.tar()], settings)
    reference = registry.push("private/tools", image, "v1")

    name, authfile = name_of(), platform.root / "auth.json"
    authfile.write_text(json.dumps({"auths": {REGISTRY: {"username": LOGIN[0], "password": LOGIN[1]}}}))
    refused = command_line(platform, "template", "build", "--name", name, "--from-image", reference)
    assert "line 1" in refused.stderr and "it needs credentials" in refused.stderr, refused
    words = ("template", "build", "--name", name, "--from-image", reference, "--authfile", str(authfile))
    built = command_line(platform, *words)
    assert built.returncode == 0, built
    assert "unpacking layer 2/2" in built.stderr, built

    version = client.templates.get(name).version or {}
    assert (version["config"]["cmd"], version["config"]["labels"]) == (["/bin/sh"], {"a": "b"})
    with client.sandboxes.create(template=name) as sandbox:
        done = sandbox.exec("id -u; pwd; echo $GREETING; cat new /run/kept; ls / /opaque; readlink /up")
        lines = done.stdout.split("\n")
        assert lines[:3] == ["1000", "/opaque", "hi there"] and lines[3].startswith("nr"), done
        listed = set(done.stdout.split())
        assert {"bin", "etc", "home", "lib", "new", "../../../../etc/passwd"} <= listed, done
        assert not listed & {"gone", "old", "srv", "root", "boot", ".pandastack-image"}, done
        shown = sandbox.exec("stat -c '%u %g %a' /usr/lib/through-a-link /tmp /home/user", user="root").stdout
        assert shown == "1000 7 4750\n0 0 1777\n1000 1000 755\n"
        assert "192.0.0.1" in sandbox.exec("cat /etc/resolv.conf /etc/hosts", user="root").stdout
        search = ["/bin/busybox", "grep", "-r", LOGIN[1], "/etc", "/home", "/run", "/tmp"]
        assert sandbox.exec(search, user="root").stdout == ""


def test_a_secret_is_in_no_layer(platform: Platform, client: PandaStack) -> None:
    """Neither on the disk nor in the memory of the machine that is kept."""
    secret, name, mount = uuid.uuid4().hex, name_of(), "--mount=type=secret,id=token"
    dockerfile = f"FROM base\nRUN {mount} {mount},target=/root/.token,uid=1000 "
    dockerfile += "wc -c < /run/secrets/token > /seen; stat -Lc %u /root/.token >> /seen\n"
    build(client, name, dockerfile, secrets={"token": secret})
    with client.sandboxes.create(template=name) as sandbox:
        shown = sandbox.exec("cat /seen; ls -A /root; ls /run/secrets", user="root")
        assert shown.stdout.startswith("32\n1000\n") and ".token" not in shown.stdout, shown
        assert shown.exit_code != 0, "its directory was in memory"
    kept = str(platform.data_dir / "store/snapshots")

    def search() -> Optional[subprocess.CompletedProcess[str]]:
        found = subprocess.run(["grep", "-rlF", secret, kept], capture_output=True, text=True)
        # Files that are pruned behind a build may vanish while they are read: status 2.
        return found if found.returncode != 2 else None

    found = wait_until("searched", search, 120)
    assert isinstance(found, subprocess.CompletedProcess)
    assert (found.returncode, found.stdout) == (1, ""), found


def test_an_unchanged_image_is_not_fetched_and_a_moved_tag_is(
    client: PandaStack, registry: Registry, busybox: bytes
) -> None:
    push = lambda text: registry.push("team/app", Image.of([base_layer(busybox).add("v", text).tar()], {}))
    name, dockerfile = name_of(), f"FROM {push(b'one')}\nRUN cat /v > /made; cat /etc/resolv.conf > /names\n"
    assert any("fetching layer 1/1" in line for line in build(client, name, dockerfile))
    log = build(client, name, dockerfile)
    assert any(line.endswith("CACHED") for line in log), log
    assert not any("fetching" in line for line in log), log
    push(b"two")
    assert any("fetching layer 1/1" in line for line in build(client, name, dockerfile))
    with client.sandboxes.create(template=name) as sandbox:
        assert sandbox.exec("cat /made /names").stdout.startswith("twonameserver 192.0.0.1")


def test_an_image_without_a_shell(
    client: PandaStack, platform: Platform, registry: Registry, busybox: bytes, tmp_path: Path
) -> None:
    (tmp_path / "app").write_bytes(busybox)
    other = registry.push("team/other", Image.of([base_layer(busybox).add("etc/greeting", b"hi").tar()], {}))
    dockerfile = "FROM scratch\nCOPY --chmod=755 app /busybox\nRUN [\"/busybox\", \"touch\", \"/made\"]\n"
    dockerfile += f"COPY --from={other} /etc/greeting /copied/\n"
    (tmp_path / "Dockerfile").write_text(dockerfile)
    name = name_of()
    built = command_line(platform, "template", "build", "--name", name, str(tmp_path))
    assert built.returncode == 0, built
    config = platform.client_config()
    with client.sandboxes.create(template=name) as sandbox:
        # The client's own commands need a shell.
        url = config["api_url"].rstrip("/").removesuffix("/v1") + f"/v1/sandboxes/{sandbox.id}/exec"
        headers, body = {"X-API-Key": config["token"]}, {"argv": ["/busybox", "ls", "/"]}
        done = httpx.post(url, headers=headers, json=body, timeout=60).json()
        listed = set(done["stdout"].split())
        assert {"busybox", "made", "copied"} <= listed and not listed & {"bin", "srv", "home"}, done


def test_an_archive_of_docker_save(
    platform: Platform, client: PandaStack, busybox: bytes, tmp_path: Path
) -> None:
    image = Image.of([base_layer(busybox).tar()], {"Env": ["A=b"]})
    archive, name = tmp_path / "image.tar", name_of()
    archive.write_bytes(image.docker_archive())
    built = command_line(platform, "template", "build", "--name", name, "--from-archive", str(archive))
    assert built.returncode == 0, built
    with client.sandboxes.create(template=name) as sandbox:
        assert sandbox.exec("echo $A; ls /bin/sh").stdout == "b\n/bin/sh\n"


def test_bad_images_are_named_and_leave_nothing(
    client: PandaStack, platform: Platform, registry: Registry, busybox: bytes
) -> None:
    arm = registry.push("bad/arm", Image.of([Layer().tar()], {}, "arm64"))
    with_device = Layer().add("etc/null", kind=tarfile.CHRTYPE).tar()
    device = registry.push("bad/device", Image.of([with_device], {}))
    lying = Image.of([Layer().add("a", b"true").tar()], {})
    reference = registry.push("bad/lying", lying)
    layer = next(digest for digest, data in lying.blobs.items() if data[:2] == b"\x1f\x8b")
    registry.blobs[layer] = registry.blobs[layer][:-1] + b"x"
    for image, why in [
        (arm, "is for linux/arm64; machines are linux/amd64"), (device, "has the device `etc/null`"),
        (reference, f"as {layer}"), (f"{REGISTRY}/no/such", "has no `latest` in the registry"),
        ("nothing.other.test/a", "cannot reach the registry nothing.other.test"),
    ]:
        with pytest.raises(TemplateBuildError) as caught:
            build(client, "e2e-bad", f"ARG A\n\nFROM {image}\n")
        failure = caught.value.build
        assert why in (failure.error or ""), failure
        assert (failure.failure or {}).get("line") == 3, failure
    with pytest.raises(Exception, match="not found|no finished build"):
        client.sandboxes.create(template="e2e-bad")
    left = "SELECT count(*) FROM sandboxes WHERE owner LIKE 'build:%' AND state NOT IN ('deleted', 'failed')"
    wait_until("no machine of a build is left", lambda: platform.rows(left) == [(0,)], 60)


def test_the_builder_of_e2b_starts_from_an_image(
    platform: Platform, client: PandaStack, registry: Registry, busybox: bytes
) -> None:
    reference = registry.push("private/e2b", Image.of([base_layer(busybox).tar()], {"Env": ["A=b"]}))
    config = platform.client_config()
    steps = e2b.Template().from_image(reference, *LOGIN).run_cmd("id -u > made; echo $A >> made")
    api = config["api_url"].rstrip("/").removesuffix("/v1")
    name = name_of()
    e2b.Template.build(steps, name, api_key=config["token"], api_url=api)
    with client.sandboxes.create(template=name) as sandbox:
        assert sandbox.exec("pwd; cat made").stdout == "/home/user\n1000\nb\n"
