"""Buckets on loopback, as the clouds have them. All know conditional writes, by which a backup never replaces anything.

| class | the store | answered by |
|---|---|---|
| `Bucket` | Amazon's S3 | moto's server |
| `GoogleBucket` | Google's XML API | the same, behind what Google has different: see `GoogleFront` |
| `AzureContainer` | Azure's blobs | Azurite, Microsoft's own emulator |

As a program, `bucket.py s3|gs|az` prints the variables that lead to one as a line of JSON, and serves until its standard input ends.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional

import boto3
import botocore.exceptions
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

NAME = "backups"
KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
#: Where Azurite is; `cargo xtask test` brings it and says so.
AZURITE = "PANDASTACK_TEST_AZURITE"
AZURITE_SECONDS_MAX = 60
GOOGLE_EMAIL = "backups@e2e.iam.gserviceaccount.com"
#: So that the archive of one small database has more than one page.
GOOGLE_PAGE = 3


class Bucket:
    """`with Bucket() as bucket:` a platform that has `bucket.environment` keeps its backups there."""

    def __enter__(self) -> "Bucket":
        # A line for each request would be all that a failed test shows.
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEYS)
        self.client.create_bucket(Bucket=NAME)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    @property
    def environment(self) -> Dict[str, str]:
        settings = {"AWS_ENDPOINT": self.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        keys = {name.upper(): value for name, value in KEYS.items()}
        return {"PANDASTACK_BACKUPS": f"s3://{NAME}/e2e", **settings, **keys}

    def names(self, database_id: str) -> List[str]:
        """Objects of a database, below its folder."""
        folder = f"e2e/{database_id}/"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=NAME, Prefix=folder)
        return [found["Key"][len(folder):] for page in pages for found in page.get("Contents", [])]


class GoogleFront:
    """Google's XML API in front of S3's, which it was made to resemble. What differs is done here: a request carries a token that its
    service account signed, `x-goog-if-generation-match: 0` creates and never replaces, and what is not there cannot be removed.

    The emulators of Google's store that packages can be had of know its JSON API, and of the XML one neither listings nor conditions."""

    def __init__(self, key: rsa.RSAPublicKey, exists: Callable[[str], bool]) -> None:
        self.s3 = DomainDispatcherApplication(create_backend_app)
        self.key = key
        self.exists = exists

    def __call__(self, environ: Dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        refusal = self.refusal(environ)
        if refusal is not None:
            start_response(refusal, [("Content-Length", "0")])
            return []
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        if "list-type=2" in environ["QUERY_STRING"]:
            environ["QUERY_STRING"] += f"&max-keys={GOOGLE_PAGE}"
        return self.s3(environ, start_response)

    def refusal(self, environ: Dict[str, Any]) -> Optional[str]:
        if not self.is_signed(environ.get("HTTP_AUTHORIZATION", "")):
            return "401 Unauthorized"
        if environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH", "0") != "0":
            # Of an object that is there, S3 knows no generation.
            return "501 Not Implemented"
        if environ["REQUEST_METHOD"] == "DELETE" and not self.exists(environ["PATH_INFO"].split("/", 2)[2]):
            return "404 Not Found"
        return None

    def is_signed(self, authorization: str) -> bool:
        head, _, signature = authorization.removeprefix("Bearer ").rpartition(".")
        decoded = lambda text: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        try:
            self.key.verify(decoded(signature), head.encode(), padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        claims = json.loads(decoded(head.split(".")[1]))
        return bool(claims["iss"] == GOOGLE_EMAIL and claims["exp"] > time.time())


class GoogleBucket(Bucket):
    """As `Bucket`, as Google has it."""

    def __enter__(self) -> "GoogleBucket":
        # moto keeps its buckets in the process: both servers have the same.
        super().__enter__()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.folder = Path(tempfile.mkdtemp(prefix="pandastack-e2e-google-"))
        self.account.write_text(json.dumps(service_account(key)))
        front = GoogleFront(key.public_key(), self.exists)
        self.front = make_server("127.0.0.1", 0, front, threaded=True, request_handler=MotoRequestHandler)
        self.thread = threading.Thread(target=self.front.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.front.shutdown()
        self.thread.join()
        super().__exit__()
        shutil.rmtree(self.folder)

    @property
    def account(self) -> Path:
        return self.folder / "service-account.json"

    @property
    def environment(self) -> Dict[str, str]:
        settings = {"GOOGLE_BASE_URL": f"http://127.0.0.1:{self.front.server_port}", "GOOGLE_SERVICE_ACCOUNT": str(self.account)}
        return {"PANDASTACK_BACKUPS": f"gs://{NAME}/e2e", **settings}

    def exists(self, name: str) -> bool:
        try:
            self.client.head_object(Bucket=NAME, Key=name)
        except botocore.exceptions.ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 404, error
            return False
        return True


def service_account(key: rsa.RSAPrivateKey) -> Dict[str, str]:
    """The file that Google gives out for a service account, as far as it is read."""
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "private_key_id": "e2e",
        "private_key": pkcs8.decode(),
        "client_email": GOOGLE_EMAIL,
    }


class AzureContainer:
    """As `Bucket`, as Azure has it."""

    ACCOUNT = "e2e"

    def __enter__(self) -> "AzureContainer":
        from azure.storage.blob import ContainerClient

        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self.folder = Path(tempfile.mkdtemp(prefix="pandastack-e2e-azure-"))
        log = self.folder / "log"
        # Azurite asks for no version of the API that it does not know, and says nothing of us to anybody.
        options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"]
        options += ["--skipApiVersionCheck", "--disableTelemetry"]
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"{self.ACCOUNT}:{self.key}"}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["node", os.environ[AZURITE], *options],
                cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )
        try:
            self.url = f"{self.address(log)}/{self.ACCOUNT}"
            credential = {"account_name": self.ACCOUNT, "account_key": self.key}
            self.client = ContainerClient(self.url, NAME, credential=credential)
            self.client.create_container()
        except BaseException:
            self.__exit__()
            raise
        return self

    def address(self, log: Path) -> str:
        deadline = time.monotonic() + AZURITE_SECONDS_MAX
        while True:
            found = re.search(r"successfully listens on (http://127\.0\.0\.1:\d+)", log.read_text())
            if found is not None:
                return found.group(1)
            ended = self.process.poll() is not None
            assert not ended and time.monotonic() < deadline, f"Azurite does not serve: {log.read_text()}"
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    @property
    def environment(self) -> Dict[str, str]:
        settings = {"AZURE_STORAGE_ENDPOINT": self.url, "AZURE_ALLOW_HTTP": "true"}
        keys = {"AZURE_STORAGE_ACCOUNT_NAME": self.ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": self.key}
        return {"PANDASTACK_BACKUPS": f"az://{NAME}/e2e", **settings, **keys}

    def names(self, database_id: str) -> List[str]:
        """Objects of a database, below its folder."""
        folder = f"e2e/{database_id}/"
        return [name[len(folder):] for name in self.client.list_blob_names(name_starts_with=folder)]


def main() -> None:
    kinds: Dict[str, Any] = {"s3": Bucket, "gs": GoogleBucket, "az": AzureContainer}
    with kinds[sys.argv[1]]() as bucket:
        print(json.dumps(bucket.environment), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
