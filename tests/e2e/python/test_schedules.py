"""Schedules fire on time, do what they were told, and survive `kill -9` of the control server."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Iterator, List

import httpx
import pytest
from pandastack import BadRequestError, NotFoundError, PandaStack, Sandbox, command_target, http_target

from platform_process import Platform, wait_until

#: What is promised of an idle server, and what a busy machine of tests is allowed.
LATE_SECONDS_MAX = 2.0


def moment(text: str) -> float:
    """An RFC 3339 time as seconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    at = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    return at + float(f"0.{fraction or '0'}")


class Receiver:
    """An HTTP server that notes who called, and answers as told."""

    def __init__(self) -> None:
        self.calls: List[Dict[str, Any]] = []
        self.statuses: List[int] = []
        self.hold = threading.Event()
        self.hold.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.calls.append({"at": time.time(), "path": self.path, "headers": headers, "body": body})
                receiver.hold.wait(60)
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("content-length", "5")
                self.end_headers()
                self.wfile.write(b"hello")

            def log_message(self, *_: object) -> None:
                """Tests have their own output."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    running = Platform("psch", "10.224.0.0/16", "--warm", "base", "--schedules-private-targets")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(platform: Platform) -> Iterator[PandaStack]:
    made = platform.client()
    yield made
    for schedule in made.schedules.list():
        made.schedules.delete(schedule["id"])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.hold.set()
    made.server.shutdown()


@pytest.fixture(scope="module")
def box(platform: Platform) -> Iterator[Sandbox]:
    with platform.client().sandboxes.create(template="base", persistent=True) as made:
        yield made


def ended(client: PandaStack, schedule_id: str, count: int, seconds: float = 90) -> List[Dict[str, Any]]:
    """The first runs that ended, oldest first, once there are as many."""
    def find() -> List[Dict[str, Any]]:
        runs = [dict(run) for run in client.schedules.runs(schedule_id) if run.get("ended_at")]
        return list(reversed(runs)) if len(runs) >= count else []
    found = wait_until(f"{count} runs ended", find, seconds)
    assert isinstance(found, list)
    return found


def test_an_http_target_is_called_on_time(client: PandaStack, platform: Platform, receiver: Receiver) -> None:
    target = http_target(receiver.url, headers={"x-mine": "1"}, body="payload")
    made = client.schedules.create("ticks", every_seconds=4, target=target)
    runs = ended(client, made["id"], 3)
    client.schedules.pause(made["id"])
    assert {run["status"] for run in runs} == {"success"} and runs[0]["stdout"] == "hello"
    assert runs[0]["http_status"] == 200 and runs[0]["attempt"] == 1
    instants = [moment(run["scheduled_for"]) for run in runs]
    assert all(abs(later - earlier - 4) < 0.001 for earlier, later in zip(instants, instants[1:]))
    # One of three may fall into a moment in which the disk of the host stands still.
    late = sorted(call["at"] - instant for call, instant in zip(receiver.calls, instants))
    assert 0 <= late[0] and late[1] < LATE_SECONDS_MAX, late
    for call in receiver.calls[:3]:
        assert call["body"] == "payload" and call["headers"]["x-mine"] == "1"
    first = receiver.calls[0]["headers"]
    assert first["x-pandastack-run-id"] == runs[0]["id"] == first["idempotency-key"]
    # The promises of an idle server are recorded: by each run, and in sum.
    late_ms = [round(1000 * (moment(run["started_at"]) - at)) for run, at in zip(runs, instants)]
    print("begun ms after their time:", late_ms, "called:", [round(1000 * (call["at"] - at)) for call, at in zip(receiver.calls, instants)])
    page = httpx.get(f"http://127.0.0.1:{platform.port}/metrics").text
    counted = {line.split()[0]: float(line.split()[1]) for line in page.splitlines() if line.startswith("pandastack_schedule")}
    assert counted["pandastack_schedule_late_seconds_count"] >= 3
    late_sum, late_count = (counted[f"pandastack_schedule_late_seconds_{name}"] for name in ("sum", "count"))
    assert late_sum / late_count < 30
    assert counted['pandastack_schedule_attempt_seconds_count{status="success",target="http"}'] >= 3


def test_a_failing_target_is_retried_and_triggers_an_alert(client: PandaStack, receiver: Receiver) -> None:
    receiver.statuses = [500, 503, 200]
    soon = (datetime.now(timezone.utc) + timedelta(seconds=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
    options: Dict[str, Any] = {"retries": 2, "retry_delay_seconds": 1}
    made = client.schedules.create("once", at=soon, target=http_target(receiver.url), **options)
    run = ended(client, made["id"], 1)[0]
    assert (run["status"], run["attempt"], len(receiver.calls)) == ("success", 3, 3)
    assert [call["headers"]["x-pandastack-attempt"] for call in receiver.calls] == ["1", "2", "3"]
    assert receiver.calls[2]["at"] - receiver.calls[1]["at"] >= 2
    assert "next_run_at" not in client.schedules.get(made["id"])
    alerts = Receiver()
    receiver.statuses = [500] * 10
    alert = {"url": alerts.url, "after_failures": 2}
    made = client.schedules.create(
        "fails", every_seconds=1, target=http_target(receiver.url), alert=alert, pause_after_failures=3
    )
    wait_until("it is paused", lambda: client.schedules.get(made["id"])["paused"], 30)
    assert "3" in client.schedules.get(made["id"])["paused_reason"]
    wait_until("the alert", lambda: alerts.calls, 30)
    assert '"consecutive_failures":2' in alerts.calls[0]["body"]
    alerts.server.shutdown()


def test_a_scheduled_command_wakes_its_sandbox(client: PandaStack, box: Sandbox) -> None:
    box.exec("echo memory > /dev/shm/kept")
    box.hibernate()
    command = "cat /dev/shm/kept; echo $PANDASTACK_ATTEMPT; echo oops >&2; date +%s >> /root/fired"
    # A run that is due during another one is skipped, and a wake may take long.
    target = command_target(command, sandbox_id=box.id)
    made = client.schedules.create("inside", every_seconds=20, target=target)
    run = ended(client, made["id"], 1)[0]
    client.schedules.pause(made["id"])
    assert (run["status"], run["stdout"], run["stderr"]) == ("success", "memory\n1\n", "oops\n"), run
    assert run["sandbox_id"] == box.id
    fired = int(str(box.filesystem.read("/root/fired")).split()[0])
    assert abs(fired - moment(run["scheduled_for"])) < 30
    manual = client.schedules.trigger(made["id"])
    assert (manual["status"], manual["origin"]) == ("success", "manual")


def test_schedules_run_in_new_sandboxes_or_hibernate_and_wake_one(client: PandaStack, box: Sandbox) -> None:
    made = client.schedules.create(
        "fresh", cron="@yearly", target=command_target("echo from $(hostname); exit 3", template="base")
    )
    before = client.schedules.get(made["id"])["next_run_at"]
    run = client.schedules.trigger(made["id"])
    assert (run["status"], run["exit_code"]) == ("error", 3) and run["stdout"].startswith("from ")
    assert client.schedules.get(made["id"])["next_run_at"] == before
    with pytest.raises(NotFoundError):
        client.sandboxes.get(run["sandbox_id"])
    moves = {"hibernate": "hibernated", "wake": "running"}
    for action, status in moves.items():
        target = {"type": "sandbox", "sandbox_id": box.id, "action": action}
        moved = client.schedules.create(action, cron="@yearly", target=target)
        assert client.schedules.trigger(moved["id"])["status"] == "success"
        assert client.sandboxes.get(box.id).status == status


def test_overlapping_runs_are_skipped(client: PandaStack, receiver: Receiver) -> None:
    receiver.hold.clear()
    made = client.schedules.create("long", every_seconds=1, target=http_target(receiver.url))
    runs = ended(client, made["id"], 2)
    assert {run["status"] for run in runs} == {"skipped"} and "in progress" in runs[0]["error"]
    assert len(receiver.calls) == 1
    running = [run for run in client.schedules.runs(made["id"]) if run["status"] == "running"]
    client.schedules.pause(made["id"])
    assert client.schedules.cancel_run(made["id"], running[0]["id"])["status"] == "cancelled"


def test_a_cancelled_command_leaves_no_process(client: PandaStack, box: Sandbox) -> None:
    command = "sleep 7777 & echo begun > /root/begun; sleep 7777"
    target = command_target(command, sandbox_id=box.id)
    made = client.schedules.create("ended", cron="@yearly", target=target)
    run = client.schedules.trigger(made["id"], wait=False)
    wait_until("it runs", lambda: box.exec("cat /root/begun").exit_code == 0, 60)
    assert client.schedules.cancel_run(made["id"], run["id"])["status"] == "cancelled"
    gone = lambda: box.exec("ps -e -o args= | grep -c '^sleep 777[7]'").stdout.strip() == "0"  # noqa: E731
    wait_until("no process is left", gone, 60)


def test_a_timeout_ends_a_run(client: PandaStack, box: Sandbox) -> None:
    target = command_target("sleep 60", sandbox_id=box.id)
    made = client.schedules.create("slow", cron="@yearly", target=target, timeout_seconds=1)
    run = client.schedules.trigger(made["id"])
    assert run["status"] == "timeout" and run["duration_ms"] < 30_000, run


def test_a_restarted_control_server_makes_up_missed_runs(
    platform: Platform, client: PandaStack, receiver: Receiver
) -> None:
    options: Dict[str, Any] = {"missed_max": 4, "starting_deadline_seconds": 1}
    # One outage for all policies.
    made = {
        missed: client.schedules.create(
            f"outage {missed}", every_seconds=3, target=http_target(f"{receiver.url}/{missed}"), missed=missed, **options
        )["id"]
        for missed in ("skip", "run_once", "run_all")
    }
    before = {missed: len(ended(client, schedule, 1)) for missed, schedule in made.items()}
    assert platform.process is not None
    os.kill(platform.process.pid, signal.SIGSTOP)
    began = time.time()
    try:
        os.kill(platform.role_pid("control"), signal.SIGKILL)
        # An outage has a length; there is no event to wait for.
        wait_until("an outage across several times", lambda: time.time() - began > 19.5, 30)
    finally:
        os.kill(platform.process.pid, signal.SIGCONT)
    wait_until("ready again", platform.is_ready, 120)
    for missed, schedule in made.items():
        runs = ended(client, schedule, before[missed] + 3)
        client.schedules.pause(schedule)
        # From the first run that the new server ended, times are not missed any more.
        back = min(moment(run["ended_at"]) for run in runs if moment(run["ended_at"]) > began + 19)
        late = [run for run in runs if began + 1 < moment(run["scheduled_for"]) < back - 1]
        check_made_good(missed, runs, late)
    ids = [call["headers"]["x-pandastack-run-id"] for call in receiver.calls]
    again = {call["headers"]["x-pandastack-run-id"] for call in receiver.calls if call["headers"]["x-pandastack-attempt"] != "1"}
    assert len(ids) - len(set(ids)) <= len(again), "a run is called twice only as another attempt"


def check_made_good(missed: str, runs: List[Dict[str, Any]], late: List[Dict[str, Any]]) -> None:
    """Runs that a policy makes of the times of an outage."""
    instants = [run["scheduled_for"] for run in runs]
    assert len(set(instants)) == len(instants), "one run for each time"
    succeeded = [run for run in late if run["status"] == "success"]
    if missed == "run_once":
        assert len(late) <= 2 and any(run["missed"] >= 3 for run in runs), late
    elif missed == "skip":
        assert all(run["status"] == "skipped" or run["missed"] >= 3 for run in late[:1]), late
        assert len(late) <= 2, late
    else:
        assert 3 <= len(succeeded) <= 5 and sum(run["missed"] for run in runs) >= 1, late


def test_schedules_are_previewed_and_invalid_ones_rejected(client: PandaStack, box: Sandbox) -> None:
    shown = client.schedules.preview(
        "30 2 * * *", timezone="America/New_York", after="2027-03-13T00:00:00Z", count=3
    )
    assert shown["local"] == ["2027-03-13T02:30:00-05:00", "2027-03-14T03:00:00-04:00", "2027-03-15T02:30:00-04:00"]
    made = client.schedules.create("next", cron="0 0 29 2 *", target=http_target("https://example.com/"))
    assert [at[:10] for at in client.schedules.next(made["id"], 2)["items"]] == ["2028-02-29", "2032-02-29"]
    good: Dict[str, Any] = {"target": http_target("https://example.com/")}
    for bad in (
        {"cron": "0 0 31 2 *", **good},
        {"cron": "* * * * * *", **good},
        {"cron": "* * * * *", "timezone": "Mars/Olympus", **good},
        {"cron": "* * * * *", "every_seconds": 5, **good},
        {"every_seconds": 0, **good},
        {"at": "2020-01-01T00:00:00Z", **good},
        {"cron": "* * * * *"},
        {"cron": "* * * * *", "target": {"type": "nonsense"}},
        {"cron": "* * * * *", "target": http_target("ftp://example.com/")},
        {"cron": "* * * * *", "target": command_target("true", sandbox_id=box.id, template="base")},
        {"cron": "* * * * *", "retries": 1000, **good},
        {"cron": "* * * * *", "overlap": "sometimes", **good},
    ):
        with pytest.raises(BadRequestError):
            client.schedules.create("bad", **bad)
    with pytest.raises(NotFoundError):
        client.schedules.get("no-such-schedule")
