"""OpenSSH's server in a network namespace, with bare repositories in the home directory of its one user, `git`.

Its packages are unpacked and not installed: a test must not leave a server running on somebody's machine.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import List

from internet import NAMESPACE, SERVER
from platform_process import wait_until

PORT = 22
#: The server itself, and a library that it needs and that few machines have.
PACKAGES = ("openssh-server", "libwrap0")

#: In the namespace's own view of the file system there is a user `git`, who is root without a password.
START = """
set -e
mkdir -p /run/sshd
mount --bind "$ROOT/passwd" /etc/passwd
mount --bind "$PROGRAMS/usr/lib/openssh" /usr/lib/openssh
LD_LIBRARY_PATH=$(echo "$PROGRAMS"/usr/lib/*-linux-gnu) exec "$PROGRAMS/usr/sbin/sshd" -D -e -f "$ROOT/sshd_config"
"""


def programs() -> Path:
    """The unpacked packages, fetched once."""
    directory = Path(os.environ.get("PANDASTACK_CACHE_DIR", "/var/cache/pandastack")) / "openssh-server"
    if not (directory / "usr/sbin/sshd").exists():
        directory.mkdir(parents=True, exist_ok=True)
        script = """apt-get download "$@" || { apt-get update -q && apt-get download "$@"; }
        for each in *.deb; do dpkg -x "$each" . && rm "$each" || exit 1; done"""
        subprocess.run(["sh", "-c", script, "sh", *PACKAGES], cwd=directory, check=True, capture_output=True)
    return directory


def make_key(path: Path) -> str:
    """Makes a key pair; the public half."""
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return Path(f"{path}.pub").read_text().strip()


class SshServer:
    """`with SshServer(root, home) as server:` the repositories below `home` are at `git@SERVER:name.git`."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root, self.authorized, self.log = root, root / "authorized_keys", root / "sshd.log"
        self.known_hosts = self.new_host_key()
        self.authorized.write_text("")
        (root / "passwd").write_text(
            f"root:x:0:0::/root:/bin/sh\nsshd:x:65534:65534::/run/sshd:/usr/sbin/nologin\ngit:*:0:0::{home}:/bin/sh\n"
        )
        settings = {
            "ListenAddress": f"{SERVER}:{PORT}", "HostKey": root / "host_key", "AuthorizedKeysFile": self.authorized,
            "PermitRootLogin": "prohibit-password", "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no",
            "StrictModes": "no", "UsePAM": "no", "PidFile": "none", "LogLevel": "VERBOSE",
        }
        (root / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))

    def new_host_key(self) -> str:
        """A new key of the host, from its next start on; its line in `known_hosts`."""
        kind, key = make_key(self.root / "host_key").split()[:2]
        return f"{SERVER} {kind} {key}\n"

    def allow(self, *public: str) -> None:
        self.authorized.write_text("".join(f"{line}\n" for line in public))

    def accepted(self) -> List[str]:
        return [line for line in self.log.read_text().splitlines() if "Accepted publickey" in line]

    def __enter__(self) -> "SshServer":
        environment = {**os.environ, "ROOT": str(self.root), "PROGRAMS": str(programs())}
        with self.log.open("wb") as log:
            words = ["ip", "netns", "exec", NAMESPACE, "sh", "-c", START]
            self.process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        wait_until("the ssh server listens", self.listens, 30)
        return self

    def listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "Server listening" in self.log.read_text()

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.__exit__()
        self.__enter__()
