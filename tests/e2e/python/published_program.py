"""A program for the client `pandastack` 0.10.0 as it is published, through all that this server has.

Run by `test_published.py` in a Python that has that client and not the one of this repository.
"""

import json
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pandastack
from pandastack import Client
from pandastack.explore import Candidate
from pandastack.exceptions import BadRequestError, NotFoundError, SandboxTimeout, ServerError

LABEL = {"e2e": sys.argv[1]}
assert Path(pandastack.__file__).is_relative_to(sys.argv[2]), pandastack.__file__


def sandboxes(client: Client) -> None:
    with client.sandboxes.create(template="base", ttl_seconds=1800, metadata=LABEL) as box:
        assert client.sandboxes.get(box.id).metadata["e2e"] == LABEL["e2e"]
        assert box.id in [each.id for each in client.sandboxes.list()]
        ran = box.exec("echo out; echo err >&2; exit 3")
        assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\n", "err\n", 3)
        assert box.commands.run("echo $((6*7))").stdout == "42\n"
        assert box.run_code("print(2 ** 10)").stdout == "1024\n"
        contexts(box)
        streamed = []
        box.exec_stream("echo grüße; seq 3", on_stdout=streamed.append)
        assert "".join(streamed) == "grüße\n1\n2\n3\n"
        try:
            box.exec("sleep 1000", timeout_seconds=1)
            raise AssertionError("a timeout was not told")
        except SandboxTimeout:
            pass
        files(box)
        lifecycle(client, box)
        copies(client, box)
        assert all(isinstance(line, str) for line in box.logs())
        assert box.preview_url(8000).startswith(f"https://8000-{box.id}.")
    try:
        client.sandboxes.get(box.id)
        raise AssertionError("a deleted sandbox was found")
    except NotFoundError:
        pass


def contexts(box: pandastack.Sandbox) -> None:
    with box.create_code_context("py") as context:
        assert context.run_code("x = 20\nprint('grüße')").stdout == "grüße\n"
        ran = context.run_code("x + 1")
        assert (ran.text, ran.exit_code, ran.error) == ("21", 0, None)
        failed = context.run_code("1/0")
        assert failed.exit_code == 1 and "ZeroDivisionError" in failed.error
        try:
            context.run_code("import time; time.sleep(1000)", timeout_seconds=1)
            raise AssertionError("a timeout was not told")
        except SandboxTimeout:
            pass
        assert context.run_code("x").text == "20"
    try:
        context.run_code("x")
        raise AssertionError("a context that was closed ran code")
    except NotFoundError:
        pass


def files(box: pandastack.Sandbox) -> None:
    fs = box.filesystem
    fs.write("/srv/a/text", "grüße")
    assert fs.read("/srv/a/text") == "grüße".encode()
    assert fs.stat("/srv/a/text").size == 7 and fs.exists("/srv/a") and not fs.exists("/srv/b")
    assert [entry.name for entry in fs.listdir("/srv/a")] == ["text"]
    assert ("/srv/a" in [str(place[0]) for place in fs.walk("/srv")])
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "in"
        local.write_bytes(b"x" * 100_000)
        fs.upload(local, "/srv/up")
        fs.download("/srv/up", Path(folder) / "out")
        assert (Path(folder) / "out").read_bytes() == local.read_bytes()


def lifecycle(client: Client, box: pandastack.Sandbox) -> None:
    box.set_ttl(1200)
    assert box.lifecycle()["ttl_seconds"] == 1200
    box.pause()
    assert box.refresh().status == "paused"
    box.resume()
    box.hibernate()
    assert client.sandboxes.get(box.id).status == "hibernated"
    assert box.exec("cat /srv/a/text").stdout == "grüße"


def copies(client: Client, box: pandastack.Sandbox) -> None:
    snapshot = box.snapshot()
    assert snapshot in [each["id"] for each in client.snapshots.list(sandbox_id=box.id)]
    restored = client.sandboxes.create(template="base", from_snapshot=snapshot, metadata=LABEL)
    assert restored.exec("cat /srv/a/text").stdout == "grüße"
    restored.kill()
    client.snapshots.delete(snapshot)
    fork = box.fork(metadata=LABEL)
    assert fork.exec("cat /srv/a/text").stdout == "grüße"
    fork.kill()
    candidates = [Candidate.shell(str(n), f"echo {n} > /srv/result; exit {n % 2}") for n in range(3)]
    explored = box.explore(candidates)
    assert explored.winner is not None
    explored_box = getattr(explored.winner, "sandbox", None)
    if explored_box is not None:
        explored_box.kill()


def account(client: Client) -> None:
    assert client.me()["auth_method"] == "api_key"
    made = client.tokens.create("published-client", expires_in_days=1)
    assert made.prefix in [token.prefix for token in client.tokens.list()]
    client.tokens.revoke(made.prefix)
    assert made.prefix not in [token.prefix for token in client.tokens.list()]
    assert {"base", "code-interpreter"} <= {template.name for template in client.templates.list()}
    assert client.templates.get("base").memory_mb > 0
    client.templates.builds()


def functions(client: Client) -> None:
    name = f"published-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "main.py"
        script.write_text("import json, sys\nevent = json.load(sys.stdin)\nprint(json.dumps({'twice': event['n'] * 2}))\n")
        made = client.functions.create(name, "python", str(script), template="base", env={"A": "1"})
        assert made["name"] == name and made["version"] == 1 and made["code_size"] > 0, made
        run = client.functions.invoke(made["id"], input={"n": 21})
        assert run["status"] == "success" and run["exit_code"] == 0, run
        assert json.loads(run["stdout"]) == {"twice": 42} and run["duration_ms"] > 0
        (Path(directory) / "handler.py").write_text("def handler(event, context):\n    return 'second'\n")
        deployed = client.functions.deploy(name, "python", directory, entrypoint="handler.py", template="base")
        assert deployed["id"] == made["id"] and deployed["version"] == 2, deployed
    assert client.functions.invoke(made["id"])["status"] == "success"
    assert client.functions.update(made["id"], public=True)["public"]
    assert [known["id"] for known in client.functions.list() if known["name"] == name] == [made["id"]]
    assert client.functions.metrics(made["id"])["errors"] == 0
    assert all(run["function_id"] == made["id"] for run in client.functions.runs(made["id"]))
    schedule = client.schedules.create(f"{name}-nightly", made["id"], "0 3 * * *")
    assert schedule["function_id"] == made["id"] and schedule["next_run_at"], schedule
    fired = client.schedules.trigger(schedule["id"])
    assert (fired["status"], json.loads(fired["stdout"])) == ("success", "second"), fired
    client.schedules.delete(schedule["id"])
    client.functions.delete(made["id"])


def schedules(client: Client) -> None:
    """Its schedule calls. The target is ours: the published client knows functions only."""
    body = {"name": "mine", "cron": "0 0 1 1 *", "paused": False, "target": {"type": "command", "cmd": "echo hi"}}
    made = client._request("POST", "/schedules", json=body)
    known = {"id", "workspace", "name", "function_id", "cron", "paused", "next_run_at", "created_at", "updated_at"}
    assert known <= set(made), made
    assert client.schedules.get(made["id"])["cron"] == "0 0 1 1 *"
    assert made["id"] in [each["id"] for each in client.schedules.list()]
    changed = client.schedules.update(made["id"], cron="*/5 * * * *", paused=True)
    assert changed["cron"] == "*/5 * * * *" and changed["paused"] and "next_run_at" not in changed
    run = client.schedules.trigger(made["id"])
    assert (run["status"], run["stdout"], run["schedule_id"]) == ("success", "hi\n", made["id"]), run
    assert [each["id"] for each in client.schedules.runs(made["id"])] == [run["id"]]
    for bad in ("61 * * * *", "0 0 31 2 *"):
        try:
            client.schedules.update(made["id"], cron=bad)
            raise AssertionError(f"{bad} was accepted")
        except pandastack.BadRequestError:
            pass
    client.schedules.delete(made["id"])
    assert made["id"] not in [each["id"] for each in client.schedules.list()]


def volumes(client: Client) -> None:
    name = f"published-{uuid.uuid4().hex[:8]}"
    assert client.volumes.create(name, 64)["size_mb"] == 64
    assert name in [volume["name"] for volume in client.volumes.list()]
    sandbox = client.sandboxes.create(template="base", volumes=[{"name": name}])
    sandbox.exec(f"echo kept > /volumes/{name}/file")
    try:
        client.volumes.delete(name)
        raise AssertionError("a volume in use was deleted")
    except BadRequestError:
        pass
    sandbox.kill()
    reader = client.sandboxes.create(template="base", volumes=[{"name": name, "read_only": True}])
    assert reader.exec(f"cat /volumes/{name}/file").stdout.strip() == "kept"
    reader.kill()
    assert client.volumes.get(name)["size_bytes"] == 64 << 20
    client.volumes.delete(name)


def databases(client: Client) -> None:
    deadline = time.monotonic() + 600
    while True:
        try:
            made = client.databases.create(label="published")
            break
        except ServerError as error:
            # The first database of a host: its template is built first.
            assert "building the PostgreSQL template" in str(error) and time.monotonic() < deadline, error
            time.sleep(2)
    try:
        assert made["status"] == "running" and made["connection_url"].startswith("postgresql://")
        assert made["id"] in [each["id"] for each in client.databases.list()]
        connection = client.databases.connection(made["id"])
        assert connection["connection_url"] == made["connection_url"] and connection["broker_token"]
        assert client.databases.update(made["id"], always_on=True)["always_on"] is True
        assert client.databases.wake(made["id"])["id"] == made["id"]
        assert client.databases.reset_credentials(made["id"])["password"] != made["password"]
        copy = client.databases.clone(made["id"], label="copy")
        assert copy["cloned_from"] == made["id"] and copy["status"] == "running"
        client.databases.delete(copy["id"])
    finally:
        client.databases.delete(made["id"])
    try:
        client.databases.get(made["id"])
        raise AssertionError("a deleted database is still there")
    except NotFoundError:
        pass


def main() -> None:
    client = Client()
    account(client)
    sandboxes(client)
    functions(client)
    schedules(client)
    volumes(client)
    databases(client)
    print(json.dumps({"passed": True}))


main()
