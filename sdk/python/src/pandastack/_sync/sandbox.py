# Generated from _async/sandbox.py by tools/generate_sync.py: change that file, not this one.
"""One sandbox: commands, files, forks, sleep.

The object is a handle. Its fields are what the server said last; :meth:`Sandbox.refresh` asks
again. Calls that need the machine (exec, files, fork) wake a hibernated one on the server's side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import (
    TYPE_CHECKING,
    Any,
    Iterator,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    cast,
    overload,
)

from .._check import checked
from .. import _wire
from .._preview import preview_url
from .._wire import Command
from ..errors import NotFoundError, PandaStackError
from ..exploring import BranchOutcome, Candidate, ExploreResult, Select
from .._fields import integer, need_text, optional_integer, optional_text, text
from ..models import (
    Checkpoints,
    Egress,
    ExecResult,
    Keep,
    Lifecycle,
    Lineage,
    NetworkPolicy,
    OnTimeout,
    Port,
    ProcessInfo,
    PromoteResult,
    SandboxEvent,
    SandboxMetrics,
    Snapshot,
    network_body,
)
from .commands import SandboxCommands, command_failed, run, stream
from .contexts import CodeContext
from .exec_stream import ExecStream, server_events
from .explore import Scorer, explore
from .filesystem import SandboxFilesystem
from .process import Process

if TYPE_CHECKING:
    from .client import PandaStack


@checked
@dataclass(repr=False)
class Sandbox:
    """A sandbox: a virtual machine with its own kernel."""

    id: str
    template: str
    cpu: int
    memory_mb: int
    #: ``creating``, ``running``, ``paused``, ``hibernated``, ``stopping``, ``failed`` or ``deleted``.
    status: str
    guest_ip: Optional[str] = None
    created_at: Optional[str] = None
    metadata: Dict[str, str] = field(default_factory=dict)
    from_snapshot: Optional[str] = None
    boot_ms: Optional[int] = None
    boot_mode: Optional[str] = None
    persistent: bool = False
    ttl_seconds: Optional[int] = None
    #: The engine that runs it, and its kind of isolation (``hardware`` or ``emulated``).
    engine: Optional[str] = None
    isolation: Optional[str] = None
    #: Where a hibernated sandbox's memory is: ``memory`` or ``disk``.
    residency: Optional[str] = None
    #: State that it kept when it was put to sleep: ``memory`` or ``disk``.
    kept: Optional[str] = None
    #: The sandbox it was forked from.
    parent_id: Optional[str] = None
    #: When its time ends, as RFC 3339.
    expires_at: Optional[str] = None
    #: Why it failed.
    failure: Optional[str] = None
    workspace: Optional[str] = None
    #: The host it lives on.
    host: Optional[str] = None
    #: ``False`` when its host does not respond; ``status`` is then the last one known.
    host_reachable: bool = True
    #: Where the time of ``boot_ms`` went, in microseconds.
    boot_stages_us: Dict[str, int] = field(default_factory=dict)
    #: How long the parent of a fork stood still.
    pause_ms: Optional[float] = None
    #: Its volumes.
    volumes: List[Dict[str, Any]] = field(default_factory=list)
    #: Unique in the workspace; can be used instead of the ID.
    name: Optional[str] = None
    #: The server's record as it came, with fields this client does not know.
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _client: PandaStack = field(default=cast("PandaStack", None), repr=False, compare=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], client: PandaStack, persistent: bool = False) -> Sandbox:
        """Read the server's JSON."""
        metadata = data.get("metadata")
        return cls(
            id=need_text(data, "id", "a sandbox"),
            template=text(data, "template"),
            cpu=integer(data, "cpu"),
            memory_mb=integer(data, "memory_mb"),
            status=text(data, "status", "running"),
            guest_ip=optional_text(data, "guest_ip"),
            created_at=optional_text(data, "created_at"),
            metadata={str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {},
            from_snapshot=optional_text(data, "from_snapshot"),
            boot_ms=optional_integer(data, "boot_ms"),
            boot_mode=optional_text(data, "boot_mode"),
            persistent=bool(data.get("persistent", persistent)),
            ttl_seconds=optional_integer(data, "ttl_seconds"),
            engine=optional_text(data, "engine"),
            isolation=optional_text(data, "isolation"),
            residency=optional_text(data, "residency"),
            kept=optional_text(data, "kept"),
            parent_id=optional_text(data, "parent_id"),
            expires_at=optional_text(data, "expires_at"),
            failure=optional_text(data, "failure"),
            workspace=optional_text(data, "workspace"),
            host=optional_text(data, "host"),
            host_reachable=data.get("host_reachable") is not False,
            boot_stages_us=dict(data.get("boot_stages_us") or {}),
            pause_ms=data.get("pause_ms"),
            volumes=list(data.get("volumes") or []),
            name=optional_text(data, "name"),
            raw=dict(data),
            _client=client,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, status={self.status!r}, template={self.template!r})"

    @property
    def filesystem(self) -> SandboxFilesystem:
        """The sandbox's files."""
        return SandboxFilesystem(self._client._transport, self.id)

    @property
    def commands(self) -> SandboxCommands:
        """``commands.run`` is an alias of :meth:`exec`."""
        return SandboxCommands(self)

    def exec(
        self,
        cmd: Command,
        timeout_seconds: Optional[float] = None,
        check: bool = False,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        limits: Optional[Mapping[str, float]] = None,
        kill_on_cancel: bool = True,
    ) -> ExecResult:
        """Run a command and wait for it to end.

        ``cmd`` is a line for ``sh -c``, or a list whose items are passed on as they are. A non-zero
        exit is a result, unless ``check`` asks for :class:`~pandastack.CommandFailed`. Running past
        ``timeout_seconds`` raises :class:`~pandastack.SandboxTimeout`. ``stdin`` is all of its input;
        ``limits`` may hold ``memory_mb``, ``pids`` and ``cpu``. Cancelling the call (Ctrl-C in blocking
        code) kills the command; with ``kill_on_cancel=False`` it keeps running.
        """
        options = {"cwd": cwd, "env": _copy(env), "user": user, "stdin": stdin, "limits": _copy(limits)}
        call = _wire.exec_call(self._path("/exec"), cmd, timeout_seconds, **options)
        result = run(self._client._transport, self._path("/processes"), call, kill_on_cancel)
        if check and not result.ok:
            raise command_failed(cmd, result)
        return result

    @overload
    def exec_stream(
        self,
        cmd: Command,
        on_stdout: None = None,
        on_stderr: None = None,
        timeout_seconds: Optional[float] = None,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        limits: Optional[Mapping[str, float]] = None,
        kill_on_cancel: bool = True,
    ) -> ExecStream: ...

    @overload
    def exec_stream(
        self,
        cmd: Command,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
        timeout_seconds: Optional[float] = None,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        limits: Optional[Mapping[str, float]] = None,
        kill_on_cancel: bool = True,
    ) -> int: ...

    def exec_stream(
        self,
        cmd: Command,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
        timeout_seconds: Optional[float] = None,
        *,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        limits: Optional[Mapping[str, float]] = None,
        kill_on_cancel: bool = True,
    ) -> Union[ExecStream, int]:
        """Run a command and stream its output.

        With a callback: reads to the end and returns the exit code. Without: returns an
        :class:`ExecStream` to iterate over. Cancelling the reader kills the command, see :meth:`exec`.
        """
        options = {"cwd": cwd, "env": _copy(env), "user": user, "stdin": stdin, "limits": _copy(limits)}
        call = _wire.exec_call(self._path("/exec/stream"), cmd, timeout_seconds, **options)
        call = _wire.as_event_stream(call, has_limit=timeout_seconds is not None)
        opened = stream(self._client._transport, self._path("/processes"), call, kill_on_cancel)
        if on_stdout is None and on_stderr is None:
            return opened
        with opened:
            return opened.wait(on_stdout, on_stderr)

    def start(
        self,
        cmd: Optional[Command] = None,
        *,
        timeout_seconds: Optional[float] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        stdin_open: bool = False,
        pty: Optional[Tuple[int, int]] = None,
        limits: Optional[Mapping[str, float]] = None,
        tag: Optional[str] = None,
    ) -> Process:
        """Start a background process and return at once. It runs until it ends, is killed or times out.

        ``stdin_open`` leaves its input open for :meth:`Process.write`. ``pty`` gives it a terminal of
        (rows, columns); without ``cmd`` that runs the user's shell.
        """
        size = None if pty is None else {"rows": pty[0], "cols": pty[1]}
        call = _wire.start_call(
            self._path("/processes"),
            cmd,
            timeout_seconds,
            cwd=cwd,
            env=_copy(env),
            user=user,
            stdin=stdin,
            stdin_open=stdin_open or None,
            pty=size,
            limits=_copy(limits),
            tag=tag,
        )
        return self._process((self._client._transport.send(call)).record())

    def processes(self) -> List[Process]:
        """List running and recently ended processes."""
        answer = self._client._transport.send(_wire.get(self._path("/processes")))
        return [self._process(record) for record in answer.records("processes")]

    def process(self, process_id: int) -> Process:
        """Get a handle for a process that was started earlier, by any client."""
        path = self._path(f"/processes/{int(process_id)}")
        return self._process((self._client._transport.send(_wire.get(path))).record())

    def run_code(
        self, code: str, language: str = "python", timeout_seconds: Optional[float] = None
    ) -> ExecResult:
        """Run source code: ``python`` or ``shell``. State is not kept between calls."""
        return self.exec(_wire.code_command(code, language), timeout_seconds)

    def create_code_context(self, language: str = "python", *, cwd: Optional[str] = None) -> CodeContext:
        """Create a code context, an interpreter that keeps its state between runs.

        ``language`` is ``python``, ``javascript``, ``typescript``, ``bash``, ``r`` or ``java``.
        """
        known = "python" if language.lower() in ("py", "python3") else language.lower()
        body = {"language": known, **_wire.given(cwd=cwd)}
        call = _wire.post(self._path("/repl/sessions"), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        return CodeContext(self._client._transport, self.id, (self._client._transport.send(call)).record())

    def code_contexts(self) -> List[CodeContext]:
        """List all code contexts of the sandbox."""
        answer = self._client._transport.send(_wire.get(self._path("/repl/sessions")))
        return [CodeContext(self._client._transport, self.id, record) for record in answer.records("items")]

    def logs(self, stream: str = "both", follow: bool = False) -> Iterator[str]:
        """Get the console log. With ``follow``, stream new lines too."""
        query = {"stream": stream, "follow": "true" if follow else "false"}
        call = _wire.get(self._path("/logs"), query)
        if not follow:
            body = (self._client._transport.send(call)).body
            for line in body.decode("utf-8", "replace").splitlines():
                yield line
            return
        for event in self._follow(call):
            payload = event.payload()
            said = None if payload is None else payload.get("line", payload.get("chunk"))
            yield (said if isinstance(said, str) else event.data).rstrip("\n")

    def events(self, tail: Optional[int] = None) -> List[SandboxEvent]:
        """List events of the sandbox, oldest first. With ``tail``, only the last ones."""
        query = {} if tail is None else {"tail": str(tail)}
        answer = self._client._transport.send(_wire.get(self._path("/events"), query))
        return cast("List[SandboxEvent]", answer.records("events"))

    def follow_events(self, after: Optional[int] = None) -> Iterator[SandboxEvent]:
        """Stream events until the caller stops or the sandbox is deleted. With ``after``, start after that id."""
        call = _wire.get(self._path("/events"), {"follow": "1"})
        for event in self._follow(_wire.resumed(call, None if after is None else str(after))):
            payload = event.payload()
            if payload is not None:
                yield cast("SandboxEvent", payload)

    def metrics(self) -> SandboxMetrics:
        """Get its current resource usage, as measured by the host and the guest. Does not wake it."""
        answer = self._client._transport.send(_wire.get(self._path("/metrics")))
        return cast("SandboxMetrics", answer.record())

    def fork(self, metadata: Optional[Mapping[str, str]] = None) -> Sandbox:
        """Fork this sandbox: create a copy with the same memory, disk and processes."""
        return self._client.sandboxes.fork(self.id, metadata)

    def fork_tree(self, count: int, metadata: Optional[Mapping[str, str]] = None) -> List[Sandbox]:
        """Create several forks at the same point in time, as one tree. See :meth:`promote`."""
        return self._client.sandboxes.fork_tree(self.id, count, metadata)

    def explore(
        self,
        candidates: Sequence[Union[Candidate, str]],
        *,
        score_fn: Optional[Scorer] = None,
        select: Select = "max",
        require_success: bool = True,
        max_concurrency: Optional[int] = None,
        cleanup_losers: bool = True,
        promote_winner: bool = True,
        capture_files: Union[bool, str] = True,
        ttl_seconds: int = 600,
        on_outcome: Optional[Callable[[BranchOutcome], Any]] = None,
    ) -> ExploreResult:
        """Try each candidate in a separate copy of this sandbox, keep the best copy and delete the others.

        A candidate is a shell command or a :class:`~pandastack.Candidate`. ``score_fn(sandbox, outcome)`` rates a
        branch; without one a branch that succeeds has 1. Without ``require_success`` a branch that failed may win.
        ``max_concurrency`` (4) branches run at once. Should this program die meanwhile, the copies are gone after
        ``ttl_seconds``. Raises :class:`~pandastack.ExploreError` when no branch is worth keeping.
        """
        return explore(
            self,
            candidates,
            score_fn=score_fn,
            select=select,
            require_success=require_success,
            max_concurrency=max_concurrency,
            cleanup_losers=cleanup_losers,
            promote_winner=promote_winner,
            capture_files=capture_files,
            ttl_seconds=ttl_seconds,
            on_outcome=on_outcome,
        )

    def promote(self, *, cleanup_siblings: bool = False, tree_id: Optional[str] = None) -> PromoteResult:
        """Keep this fork and, on request, delete its siblings."""
        return self._client.sandboxes.promote(
            self.id, cleanup_siblings=cleanup_siblings, tree_id=tree_id
        )

    def snapshot(
        self,
        name: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None,
        *,
        replace_name: bool = False,
        ttl_seconds: Optional[int] = None,
        keep_last: Optional[int] = None,
    ) -> Snapshot:
        """Take a snapshot. The result is the id for ``create(from_snapshot=...)``.

        ``name`` is unique in the workspace and can be used instead of the ID; ``replace_name`` takes it
        from the snapshot that has it. The snapshot is deleted after ``ttl_seconds``. With ``keep_last`` the
        oldest unnamed snapshots of this sandbox past that number are deleted now.
        """
        options = _wire.given(
            name=name,
            replace_name=replace_name or None,
            metadata=_copy(metadata),
            ttl_seconds=ttl_seconds,
            keep_last=keep_last,
        )
        call = _wire.snapshot_call(self._path("/snapshots"), options)
        return Snapshot.from_dict((self._client._transport.send(call)).record())

    def rollback(self, snapshot: Optional[str] = None) -> Sandbox:
        """Roll back to one of this sandbox's snapshots, the newest by default. Its id and URL stay."""
        body = _wire.given(snapshot_id=None if snapshot is None else str(snapshot))
        call = _wire.post(self._path("/rollback"), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        record = (self._client._transport.send(call)).record()
        fresh = Sandbox.from_dict(record, self._client, self.persistent)
        for item in fields(fresh):
            setattr(self, item.name, getattr(fresh, item.name))
        return self

    def lineage(self) -> Lineage:
        """Get its ancestors, siblings and children."""
        answer = self._client._transport.send(_wire.get(self._path("/lineage")))
        return cast("Lineage", answer.record())

    def keep_awake(self, seconds: int) -> Lifecycle:
        """Keep it awake for this many seconds, for background work. 0 ends the lease."""
        call = _wire.post(
            self._path("/keep-awake"), {"seconds": seconds}, seconds_max=_wire.MACHINE_SECONDS_MAX
        )
        lifecycle = cast("Lifecycle", (self._client._transport.send(call)).record())
        self.status = "running"
        return lifecycle

    def hibernate(self, *, keep: Optional[Keep] = None) -> None:
        """Put the sandbox to sleep on disk. It uses only disk space until the next call wakes it.

        With ``keep="disk"`` memory is dropped too, and waking means booting.
        """
        self._move("/hibernate", "hibernated", _wire.given(keep=keep) or None)

    def wake(self) -> None:
        """Wake the sandbox. Has no effect if it runs."""
        self._move("/wake", "running")

    def pause(self) -> None:
        """Pause the sandbox. Its memory stays on the host."""
        self._move("/pause", "paused")

    def resume(self) -> None:
        """Resume a paused sandbox."""
        self._move("/resume", "running")

    def lifecycle(self) -> Lifecycle:
        """Get its lifetime settings."""
        answer = self._client._transport.send(_wire.get(self._path("/lifecycle")))
        return cast("Lifecycle", answer.record())

    def set_ttl(self, seconds: int) -> Lifecycle:
        """Set its time to live, in seconds from now."""
        return self.set_lifecycle(ttl_seconds=seconds)

    def set_persistent(self, persistent: bool) -> Lifecycle:
        """Remove its time limit (it hibernates when idle), or set one again."""
        return self.set_lifecycle(persistent=persistent)

    def set_lifecycle(
        self,
        *,
        ttl_seconds: Optional[int] = None,
        persistent: Optional[bool] = None,
        idle_timeout_seconds: Optional[int] = None,
        on_timeout: Optional[OnTimeout] = None,
        checkpoints: Optional[Checkpoints] = None,
    ) -> Lifecycle:
        """Update its lifetime and sleep settings. Settings that are left out stay unchanged."""
        change = _wire.given(
            ttl_seconds=ttl_seconds,
            persistent=persistent,
            idle_timeout_seconds=idle_timeout_seconds,
            on_timeout=on_timeout,
            checkpoints=checkpoints,
        )
        call = _wire.post(self._path("/lifecycle"), change, method="PATCH")
        lifecycle = cast("Lifecycle", (self._client._transport.send(call)).record())
        self.persistent = self.persistent if persistent is None else persistent
        return lifecycle

    def network(self) -> NetworkPolicy:
        """Get its network policy."""
        answer = self._client._transport.send(_wire.get(self._path("/network")))
        return cast("NetworkPolicy", answer.record())

    def set_network(self, network: Union[NetworkPolicy, Egress]) -> NetworkPolicy:
        """Replace its network policy at once: ``"none"``, ``"all"``, or lists.

        It holds for open connections too, and does not wake a sleeping sandbox.
        """
        call = _wire.post(self._path("/network"), network_body(network), method="PUT")
        return cast("NetworkPolicy", (self._client._transport.send(call)).record())

    def ports(self) -> List[Port]:
        """List listening ports and labelled ports."""
        answer = self._client._transport.send(_wire.get(self._path("/ports")))
        ports = [Port.from_wire(entry) for entry in answer.entries("ports")]
        return [port for port in ports if port is not None]

    def preview_url(self, port: int, scheme: Optional[str] = None) -> str:
        """Get the public URL of a port. Anyone who knows it can reach the port: the id is the secret."""
        return preview_url(
            self._client.base_url, self.id, port, host=self._client.preview_host, scheme=scheme
        )

    def get_host(self, port: int) -> str:
        """Get the host name of a port's preview URL, without the scheme."""
        return self.preview_url(port).split("://", 1)[1]

    def preview_urls(self) -> Dict[int, str]:
        """Get the public URL of every port."""
        return {port.port: self.preview_url(port.port) for port in self.ports()}

    def refresh(self) -> Sandbox:
        """Refresh this object with the server's current state and return it."""
        fresh = self._client.sandboxes.get(self.id)
        for item in fields(fresh):
            setattr(self, item.name, getattr(fresh, item.name))
        return self

    def delete(self) -> None:
        """Delete the sandbox. Its snapshots and forks stay."""
        self._client.sandboxes.delete(self.id)
        self.status = "deleted"

    def kill(self) -> None:
        """The same as :meth:`delete`."""
        self.delete()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if self.persistent or self.status == "deleted":
            return
        try:
            self.delete()
        except NotFoundError:
            pass  # gone already, which is what was wanted
        except PandaStackError:
            if error is None:  # else the block's own error is the one to tell
                raise

    def _path(self, rest: str) -> str:
        return _wire.sandbox_path(self.id, rest)

    def _process(self, record: Mapping[str, Any]) -> Process:
        return Process(self._client._transport, self.id, ProcessInfo.from_dict(record))

    def _move(self, rest: str, status: str, body: Optional[Mapping[str, Any]] = None) -> None:
        call = _wire.post(self._path(rest), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        record = (self._client._transport.send(call)).record()
        self.status = text(record, "status", status)

    def _follow(self, call: _wire.Call) -> Iterator[Any]:
        idle = _wire.STREAM_IDLE_SECONDS_MAX
        call = _wire.as_event_stream(call, has_limit=False)
        with self._client._transport.open_stream(call, idle_seconds_max=idle) as stream:
            for event in server_events(stream):
                yield event


V = TypeVar("V")


def _copy(values: Optional[Mapping[str, V]]) -> Optional[Dict[str, V]]:
    return None if values is None else dict(values)
