"""Functions on real machines, through the API: deploys, versions, and what goes wrong with them."""

from __future__ import annotations

import base64
import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict

import httpx
from pandastack import PandaStack

from conftest import error_body, wait_for
from function_calls import HANDLER, api, call, Made, make, Source  # noqa: F401


def test_the_second_call_of_a_handler_is_warm(api: httpx.Client, make: Made) -> None:
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


def test_raw_invocations_support_types_log_tails_and_errors(api: httpx.Client, make: Made) -> None:
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


def from_registry(client: PandaStack, directory: Path, *packages: str) -> Dict[str, Source]:
    """Files of packages for the Python of the template, below `lib`."""
    with client.sandboxes.create("base") as sandbox:
        version = sandbox.exec("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'", check=True).stdout.strip()
    words = ["download", "-q", "--only-binary", ":all:", "--python-version", version, "--platform", "manylinux2014_x86_64"]
    subprocess.run([sys.executable, "-m", "pip", *words, "-d", str(directory), *packages], check=True)
    files: Dict[str, Source] = {}
    for wheel in directory.glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            names = [name for name in opened.namelist() if ".dist-info/" not in name and not name.endswith("/")]
            files.update({f"lib/{name}": opened.read(name) for name in names})
    return files


def test_awslambdaric_unmodified(client: PandaStack, api: httpx.Client, make: Made, tmp_path: Path) -> None:
    """Amazon's own runtime client for Python, from PyPI, calls a handler that was written for it."""
    source = """
def handle(event, context):
    if "fail" in event: raise ValueError(event["fail"])
    return {"got": event, "id": context.aws_request_id, "left": context.get_remaining_time_in_millis()}
"""
    files: Dict[str, Source] = {
        "bootstrap": "#!/bin/sh\nPYTHONPATH=lib exec python3 -m awslambdaric app.handle\n",
        "app.py": source,
        **from_registry(client, tmp_path, "awslambdaric==4.2.2"),
    }
    function = make(files, runtime="custom", entrypoint="bootstrap")
    ran = call(api, function, {"x": "é"})
    assert ran["output"]["got"] == {"x": "é"} and ran["output"]["id"] == ran["id"], ran
    assert 0 < ran["output"]["left"] <= 60_000
    failed = call(api, function, {"fail": "as meant"})
    assert failed["status"] == "error" and "as meant" in failed["error"], failed
    assert call(api, function, {"x": 2})["output"]["got"] == {"x": 2}


def wheel(name: str, source: str) -> bytes:
    packed = io.BytesIO()
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(packed, "w") as made:
        made.writestr(f"{name}.py", source)
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return packed.getvalue()


def test_dependencies_install_once_and_a_failure_fails_the_deploy(api: httpx.Client, make: Made) -> None:
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
    # Dependencies that cannot be installed fail the deploy, and the old version stays.
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


def test_a_zip_with_a_pyproject_installs_its_dependencies(api: httpx.Client, make: Made) -> None:
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
    refusals = [(outside, ".."), (link, "link"), (device, "not a file, directory or link"), (bomb, "more than"), (poetry, "[tool.poetry]")]
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
