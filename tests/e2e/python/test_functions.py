"""Functions on real machines, through the API: deploys, calls, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import gzip
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
import time
import uuid
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Union

import httpx
import pytest

from conftest import error_body, wait_for

#: Deploys and cold starts on an emulated machine that shares its processors.
PATIENCE = 240.0

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
        """Why a deploy failed, whether it did so before its call was answered or after."""
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


def test_a_handler_is_deployed_once_and_called_warm(api: httpx.Client, make: Made) -> None:
    function = make({"main.py": HANDLER}, env={"GREETING": "hello"}, secrets={"TOKEN": "s3cret"}, timeout_seconds=30)
    assert function["version"] == 1 and function["is_ready"] and function["secrets"] == ["TOKEN"]
    assert "s3cret" not in api.get(f"/functions/{function['id']}").text
    first = call(api, function, {"a": [1, "é"]})
    assert first["status"] == "success" and first["cold"] and first["exit_code"] == 0, first
    assert first["output"]["event"] == {"a": [1, "é"]} and first["output"]["id"] == first["id"]
    assert first["output"]["env"] == "hello" and first["output"]["secret"] == "s3cret"
    assert 0 < first["output"]["remaining"] <= 30_000
    assert "called with" in first["stdout"]
    second = call(api, function, None)
    assert not second["cold"] and second["output"]["calls"] == 2 and second["sandbox_id"] == first["sandbox_id"]
    both = {first["id"], second["id"]}
    written = lambda: {run["id"] for run in api.get(f"/functions/{function['id']}/runs").json()["items"]}  # noqa: E731
    wait_for("both runs to be written", lambda: written() == both)
    metrics = api.get(f"/functions/{function['id']}/metrics").json()
    assert metrics["total"] == 2 and metrics["errors"] == 0 and metrics["cold_start_rate"] == 0.5
    assert metrics["instances"] == 1 and metrics["p99_ms"] > 0
    # Its machine is not the user's to list or delete, nor is its snapshot.
    listed = {sandbox["id"] for sandbox in api.get("/sandboxes").json()["items"]}
    assert first["sandbox_id"] not in listed
    refused = api.delete(f"/sandboxes/{first['sandbox_id']}")
    assert refused.status_code == 409 and function["id"] in refused.json()["error"]


def test_the_raw_contract(api: httpx.Client, make: Made) -> None:
    function = make({"app/core.py": "def handle(event, context):\n    print('x' * 5000)\n    return event['n'] + 1\n"}, entrypoint="app.core.handle")
    path = f"/functions/{function['id']}/invoke"

    def invoke(kind: str, body: bytes = b'{"n": 1}', **headers: str) -> httpx.Response:
        return api.post(path, content=body, headers={"X-Invocation-Type": kind, **headers})

    assert invoke("DryRun").status_code == 204
    answer = invoke("RequestResponse", **{"X-Log-Type": "Tail"})
    assert answer.status_code == 200 and answer.json() == 2 and "x-function-error" not in answer.headers
    assert len(base64.b64decode(answer.headers["x-log-result"])) == 4096
    failed = invoke("RequestResponse", b'{"m": 1}')
    assert failed.status_code == 200 and failed.headers["x-function-error"] == "Unhandled"
    assert failed.json()["errorType"] == "KeyError" and failed.json()["stackTrace"]
    assert invoke("Nonsense").status_code == 400
    assert invoke("RequestResponse", b"{not json").status_code == 400
    assert invoke("RequestResponse", b'"' + b"x" * (6 << 20) + b'"').status_code == 413


def test_inline_source_and_scripts(api: httpx.Client, make: Made) -> None:
    source = "import json, sys\nevent = json.load(sys.stdin)\nprint('note')\nprint(json.dumps({'twice': event['n'] * 2}))\n"
    function = make(code=base64.b64encode(source.encode()).decode())
    function = make.ready(function["id"])
    run = call(api, function, {"n": 21})
    assert run["output"] == {"twice": 42} and "note" in run["stdout"], run
    assert call(api, function, {})["status"] == "error"
    assert call(api, function, {"n": 1})["output"] == {"twice": 2}
    code = api.get(f"/functions/{function['id']}/code")
    assert gzip.decompress(code.content).decode() == source and "content-encoding" not in code.headers


def test_node(api: httpx.Client, make: Made) -> None:
    source = """
        let calls = 0;
        export const handler = async (event, context) => {
          console.log("called");
          if (event?.fail) throw new TypeError("as asked");
          return { calls: ++calls, id: context.awsRequestId, event };
        };
    """
    function = make({"index.mjs": source}, runtime="nodejs", entrypoint="index.mjs")
    first = call(api, function, {"a": 1})
    assert first["output"]["calls"] == 1 and first["output"]["id"] == first["id"] and "called" in first["stdout"]
    failed = call(api, function, {"fail": True})
    assert failed["status"] == "error" and "TypeError: as asked" in failed["error"]
    assert call(api, function, {})["output"]["calls"] == 2
    old = make({"lib/index.js": "exports.main = (event, context, done) => done(null, event.n + 1)"}, runtime="nodejs", entrypoint="lib/index.main")
    assert call(api, old, {"n": 1})["output"] == 2


CUSTOM = """#!/bin/sh
# A custom runtime: nothing but a shell and curl.
while :; do
  event=$(curl -s -D /tmp/head "http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation/next")
  id=$(grep -i ^lambda-runtime-aws-request-id: /tmp/head | tr -d '\\r' | cut -d' ' -f2)
  curl -s -X POST "http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation/$id/response" -d "{\\"got\\":$event}" >/dev/null
done
"""


def test_a_custom_runtime(api: httpx.Client, make: Made) -> None:
    function = make({"bootstrap": CUSTOM}, runtime="custom", entrypoint="bootstrap")
    assert call(api, function, {"x": 1})["output"] == {"got": {"x": 1}}
    assert call(api, function, 7)["output"] == {"got": 7}


def wheel(name: str, source: str) -> bytes:
    packed = io.BytesIO()
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(packed, "w") as made:
        made.writestr(f"{name}.py", source)
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return packed.getvalue()


def test_dependencies_are_installed_once_and_their_failure_is_fatal(api: httpx.Client, make: Made) -> None:
    files: Dict[str, Source] = {
        "main.py": "import shout\ndef handler(event, context):\n    return shout.loud(event)\n",
        "requirements.txt": "--no-index\n--find-links wheels\nshout==1.0\n",
        "wheels/shout-1.0-py3-none-any.whl": wheel("shout", "def loud(text): return text.upper() + '!'\n"),
    }
    function = make(files)
    assert call(api, function, "hey")["output"] == "HEY!"
    changed = {**files, "main.py": "import shout\ndef handler(event, context):\n    return shout.loud(event) * 2\n"}
    function = make.deploy(function["id"], changed)
    assert function["version"] == 2 and call(api, function, "a")["output"] == "A!A!"
    versions = api.get(f"/functions/{function['id']}/versions").json()["items"]
    assert [v["version"] for v in versions] == [2, 1] and versions[0]["dependencies_reused"], versions
    # What cannot be installed fails the deploy, with its log, and leaves the present version as it is.
    without = {**files, "requirements.txt": "--no-index\nno-such-package-anywhere\n"}
    assert "no-such-package-anywhere" in make.refused(function["id"], without)
    log = api.get(f"/functions/{function['id']}/versions/3/log").text
    assert "No matching distribution" in log
    assert call(api, function, "b")["output"] == "B!B!"
    # So does a handler that cannot be imported.
    assert "nowhere" in make.refused(function["id"], {"main.py": "import nowhere\ndef handler(event, context): pass\n"})
    assert api.get(f"/functions/{function['id']}").json()["version"] == 2


def zipped(files: Dict[str, Source], mode: int = 0o100644) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            made.writestr(info, content)
    return packed.getvalue()


def test_a_zip_with_a_pyproject(api: httpx.Client, make: Made) -> None:
    function = make()
    path, project = f"/functions/{function['id']}", "[project]\nname = 'x'\nversion = '1'\ndependencies = [{}]\n"
    wheel_file = "wheels/shout-1.0-py3-none-any.whl"
    files: Dict[str, Source] = {
        "main.py": "import shout\ndef handler(event, context):\n    return shout.loud(event)\n",
        "pyproject.toml": project.format(f"'shout @ file:///var/task/{wheel_file}'"),
        wheel_file: wheel("shout", "def loud(text): return text.upper() + '!'\n"),
    }
    deployed = api.post(f"{path}/deploy", content=zipped(files))
    assert deployed.status_code == 200, deployed.text
    assert call(api, make.ready(function["id"]), "hey")["output"] == "HEY!"
    outside, link = zipped({"../main.py": ""}), zipped({"main.py": "/etc/passwd"}, 0o120777)
    device, bomb = zipped({"main.py": ""}, 0o020644), zipped({"main.py": bytes(201 << 20)})
    poetry = zipped({"main.py": "", "pyproject.toml": "[tool.poetry.dependencies]\nsix = '*'\n"})
    refusals = [(outside, ".."), (link, "link"), (device, "neither"), (bomb, "more than"), (poetry, "[tool.poetry]")]
    for bundle, says in refusals:
        assert says in error_body(api.post(f"{path}/deploy", content=bundle))["error"]
    assert api.get(path).json()["version"] == 1


def test_versions_aliases_and_rollback(api: httpx.Client, make: Made) -> None:
    source = "def handler(event, context):\n    return {}\n"
    function = make({"main.py": source.format(1)})
    identity = function["id"]
    make.deploy(identity, {"main.py": source.format(2)})
    assert call(api, function)["output"] == 2
    assert call(api, function, qualifier="1")["output"] == 1
    alias = api.put(f"/functions/{identity}/aliases/live", json={"version": 1, "canary_version": 2, "canary_percent": 50})
    assert alias.status_code == 200, alias.text
    assert {call(api, function, qualifier="live")["output"] for _ in range(24)} == {1, 2}
    back = api.post(f"/functions/{identity}/rollback", json={})
    assert back.status_code == 200 and back.json()["version"] == 1
    assert call(api, function)["output"] == 1
    assert api.post(f"/functions/{identity}/rollback", json={}).status_code == 409
    assert api.post(f"/functions/{identity}/rollback", json={"version": 9}).status_code == 404
    assert api.post(f"/functions/{identity}/invoke?qualifier=nobody", json={}).status_code == 404
    changed = api.patch(f"/functions/{identity}", json={"env": {"A": "1"}})
    assert changed.status_code == 200 and make.ready(identity)["version"] == 3


HOSTILE = """
import os, sys, threading, time
def handler(event, context):
    what = (event or {}).get("do")
    if what == "hang": time.sleep(3600)
    if what == "exit": os._exit(3)
    if what == "abort": os.abort()
    if what == "memory":
        hog = []
        while True: hog.append(bytearray(1 << 24))
    if what == "print":
        for _ in range(100): sys.stdout.write("x" * (1 << 20))
        sys.stdout.flush()
    if what == "threads":
        for _ in range(20): threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    if what == "large": return "x" * (7 << 20)
    if what == "recurse": return handler(event, context)
    if what == "unjson": return {1, 2}
    return "fine"
"""


def test_what_a_handler_does_harms_nobody_else(api: httpx.Client, make: Made) -> None:
    function = make({"main.py": HOSTILE}, timeout_seconds=5, max_instances=2)
    hang = call(api, function, {"do": "hang"})
    assert hang["status"] == "timeout" and "5000 ms" in hang["error"], hang
    raw = api.post(f"/functions/{function['id']}/invoke", content=b'{"do":"hang"}', headers={"X-Invocation-Type": "RequestResponse"})
    assert raw.status_code == 504 and raw.json()["code"] == "exec_timeout", raw.text
    # Everything else gets the time that an emulated machine needs for it. A timeout is not part of a version.
    changed = api.patch(f"/functions/{function['id']}", json={"timeout_seconds": 120})
    assert changed.status_code == 200 and changed.json()["version"] == 1
    for what, expected in (("exit", "exited with 3"), ("abort", "signal 6"), ("memory", "memory")):
        ended = call(api, function, {"do": what})
        assert ended["status"] == "error" and expected in ended["error"], ended
        assert call(api, function)["output"] == "fine"
    for what in ("recurse", "unjson", "large"):
        ended = call(api, function, {"do": what})
        assert ended["status"] == "error", (what, ended["error"])
        assert call(api, function)["output"] == "fine"
    assert call(api, function, {"do": "threads"})["output"] == "fine"
    assert call(api, function)["output"] == "fine"


def test_a_flood_of_output_is_bounded(api: httpx.Client, make: Made) -> None:
    function = make({"main.py": HOSTILE}, timeout_seconds=120)
    flood = call(api, function, {"do": "print"})
    assert flood["status"] == "success" and flood["output"] == "fine", flood["error"]
    assert len(flood["stdout"]) == 64 * 1024 and "more bytes were printed" in flood["stderr"]
    assert call(api, function)["output"] == "fine"


def test_a_slow_call_and_a_crash_do_not_touch_another(api: httpx.Client, make: Made) -> None:
    source = "import os, time\ndef handler(event, context):\n    time.sleep(event['s'])\n    if event.get('die'): os._exit(1)\n    return event['s']\n"
    function = make({"main.py": source}, max_instances=3, timeout_seconds=30)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        slow = pool.submit(call, api, function, {"s": 6})
        dies = pool.submit(call, api, function, {"s": 1, "die": True})
        time.sleep(0.2)
        assert call(api, function, {"s": 0})["status"] == "success"
        assert dies.result()["status"] == "error"
        assert slow.result()["output"] == 6


def test_a_thousand_calls_at_once_with_room_for_ten(api: httpx.Client, make: Made) -> None:
    source = "import time\ndef handler(event, context):\n    time.sleep(0.01)\n    return event\n"
    settings = {"max_instances": 2, "concurrency": 5, "queue_max": 900, "timeout_seconds": 120}
    function = make({"main.py": source}, **settings)
    call(api, function, 0)
    path, headers = f"{api.base_url}functions/{function['id']}/invoke", dict(api.headers)

    async def flood() -> "list[httpx.Response]":
        limits = httpx.Limits(max_connections=1000)
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE, limits=limits) as many:
            return list(await asyncio.gather(*(many.post(path, json={"input": n}) for n in range(1000))))

    answers = asyncio.run(flood())
    served = [answer.json() for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == 1000 and len(served) >= 900, (len(served), len(refused))
    assert all(run["status"] == "success" and run["output"] == n for n, run in zip(
        (n for n, answer in enumerate(answers) if answer.status_code == 200), served))
    assert len({run["sandbox_id"] for run in served}) <= 2
    # First come, first served: whoever asked a second earlier than another never began later.
    began = sorted((moment(run["started_at"]), run["wait_ms"] / 1000) for run in served)
    latest = 0.0
    for place, (asked, wait) in enumerate(began):
        latest = max([asked + wait, latest])
        assert latest - (asked + wait) < 1.0, place
    page = httpx.get(f"{str(api.base_url).split('/v1')[0]}/metrics").text
    assert 'pandastack_function_call_seconds_count{kind="sync",status="success",start="warm"}' in page
    assert "pandastack_function_machines" in page and function["id"] not in page


def test_many_calls_wait_their_turn_and_too_many_are_refused(api: httpx.Client, make: Made) -> None:
    source = "import time\ndef handler(event, context):\n    time.sleep(0.05)\n    return event\n"
    function = make({"main.py": source}, max_instances=2, queue_max=40, timeout_seconds=60)
    call(api, function, 0)
    path, limits = f"/functions/{function['id']}/invoke", httpx.Limits(max_connections=120)
    with httpx.Client(base_url=api.base_url, headers=api.headers, timeout=PATIENCE, limits=limits) as many:
        with concurrent.futures.ThreadPoolExecutor(120) as pool:
            answers = list(pool.map(lambda n: many.post(path, json={"input": n}), range(120)))
    served = [answer.json() for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == 120 and refused and len(served) >= 40
    assert all(run["status"] == "success" for run in served)
    assert all(answer.headers["retry-after"] and answer.json()["code"] == "rate_limited" for answer in refused)
    assert len({run["sandbox_id"] for run in served}) <= 2


def test_a_fresh_machine_for_every_call(api: httpx.Client, make: Made) -> None:
    function = make({"main.py": HANDLER}, isolation="fresh", max_instances=4)
    runs = [call(api, function) for _ in range(4)]
    assert len({run["sandbox_id"] for run in runs}) == 4 and all(run["cold"] for run in runs)
    assert {run["output"]["calls"] for run in runs} == {1}
    for drawn in ("uuid", "random"):
        assert len({run["output"][drawn] for run in runs}) == 4, drawn


def test_a_function_has_the_memory_it_asks_for(api: httpx.Client, make: Made) -> None:
    source = "def handler(event, context):\n    total = next(line for line in open('/proc/meminfo') if 'MemTotal' in line)\n    return [int(total.split()[1]) // 1024, context.memory_limit_in_mb]\n"
    # The size that the tests of sandboxes bake, so that it is there.
    function = make({"main.py": source}, cpu=2, memory_mb=2048)
    total, said = call(api, function)["output"]
    assert 1800 < total <= 2048 and said == "2048"
    assert function["memory_mb"] == 2048
    error_body(api.patch(f"/functions/{function['id']}", json={"memory_mb": 1000}))


def test_an_idle_function_has_no_machine(api: httpx.Client, make: Made) -> None:
    function = make({"main.py": HANDLER}, idle_seconds=1)
    machine = call(api, function)["sandbox_id"]
    wait_for("the machine to go", lambda: api.get(f"/sandboxes/{machine}").status_code == 404)
    assert api.get(f"/functions/{function['id']}/metrics").json()["instances"] == 0
    assert call(api, function)["output"]["calls"] == 1


DEV = """
import os
def handler(event, context):
    if "rawPath" in event: return {"statusCode": 201, "body": event["rawPath"] + " VERSION"}
    if event.get("die"): os._exit(3)
    return ["VERSION", os.getpid(), event]
"""


def test_fn_dev_runs_here_and_again_after_a_change(tmp_path: Path) -> None:
    source = tmp_path / "main.py"
    source.write_text(DEV.replace("VERSION", "one"))
    command = [os.environ["PANDASTACK_BIN"], "fn", "dev", str(tmp_path), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "not isolated" in process.stderr.readline()
        address = process.stderr.readline().split()[0]
        threading.Thread(target=process.stderr.read, daemon=True).start()

        def event(**fields: Any) -> httpx.Response:
            return httpx.post(address, json=fields, headers={"X-Invocation-Type": "RequestResponse"}, timeout=60)

        wait_for("it is ready", lambda: event(a=1).status_code == 200, 60)
        version, handler, echoed = event(a=1).json()
        assert (version, echoed) == ("one", {"a": 1})
        web = httpx.get(f"{address}/some/path", timeout=60)
        assert (web.status_code, web.text) == (201, "/some/path one")
        assert event(die=True).status_code == 502
        wait_for("it runs again", lambda: event(a=1).status_code == 200, 60)
        source.write_text(DEV.replace("VERSION", "two"))
        wait_for("the change", lambda: event(a=1).status_code == 200 and event(a=1).json()[0] == "two", 60)
        handler = event().json()[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    wait_for("the handler to end", lambda: not Path(f"/proc/{handler}").exists(), 30)


def url_of(function: Function) -> "tuple[str, Dict[str, str]]":
    """The address of the server, and the name that it is asked by."""
    host = function["url"].removeprefix("http://")
    return os.environ["PANDASTACK_API"].rstrip("/").removesuffix("/v1"), {"Host": host}


HTTP = """
import base64, json
def handler(event, context):
    if event["rawPath"] == "/binary":
        return {"statusCode": 200, "headers": {"content-type": "image/png"}, "body": base64.b64encode(bytes(range(256))).decode(), "isBase64Encoded": True}
    if event["rawPath"] == "/bad":
        return {"statusCode": "no"}
    if event["rawPath"] == "/fail":
        raise ValueError("no")
    return {"statusCode": 201, "headers": {"x-seen": event["headers"].get("x-given", "")}, "cookies": ["a=1", "b=2; Path=/"],
            "body": json.dumps(event)}
"""


def test_a_function_has_a_url(api: httpx.Client, make: Made) -> None:
    function = make({"main.py": HTTP}, public=True)
    address, host = url_of(function)
    with httpx.Client(base_url=address, headers=host, timeout=PATIENCE) as web:
        answer = web.put("/a/b%20c?q=1&q=2", content=b"\xff\x00", headers={"x-given": "yes", "Cookie": "k=v; l=w", "content-type": "image/png"})
        assert answer.status_code == 201 and answer.headers["x-seen"] == "yes"
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2; Path=/"]
        event = answer.json()
        assert event["version"] == "2.0" and event["routeKey"] == "$default"
        assert event["rawPath"] == "/a/b%20c" and event["rawQueryString"] == "q=1&q=2"
        assert event["queryStringParameters"] == {"q": "1,2"} and event["cookies"] == ["k=v", "l=w"]
        assert event["isBase64Encoded"] and base64.b64decode(event["body"]) == b"\xff\x00"
        assert event["requestContext"]["http"]["method"] == "PUT"
        binary = web.get("/binary")
        assert binary.content == bytes(range(256)) and binary.headers["content-type"] == "image/png"
        assert web.get("/bad").status_code == 502 and web.get("/fail").status_code == 502
    private = make({"main.py": HTTP})
    address, host = url_of(private)
    assert httpx.get(address, headers=host, timeout=PATIENCE).status_code == 401
    key = {"Authorization": api.headers["Authorization"]}
    seen = httpx.get(address, headers={**host, **key}, timeout=PATIENCE)
    assert seen.status_code == 201 and "authorization" not in seen.json()["headers"]
    nobody = {"Host": f"fn-{uuid.uuid4()}.localhost"}
    assert httpx.get(address, headers=nobody).status_code == 404


FETCH = """
export default {
  async fetch(request) {
    const url = new URL(request.url);
    if (url.pathname === "/stream") {
      const body = new ReadableStream({
        async start(out) {
          for (let n = 0; n < 3; n++) { out.enqueue(new TextEncoder().encode(`part ${n}\\n`)); await new Promise((r) => setTimeout(r, 700)); }
          out.close();
        },
      });
      return new Response(body, { status: 203, headers: { "content-type": "text/event-stream" } });
    }
    return Response.json({ method: request.method, path: url.pathname, text: await request.text() });
  },
};
"""


def test_fetch_style_and_streaming(make: Made) -> None:
    function = make({"index.mjs": FETCH}, runtime="nodejs", entrypoint="index.mjs", public=True)
    address, host = url_of(function)
    with httpx.Client(base_url=address, headers=host, timeout=PATIENCE) as web:
        assert web.post("/x", content="body").json() == {"method": "POST", "path": "/x", "text": "body"}
        with web.stream("GET", "/stream") as answer:
            assert answer.status_code == 203
            arrived = [(time.monotonic(), part) for part in answer.iter_text()]
    assert "".join(part for _, part in arrived) == "part 0\npart 1\npart 2\n"
    assert arrived[-1][0] - arrived[0][0] > 1.0, "the parts came together"
    python = make({"main.py": "def fetch(request):\n    return 202, {'x-m': request.method}, request.query.get('q', '')\n"}, public=True)
    address, host = url_of(python)
    seen = httpx.get(address + "/?q=hi", headers=host, timeout=PATIENCE)
    assert (seen.status_code, seen.text, seen.headers["x-m"]) == (202, "hi", "GET")


def test_queued_calls_are_tried_again_and_given_up(api: httpx.Client, make: Made) -> None:
    source = "def handler(event, context):\n    if context.attempt <= event['failures']: raise ValueError(context.attempt)\n    return context.attempt\n"
    function = make({"main.py": source}, retries=2)
    path = f"/functions/{function['id']}"

    def queue(failures: int) -> str:
        answer = api.post(f"{path}/invoke", content=json.dumps({"failures": failures}), headers={"X-Invocation-Type": "Event"})
        assert answer.status_code == 202 and answer.json()["status"] == "queued", answer.text
        return answer.json()["id"]

    def ended(run: str) -> Callable[[], Optional[Dict[str, Any]]]:
        def look() -> Optional[Dict[str, Any]]:
            seen = api.get(f"{path}/runs/{run}").json()
            return seen if seen["status"] not in ("queued", "running") else None

        return look

    good, third, dead = queue(0), queue(2), queue(9)
    assert wait_for("the first", ended(good), PATIENCE)["output"] == 1
    late = wait_for("the third attempt", ended(third), PATIENCE)
    assert late["status"] == "success" and late["output"] == 3 and late["attempt"] == 3 and late["id"] == third
    lost = wait_for("the last attempt", ended(dead), PATIENCE)
    assert lost["status"] == "error" and lost["dead_letter"] and lost["attempt"] == 3, lost
    # It is listed, and with the next version it may succeed.
    letters = lambda: [run["id"] for run in api.get(f"{path}/runs", params={"dead_letter": "true"}).json()["items"]]  # noqa: E731
    assert letters() == [dead]
    assert error_body(api.post(f"{path}/runs/{good}/redrive"))["code"] == "conflict"
    make.deploy(function["id"], {"main.py": "def handler(event, context):\n    return [event['failures'], context.attempt]\n"})
    assert api.post(f"{path}/redrive").json() == {"redriven": 1, "left": 0}
    saved = wait_for("the redriven call", ended(dead), PATIENCE)
    assert (saved["status"], saved["output"], saved["version"]) == ("success", [9, 1], 2), saved
    assert letters() == [] and not saved["dead_letter"]
    # Every attempt is used time: one, three, three and one.
    used = lambda: {one["function_id"]: one for one in api.get("/usage").json()["functions"]}.get(function["id"], {})  # noqa: E731
    wait_for("usage of eight attempts", lambda: used().get("calls") == 8)
    assert used()["billed_ms"] >= saved["billed_ms"] > 0
    large = api.post(f"{path}/invoke", content=b'"' + b"x" * (1 << 20) + b'"', headers={"X-Invocation-Type": "Event"})
    assert large.status_code == 413
    headers = {"X-Invocation-Type": "Event", "Idempotency-Key": uuid.uuid4().hex}
    twice = [api.post(f"{path}/invoke", content=b'{"failures": 0}', headers=headers).json()["id"] for _ in range(2)]
    assert twice[0] == twice[1]


def test_bad_bundles_and_bad_input_are_refused(api: httpx.Client, make: Made) -> None:
    function = make()
    path = f"/functions/{function['id']}"
    assert error_body(api.post(f"{path}/invoke", json={}))["code"] == "conflict"

    def packed(change: Callable[[tarfile.TarInfo], None], data: bytes = b"") -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as out:
            info = tarfile.TarInfo("main.py")
            info.size = len(data)
            change(info)
            out.addfile(info, io.BytesIO(data))
        return made.getvalue()

    def link(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"

    def device(info: tarfile.TarInfo) -> None:
        info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3

    bad = [
        packed(lambda info: setattr(info, "name", "../main.py")),
        packed(lambda info: setattr(info, "name", "/main.py")),
        packed(link),
        packed(device),
        packed(lambda info: None, bytes(201 << 20)),
        b"not an archive",
        archive({"other.py": "x"}),
    ]
    for bundle in bad:
        error_body(api.post(f"{path}/deploy", content=bundle, headers={"content-type": "application/gzip"}))
    assert api.get(path).json()["deploy_status"] is None if "deploy_status" in api.get(path).json() else True
    fields = [
        {"name": "a/b"}, {"name": ""}, {"timeout_seconds": 0}, {"concurrency": 1000}, {"entrypoint": "../x.py"},
        {"runtime": "cobol"}, {"env": {"_HANDLER": "x"}}, {"code": "%%%"}, {"isolation": "fresh", "concurrency": 2},
    ]
    for field in fields:
        error_body(api.post("/functions", json={"name": f"e2e-{uuid.uuid4().hex[:8]}", **field}))
    assert api.post("/functions", json={"name": function["name"]}).status_code == 409
    assert api.get(f"/functions/{uuid.uuid4()}").status_code == 404
    assert api.get(f"{path}/runs/{uuid.uuid4()}").status_code == 404


def test_a_schedule_calls_a_function(api: httpx.Client, make: Made) -> None:
    handler = "def handler(event, context):\n    return {'double': 2 * event['n']}\n"
    function = make({"main.py": handler}, entrypoint="main.handler")
    body = {"name": f"calls-{function['name']}", "cron": "0 0 1 1 *"}
    target = {"type": "function", "function_id": function["name"], "input": {"n": 21}}
    schedule = api.post("/schedules", json={**body, "target": target}).json()["id"]
    try:
        run = api.post(f"/schedules/{schedule}/trigger").json()
        assert (run["status"], json.loads(run["stdout"])) == ("success", {"double": 42}), run
        assert api.patch(f"/schedules/{schedule}", json={"target": {**target, "input": {}}}).status_code == 200
        failed = api.post(f"/schedules/{schedule}/trigger").json()
        assert failed["status"] == "error" and "KeyError" in failed["error"], failed
    finally:
        assert api.delete(f"/schedules/{schedule}").status_code == 204
    unknown = api.post("/schedules", json={**body, "function_id": "nothing"})
    assert unknown.status_code == 404 and "function" in error_body(unknown)["error"]
