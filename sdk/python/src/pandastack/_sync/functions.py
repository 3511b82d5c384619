# Generated from _async/functions.py by tools/generate_sync.py: change that file, not this one.
"""Functions."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any, Iterator, Dict, List, Mapping, Optional, Tuple, Union, cast

from .._check import checked
from .. import _wire
from .._bundle import is_bundle, pack
from .._wire import Call, segment
from ..errors import FunctionDeployError, RequestTimeout
from ..function_models import FunctionInfo, FunctionMetrics, FunctionRun, FunctionVersion
from ._io import sleep
from .exec_stream import server_events
from .transport import Transport

#: Longest that an upload and the server's own wait for a deploy may take.
DEPLOY_SECONDS_MAX = 300.0
#: Longest that a call is waited for: a function's longest timeout, and the line before it.
INVOKE_SECONDS_MAX = 7200.0
#: Between two looks at a deploy or a queued call.
LOOK_EVERY_SECONDS = 0.25


def _path(function: str, rest: str = "") -> str:
    return f"/functions/{segment(function, 'function')}{rest}"


@checked
class FunctionsAPI:
    """``client.functions``. Functions are named by id or name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> List[FunctionInfo]:
        """List functions by name."""
        answer = self._transport.send(_wire.get("/functions"))
        return cast("List[FunctionInfo]", answer.records("items"))

    def get(self, function: str) -> FunctionInfo:
        """Get a function."""
        return cast("FunctionInfo", (self._transport.send(_wire.get(_path(function)))).record())

    def create(
        self,
        name: str,
        runtime: str = "python",
        file_path: Optional[Union[str, Path]] = None,
        *,
        entrypoint: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        secrets: Optional[Mapping[str, str]] = None,
        template: Optional[str] = None,
        public: bool = False,
        **settings: Any,
    ) -> FunctionInfo:
        """Create a function. With ``file_path``, deploy that file and wait until it can be called.

        ``settings``: ``timeout_seconds``, ``concurrency``, ``max_instances``, ``queue_max``, ``idle_seconds``,
        ``isolation``, ``retries``, ``max_age_seconds``, ``cpu``, ``memory_mb``, ``dead_letter_url``.
        """
        body = _wire.given(
            name=name,
            runtime=runtime,
            entrypoint=entrypoint or (None if file_path is None else Path(file_path).name),
            env=None if env is None else dict(env),
            secrets=None if secrets is None else dict(secrets),
            template=template,
            **settings,
        )
        body["public"] = public
        if file_path is not None:
            body["code"] = base64.b64encode(Path(file_path).read_bytes()).decode("ascii")
        call = _wire.post("/functions", body, seconds_max=DEPLOY_SECONDS_MAX)
        made = cast("FunctionInfo", (self._transport.send(call)).record())
        return made if file_path is None else self.wait_until_ready(made["id"])

    def deploy(
        self,
        name: str,
        runtime: str,
        path: Union[str, Path],
        *,
        entrypoint: Optional[str] = None,
        **options: Any,
    ) -> FunctionInfo:
        """Deploy a file, a directory or a bundle (``.zip``, ``.tar.gz``), creating the function if needed.

        Waits until it can be called. ``options`` are those of :meth:`create`, for a function that is made.
        """
        source = Path(path)
        if entrypoint is None and source.is_file() and not is_bundle(source):
            entrypoint = source.name
        if not any(known["name"] == name for known in self.list()):
            self.create(name, runtime, entrypoint=entrypoint, **options)
            entrypoint = None
        return self.deploy_bundle(name, pack(source), entrypoint)

    def deploy_bundle(self, function: str, bundle: bytes, entrypoint: Optional[str] = None) -> FunctionInfo:
        """Deploy a gzip-compressed tar archive or a zip archive and wait until it can be called."""
        if entrypoint is not None and (self.get(function))["entrypoint"] != entrypoint:
            self.update(function, entrypoint=entrypoint)
        call = Call(
            "POST",
            _path(function, "/deploy"),
            body=bundle,
            content_type="application/octet-stream",
            seconds_max=DEPLOY_SECONDS_MAX,
            is_once=True,
        )
        self._transport.send(call)
        return self.wait_until_ready(function)

    def wait_until_ready(self, function: str, *, timeout_seconds: float = 1200.0) -> FunctionInfo:
        """Wait until the newest deployment ends; :class:`~pandastack.FunctionDeployError` if it failed."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = self.get(function)
            status = found.get("deploy_status")
            if status == "failed":
                raise FunctionDeployError(f"{found['name']!r} failed to deploy: {found.get('deploy_error')}")
            if status != "building":
                return found
            if time.monotonic() > deadline:
                raise RequestTimeout(f"the deployment of {found['name']!r} took longer than {timeout_seconds:g} s")
            sleep(LOOK_EVERY_SECONDS)

    def update(self, function: str, **changes: Any) -> FunctionInfo:
        """Update a function: ``name``, ``env``, ``secrets``, ``public``, ``entrypoint``, ``template``, settings."""
        call = _wire.post(_path(function), _wire.given(**changes), seconds_max=DEPLOY_SECONDS_MAX, method="PATCH")
        return cast("FunctionInfo", (self._transport.send(call)).record())

    def delete(self, function: str) -> None:
        """Delete a function with its versions, machines and runs."""
        self._transport.send(_wire.delete(_path(function)))

    def invoke(
        self, function: str, input: Any = None, *, qualifier: Optional[str] = None, wait: bool = True
    ) -> FunctionRun:
        """Call a function and return its run; ``output`` is what the handler returned.

        Without ``wait`` the call is queued and tried again when it fails; see :meth:`wait_for_run`. ``qualifier`` is a
        version or an alias.
        """
        call = _wire.post(_path(function, "/invoke"), {"input": input, "async": not wait}, seconds_max=INVOKE_SECONDS_MAX)
        if qualifier is not None:
            call = _wire.asking(call, {"qualifier": qualifier})
        return cast("FunctionRun", (self._transport.send(call)).record())

    def runs(self, function: str, *, limit: int = 100) -> List[FunctionRun]:
        """List runs, newest first."""
        answer = self._transport.send(_wire.get(_path(function, "/runs"), {"limit": str(limit)}))
        return cast("List[FunctionRun]", answer.records("items"))

    def dead_letters(self, function: str, *, limit: int = 100) -> List[FunctionRun]:
        """List dead-lettered calls, newest first."""
        query = {"limit": str(limit), "dead_letter": "true"}
        answer = self._transport.send(_wire.get(_path(function, "/runs"), query))
        return cast("List[FunctionRun]", answer.records("items"))

    def redrive(self, function: str, run_id: Optional[str] = None) -> int:
        """Queue a dead-lettered call again, or up to 1,000 of them. Returns how many."""
        one = "" if run_id is None else f"/runs/{segment(run_id, 'run id')}"
        answer = self._transport.send(_wire.post(_path(function, f"{one}/redrive"), {}))
        return int(answer.record().get("redriven", 1))

    def get_run(self, function: str, run_id: str) -> FunctionRun:
        """Get a run."""
        path = _path(function, f"/runs/{segment(run_id, 'run id')}")
        return cast("FunctionRun", (self._transport.send(_wire.get(path))).record())

    def wait_for_run(self, function: str, run_id: str, *, timeout_seconds: float = 3600.0) -> FunctionRun:
        """Wait until a queued call has ended."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            run = self.get_run(function, run_id)
            if run["status"] not in ("queued", "running"):
                return run
            if time.monotonic() > deadline:
                raise RequestTimeout(f"run {run_id!r} took longer than {timeout_seconds:g} s")
            sleep(LOOK_EVERY_SECONDS)

    def versions(self, function: str) -> List[FunctionVersion]:
        """List versions, newest first."""
        answer = self._transport.send(_wire.get(_path(function, "/versions")))
        return cast("List[FunctionVersion]", answer.records("items"))

    def rollback(self, function: str, version: Optional[int] = None) -> FunctionInfo:
        """Roll back to an earlier version: the previous one by default."""
        call = _wire.post(_path(function, "/rollback"), _wire.given(version=version))
        return cast("FunctionInfo", (self._transport.send(call)).record())

    def set_alias(
        self, function: str, alias: str, version: int, *, canary_version: Optional[int] = None, canary_percent: int = 0
    ) -> FunctionInfo:
        """Point an alias to a version, or to two versions by weight."""
        body = _wire.given(version=version, canary_version=canary_version, canary_percent=canary_percent)
        call = _wire.post(_path(function, f"/aliases/{segment(alias, 'alias')}"), body, method="PUT")
        return cast("FunctionInfo", (self._transport.send(call)).record())

    def metrics(self, function: str, period_hours: int = 24) -> FunctionMetrics:
        """Get duration percentiles and error rates of calls."""
        answer = self._transport.send(_wire.get(_path(function, "/metrics"), {"period": str(period_hours)}))
        return cast("FunctionMetrics", answer.record())

    def follow_logs(self, function: str) -> Iterator[Tuple[str, str]]:
        """Stream new output, as stream name and text."""
        call = _wire.as_event_stream(_wire.get(_path(function, "/logs"), {"follow": "1"}), has_limit=False)
        idle = _wire.STREAM_IDLE_SECONDS_MAX
        with self._transport.open_stream(call, idle_seconds_max=idle) as stream:
            for event in server_events(stream):
                if event.name in ("stdout", "stderr"):
                    yield event.name, _text(event.data)


def _text(data: str) -> str:
    record: Dict[str, Any] = json.loads(data)
    return str(record.get("text", ""))
