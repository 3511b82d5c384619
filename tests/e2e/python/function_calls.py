"""Helpers for tests of functions: creating, deploying and calling them."""

from __future__ import annotations

import io
import tarfile
import uuid
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, Optional, Union

import httpx
import pytest

from conftest import error_body, wait_for

#: Deploys and cold starts on an emulated machine that shares its processors.
PATIENCE = 240.0

#: Counts its calls and shows what its machine remembers.
HANDLER = """
import os, uuid, random
calls = 0
secret_of_init = uuid.uuid4().hex
def handler(event, context):
    global calls
    calls += 1
    print("called with", event)
    return {"event": event, "calls": calls, "id": context.aws_request_id, "uuid": uuid.uuid4().hex,
            "random": random.random(), "env": os.environ.get("GREETING"), "secret": os.environ.get("TOKEN"),
            "remaining": context.get_remaining_time_in_millis()}
"""

Source = Union[str, bytes]
Function = Dict[str, Any]


@pytest.fixture(scope="module")
def api(raw: httpx.Client) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=raw.base_url, headers=raw.headers, timeout=PATIENCE) as made:
        yield made


def archive(files: Dict[str, Source], executable: bool = False) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755 if executable else 0o644
            made.addfile(info, io.BytesIO(data))
    return packed.getvalue()


class Made:
    """Functions of one test, deleted after it."""

    def __init__(self, api: httpx.Client) -> None:
        self.api, self.names = api, []  # type: ignore[var-annotated]

    def __call__(self, files: Optional[Dict[str, Source]] = None, **fields: Any) -> Function:
        name = f"e2e-{uuid.uuid4().hex[:12]}"
        executable = fields.get("runtime") == "custom"
        body = {"name": name, "runtime": "python", "entrypoint": "main.py", **fields}
        answer = self.api.post("/functions", json=body)
        assert answer.status_code == 200, answer.text
        self.names.append(answer.json()["id"])
        return self.deploy(answer.json()["id"], files, executable) if files else answer.json()

    def deploy(self, name: str, files: Dict[str, Source], executable: bool = False) -> Function:
        answer = self.upload(name, files, executable)
        assert answer.status_code == 200, answer.text
        return self.ready(name)

    def upload(self, name: str, files: Dict[str, Source], executable: bool = False) -> httpx.Response:
        bundle = ("code.tar.gz", archive(files, executable), "application/gzip")
        return self.api.post(f"/functions/{name}/deploy", files={"bundle": bundle})

    def refused(self, name: str, files: Dict[str, Source]) -> str:
        """Reason why a deploy failed, before or after its call was answered."""
        answer = self.upload(name, files)
        if answer.status_code != 200:
            return str(error_body(answer)["error"])
        function = self.settled(name)
        assert function["deploy_status"] == "failed", function
        return str(function["deploy_error"])

    def ready(self, name: str) -> Function:
        function = self.settled(name)
        assert function["deploy_status"] == "ready", function
        return function

    def settled(self, name: str) -> Function:
        def settled() -> Optional[Function]:
            function = self.api.get(f"/functions/{name}").json()
            return None if function["deploy_status"] == "building" else function

        return wait_for("the deploy to end", settled, PATIENCE)


@pytest.fixture
def make(api: httpx.Client) -> Iterator[Made]:
    made = Made(api)
    yield made
    for name in made.names:
        wait_for("the function to go", lambda: api.delete(f"/functions/{name}").status_code in (204, 404), PATIENCE)


def moment(text: str) -> float:
    """An RFC 3339 time as seconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    at = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    return at + float(f"0.{fraction or '0'}")


def call(api: httpx.Client, function: Function, event: Any = None, **query: str) -> Dict[str, Any]:
    answer = api.post(f"/functions/{function['id']}/invoke", json={"input": event}, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()
