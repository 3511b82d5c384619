"""The same Dockerfiles, built here and by `buildah`: the same files and the same settings."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import uuid
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from buildah import Buildah, line
from image_registry import REGISTRY, Image, Registry
from test_image_builds import base_layer, busybox, client, flags, platform, registry

from pandastack import PandaStack

#: They are fixtures.
__all__ = ["busybox", "client", "flags", "platform", "registry"]

BASE = f"{REGISTRY}/parity/base:latest"
#: Mounted or written anew in every machine, or made by `buildah` while a command runs.
OURS = (
    "/dev", "/proc", "/sys", "/run", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab",
    "/etc/machine-id", "/etc/ssl", "/usr/local/share/ca-certificates", "/lost+found",
)
#: Made in a machine whose image has no directory at all.
MACHINE_DIRS = ("/", "/tmp", "/usr", "/usr/local", "/usr/local/share")
LIST = """/bin/busybox find / -xdev -exec /bin/busybox stat -c '%n|%f|%u|%g|%h|%N' {} +
echo ====
/bin/busybox find / -xdev -type f -exec /bin/busybox md5sum {} +"""

#: Dockerfiles by what they try, after `FROM` of an image with busybox.
CASES: Dict[str, str] = {
    "arguments": "ARG WHO=you\nARG NOT=\nENV A=$WHO B=${NOT:-none} C=\"a b\" D=${A:+set}\nENV E=$A-$B\n"
                 "RUN echo $A $B $C $D $E $WHO > /made",
    "copy of files": "COPY one.txt two.txt /texts/\nCOPY one.txt /new/name\n"
                     "COPY one.txt .\nCOPY one.txt /etc",
    "copy with patterns": "COPY *.txt /texts/\nCOPY t?o.txt /other/\nCOPY folder/[ab]* /letters/",
    "copy of directories": "COPY folder /whole\nCOPY folder/ /slash/\nCOPY folder folder/deep /merged/",
    "copy of everything": "COPY . /all/",
    "copy over files": "RUN mkdir -p /there/deep && echo old > /there/a && echo kept > /there/kept\n"
                       "COPY folder /there",
    # Below /run: this `buildah` also removes a target that was there before.
    "mounts": "RUN echo made > /read\nFROM {base}\n"
              "RUN --mount=type=bind,source=folder,target=/run/in cat /run/in/a /run/in/deep/c > /read\n"
              "RUN --mount=type=bind,source=one.txt,target=/run/one cat /run/one > /copied\n"
              "RUN --mount=type=bind,from=0,source=/read,target=/run/r cat /run/r > /again",
    "copy through a link": "RUN mkdir /real && ln -s /real /linked\n"
                           "COPY one.txt /linked/\nCOPY folder /linked",
    "copy of links": "COPY links /links\nCOPY links/to-file /followed",
    "owners and modes": "COPY --chown=user one.txt /by-name\nCOPY --chown=7:8 folder /by-number/\n"
                        "COPY --chmod=0600 two.txt /by-mode\nCOPY --chown=user:user --chmod=700 folder /both",
    "names with spaces": "COPY [\"with space.txt\", \"/a dir/\"]\nRUN [\"/bin/touch\", \"/b c\"]",
    "stages": "RUN mkdir -p /out/deep && echo built > /out/deep/file && ln -s deep /out/link"
              " && chmod 640 /out/deep/file && chown -R 1000:1000 /out/deep\n"
              "FROM {base}\nCOPY --from=0 /out /copied\nCOPY --from=0 /out/deep/file /single\n"
              "COPY --from=0 /out/link /as-link/",
    "named stages": "ENV A=b\nRUN echo $A > /a\nFROM 0 AS never\nFROM {base} AS one\nRUN echo one > /one\n"
                    "FROM one AS two\nRUN echo two > /two\nCOPY --from=one /one /copied",
    "archives": "ADD files.tar.gz /unpacked/\nADD files.tar /plain\nADD one.txt /added/\n"
                "COPY files.tar /kept.tar",
    "working directory": "WORKDIR /a/b\nRUN echo here > file\nWORKDIR c\nRUN pwd > file\n"
                         "ENV D=/d\nWORKDIR $D/e\nCOPY one.txt ./",
    "users": "RUN chmod 777 /tmp && umask > /mask\nUSER user\nRUN id -u > /tmp/id && mkdir /tmp/mine\n"
             "USER 7:8\nRUN id -u > /tmp/seven; id -g >> /tmp/seven\nCOPY one.txt /by-root",
    "links and modes": "RUN echo x > /x && ln /x /y && ln -s x /z && chmod 4755 /x && mkdir /sticky"
                       " && chmod 3777 /sticky",
    "removed files": "RUN mkdir /d && echo a > /d/a && echo b > /d/b\nRUN rm /d/a && rm /etc/group\n"
                     "RUN rm -r /d && echo file > /d",
    "shells": "SHELL [\"/bin/sh\", \"-ec\"]\nRUN true; echo shell > /shell\n"
              "RUN [\"/bin/sh\", \"-c\", \"echo exec > /exec\"]",
    "settings": "ENTRYPOINT [\"/bin/sh\", \"-c\"]\nCMD [\"echo\", \"hi\"]\nLABEL a=b c=\"d e\"\n"
                "EXPOSE 80 53/udp\nSTOPSIGNAL SIGINT\nUSER user\nWORKDIR /home/user\nVOLUME /data",
    "settings in the form of the shell": "ENTRYPOINT echo entry\nCMD echo command",
    "scratch": "FROM scratch\nCOPY --from=0 /bin /bin\nCOPY folder /folder\nENV PATH=/bin\nRUN echo x > /x",
}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build directory with one of everything."""
    root = tmp_path_factory.mktemp("context")
    for name in ("one.txt", "two.txt", "with space.txt", "folder/a", "folder/b", "folder/deep/c", "ignored/x",
                 "ignored/kept", "links/file", "links/folder/inner"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "folder/b").chmod(0o755)
    (root / "folder/deep").chmod(0o750)
    os.symlink("file", root / "links/to-file")
    os.symlink("folder", root / "links/to-folder")
    os.symlink("nowhere", root / "links/broken")
    (root / ".dockerignore").write_text("ignored/*\n!ignored/kept\n**/*.log\nDockerfile\n.dockerignore\n")
    (root / "folder/not.log").write_text("x")
    for name, mode in (("files.tar", "w"), ("files.tar.gz", "w:gz")):
        with tarfile.open(root / name, mode) as archive:
            for path, text in (("inner/first", b"1"), ("second", b"2")):
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode, entry.uid, entry.gid = len(text), 0o640, 3, 4
                archive.addfile(entry, io.BytesIO(text))
    return root


@pytest.fixture(scope="module")
def buildah(
    registry: Registry, busybox: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Buildah]:
    more = base_layer(busybox).folder("root", 0o700).folder("run").folder("proc").folder("sys").folder("dev")
    for name in ("usr", "usr/local", "usr/local/share"):
        more.folder(name)
    for name in ("chmod", "chown", "ln", "rm", "umask", "true"):
        more.link(f"bin/{name}", "busybox")
    image = Image.of([more.tar()], {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]})
    registry.push("parity/base", image)
    root = tmp_path_factory.mktemp("buildah")
    (root / "base.tar").write_bytes(image.docker_archive())
    made = Buildah(root)
    made.load(root / "base.tar", BASE)
    yield made
    shutil.rmtree(root, ignore_errors=True)


def is_shared(path: str) -> bool:
    return not any(path == each or path.startswith(each + "/") for each in OURS)


def ours(client: PandaStack, name: str) -> Dict[str, str]:
    with client.sandboxes.create(template=name) as sandbox:
        done = sandbox.exec(["/bin/busybox", "sh", "-c", LIST], user="root", timeout_seconds=120)
        assert done.exit_code == 0, done
    stats, _, sums = done.stdout.partition("====\n")
    content = {path: digest for digest, path in (each.split("  ", 1) for each in sums.splitlines())}
    found: Dict[str, str] = {}
    for each in stats.splitlines():
        path, mode, uid, gid, links, quoted = each.split("|")
        rest = "-> " + quoted.split(" -> ", 1)[1].strip("'") if " -> " in quoted else content.get(path, "")
        found[path] = line(int(mode, 16), (int(uid), int(gid)), int(links), rest)
    return found


def settings_of(shown: Dict[str, object]) -> Dict[str, object]:
    """Our settings under the names of an image's configuration, those that are set."""
    env: Dict[str, str] = shown.get("env") or {}  # type: ignore[assignment]
    named = {
        "Env": sorted(f"{name}={value}" for name, value in env.items()), "User": shown.get("user"),
        "WorkingDir": shown.get("workdir"), "Entrypoint": shown.get("entrypoint"), "Cmd": shown.get("cmd"),
        "Labels": shown.get("labels"), "StopSignal": shown.get("stop_signal"),
        "ExposedPorts": sorted(shown.get("ports") or []),  # type: ignore[call-overload]
        "Volumes": sorted(shown.get("volumes") or []),  # type: ignore[call-overload]
    }
    return {name: value for name, value in named.items() if value}


def settings_there(shown: Dict[str, object]) -> Dict[str, object]:
    found = {name: value for name, value in shown.items() if name not in ("Hostname", "Shell")}
    for name in ("Env", "ExposedPorts", "Volumes"):
        found[name] = sorted(found.get(name) or [])  # type: ignore[call-overload]
    labels: Dict[str, str] = dict(found.get("Labels") or {})  # type: ignore[call-overload]
    labels.pop("io.buildah.version", None)
    found["Labels"] = labels
    if found.get("WorkingDir") == "/":
        del found["WorkingDir"]
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("case", CASES)
def test_a_build_makes_the_same_tree_as_buildah(
    client: PandaStack, buildah: Buildah, context: Path, case: str
) -> None:
    dockerfile = f"FROM {BASE}\n" + CASES[case].replace("{base}", BASE) + "\n"
    (context / "Dockerfile").write_text(dockerfile)
    image = buildah.build(context)
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    build = client.templates.build(name, context)
    client.templates.wait_for_build(build.id, poll_interval=0.2)
    version = client.templates.get(name).version or {}
    assert settings_of(version["config"]) == settings_there(buildah.settings(image))
    here, there = ours(client, name), buildah.tree(image)
    differences: List[str] = [
        f"{path}: here {here.get(path)}, there {there.get(path)}"
        for path in sorted({*here, *there}) if is_shared(path) and here.get(path) != there.get(path)
        and not (case == "scratch" and path in MACHINE_DIRS)
    ]
    assert not differences, "\n".join(differences)
    client.templates.delete(name)
