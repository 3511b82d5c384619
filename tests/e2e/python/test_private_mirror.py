"""A package mirror of the operator: at a private address, with an authority of its own."""

from __future__ import annotations

import io
import ssl
import subprocess
import threading
import uuid
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from internet import NAMESPACE, PRIVATE, RESOLVER, InternetInABox
from pandastack import PandaStack, TemplateBuildError
from platform_process import BINARY, Platform
from registries import listen_in

#: The small internet resolves it to the private address.
HOST = "pypi.private.test"
PORT = 8443
INDEX = f"https://{HOST}:{PORT}/simple"
WHEEL = "greeting_of_the_mirror-1.0-py3-none-any.whl"
INSTALL = "python3 -m pip install --no-cache-dir greeting-of-the-mirror"
GREET = "python3 -c 'import greeting_of_the_mirror as it; print(it.TEXT)'"


def wheel() -> bytes:
    """A package that no other index has."""
    info = "greeting_of_the_mirror-1.0.dist-info"
    files = {
        "greeting_of_the_mirror.py": "TEXT = 'hello from the mirror'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeting-of-the-mirror\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


PAGES: Dict[str, bytes] = {
    "/simple/": b"<a href='greeting-of-the-mirror/'>greeting-of-the-mirror</a>",
    "/simple/greeting-of-the-mirror/": f"<a href='/{WHEEL}'>{WHEEL}</a>".encode(),
    f"/{WHEEL}": wheel(),
}


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = PAGES.get(self.path)
        self.send_response(200 if content is not None else 404)
        self.send_header("content-type", "application/zip" if self.path.endswith(".whl") else "text/html")
        # The connection ends without a TLS close_notify: only by the length is a body known to be whole.
        self.send_header("content-length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None:
        pass


def openssl(directory: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)


def certificates(directory: Path, host: str = HOST, *more: str) -> None:
    """An authority in `ca.pem`, and a certificate of it in `server.pem`.

    `more` names are as OpenSSL writes them.
    """
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # Python 3.13 refuses authorities without a key usage, and certificates that do not name their authority's
    # key.
    may_sign = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    authority = ("-subj", "/CN=e2e authority", *may_sign, "-keyout", "ca.key", "-out", "ca.pem")
    openssl(directory, "req", "-x509", *key, "-days", "2", *authority)
    openssl(directory, "req", *key, "-subj", f"/CN={host}", "-keyout", "server.key", "-out", "server.csr")
    names = ",".join([f"DNS:{host}", *more])
    (directory / "names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\n")
    sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl(directory, "x509", "-req", "-in", "server.csr", *sign, "-out", "server.crt")
    parts = [(directory / name).read_text() for name in ("server.key", "server.crt")]
    (directory / "server.pem").write_text("".join(parts))


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[List[str]]:
    """Serves the index in the small internet; the flags with which a platform uses it."""
    directory = tmp_path_factory.mktemp("mirror")
    certificates(directory)
    with InternetInABox():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "server.pem")
        server = ThreadingHTTPServer((PRIVATE, PORT), Index, bind_and_activate=False)
        server.socket.close()
        listening = listen_in(NAMESPACE, PORT)
        server.socket = context.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield [
            "--guest-ca-bundle", str(directory / "ca.pem"), "--guest-mirror", f"pip={INDEX}",
            "--guest-allow", f"{PRIVATE}:{PORT}",
        ]
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def platform(flags: List[str]) -> Iterator[Platform]:
    running = Platform("pdsm", "10.237.0.0/16", "--warm", "base", "--resolver", RESOLVER, *flags)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[PandaStack]:
    with platform.client() as made:
        yield made


def test_a_sandbox_reaches_the_mirror(client: PandaStack) -> None:
    """By the index that pip is told. What pip makes of it, the build shows, which installs."""
    with client.sandboxes.create("base") as sandbox:
        assert sandbox.exec("printenv PIP_INDEX_URL").stdout.strip() == INDEX
        done = sandbox.exec("curl -sf $PIP_INDEX_URL/")
        assert done.exit_code == 0 and done.stdout.startswith("<a href"), done
        # Only that address and port, and only of a sandbox that may reach the internet.
        assert sandbox.exec(f"curl -m 5 http://{PRIVATE}/").exit_code != 0
        sandbox.set_network("none")
        assert sandbox.exec(f"curl -m 5 {INDEX}/").exit_code != 0


def test_a_build_uses_the_mirror_and_logs_refused_addresses(client: PandaStack, tmp_path: Path) -> None:
    # The host tells of it within two seconds.
    refused = f"curl -m 5 http://{PRIVATE}/ || (sleep 6; exit 1)"
    (tmp_path / "Dockerfile").write_text(f"FROM base\nRUN {INSTALL} && {GREET}\nRUN {refused}\n")
    build = client.templates.build(f"e2e-{uuid.uuid4().hex[:8]}", tmp_path)
    with pytest.raises(TemplateBuildError):
        client.templates.wait_for_build(build.id, poll_interval=0.2)
    log = "\n".join(str(line) for line in client.templates.build_logs(build.id))
    assert "hello from the mirror" in log, log
    assert f"the network policy refused tcp {PRIVATE}:80" in log, log
    assert "`allow` in [guests]" in log, log


def test_doctor_reports_a_mirror_that_guests_cannot_reach(flags: List[str], platform: Platform) -> None:
    """By the address: this host does not ask the name server of the small internet."""
    mirror = f"pip=https://{PRIVATE}:{PORT}/simple"
    words = [BINARY, "doctor", "--guest-ca-bundle", flags[1], "--guest-mirror", mirror]
    done = subprocess.run(words, env=platform.environment, capture_output=True, text=True)
    assert "1 certificate, valid until" in done.stdout or "expires on" in done.stdout, done
    assert f'add "{PRIVATE}:{PORT}" to `allow` in [guests]' in done.stdout, done
