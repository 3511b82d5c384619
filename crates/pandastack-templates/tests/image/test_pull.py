"""Finding and fetching images: references, authentication, digests and indexes."""

import base64, gzip, hashlib, io, json, os, sys, tarfile, tempfile, threading, unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPTS = os.path.join(os.path.dirname(__file__), "..", "..", "src", "image")
sys.path.insert(0, os.path.abspath(SCRIPTS))

import layout, pull, registry  # noqa: E402
from registry import Refused, challenge, digest_of  # noqa: E402

OCI = "application/vnd.oci.image."


def tar_of(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return content.getvalue()


def image(config=None, **changes):
    """An image as blobs by digest, and its manifest."""
    archive = tar_of({"file": b"text"})
    layer = gzip.compress(archive, mtime=0)
    whole = {
        "os": "linux", "architecture": "amd64", "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(archive)]}, **changes,
    }
    data = json.dumps(whole).encode()
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": OCI + "manifest.v1+json",
        "config": {"mediaType": OCI + "config.v1+json", "digest": digest_of(data), "size": len(data)},
        "layers": [{"mediaType": OCI + "layer.v1.tar+gzip", "digest": digest_of(layer), "size": len(layer)}],
    }).encode()
    return {digest_of(data): data, digest_of(layer): layer}, manifest


def index_of(manifest, *platforms):
    entries = [{"digest": digest_of(manifest), "size": len(manifest), "platform": one} for one in platforms]
    return json.dumps({"schemaVersion": 2, "manifests": entries}).encode()


class Server:
    """A registry: `answers` has a status, headers and a body by path."""

    def __init__(self):
        self.answers, self.seen = {}, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("Authorization")))
                status, headers, body = outer.answer(self.path, self.headers.get("Authorization"))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_port}"
        self.asks = None
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path, authorization):
        if path.startswith("/token"):
            return 200, {}, json.dumps({"token": "granted"}).encode()
        if self.asks and authorization != self.asks[1]:
            return 401, {"WWW-Authenticate": self.asks[0]}, b"{}"
        return self.answers.get(path, (404, {}, b"{}"))

    def serve(self, name, blobs, manifest, tag="v1", headers=None):
        answers = {f"/v2/{name}/blobs/{digest}": (200, {}, data) for digest, data in blobs.items()}
        for reference in (tag, digest_of(manifest)):
            answers[f"/v2/{name}/manifests/{reference}"] = (200, headers or {}, manifest)
        self.answers.update(answers)

    def open(self, reference="v1", login=None):
        wanted = {"registry": "r.test", "host": "r.test", "repository": "app", "reference": reference}
        found = registry.Registry({**wanted, "credentials": login})
        found.base, found.host = self.base, "r.test"
        return found


class Case(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(self.server.http.server_close)
        self.addCleanup(self.server.http.shutdown)
        self.folder, self.out = folder.name, os.path.join(folder.name, "out")

    def refused(self, work, text):
        with self.assertRaises(Refused) as caught:
            work()
        self.assertIn(text, str(caught.exception))

    def resolve(self, source=None):
        return pull.resolve(source or self.server.open(), self.out)


class Challenges(unittest.TestCase):
    def test_headers(self):
        for values, expect in [
            (['Bearer realm="https://a/t",service="s, t",scope="x"'],
             ("bearer", {"realm": "https://a/t", "service": "s, t", "scope": "x"})),
            (['bearer Realm = "https://a\\"b"'], ("bearer", {"realm": 'https://a"b'})),
            (["Basic realm=plain"], ("basic", {"realm": "plain"})),
            (['Basic realm="r", Bearer realm="https://a"'], ("bearer", {"realm": "https://a"})),
            (['Basic realm="r"', 'Bearer realm="https://a"'], ("bearer", {"realm": "https://a"})),
            (["Basic"], ("basic", {})),
            (["Negotiate"], None), (["Bearerish realm=x"], None), ([], None),
        ]:
            self.assertEqual(challenge(values), expect, values)


class Registries(Case):
    def test_an_image_is_found_and_fetched(self):
        blobs, manifest = image({"Env": ["A=1=2", "=x"], "User": "app", "Cmd": ["/a"], "WorkingDir": "/w",
                                 "ExposedPorts": {"80/tcp": {}}, "Labels": {"l": "v"},
                                 "Healthcheck": {"Test": ["CMD-SHELL", "true"]}})
        self.server.serve("app", blobs, manifest)
        found = self.resolve()
        self.assertEqual(found["digest"], digest_of(manifest))
        config = found["config"]
        self.assertEqual((config["env"], config["user"], config["cmd"]), ({"A": "1=2"}, "app", ["/a"]))
        self.assertEqual((config["workdir"], config["ports"]), ("/w", ["80/tcp"]))
        self.assertEqual(config["labels"], {"l": "v"})
        self.assertEqual(config["healthcheck"], ["/bin/sh", "-c", "true"])
        pull.fetch(self.server.open(), self.out)
        with open(os.path.join(self.out, "0"), "rb") as file:
            self.assertEqual(digest_of(gzip.decompress(file.read())), found["diff_ids"][0])

    def test_an_index_leads_to_our_platform(self):
        blobs, manifest = image()
        ours = {"os": "linux", "architecture": "amd64"}
        arm = {"os": "linux", "architecture": "arm64", "variant": "v8"}
        note = {"os": "unknown", "architecture": "unknown"}
        self.server.serve("app", blobs, manifest)
        self.server.serve("app", {}, index_of(manifest, note, arm, ours))
        self.assertEqual(self.resolve()["digest"], digest_of(manifest))
        self.server.serve("app", {}, index_of(manifest, note, arm))
        self.refused(self.resolve, "is for linux/arm64/v8; machines are linux/amd64")

    def test_another_architecture_is_refused_by_name(self):
        self.server.serve("app", *image(architecture="arm64"))
        self.refused(self.resolve, "is for linux/arm64; machines are linux/amd64")

    def test_lies_are_refused(self):
        blobs, manifest = image()
        self.server.serve("app", blobs, manifest, headers={"Docker-Content-Digest": "sha256:" + "0" * 64})
        self.refused(self.resolve, "as sha256:0000")
        self.server.serve("app", blobs, manifest)
        pinned = self.server.open("sha256:" + "1" * 64)
        self.server.answers[f"/v2/app/manifests/{pinned.first}"] = (200, {}, manifest)
        self.refused(lambda: self.resolve(pinned), "as sha256:1111")
        layer = next(digest for digest in blobs if blobs[digest][:2] == b"\x1f\x8b")
        for wrong, text in ((blobs[layer][:-1] + b"x", " as sha256:"), (blobs[layer] + b"x", "more bytes"),
                            (blobs[layer][:-1], "stopped sending")):
            self.resolve()
            self.server.answers[f"/v2/app/blobs/{layer}"] = (200, {}, wrong)
            self.refused(lambda: pull.fetch(self.server.open(), self.out), text)

    def test_tokens_and_credentials(self):
        self.server.serve("app", *image())
        login = {"username": "me", "password": "s3cret"}
        basic = "Basic " + base64.b64encode(b"me:s3cret").decode()
        self.server.asks = (f'Bearer realm="{self.server.base}/token",service="r.test"', "Bearer granted")
        self.resolve()
        self.assertIn(("/token?service=r.test&scope=repository%3Aapp%3Apull", None), self.server.seen)
        self.resolve(self.server.open(login=login))
        asked = [auth for path, auth in self.server.seen if path.startswith("/token")]
        self.assertEqual(asked, [None, basic])
        self.server.asks = ('Basic realm="r"', basic)
        self.refused(self.resolve, "needs credentials")
        self.resolve(self.server.open(login=login))
        self.refused(lambda: self.resolve(self.server.open(login={**login, "password": "x"})), "were refused")
        self.server.asks = ("Negotiate", basic)
        self.refused(self.resolve, "neither Bearer nor Basic")
        secure = self.server.open(login=login)
        secure.base = "https://r.test"
        self.refused(lambda: secure.authorize(['Bearer realm="http://evil.test/token"']), "insecure address")

    def test_a_registry_is_reached_over_http_if_the_build_says_so(self):
        blobs, manifest = image()
        self.server.serve("app", blobs, manifest)
        host = self.server.base.removeprefix("http://")
        wanted = {"registry": host, "host": host, "repository": "app", "reference": "v1"}
        plain = registry.Registry({**wanted, "plain_http": True})
        self.assertEqual(self.resolve(plain)["digest"], digest_of(manifest))
        self.assertEqual(registry.Registry(wanted).base, f"https://{host}")

    def test_a_redirect_to_another_host_gets_no_credentials(self):
        blobs, manifest = image()
        other = Server()
        self.addCleanup(other.http.server_close)
        self.addCleanup(other.http.shutdown)
        self.server.serve("app", blobs, manifest)
        self.server.asks = (f'Bearer realm="{self.server.base}/token"', "Bearer granted")
        for digest, data in blobs.items():
            away = {"Location": f"{other.base}/{digest}"}
            self.server.answers[f"/v2/app/blobs/{digest}"] = (307, away, b"")
            other.answers[f"/{digest}"] = (200, {}, data)
        self.resolve()
        self.assertEqual([authorization for _, authorization in other.seen], [None])

    def test_what_is_no_image_is_named(self):
        self.refused(self.resolve, "has no `v1` in the registry r.test")
        self.server.answers["/v2/app/manifests/v1"] = (429, {}, b"")
        self.refused(self.resolve, "limits pulls")
        part = {"digest": "sha256:" + "0" * 64, "size": 2}
        for manifest, text in [
            (b"[]", "is not a JSON object"), (b"{", "is not JSON"), (b"{}", "has no sha256 digest"),
            (b'{"fsLayers": []}', "obsolete"), (b'{"manifests": [], "layers": []}', "both"),
            (json.dumps({"config": part}).encode(), "not a container image"),
            (b'{"manifests": 5}', "no platform"), (b'{"manifests": [{"platform": 5}, 5]}', "no platform"),
            (b" " * (registry.MANIFEST_BYTES_MAX + 1), "more than"),
        ]:
            self.server.serve("app", {}, manifest)
            self.refused(self.resolve, text)
        for changes, text in [
            ({"rootfs": {"diff_ids": []}}, "1 layers and 0 sums"), ({"rootfs": 5}, "0 sums"),
            ({"config": {"OnBuild": ["RUN x"]}}, "ONBUILD"), ({"config": {"Env": "A=1"}}, "Env"),
            ({"config": {"Labels": [1]}}, "Labels"), ({"config": {"Cmd": [1]}}, "Cmd"),
            ({"config": {"User": "a\0b"}}, "NUL"),
            ({"config": {"Env": ["A=" + "x" * (300 << 10)]}}, "more than"),
        ]:
            self.server.serve("app", *image(**changes))
            self.refused(self.resolve, text)


class Files(Case):
    def write(self, files):
        for name, data in files.items():
            path = os.path.join(self.folder, "in", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)

    def open(self):
        return layout.Layout({"layout": os.path.join(self.folder, "in"), "name": "oci-layout://in"})

    def test_an_oci_layout(self):
        blobs, manifest = image()
        all_blobs = {**blobs, digest_of(manifest): manifest}
        index = {"manifests": [{"digest": digest_of(manifest), "size": len(manifest)}]}
        files = {"blobs/" + digest.replace(":", "/"): data for digest, data in all_blobs.items()}
        self.write({**files, "index.json": json.dumps(index).encode()})
        self.assertEqual(self.resolve(self.open())["digest"], digest_of(manifest))
        pull.fetch(self.open(), self.out)
        self.assertTrue(os.path.isfile(os.path.join(self.out, "0")))
        self.resolve(self.open())
        layer = next(name for name, data in files.items() if data[:2] == b"\x1f\x8b")
        self.write({layer: b"other"})
        self.refused(lambda: pull.fetch(self.open(), self.out), "is sha256:")
        index["manifests"] *= 2
        self.write({"index.json": json.dumps(index).encode()})
        self.refused(lambda: self.resolve(self.open()), "has 2 images")

    def test_an_archive_of_docker_save(self):
        blobs, _ = image()
        config = next(data for data in blobs.values() if data[:1] == b"{")
        listed = [{"Config": "c.json", "RepoTags": None, "Layers": ["l/layer.tar"]}]
        self.write({"c.json": config, "l/layer.tar": tar_of({"file": b"text"})})
        self.write({"manifest.json": json.dumps(listed).encode()})
        self.assertEqual(self.resolve(self.open())["digest"], digest_of(config))
        pull.fetch(self.open(), self.out)
        with open(os.path.join(self.out, "0"), "rb") as file:
            self.assertEqual(file.read(), tar_of({"file": b"text"}))
        for wrong, text in [
            ([{**listed[0], "Config": "../../etc/passwd"}], "points outside"),
            ([], "has 0 images"), ([5], "malformed"),
        ]:
            self.write({"manifest.json": json.dumps(wrong).encode()})
            self.refused(lambda: self.resolve(self.open()), text)

    def test_other_directories_are_named(self):
        self.write({"a": b""})
        self.refused(lambda: self.resolve(self.open()), "neither an OCI layout")


if __name__ == "__main__":
    registry.TRIES = 1
    unittest.main()
