"""Calls of functions on real machines: what they do to each other, how many at once, by URL, queued."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import httpx

from conftest import error_body, wait_for
from full_only import times
from function_calls import HANDLER, api, archive, call, Function, Made, make, moment, PATIENCE  # noqa: F401


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


def test_a_handler_cannot_harm_other_functions(api: httpx.Client, make: Made) -> None:
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


def test_a_slow_call_and_a_crash_do_not_affect_other_calls(api: httpx.Client, make: Made) -> None:
    source = "import os, time\ndef handler(event, context):\n    time.sleep(event['s'])\n    if event.get('die'): os._exit(1)\n    return event['s']\n"
    function = make({"main.py": source}, max_instances=3, timeout_seconds=30)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        slow = pool.submit(call, api, function, {"s": 6})
        dies = pool.submit(call, api, function, {"s": 1, "die": True})
        # Both have a machine, or the second had one.
        machines = lambda: api.get(f"/functions/{function['id']}/metrics").json()["instances"]  # noqa: E731
        wait_for("two machines", lambda: machines() >= 2 or dies.done(), PATIENCE)
        assert call(api, function, {"s": 0})["status"] == "success"
        assert dies.result()["status"] == "error"
        assert slow.result()["output"] == 6


#: At once, of which all but a hundred find room in the queue.
CALLS = times(1000, 300)


def test_concurrent_calls_are_queued_in_arrival_order(api: httpx.Client, make: Made) -> None:
    source = "import time\ndef handler(event, context):\n    time.sleep(0.01)\n    return event\n"
    settings = {"max_instances": 2, "concurrency": 5, "queue_max": CALLS - 100, "timeout_seconds": 120}
    function = make({"main.py": source}, **settings)
    call(api, function, 0)
    path, headers = f"{api.base_url}functions/{function['id']}/invoke", dict(api.headers)

    async def flood() -> "list[httpx.Response]":
        limits = httpx.Limits(max_connections=CALLS)
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE, limits=limits) as many:
            return list(await asyncio.gather(*(many.post(path, json={"input": n}) for n in range(CALLS))))

    answers = asyncio.run(flood())
    served = [answer.json() for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(served) + len(refused) == CALLS and len(served) >= CALLS - 100, (len(served), len(refused))
    assert all(run["status"] == "success" and run["output"] == n for n, run in zip(
        (n for n, answer in enumerate(answers) if answer.status_code == 200), served))
    assert len({run["sandbox_id"] for run in served}) <= 2
    # First come, first served: a call made well before another never began later.
    began = sorted((moment(run["started_at"]), run["wait_ms"] / 1000) for run in served)
    slack = max(1.0, 0.2 * max(wait for _, wait in began))
    latest = 0.0
    for place, (asked, wait) in enumerate(began):
        latest = max([asked + wait, latest])
        assert latest - (asked + wait) < slack, place
    page = httpx.get(f"{str(api.base_url).split('/v1')[0]}/metrics").text
    assert 'pandastack_function_call_seconds_count{kind="sync",start="warm",status="success"}' in page
    assert "pandastack_function_machines" in page and function["id"] not in page


def test_calls_queue_up_to_the_limit_and_the_rest_are_rejected(api: httpx.Client, make: Made) -> None:
    source = "import time\ndef handler(event, context):\n    time.sleep(0.3)\n    return event\n"
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


def test_fresh_isolation_uses_a_new_machine_for_every_call(api: httpx.Client, make: Made) -> None:
    function = make({"main.py": HANDLER}, isolation="fresh", max_instances=4)
    runs = [call(api, function) for _ in range(4)]
    assert len({run["sandbox_id"] for run in runs}) == 4 and all(run["cold"] for run in runs)
    assert {run["output"]["calls"] for run in runs} == {1}
    for drawn in ("uuid", "random"):
        assert len({run["output"][drawn] for run in runs}) == 4, drawn


def test_a_function_gets_the_memory_it_requests(api: httpx.Client, make: Made) -> None:
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


def test_fn_dev_runs_locally_and_reloads_on_change(tmp_path: Path) -> None:
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
          for (let n = 0; n < 3; n++) {
            out.enqueue(new TextEncoder().encode(`part ${n}\\n`));
            await new Promise((r) => setTimeout(r, 2000));
          }
          out.close();
        },
      });
      return new Response(body, { status: 203, headers: { "content-type": "text/event-stream" } });
    }
    return Response.json({ method: request.method, path: url.pathname, text: await request.text() });
  },
};
"""


def test_fetch_handlers_can_stream_responses(make: Made) -> None:
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


def test_queued_calls_are_retried_and_then_dead_lettered(api: httpx.Client, make: Made) -> None:
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
    # The call is listed, and may succeed with the next version.
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
