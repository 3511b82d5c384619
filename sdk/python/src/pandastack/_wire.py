"""Calls as data: what goes over the wire and what came back, without doing it.

Owns paths, time limits, body limits and the reading of JSON answers. The two transports (sync and
async) do the I/O and hold none of this.
"""

from __future__ import annotations

import json
import math
import shlex
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import quote

from .errors import BadRequestError, ServerError

#: Whole-call limit unless the client or the call has another.
CALL_SECONDS_DEFAULT = 30.0
#: Creates: the server holds one up to 25 s while its template is being baked.
CREATE_SECONDS_MAX = 60.0
#: Calls that move a machine's memory: snapshot, fork, hibernate, wake.
MACHINE_SECONDS_MAX = 180.0
#: Moving one file's bytes in one piece.
FILE_SECONDS_MAX = 300.0
#: A command that was given no limit; the server's own ends it first.
EXEC_SECONDS_MAX = 900.0
#: Added to a command's own limit, so that the server's answer about it arrives first.
EXEC_GRACE_SECONDS = 15.0
#: The server sends a comment every 15 s on an idle stream; this much silence means it is dead.
STREAM_IDLE_SECONDS_MAX = 90.0
#: One write to a process's input: it lasts as long as the process takes to read it.
STDIN_SECONDS_MAX = 300.0
#: Opening a connection.
CONNECT_SECONDS_MAX = 10.0
#: A file upload or download of any length: no progress for this long means it is dead.
TRANSFER_IDLE_SECONDS_MAX = 60.0

#: Largest JSON answer: two full output streams of 16 MiB, every byte escaped.
JSON_BODY_BYTES_MAX = 256 * 1024 * 1024
#: Largest file read into memory; ``download`` has no limit.
FILE_BODY_BYTES_MAX = 1024 * 1024 * 1024
#: Bytes per step of an upload or download.
TRANSFER_CHUNK_BYTES = 256 * 1024

#: A command: a line for the shell, or a program and its arguments.
Command = Union[str, Sequence[str]]

_RESENDABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})


@dataclass(frozen=True)
class Call:
    """One request, ready to be sent, as often as need be."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Optional[bytes] = None
    content_type: Optional[str] = None
    seconds_max: Optional[float] = None
    body_bytes_max: int = JSON_BODY_BYTES_MAX
    #: Whether a refusal for capacity is sent again.
    is_create: bool = False
    #: Whether a timeout in the answer is the command's own.
    is_command: bool = False
    idempotency_key: Optional[str] = None
    accept: str = "application/json"
    #: Headers besides those of every call.
    extra: Mapping[str, str] = field(default_factory=dict)
    #: Whether a repeat would apply the call twice, even if its method is idempotent.
    is_once: bool = False

    @property
    def what(self) -> str:
        """Name of this call in errors."""
        return f"{self.method} /v1{self.path}"

    @property
    def is_resendable(self) -> bool:
        """Whether the call can be repeated after a lost connection without doing anything twice."""
        return self.method in _RESENDABLE and not self.is_once

    def headers(self) -> Dict[str, str]:
        """Headers of this call, without the key."""
        headers = {"Accept": self.accept, **self.extra}
        if self.content_type:
            headers["Content-Type"] = self.content_type
        if self.idempotency_key:
            headers["Idempotency-Key"] = self.idempotency_key
        return headers


def get(path: str, query: Optional[Mapping[str, str]] = None) -> Call:
    """A plain read."""
    return Call("GET", path, query=query or {})


def delete(path: str, query: Optional[Mapping[str, str]] = None) -> Call:
    """A delete."""
    return Call("DELETE", path, query=query or {}, seconds_max=CREATE_SECONDS_MAX)


def post(
    path: str, body: Optional[Mapping[str, Any]] = None, *, seconds_max: Optional[float] = None, method: str = "POST"
) -> Call:
    """A JSON call; without ``body`` nothing is sent, which servers read as ``{}``."""
    encoded = None if body is None else encode_json(body)
    kind = None if body is None else "application/json"
    return Call(method, path, body=encoded, content_type=kind, seconds_max=seconds_max)


def create(path: str, body: Optional[Mapping[str, Any]] = None, *, seconds_max: float) -> Call:
    """A call that makes something: repeated on refusal, under one idempotency key."""
    encoded = None if body is None else encode_json(body)
    kind = None if body is None else "application/json"
    key = uuid.uuid4().hex
    return Call(
        "POST", path, body=encoded, content_type=kind, seconds_max=seconds_max, is_create=True, idempotency_key=key
    )


def exec_call(path: str, command: Command, timeout_seconds: Optional[float], **options: Any) -> Call:
    """A command; options that are ``None`` are left to the server."""
    body = exec_body(command, timeout_seconds, **options)
    limit = EXEC_SECONDS_MAX if timeout_seconds is None else timeout_seconds + EXEC_GRACE_SECONDS
    return Call(
        "POST", path, body=encode_json(body), content_type="application/json", seconds_max=limit, is_command=True
    )


def exec_body(command: Command, timeout_seconds: Optional[float], **options: Any) -> Dict[str, Any]:
    """The JSON of a command."""
    body: Dict[str, Any] = {"cmd": command_line(command)}
    if timeout_seconds is not None:
        if not 0 < timeout_seconds < math.inf:
            raise BadRequestError(f"timeout_seconds must be more than 0 and finite, got {timeout_seconds!r}")
        # The wire has whole seconds; rounding up keeps the promise of "at least".
        body["timeout_seconds"] = -int(-timeout_seconds // 1)
    return {**body, **given(**options)}


def given(**options: Any) -> Dict[str, Any]:
    """The options that are not ``None``: the others are left to the server."""
    return {name: value for name, value in options.items() if value is not None}


def command_line(command: Command) -> str:
    """The shell line of a command; arguments of a list are quoted."""
    line = command if isinstance(command, str) else shlex.join(command)
    if not line.strip():
        raise BadRequestError("the command is empty")
    return line


def encode_json(body: Mapping[str, Any]) -> bytes:
    """A JSON body; a value that is not JSON is the caller's error."""
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"the request cannot be encoded as JSON: {error}") from error


def segment(name: str, what: str) -> str:
    """One path segment. An empty or dotted one would silently address something else."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise BadRequestError(f"{name!r} is not a valid {what}")
    return quote(name, safe="")


def sandbox_path(sandbox_id: str, rest: str = "") -> str:
    """Path of a sandbox or of something below it."""
    return f"/sandboxes/{segment(sandbox_id, 'sandbox id')}{rest}"


@dataclass(frozen=True)
class Answer:
    """A complete 2xx answer."""

    what: str
    headers: Mapping[str, str]
    body: bytes

    def _json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ServerError(
                f"{self.what}: the response is not JSON", hint="check that the base URL is a PandaStack server"
            ) from error

    def record(self) -> Dict[str, Any]:
        """The answer as an object; an empty body is an empty object."""
        parsed = self._json() if self.body.strip() else {}
        if not isinstance(parsed, dict):
            raise ServerError(f"{self.what}: the response is not a JSON object")
        return parsed

    def entries(self, *names: str) -> List[Any]:
        """The answer as a list, bare or under the first of ``names`` (or ``items``) present."""
        parsed = self._json() if self.body.strip() else []
        if isinstance(parsed, dict):
            found = [parsed[name] for name in (*names, "items") if parsed.get(name) is not None]
            parsed = found[0] if found else []
        if not isinstance(parsed, list):
            raise ServerError(f"{self.what}: the response is not a list")
        return parsed

    def records(self, *names: str) -> List[Dict[str, Any]]:
        """The objects of :meth:`entries`."""
        return [entry for entry in self.entries(*names) if isinstance(entry, dict)]


def fork_children(answer: Answer) -> List[Dict[str, Any]]:
    """The children of a fork or fork-tree answer, in order; bare ids become records."""
    parsed = answer._json()
    if isinstance(parsed, dict):
        if isinstance(parsed.get("sandbox"), dict):
            return [parsed["sandbox"]]
        if parsed.get("id") is not None:
            return [parsed]
        parsed = answer.entries("children", "sandboxes")
    children = [{"id": child} if isinstance(child, str) else child for child in parsed or []]
    records = [child for child in children if isinstance(child, dict)]
    if not records:
        raise ServerError(f"{answer.what}: the response has no child")
    return records


def as_event_stream(call: Call, *, has_limit: bool) -> Call:
    """The same call, answered by events; without a limit of its own it may last for ever."""
    seconds_max = call.seconds_max if has_limit else None
    return replace(call, accept="text/event-stream", seconds_max=seconds_max)


def asking(call: Call, query: Mapping[str, str]) -> Call:
    """The same call with a query."""
    return replace(call, query=query)


def resumed(call: Call, last_event_id: Optional[str]) -> Call:
    """The same call, going on after an event that was seen before."""
    return call if last_event_id is None else replace(call, extra={**call.extra, "Last-Event-ID": last_event_id})


def snapshot_call(path: str, options: Mapping[str, Any]) -> Call:
    """A snapshot; keyed, but not repeated on refusal, since time has moved on by then."""
    call = post(path, options or None, seconds_max=MACHINE_SECONDS_MAX)
    return replace(call, idempotency_key=uuid.uuid4().hex)


def start_call(path: str, command: Optional[Command], timeout_seconds: Optional[float], **options: Any) -> Call:
    """A process in the background; without a command, the user's shell on its terminal."""
    body = given(**options) if command is None else exec_body(command, timeout_seconds, **options)
    return post(path, body, seconds_max=MACHINE_SECONDS_MAX)


def stdin_call(path: str, data: bytes, close: bool) -> Call:
    """Bytes for a process's input, as fast as it reads."""
    query = {"close": "true"} if close else {}
    kind = "application/octet-stream"
    return Call("POST", path, query=query, body=data, content_type=kind, seconds_max=STDIN_SECONDS_MAX)


def code_command(code: str, language: str) -> List[str]:
    """The command that runs a program text."""
    if language in ("python", "python3", "py"):
        return ["python3", "-c", code]
    if language in ("shell", "bash", "sh"):
        return ["bash", "-c", code]
    raise BadRequestError(f"language {language!r} is not supported", hint="use 'python' or 'shell'")


def run_call(command: Command, timeout_seconds: Optional[float], **options: Any) -> Call:
    """Create, run and delete in one call: repeated on refusal like a create, timed like a command."""
    body = exec_body(command, timeout_seconds, **options)
    limit = EXEC_SECONDS_MAX if timeout_seconds is None else timeout_seconds + CREATE_SECONDS_MAX
    return replace(create("/run", body, seconds_max=limit), is_command=True)
