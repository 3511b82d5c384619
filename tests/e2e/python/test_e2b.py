"""Unmodified E2B clients against this platform, on real machines.

Each test carries the feature that it proves (`feature`); `test_e2b_table.py` turns what passed into
`docs/reference/e2b-compatibility.md`.
"""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
import uuid
from typing import Any, Callable, Dict, Iterator, List

import httpx
import pytest

from conftest import RUN, wait_for
from pandastack import PandaStack

API = os.environ["PANDASTACK_API"].rstrip("/").removesuffix("/v1")
os.environ["E2B_API_URL"] = API
os.environ["E2B_SANDBOX_URL"] = API
os.environ["E2B_API_KEY"] = os.environ["PANDASTACK_API_KEY"]

import e2b  # noqa: E402  (reads its environment when it is used)
import e2b_code_interpreter as interpreter  # noqa: E402

feature = pytest.mark.e2b
#: Emulated machines on a busy box are slow; a healthy one needs a fraction of this.
TIMEOUT = 1800


def create(template: str = "base", **options: Any) -> e2b.Sandbox:
    options.setdefault("timeout", TIMEOUT)
    options["metadata"] = {**RUN, **options.pop("metadata", {})}
    return e2b.Sandbox.create(template, **options)


@pytest.fixture(scope="module")
def box() -> Iterator[e2b.Sandbox]:
    made = create(envs={"GLOBAL": "of the sandbox"})
    yield made
    made.kill()


@feature("Sandbox.create", "with metadata, environment and timeout")
def test_create_and_info(box: e2b.Sandbox) -> None:
    info = box.get_info()
    assert info.sandbox_id == box.sandbox_id
    assert info.metadata == RUN
    assert info.state == e2b.SandboxState.RUNNING
    assert (info.end_at - info.started_at).total_seconds() > TIMEOUT / 2
    assert box.is_running()


@feature("Sandbox.kill", "also for a deleted sandbox")
def test_kill() -> None:
    made = create()
    assert made.kill() is True
    assert made.kill() is False
    assert made.is_running() is False
    with pytest.raises(e2b.SandboxException):
        made.commands.run("true")


@feature("Sandbox.list", "pages, order, filters by metadata and state")
def test_list() -> None:
    label = {"kind": f"a b&c={uuid.uuid4().hex}"}
    made = [create(metadata=label) for _ in range(3)]
    try:
        pages = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata=label), limit=2)
        seen: List[str] = []
        while pages.has_next:
            items = pages.next_items()
            assert 0 < len(items) <= 2
            seen += [item.sandbox_id for item in items]
        assert seen == [each.sandbox_id for each in reversed(made)]
        paused = e2b.Sandbox.list(query=e2b.SandboxQuery(metadata=label, state=[e2b.SandboxState.PAUSED]))
        assert paused.next_items() == []
    finally:
        for each in made:
            each.kill()


@feature("Sandbox.set_timeout", "counted from the call")
def test_set_timeout() -> None:
    made = create()
    try:
        made.set_timeout(1200)
        info = made.get_info()
        left = info.end_at.timestamp() - time.time()
        assert 1100 < left < 1300
        made.set_timeout(1)
        wait_for("the end of its lifetime", lambda: not made.is_running())
    finally:
        made.kill()


@feature("Sandbox.pause, connect", "memory and processes are kept; 409 if already paused")
def test_pause_and_connect() -> None:
    made = create()
    try:
        handle = made.commands.run("sleep 1000", background=True, timeout=0)
        made.files.write("kept", "before the pause")
        assert made.pause() is not False
        assert made.get_info().state == e2b.SandboxState.PAUSED
        assert made.is_running() is False
        assert made.pause() is False
        again = e2b.Sandbox.connect(made.sandbox_id, timeout=TIMEOUT)
        assert again.files.read("kept") == "before the pause"
        assert handle.pid in [process.pid for process in again.commands.list()]
        assert made.files.read("kept") == "before the pause"  # the old object goes on
    finally:
        made.kill()


@feature("auto pause, auto resume", "lifecycle on_timeout=pause with auto_resume")
def test_auto_resume() -> None:
    made = create(lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        info = made.get_info()
        assert info.lifecycle is not None and info.lifecycle["on_timeout"] == "pause"
        made.pause()
        assert made.commands.run("echo awake").stdout == "awake\n"
    finally:
        made.kill()


@feature("Sandbox.create_snapshot, list_snapshots, delete_snapshot", "also create a sandbox from one")
def test_snapshots(box: e2b.Sandbox) -> None:
    box.files.write("/home/user/from-snapshot", "then")
    taken = box.create_snapshot()
    assert taken.snapshot_id in [each.snapshot_id for each in box.list_snapshots().next_items()]
    made = create(taken.snapshot_id)
    try:
        assert made.files.read("from-snapshot") == "then"
    finally:
        made.kill()
    assert e2b.Sandbox.delete_snapshot(taken.snapshot_id) is True
    assert e2b.Sandbox.delete_snapshot(taken.snapshot_id) is False


@feature("Sandbox.fork", "several copies of one instant")
def test_fork(box: e2b.Sandbox) -> None:
    box.files.write("/home/user/forked", "parent")
    children = [each for each in box.fork(count=2, timeout=TIMEOUT)]
    try:
        ids = {child.sandbox_id for child in children}
        assert len(ids) == 2 and box.sandbox_id not in ids
        for child in children:
            assert child.files.read("forked") == "parent"
            child.files.write("forked", "child")
        assert box.files.read("forked") == "parent"
    finally:
        for child in children:
            child.kill()


@feature("Sandbox.get_metrics", "current values")
def test_metrics(box: e2b.Sandbox) -> None:
    metrics = wait_for("metrics", box.get_metrics)
    assert metrics[-1].mem_total > 0 and metrics[-1].disk_total > 0 and metrics[-1].cpu_count == 1


@feature("commands.run", "output, exit code, user, cwd, envs, callbacks")
def test_run(box: e2b.Sandbox) -> None:
    out: List[str] = []
    result = box.commands.run(
        "id -un; pwd; echo $GLOBAL $OWN; echo grüße >&2", envs={"OWN": "x"}, on_stdout=out.append, on_stderr=out.append
    )
    assert result.stdout == "user\n/home/user\nof the sandbox x\n"
    assert result.stderr == "grüße\n" and result.exit_code == 0
    assert "".join(out).count("\n") == 4
    assert box.commands.run("id -un; pwd", user="root", cwd="/usr").stdout == "root\n/usr\n"
    with pytest.raises(e2b.CommandExitException) as failed:
        box.commands.run("echo why >&2; exit 7")
    assert failed.value.exit_code == 7 and failed.value.stderr == "why\n"


@feature("commands.run", "large output without loss")
def test_large_output_is_not_truncated(box: e2b.Sandbox) -> None:
    result = box.commands.run("seq 1 400000", timeout=TIMEOUT)
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 400_001))


@feature("commands.run", "timeout")
def test_timeout(box: e2b.Sandbox) -> None:
    with pytest.raises(e2b.TimeoutException):
        box.commands.run("sleep 321", timeout=2)
    wait_for("the end of the command", lambda: "sleep 321" not in str(box.commands.list()))


@feature("commands.run", "errors: unknown user, missing directory")
def test_run_rejects_an_unknown_user_or_directory(box: e2b.Sandbox) -> None:
    with pytest.raises(e2b.AuthenticationException):
        box.commands.run("true", user="nobody-here")
    with pytest.raises(e2b.InvalidArgumentException):
        box.commands.run("true", cwd="/not/there")


@feature("commands: background, list, kill, connect", "also from another client object")
def test_background(box: e2b.Sandbox) -> None:
    handle = box.commands.run("for n in $(seq 600); do echo tick $n; sleep 0.2; done", background=True, timeout=0)
    listed = {process.pid: process for process in box.commands.list()}
    assert listed[handle.pid].cmd == "/bin/bash" and "tick" in listed[handle.pid].args[-1]
    other = e2b.Sandbox.connect(box.sandbox_id).commands.connect(handle.pid, timeout=0)
    for out, _, _ in other:
        assert out is not None and out.startswith("tick")
        break
    other.disconnect()
    assert box.commands.kill(handle.pid) is True
    with pytest.raises(e2b.CommandExitException) as ended:
        handle.wait()
    assert ended.value.exit_code != 0
    assert box.commands.kill(handle.pid) is False
    with pytest.raises(e2b.NotFoundException):
        box.commands.connect(999_999)


@feature("commands.send_stdin, close_stdin", "")
def test_stdin(box: e2b.Sandbox) -> None:
    handle = box.commands.run("cat; echo done", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "one\n")
    box.commands.send_stdin(handle.pid, "zwölf\n")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\nzwölf\ndone\n"


@feature("pty: create, send_stdin, resize, kill", "")
def test_pty(box: e2b.Sandbox) -> None:
    handle = box.pty.create(e2b.PtySize(rows=24, cols=80), timeout=0)
    box.pty.resize(handle.pid, e2b.PtySize(rows=33, cols=121))
    box.pty.send_stdin(handle.pid, b"stty size; echo to-$((40+2)); exit 3\n")
    seen = b""
    with pytest.raises(e2b.CommandExitException) as ended:
        def take(data: bytes) -> None:
            nonlocal seen
            seen += data
        handle.wait(on_pty=take)
    assert ended.value.exit_code == 3
    assert b"33 121" in seen and b"to-42" in seen


@feature("files: write, read, list, get_info, exists, make_dir, rename, remove", "")
def test_files(box: e2b.Sandbox) -> None:
    written = box.files.write("tree/a/text", "grüße")
    assert written.path == "/home/user/tree/a/text"
    assert box.files.read("tree/a/text") == "grüße"
    assert bytes(box.files.read("/home/user/tree/a/text", format="bytes")) == "grüße".encode()
    info = box.files.get_info("tree/a/text")
    assert (info.name, info.size, info.owner, info.type) == ("text", 7, "user", e2b.FileType.FILE)
    assert box.files.make_dir("tree/b") is True
    assert box.files.make_dir("tree/b") is False
    assert box.files.get_info("tree/b").owner == "user"
    names = {entry.path for entry in box.files.list("tree", depth=2)}
    assert names == {"/home/user/tree/a", "/home/user/tree/a/text", "/home/user/tree/b"}
    moved = box.files.rename("tree/a/text", "tree/c/moved")
    assert moved.path == "/home/user/tree/c/moved"
    assert box.files.exists("tree/a/text") is False and box.files.exists("tree/c/moved") is True
    box.files.remove("tree")
    assert box.files.exists("tree") is False
    with pytest.raises(e2b.FileNotFoundException if hasattr(e2b, "FileNotFoundException") else e2b.NotFoundException):
        box.files.read("tree/a/text")
    with pytest.raises(e2b.InvalidArgumentException):
        box.files.list("/etc/passwd")


@feature("files.write", "several files, large files, gzip")
def test_uploads(box: e2b.Sandbox) -> None:
    content = os.urandom(5 << 20)
    many = box.files.write_files([{"path": f"many/{n}", "data": str(n)} for n in range(3)])
    assert [entry.path for entry in many] == [f"/home/user/many/{n}" for n in range(3)]
    box.files.write("large", content)
    assert bytes(box.files.read("large", format="bytes")) == content
    streamed = b"".join(box.files.read("large", format="stream"))
    assert streamed == content
    box.files.write("packed", b"x" * 1_000_000, gzip=True)
    assert box.files.get_info("packed").size == 1_000_000


@feature("upload_url, download_url", "signed, with and without expiry; add `sandbox_id` if the host name does not contain it")
def test_signed_urls(box: e2b.Sandbox) -> None:
    box.files.write("/home/user/signed", "content")
    named = f"&sandbox_id={box.sandbox_id}"
    url = box.download_url("/home/user/signed", use_signature_expiration=60)
    assert httpx.get(url, timeout=60).status_code == 401, "no sandbox is searched for"
    url += named
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read() == b"content"
    assert httpx.get(url.replace("signed", "other"), timeout=60).status_code == 401
    uploaded = httpx.post(box.upload_url("/home/user/by-url") + named, files={"file": b"uploaded"}, timeout=60)
    assert uploaded.status_code == 200, uploaded.text
    assert box.files.read("by-url") == "uploaded"
    assert httpx.post(url, files={"file": b"x"}, timeout=60).status_code == 401


@feature("files.watch_dir", "polled by the synchronous client")
def test_watch(box: e2b.Sandbox) -> None:
    box.files.make_dir("watched/below")
    watch = box.files.watch_dir("watched", recursive=True)
    box.files.write("watched/new", "1")
    box.files.write("watched/below/deep", "1")
    box.files.remove("watched/new")
    seen: Dict[str, set] = {}

    def all_there() -> bool:
        for event in watch.get_new_events():
            seen.setdefault(event.name, set()).add(event.type.value)
        return "remove" in seen.get("new", ()) and "below/deep" in seen

    wait_for("all events", all_there)
    assert "create" in seen["new"] or "rename" in seen["new"]
    watch.stop()


@feature("AsyncSandbox", "commands, files, a streamed watch")
def test_async() -> None:
    async def main() -> None:
        box = await e2b.AsyncSandbox.create("base", timeout=TIMEOUT, metadata=RUN)
        try:
            names: List[str] = []
            await box.files.make_dir("live")
            watch = await box.files.watch_dir("live", on_event=lambda event: names.append(event.name))
            results = await asyncio.gather(*(box.commands.run(f"echo {n}") for n in range(5)))
            assert [result.stdout for result in results] == [f"{n}\n" for n in range(5)]
            await box.files.write("live/x", "1")
            deadline = time.monotonic() + 60
            while "x" not in names and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            assert "x" in names
            await watch.stop()
        finally:
            await box.kill()

    asyncio.run(main())


@feature("get_host", "other ports through the edge")
def test_ports(box: e2b.Sandbox) -> None:
    box.commands.run("mkdir -p site && echo served > site/index.html")
    box.commands.run("python3 -m http.server 8123 --directory site", background=True, timeout=0)
    host = box.get_host(8123)
    assert host.startswith(f"8123-{box.sandbox_id}.localhost")

    def fetch() -> bool:
        # `*.localhost` is not in every resolver, so the name goes into the header.
        return httpx.get(API, headers={"Host": host}, timeout=30).text == "served\n"

    wait_for("the server in the sandbox", fetch)


@feature("private traffic", "network allow_public_traffic=False and its token")
def test_private_traffic() -> None:
    made = create(network={"allow_public_traffic": False})
    try:
        assert made.traffic_access_token
        made.commands.run("python3 -m http.server 8123", background=True, timeout=0)
        headers = {"Host": made.get_host(8123)}
        assert httpx.get(API, headers=headers, timeout=60).status_code == 403
        headers["e2b-traffic-access-token"] = made.traffic_access_token
        wait_for("the server in the sandbox", lambda: httpx.get(API, headers=headers, timeout=60).status_code == 200)
    finally:
        made.kill()


@feature("network rules", "allow_internet_access, allow_out, deny_out with allow before deny; update_network")
def test_network_rules() -> None:
    made = create(network={"allow_out": ["*.example.com", "93.184.216.34"], "deny_out": lambda ctx: [ctx.all_traffic]})
    try:
        info = made.get_info()
        assert info.network is not None and info.allow_internet_access is True
        assert info.network["allow_out"] == ["*.example.com", "93.184.216.34/32"]
        assert info.network["deny_out"] == [e2b.ALL_TRAFFIC]
        native = PandaStack().sandboxes.get(made.sandbox_id)
        assert native.network() == {"egress": "none", "allow": ["*.example.com", "93.184.216.34/32"]}
        # A denied name does not even resolve; the events show that the policy refused it.
        assert made.commands.run("getent hosts denied.invalid || echo refused").stdout == "refused\n"
        wait_for("the refusal", lambda: any("denied.invalid" in str(event) for event in native.events()))
        made.update_network({"deny_out": ["8.8.8.0/30"], "allow_out": ["8.8.8.1"]})
        assert native.network() == {"egress": "all", "allow": ["8.8.8.1/32"], "deny": ["8.8.8.2/31", "8.8.8.0/32"]}
        made.update_network({"allow_internet_access": False})
        assert made.get_info().allow_internet_access is False
        made.update_network({})
        assert native.network() == {"egress": "all"}
        for refused in ({"deny_out": ["a.com"]}, {"allow_out": ["a.com"]}, {"allow_out": ["nonsense/99"]}):
            with pytest.raises(e2b.SandboxException):
                made.update_network(refused)
    finally:
        made.kill()


@feature("access tokens", "a sandbox's calls need its own token")
def test_tokens(box: e2b.Sandbox) -> None:
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}
    for token in ({}, {"X-Access-Token": "wrong"}):
        answer = httpx.post(f"{API}/process.Process/List", json={}, headers={**headers, **token}, timeout=60)
        assert answer.status_code == 401, answer.text
        assert answer.json()["code"] == "unauthenticated"
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create("base", api_key="pds_" + "0" * 32)


@pytest.fixture(scope="module")
def code() -> Iterator[interpreter.Sandbox]:
    made = interpreter.Sandbox.create(timeout=TIMEOUT, metadata=RUN)
    yield made
    made.kill()


@feature("code interpreter: run_code", "Python; state, results, output, errors")
def test_run_code(code: interpreter.Sandbox) -> None:
    assert code.run_code("x = 20\nx + 1").text == "21"
    out: List[str] = []
    ran = code.run_code("print('grüße'); import sys; print('e', file=sys.stderr); 'last'", on_stdout=lambda m: out.append(m.line))
    assert ran.logs.stdout == ["grüße\n"] or "".join(ran.logs.stdout) == "grüße\n"
    assert "".join(ran.logs.stderr) == "e\n" and ran.text == "last" and "".join(out) == "grüße\n"
    failed = code.run_code("1/0")
    assert failed.error is not None and failed.error.name == "ZeroDivisionError"
    assert "1/0" in failed.error.traceback and "kernel" not in failed.error.traceback
    assert code.run_code("x").text == "20"
    assert code.run_code("import os; os.environ['CALL']", envs={"CALL": "1"}).text == "1"
    assert code.run_code("os.environ.get('CALL')").text is None
    assert "".join(code.run_code("!echo from the shell").logs.stdout) == "from the shell\n"
    assert code.run_code("import asyncio\nawait asyncio.sleep(0, 'awaited')").text == "awaited"


@feature("code interpreter: results", "matplotlib figures, pandas tables")
def test_rich_results(code: interpreter.Sandbox) -> None:
    drawn = code.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()", timeout=TIMEOUT)
    assert drawn.error is None, drawn.error
    pictures = [result.png for result in drawn.results if result.png]
    assert len(pictures) == 1 and pictures[0].startswith("iVBOR")
    table = code.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})", timeout=TIMEOUT)
    assert "<table" in table.results[0].html and table.results[0].data == {"a": [1, 2]}


@feature("code interpreter: contexts", "create, list, restart, remove; isolated from each other")
def test_contexts(code: interpreter.Sandbox) -> None:
    context = code.create_code_context(cwd="/tmp")
    assert code.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    code.run_code("only_here = 1", context=context)
    assert code.run_code("only_here").error is not None
    assert context.id in [each.id for each in code.list_code_contexts()]
    code.restart_code_context(context.id)
    assert code.run_code("only_here", context=context).error is not None
    code.remove_code_context(context.id)
    assert context.id not in [each.id for each in code.list_code_contexts()]


@feature("code interpreter: forks", "a fork has the same contexts and variables")
def test_fork_keeps_state(code: interpreter.Sandbox) -> None:
    code.run_code("carried = 'by the fork'")
    child = code.fork(count=1, timeout=TIMEOUT)[0]
    try:
        assert child.run_code("carried").text == "by the fork"
    finally:
        child.kill()


@feature("code interpreter: interrupt", "code is interrupted when its client disconnects")
def test_interrupt(code: interpreter.Sandbox) -> None:
    with pytest.raises(Exception):
        code.run_code("import time\ntime.sleep(500)", timeout=3)
    assert code.run_code("'free again'", timeout=60).text == "free again"


#: What is refused, with how a client learns of it and why it is so.
MISSING: Dict[str, Any] = {
    "rules that change requests": (
        "traffic is allowed or denied, never rewritten. This includes egress proxies and custom DNS servers",
        lambda: create(network={"rules": {"a.com": [{"transform": {"headers": {"X": "1"}}}]}}),
    ),
    "volumes": ("use the calls of this server instead: [volumes](volumes.md)", lambda: e2b.Volume.create("v")),
}


@pytest.mark.parametrize("what", MISSING)
def test_unsupported_e2b_features_are_reported(what: str) -> None:
    call: Callable[[], Any] = MISSING[what][1]
    with pytest.raises(Exception) as refused:
        call()
    assert "not supported" in str(refused.value), refused.value
