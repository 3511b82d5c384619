"""A small internet in a network namespace: a name server, web servers and a plain one, at public addresses, and what a host
may have around it that is nobody else's business: a private address and that of a metadata service.

Nothing leaves the machine: the host reaches it by a route of its own, which goes away with the namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Dict, Optional, Type

from platform_process import wait_until

#: Of this run alone: the kernel takes a while to remove those of another.
NAMESPACE = f"pandastack-e2e-{os.getpid()}"
LINK = f"pde{os.getpid()}"
NETWORK = "93.184.216.0/24"
HOST = "93.184.216.1"
SERVER = "93.184.216.34"
OTHER = "93.184.216.35"
#: The same servers at addresses that the host reaches and sandboxes must not.
METADATA = "169.254.169.254"
PRIVATE = "192.168.77.1"
#: In no network that the operator of a test platform lets policies open.
BEYOND = "172.31.77.1"
PLAIN_PORT = 7000
#: Answers datagrams; the port after it tells what came.
DATAGRAM_PORT = 7001
TOLD_PORT = 7002
RESOLVER = f"{SERVER}:53"

#: Names below `private.` lead to a private address, those below `other.` to the second server, those below
#: `platform.` to the host, all others to the first server. Answers hold for an hour, which is longer than any
#: test takes.
SERVERS = r"""
import json, pathlib, socket, ssl, struct, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def name_server():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); server.bind(("93.184.216.34", 53))
    while True:
        query, peer = server.recvfrom(4096)
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode()); at += 1 + query[at]
        question, kind = query[12:at + 5], struct.unpack(">H", query[at + 1:at + 3])[0]
        address = {"private": "192.168.77.1", "metadata": "169.254.169.254", "other": "93.184.216.35",
                   "platform": "93.184.216.1"}.get(labels[-2] if len(labels) > 1 else "", "93.184.216.34")
        answers = b"" if kind != 1 else b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 3600, 4) + socket.inet_aton(address)
        text = pathlib.Path(sys.argv[2], ".".join(labels).lower())
        if kind == 16 and text.exists():
            value = text.read_bytes()
            answers = b"\xc0\x0c" + struct.pack(">HHIHB", 16, 1, 60, len(value) + 1, len(value)) + value
        head = query[:2] + b"\x81\x80" + struct.pack(">HHHH", 1, int(bool(answers)), 0, 0)
        server.sendto(head + question + answers, peer)

def plain(port):
    server = socket.create_server(("0.0.0.0", port))
    while True:
        client, _ = server.accept()
        threading.Thread(target=echo, args=(client,), daemon=True).start()

heard = []

def datagrams():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); server.bind(("0.0.0.0", 7001))
    while True:
        data, peer = server.recvfrom(4096)
        heard.append(data.decode(errors="replace")); server.sendto(data, peer)

def told():
    server = socket.create_server(("0.0.0.0", 7002))
    while True:
        client, _ = server.accept()
        client.sendall(json.dumps(heard).encode()); client.close()

def echo(client):
    while chunk := client.recv(4096): client.sendall(chunk)

statuses = json.loads(sys.argv[3])

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        host = self.headers.get("Host", "")
        status = statuses.get(host, 200)
        body = b"" if status == 204 else f"hello {host}".encode()
        self.send_response(status); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)

web = ThreadingHTTPServer(("0.0.0.0", 80), Handler)
secure = ThreadingHTTPServer(("0.0.0.0", 443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[1])
secure.socket = context.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
mail = [lambda: plain(25), lambda: plain(587)]
for work in (name_server, lambda: plain(7000), *mail, datagrams, told, web.serve_forever, secure.serve_forever):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class InternetInABox:
    """`with InternetInABox():` the addresses above answer.

    `hosts` are further ones, names or addresses, each with the HTTP status that it answers with. `certificate`
    is that of the servers.
    """

    def __init__(self, hosts: Optional[Dict[str, int]] = None, certificate: Optional[Path] = None) -> None:
        self.hosts, self.certificate = hosts or {}, certificate

    def __enter__(self) -> "InternetInABox":
        try:
            self._open()
        except BaseException:
            for words in (("link", "delete", LINK), ("netns", "delete", NAMESPACE)):
                subprocess.run(["ip", *words], capture_output=True)
            raise
        return self

    def _open(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="pandastack-e2e-")
        certificate = self.certificate or self._certificate()
        addresses = [host for host in self.hosts if host.replace(".", "").isdigit()]
        ip("netns", "add", NAMESPACE)
        ip("link", "add", LINK, "type", "veth", "peer", "name", "world", "netns", NAMESPACE)
        ip("address", "add", f"{HOST}/24", "dev", LINK)
        ip("link", "set", LINK, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{SERVER}/24", "dev", "world"),
            ("address", "add", f"{OTHER}/24", "dev", "world"),
            ("address", "add", f"{METADATA}/32", "dev", "world"),
            ("address", "add", f"{PRIVATE}/32", "dev", "world"),
            ("address", "add", f"{BEYOND}/32", "dev", "world"),
            *(("address", "add", f"{address}/32", "dev", "world") for address in addresses),
            ("link", "set", "world", "up"),
        ):
            ip("-n", NAMESPACE, *words)
        # Beside the way to a metadata service of this host's own, if it has one.
        for address in (METADATA, PRIVATE, BEYOND, *addresses):
            ip("route", "add", f"{address}/32", "dev", LINK, "src", HOST, "metric", "1")
        self.servers = subprocess.Popen(
            ["ip", "netns", "exec", NAMESPACE, sys.executable, "-c", SERVERS,
             str(certificate), self.directory.name, json.dumps(self.hosts)],
            stdout=subprocess.PIPE, text=True,
        )
        assert self.servers.stdout is not None and self.servers.stdout.readline() == "ready\n"
        reaches = lambda: subprocess.run(["ping", "-c1", "-W1", SERVER], capture_output=True).returncode == 0
        if Path("/usr/bin/ping").exists() or Path("/bin/ping").exists():
            wait_until("the small internet answers", reaches, 30)

    def _certificate(self) -> Path:
        certificate = Path(self.directory.name) / "server.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=e2e",
             "-keyout", str(certificate), "-out", f"{certificate}.crt"], check=True, capture_output=True,
        )
        certificate.write_text(certificate.read_text() + Path(f"{certificate}.crt").read_text())
        return certificate

    def publish_text(self, name: str, value: str) -> None:
        """Gives a name a TXT record."""
        (Path(self.directory.name) / name).write_text(value)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.servers.kill()
        self.servers.wait()
        # Not left to the namespace's end, which open connections put off: until then its route leads others astray.
        ip("link", "delete", LINK)
        ip("netns", "delete", NAMESPACE)
        self.directory.cleanup()
