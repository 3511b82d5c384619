"""Logs, events, metrics, usage and the audit log."""

from __future__ import annotations

import os
import re
import threading
from typing import List

import httpx
import pytest

from conftest import PATIENCE_SECONDS, wait_for
from pandastack import PandaStack, Sandbox, SandboxEvent


def test_metrics_cover_host_and_guest(own: Sandbox) -> None:
    before = own.metrics()
    assert before["status"] == "running"
    own.exec("dd if=/dev/urandom of=/srv/filled bs=1M count=20 2>/dev/null; sync", check=True)
    after = own.metrics()
    assert after["host"]["cpu_ms"] > before["host"]["cpu_ms"]
    assert 0 < after["host"]["cpu_used_percent"] <= 400
    assert 0 < after["host"]["memory_bytes"] < 2 * after["host"]["memory_limit_bytes"]
    assert after["host_rss_bytes"] == after["host"]["memory_bytes"] and after["pid"] > 1
    assert after["host"]["disk_bytes"] > 0
    assert after["guest"]["disk_used_bytes"] - before["guest"]["disk_used_bytes"] > 15 * 1024 * 1024
    assert 0 < after["guest"]["memory_used_bytes"] < after["guest"]["memory_total_bytes"]


def test_traffic_is_counted_on_host_and_guest(own: Sandbox) -> None:
    own.exec("cd /srv && head -c 50000 /dev/zero > page && (setsid python3 -m http.server 8000 >/dev/null 2>&1 &)")

    def fetched() -> bool:
        try:
            return len(httpx.get(f"http://{own.guest_ip}:8000/page").content) == 50_000
        except httpx.HTTPError:
            return False

    wait_for("the page", fetched)

    def counted() -> bool:
        # The guest's kernel counts what it sent when it sends the next packet.
        metrics = own.metrics()
        sides = (metrics["host"], metrics["guest"])
        return fetched() and all(side["sent_bytes"] > 50_000 and side["received_bytes"] > 100 for side in sides)

    wait_for("what was sent and received, on both sides", counted)


def test_metrics_do_not_wake_a_sandbox(own: Sandbox) -> None:
    own.hibernate()
    asleep = own.metrics()
    assert asleep["status"] == "hibernated"
    assert "guest" not in asleep
    assert own.refresh().status == "hibernated"


def test_a_log_flood_does_not_affect_other_sandboxes(own: Sandbox, shared: Sandbox) -> None:
    # More than is kept.
    own.exec("(yes 'a line of a flood that nobody wants to read' | head -n 36000; echo the-end) > /dev/console 2>&1", 3600)
    assert shared.exec("echo alive").stdout == "alive\n"
    text = wait_for("the end of the flood", lambda: next((t for t in [list(own.logs())] if "the-end" in t[-5:]), None))
    assert len("\n".join(text)) <= 1024 * 1024 + 100


def test_events_resume_after_a_given_id(own: Sandbox) -> None:
    own.pause()
    own.resume()
    kinds = [event["kind"] for event in own.events()]
    assert kinds[-2:] == ["paused", "resumed"]
    after = own.events()[-2]["id"]
    seen: List[SandboxEvent] = []

    def follow() -> None:
        with PandaStack() as client:
            for event in client.sandboxes.get(own.id).follow_events(after=after):
                seen.append(event)
                if event["kind"] == "hibernated":
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_for("the missed event", lambda: seen)
    own.hibernate()
    thread.join(PATIENCE_SECONDS)
    assert [event["kind"] for event in seen] == ["resumed", "hibernated"]


def test_usage(client: PandaStack, own: Sandbox) -> None:
    own.exec("true")
    usage = client.usage()
    assert usage["total"]["creates"] >= 1
    assert own.id in {entry["sandbox_id"] for entry in usage["sandboxes"]}
    assert client.usage(since="2001-01-01T00:00:00Z", until="2001-02-01T00:00:00Z")["total"]["creates"] == 0


def test_changes_and_reads_are_audited(client: PandaStack, own: Sandbox, raw: httpx.Client) -> None:
    own.filesystem.write("/srv/audited", "x")
    own.filesystem.read("/srv/audited")
    refused = raw.post(f"/sandboxes/{own.id}/exec", json={"cmd": ""}, headers={"x-request-id": "audited-1"})
    assert refused.status_code == 400

    def entries() -> List[tuple[str, str, int]]:
        return [(e["method"], e["route"], e["status"]) for e in client.audit(sandbox_id=own.id)]

    wait_for("the last call", lambda: ("POST", "/v1/sandboxes/{id}/exec", 400) in entries())
    assert ("PUT", "/v1/sandboxes/{id}/fs", 200) in entries()
    client.sandboxes.get(own.id)
    reads = {route for method, route, _ in entries() if method == "GET"}
    assert reads == {"/v1/sandboxes/{id}/fs"}
    assert client.verify_audit()["checked"] >= 3
    newest = client.audit(sandbox_id=own.id, limit=1)[0]
    assert newest["request_id"] == "audited-1"
    assert os.environ["PANDASTACK_API_KEY"].startswith(newest["token_prefix"])
    assert client.audit(before=newest["id"], limit=1)[0]["id"] < newest["id"]


def test_platform_metrics_name_no_sandbox(own: Sandbox) -> None:
    base = os.environ["PANDASTACK_API"].rstrip("/").removesuffix("/v1")
    page = httpx.get(f"{base}/metrics").text
    assert own.id not in page
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}", page)
    for name in ("pandastack_sandboxes", "pandastack_host_memory_free_mb", "pandastack_process_resident_bytes"):
        assert f"\n{name}" in page, name


@pytest.mark.parametrize("query", ["from=yesterday", "from=2002-01-01T00:00:00Z&to=2001-01-01T00:00:00Z"])
def test_usage_rejects_invalid_ranges(raw: httpx.Client, query: str) -> None:
    assert raw.get(f"/usage?{query}").status_code == 400
