"""A stand-in for the service of Claude Managed Agents, as a worker of a self-hosted environment sees it.

It has one session, whose agent makes scripted tool calls, one after the other. The worker is the one that
users get. What is checked here is what the service documents: the environment's key polls, the token of the
work item does the rest, a heartbeat names the one before it, a lease that lapses goes back to the queue, and
a tool call has one result. Usage: ``scripted_environment.py PORT CALLS``, where CALLS is a JSON file with a
list of ``[tool, input]``. ``GET /state`` tells the test what happened.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

KEY, TOKEN = "key-of-the-environment", "token-of-the-session"
ENVIRONMENT, SESSION, WORK = "env_1", "sesn_1", "work_1"
BETA = "managed-agents-2026-04-01"
LEASE_SECONDS = 10
AT = "2026-11-20T00:00:00Z"
SECRET = base64.urlsafe_b64encode(json.dumps({"sessions_token": TOKEN}).encode()).decode()
AGENT = {
    "id": "agent_1", "type": "agent", "name": "scripted", "version": 1, "model": {"id": "scripted"},
    "mcp_servers": [], "skills": [], "tools": [], "execution_identity": {"type": "service_account"},
}

Answer = Tuple[int, Any]


def failure(kind: str, message: str) -> Dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


class Service:
    """The work item, its lease and the session's events."""

    def __init__(self, calls: List[Tuple[str, Dict[str, Any]]]) -> None:
        self.calls = calls
        self.changed = threading.Condition()
        self.events: List[Dict[str, Any]] = []
        self.state, self.beat, self.beat_at = "queued", "NO_HEARTBEAT", 0.0
        self.claims, self.beats, self.workers, self.problems = 0, 0, [], []
        self.call_next()

    def add(self, event: Dict[str, Any]) -> None:
        self.events.append({"id": f"sevt_{len(self.events)}", "processed_at": AT, **event})
        self.changed.notify_all()

    def call_next(self) -> None:
        with self.changed:
            done = sum(event["type"] == "user.tool_result" for event in self.events)
            if done < len(self.calls):
                tool, given = self.calls[done]
                call = {"type": "agent.tool_use", "name": tool, "input": given}
                self.add({**call, "evaluated_permission": "allow"})
                reason = {"type": "requires_action", "event_ids": [self.events[-1]["id"]]}
                self.add({"type": "session.status_idle", "stop_reason": reason})
            else:
                self.add({"type": "session.status_idle", "stop_reason": {"type": "end_turn"}})

    def lapse(self) -> None:
        if self.state == "active" and time.monotonic() - self.beat_at > LEASE_SECONDS:
            self.state, self.beat = "queued", "NO_HEARTBEAT"

    def work(self, secret: Optional[str] = None) -> Dict[str, Any]:
        return {
            "id": WORK, "type": "work", "environment_id": ENVIRONMENT, "created_at": AT, "metadata": {},
            "state": self.state, "data": {"id": SESSION, "type": "session"}, "secret": secret,
        }

    def poll(self, worker: str) -> Answer:
        with self.changed:
            self.lapse()
            if self.state != "queued":
                return 200, None
            self.state, self.beat_at = "active", time.monotonic()
            self.claims += 1
            self.workers.append(worker)
            return 200, self.work(SECRET)

    def heartbeat(self, expected: str) -> Answer:
        with self.changed:
            self.lapse()
            if expected != self.beat:
                return 412, failure("conflict", "not the last heartbeat")
            self.beats += 1
            self.beat, self.beat_at = f"beat {self.beats}", time.monotonic()
            return 200, {"type": "work_heartbeat", "last_heartbeat": self.beat, "lease_extended": True,
                         "state": self.state, "ttl_seconds": LEASE_SECONDS}

    def stop(self) -> Answer:
        with self.changed:
            self.state = "stopped"
            return 200, self.work()

    def send(self, events: List[Dict[str, Any]]) -> Answer:
        with self.changed:
            calls = {event["id"] for event in self.events if event["type"] == "agent.tool_use"}
            results = [event for event in self.events if event["type"] == "user.tool_result"]
            answered = {result["tool_use_id"] for result in results}
            for event in events:
                call = event.get("tool_use_id")
                if event["type"] != "user.tool_result" or call not in calls or call in answered:
                    self.problems.append(f"an unexpected event: {event}")
                    return 400, failure("invalid_request_error", "unexpected")
                self.add(event)
        self.call_next()
        return 200, {"data": events}

    def told(self) -> Dict[str, Any]:
        with self.changed:
            results = [event for event in self.events if event["type"] == "user.tool_result"]
            return {"state": self.state, "claims": self.claims, "workers": self.workers, "beats": self.beats,
                    "problems": self.problems, "results": results}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def do_GET(self) -> None:
        self.handle_call({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.handle_call(json.loads(body) if body else {})

    def handle_call(self, body: Dict[str, Any]) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        work, session = f"/v1/environments/{ENVIRONMENT}/work", f"/v1/sessions/{SESSION}"
        if url.path == "/state":
            self.answer(200, self.service.told())
        elif not self.allowed(url.path in (f"{work}/poll", f"{work}/{WORK}/ack")):
            self.answer(401, failure("authentication_error", "refused"))
        elif url.path == f"{work}/poll":
            self.answer(*self.service.poll(self.headers.get("anthropic-worker-id", "")))
        elif url.path == f"{work}/{WORK}/ack":
            self.answer(200, self.service.work())
        elif url.path == f"{work}/{WORK}/heartbeat":
            self.answer(*self.service.heartbeat(query.get("expected_last_heartbeat", "")))
        elif url.path == f"{work}/{WORK}/stop":
            self.answer(*self.service.stop())
        elif url.path == session:
            self.answer(200, {
                "id": SESSION, "type": "session", "agent": AGENT, "metadata": {},
                "environment_id": ENVIRONMENT,
                "created_at": AT, "updated_at": AT, "outcome_evaluations": [], "resources": [], "stats": {},
                "status": "running", "usage": {}, "vault_ids": [],
            })
        elif url.path == f"{session}/events" and self.command == "POST":
            self.answer(*self.service.send(body["events"]))
        elif url.path == f"{session}/events":
            with self.service.changed:
                self.answer(200, {"data": list(self.service.events), "next_page": None})
        elif url.path == f"{session}/events/stream":
            self.stream()
        else:
            self.service.problems.append(f"an unexpected request: {self.command} {self.path}")
            self.answer(404, failure("not_found_error", self.path))

    def allowed(self, of_environment: bool) -> bool:
        """Whether a request has the credential that its kind of call needs, and the protocol's header."""
        right = self.headers.get("authorization") == f"Bearer {KEY if of_environment else TOKEN}"
        right = right and "x-api-key" not in self.headers and BETA in self.headers.get("anthropic-beta", "")
        if not right:
            self.service.problems.append(f"refused: {self.command} {self.path} with {dict(self.headers)}")
        return right

    def answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        service = self.service
        with service.changed:
            sent = len(service.events)
        while True:
            with service.changed:
                service.changed.wait_for(lambda: len(service.events) > sent, timeout=1)
                fresh = service.events[sent:]
            sent += len(fresh)
            try:
                # A comment finds out whether the worker is still there.
                lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in fresh]
                self.wfile.write("".join(lines or [": .\n\n"]).encode())
            except OSError:
                return

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


if __name__ == "__main__":
    Handler.service = Service(json.loads(Path(sys.argv[2]).read_text()))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
