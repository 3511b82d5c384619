"""Container images made by a test, and a registry that serves them over TLS, with tokens."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import ssl
import tarfile
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

from internet import NAMESPACE
from registries import listen_in

#: A public address of the small internet.
HOST, PORT = "images.test", 8444
REGISTRY = f"{HOST}:{PORT}"
LOGIN = ("me", "s3cret-of-the-registry")
MEDIA = "application/vnd.oci.image."


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Layer:
    """A layer under construction."""

    def __init__(self) -> None:
        self.content = io.BytesIO()
        self.archive = tarfile.open(fileobj=self.content, mode="w")

    def add(self, name: str, data: bytes = b"", mode: int = 0o644, kind: bytes = tarfile.REGTYPE,
            owner: Tuple[int, int] = (0, 0), link: str = "") -> "Layer":
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.linkname = kind, mode, link
        (entry.uid, entry.gid), entry.size = owner, len(data)
        self.archive.addfile(entry, io.BytesIO(data))
        return self

    def folder(self, name: str, mode: int = 0o755, owner: Tuple[int, int] = (0, 0)) -> "Layer":
        return self.add(name, mode=mode, kind=tarfile.DIRTYPE, owner=owner)

    def link(self, name: str, to: str) -> "Layer":
        return self.add(name, kind=tarfile.SYMTYPE, link=to)

    def tar(self) -> bytes:
        self.archive.close()
        return self.content.getvalue()


@dataclass
class Image:
    """A finished image: its blobs, with the manifest among them."""

    manifest: bytes
    config: bytes
    layers: List[bytes]
    blobs: Dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, layers: List[bytes], settings: Dict[str, Any], architecture: str = "amd64") -> "Image":
        packed = [gzip.compress(layer, 1) for layer in layers]
        rootfs = {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]}
        whole = {"os": "linux", "architecture": architecture, "config": settings, "rootfs": rootfs,
                 "history": [{"created_by": "a test"} for _ in layers]}
        config = json.dumps(whole).encode()
        part = lambda kind, data: {"mediaType": MEDIA + kind, "digest": digest_of(data), "size": len(data)}
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json",
            "config": part("config.v1+json", config),
            "layers": [part("layer.v1.tar+gzip", data) for data in packed],
        }).encode()
        blobs = {digest_of(data): data for data in (config, manifest, *packed)}
        return cls(manifest, config, layers, blobs)

    def docker_archive(self) -> bytes:
        """As `docker save` wrote it for years."""
        listed = [{"Config": "image.json", "RepoTags": None,
                   "Layers": [f"{index}/layer.tar" for index in range(len(self.layers))]}]
        archive = Layer().add("image.json", self.config).add("manifest.json", json.dumps(listed).encode())
        for index, layer in enumerate(self.layers):
            archive.folder(str(index)).add(f"{index}/layer.tar", layer)
        return archive.tar()


class Registry:
    """Serves images until it is closed. Names below `private/` need the login."""

    def __init__(self, certificate: Path) -> None:
        self.blobs: Dict[str, bytes] = {}
        self.tags: Dict[str, bytes] = {}
        #: Paths that were asked for.
        self.seen: List[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, headers, body = outer.answer(self.path, self.headers.get("Authorization") or "")
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.server = ThreadingHTTPServer((HOST, PORT), Handler, bind_and_activate=False)
        self.server.socket.close()
        listening = listen_in(NAMESPACE, PORT)
        self.server.socket = context.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def push(self, name: str, image: Image, tag: str = "latest", index: Optional[bytes] = None) -> str:
        """Adds an image, or an index with it; the reference."""
        self.blobs.update(image.blobs)
        if index is not None:
            self.blobs[digest_of(index)] = index
        self.tags[f"{name}:{tag}"] = image.manifest if index is None else index
        return f"{REGISTRY}/{name}:{tag}"

    def answer(self, path: str, authorization: str) -> Tuple[int, Dict[str, str], bytes]:
        url = urlsplit(path)
        self.seen.append(url.path)
        if url.path == "/token":
            scope = parse_qs(url.query)["scope"][0]
            basic = "Basic " + base64.b64encode(":".join(LOGIN).encode()).decode()
            if "private/" in scope and authorization != basic:
                return 401, {}, b"{}"
            return 200, {}, json.dumps({"token": digest_of(scope.encode())}).encode()
        name, _, rest = url.path.removeprefix("/v2/").rpartition("/manifests/")
        if not name:
            name, _, rest = url.path.removeprefix("/v2/").rpartition("/blobs/")
        scope = f"repository:{name}:pull"
        if authorization != "Bearer " + digest_of(scope.encode()):
            asks = f'Bearer realm="https://{REGISTRY}/token",service="{HOST}",scope="{scope}"'
            return 401, {"WWW-Authenticate": asks}, b"{}"
        data = self.tags.get(f"{name}:{rest}") or self.blobs.get(rest)
        return (200, {}, data) if data is not None else (404, {}, b"{}")
