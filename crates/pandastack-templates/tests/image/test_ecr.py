"""Amazon ECR: signatures, and tokens from an endpoint that plays it."""

import base64, json, os, sys, threading, unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

SCRIPTS = os.path.join(os.path.dirname(__file__), "..", "..", "src", "image")
sys.path.insert(0, os.path.abspath(SCRIPTS))

import ecr, registry  # noqa: E402

LOGIN = {"registry": "1.dkr.ecr.test", "username": "AKID", "password": "s3cret", "aws_region": "eu-central-1"}
TOKEN = base64.b64encode(b"AWS:token").decode()


class Signatures(unittest.TestCase):
    """The examples `get-vanilla` and `post-vanilla` that AWS publishes for Signature Version 4."""

    def test_published_examples(self):
        headers = {"Host": "example.amazonaws.com", "X-Amz-Date": "20150830T123600Z"}
        key = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
        for method, expected in [
            ("GET", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("POST", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ]:
            made = ecr.signature(method, headers, b"", key, "us-east-1", "service")
            scope = "Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"
            self.assertEqual(
                made, f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host;x-amz-date, Signature={expected}"
            )

    def test_the_request_for_a_token(self):
        with mock.patch.object(ecr, "now", lambda: "20260101T000000Z"):
            url, headers, body = ecr.token_request(LOGIN)
        self.assertEqual((url, body), ("https://api.ecr.eu-central-1.amazonaws.com/", b"{}"))
        names = "SignedHeaders=content-type;host;x-amz-date;x-amz-target,"
        scope = "Credential=AKID/20260101/eu-central-1/ecr/aws4_request, "
        self.assertIn(scope + names, headers["Authorization"])
        self.assertNotIn("s3cret", str(headers))
        self.assertEqual(ecr.endpoint("cn-north-1"), "api.ecr.cn-north-1.amazonaws.com.cn")


class Tokens(unittest.TestCase):
    """A registry and the endpoint of its tokens, on one server."""

    def setUp(self):
        outer = self
        self.seen, self.answer = [], (200, {"authorizationData": [{"authorizationToken": TOKEN}]})

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                outer.seen.append((self.headers["X-Amz-Target"], self.rfile.read(length)))
                outer.send(self, outer.answer[0], json.dumps(outer.answer[1]).encode())

            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("Authorization")))
                is_in = self.headers.get("Authorization") == "Basic " + TOKEN
                outer.send(self, 200 if is_in else 401, b"{}")

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(self.http.server_close)
        self.addCleanup(self.http.shutdown)
        self.base = f"http://127.0.0.1:{self.http.server_port}"

    @staticmethod
    def send(handler, status, body):
        handler.send_response(status)
        handler.send_header("WWW-Authenticate", 'Basic realm="ecr"')
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def open(self, **login):
        wanted = {"registry": "r", "host": "r", "repository": "app", "reference": "v1"}
        found = registry.Registry({**wanted, "credentials": {**LOGIN, **login}})
        found.base = self.base
        return found

    def manifest(self, **login):
        request = ecr.token_request

        def here(login):
            _, headers, body = request(login)
            return self.base + "/", headers, body

        with mock.patch.object(ecr, "token_request", here):
            return self.open(**login).manifest("v1")

    def test_an_access_key_becomes_a_token(self):
        self.assertEqual(self.manifest(), b"{}")
        target = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
        path = "/v2/app/manifests/v1"
        self.assertEqual(self.seen, [(path, None), (target, b"{}"), (path, "Basic " + TOKEN)])

    def test_a_refused_key_is_explained(self):
        told = {"__type": "com.amazon#UnrecognizedClientException", "message": "The key is invalid."}
        for answer, text in [
            ((400, told), "UnrecognizedClientException: The key is invalid."),
            ((403, []), "status 403"),
            ((200, {}), "returned no token"),
            ((200, {"authorizationData": [{"authorizationToken": "a\nb"}]}), "returned no token"),
        ]:
            self.answer = answer
            with self.assertRaises(registry.Refused) as caught:
                self.manifest()
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("s3cret", str(caught.exception))

    def test_a_region_cannot_name_another_host(self):
        for region in ("x.evil.test/", "EU", "a" * 33):
            with self.assertRaises(registry.Refused):
                self.manifest(aws_region=region)
        self.assertNotIn("POST", str(self.seen))


if __name__ == "__main__":
    unittest.main()
