"""A fleet: control, and agents and edges that joined it with tokens, each with a data directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from pandastack import PandaStack

from platform_process import BINARY, READY_SECONDS_MAX, Platform, free_port, read_text, seed_store, wait_until


class StolenIdentity:
    """The key and the certificate of a host, in the hands of somebody else."""

    def __init__(self, file: Path, directory: Path) -> None:
        kept = json.loads(file.read_text())
        pair = directory / f"stolen-{os.urandom(4).hex()}.pem"
        pair.write_text(kept["key"] + kept["certificate"])
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        self.context.load_verify_locations(cadata=kept["authority"])
        self.context.load_cert_chain(pair)

    def call(self, url: str, body: Optional[Dict[str, Any]] = None) -> Tuple[int, str]:
        """Status and body; status 0 if the connection is refused."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.context)
        )
        try:
            with opener.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, OSError, ssl.SSLError) as error:
            return 0, str(error)


class FleetHost:
    """A host of a fleet: an agent that is reached over TCP."""

    def __init__(self, fleet: "Fleet", name: str, prefix: str, subnet: str, address: str) -> None:
        self.fleet, self.name = fleet, name
        self.data_dir = fleet.root / name
        self.address = f"{address}:{free_port()}"
        self.log = fleet.root / f"{name}.log"
        self.environment = {
            **fleet.environment,
            "PANDASTACK_DATA_DIR": str(self.data_dir),
            "PANDASTACK_RUNTIME_DIR": f"/run/pandastack-{prefix}",
            "PANDASTACK_NET_PREFIX": prefix,
            "PANDASTACK_SUBNET": subnet,
        }

    @property
    def identity(self) -> Path:
        return self.data_dir / "host-identity.json"

    def start(self, *arguments: str) -> "FleetHost":
        seed_store(self.data_dir)
        command = [
            BINARY, "agent", "--host", self.name, "--control", self.fleet.control_url,
            "--advertise", self.address, "--warm", "base", *arguments,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        wait_until(f"{self.name} reports (log: {self.log})", self.is_reachable, READY_SECONDS_MAX)
        return self

    def is_reachable(self) -> bool:
        assert self.process.poll() is None, read_text(self.log)[-4000:]
        return bool(self.fleet.host(self.name).get("reachable"))

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=30)

    def remove(self) -> None:
        if hasattr(self, "process"):
            self.kill()
            subprocess.run([BINARY, "down", "--purge"], env=self.environment, check=True, timeout=120)


class Fleet(Platform):
    """Control alone. Hosts join it."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix, "10.240.0.0/16")
        self.agents_port = free_port()
        self.hosts: List[FleetHost] = []

    @property
    def control_url(self) -> str:
        return f"https://127.0.0.1:{self.agents_port}"

    def start(self) -> "Fleet":
        self.data_dir.mkdir(exist_ok=True)
        secret = self.data_dir / "link-secret"
        if not secret.exists():
            made = subprocess.run([BINARY, "join-secret"], capture_output=True, check=True)
            secret.write_bytes(made.stdout)
            secret.chmod(0o600)
        command = [
            BINARY, "control", "--listen", f"127.0.0.1:{self.port}",
            "--agents-listen", f"127.0.0.1:{self.agents_port}", *self.arguments,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        if self not in Platform.running:
            Platform.running.append(self)
        wait_until(f"control serves (log: {self.log})", self.serves, 60)
        return self

    def serves(self) -> bool:
        assert self.process is not None and self.process.poll() is None, read_text(self.log)[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    @property
    def token(self) -> str:
        return (self.data_dir / "control/bootstrap-token").read_text().strip()

    def client(self) -> PandaStack:
        return PandaStack(api_key=self.token, base_url=f"http://127.0.0.1:{self.port}")

    def cli(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command of the operator."""
        environment = {
            **self.environment,
            "PANDASTACK_API": f"http://127.0.0.1:{self.port}",
            "PANDASTACK_API_KEY": self.token,
        }
        command = [BINARY, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def list_hosts(self) -> List[Dict[str, Any]]:
        listed = self.cli("host", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        hosts: List[Dict[str, Any]] = json.loads(listed.stdout)
        return hosts

    def host(self, name: str) -> Dict[str, Any]:
        return next((host for host in self.list_hosts() if host["id"] == name), {})

    def join_token(self, *arguments: str) -> str:
        made = self.cli("host", "token", *arguments)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def add_host(self, name: str, prefix: str, subnet: str, address: str) -> FleetHost:
        host = FleetHost(self, name, prefix, subnet, address)
        self.hosts.append(host)
        host.data_dir.mkdir()
        return host.start("--join", self.join_token())

    def stop(self) -> None:
        for host in self.hosts:
            host.remove()
        if self in Platform.running:
            Platform.running.remove(self)
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)
        shutil.rmtree(self.runtime_dir, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)
