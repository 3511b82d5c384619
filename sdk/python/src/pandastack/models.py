"""Results of calls, and how they are read from the server's JSON.

Invariants: an unknown field never breaks a client, a missing required one raises
:class:`~pandastack.errors.ServerError` instead of a ``KeyError`` deep inside a program. Records
that earlier releases returned as plain dicts stay dicts (typed ones).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Literal, Mapping, Optional, TypedDict, Union

from ._fields import integer, need_text, optional_integer, optional_text, text
from .errors import ServerError


@dataclass(frozen=True)
class ExecResult:
    """The result of a command. A non-zero ``exit_code`` is a result, not an error."""

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int = 0
    #: Whether a stream passed the server's limit and lost its end.
    truncated: bool = False
    #: The signal that ended the command; ``exit_code`` is then 128 more than it.
    signal: Optional[int] = None
    #: ``duration_ms`` in microseconds.
    duration_us: int = 0

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.exit_code == 0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExecResult:
        """Read the server's JSON."""
        exit_code = optional_integer(data, "exit_code")
        if exit_code is None:
            # Taking 0 here would turn a broken answer into a success.
            raise ServerError("the server's response for exec has no 'exit_code'")
        return cls(
            stdout=text(data, "stdout"),
            stderr=text(data, "stderr"),
            exit_code=exit_code,
            duration_ms=integer(data, "duration_ms"),
            truncated=data.get("truncated") is True,
            signal=optional_integer(data, "signal"),
            duration_us=integer(data, "duration_us"),
        )


@dataclass(frozen=True)
class RunResult(ExecResult):
    """The result of :meth:`PandaStack.run`: an exec result and the sandbox it came from."""

    #: Id of the sandbox that ran the command; it is gone by now.
    sandbox_id: Optional[str] = None
    #: Time to make that sandbox, and of the whole call on the server.
    create_ms: Optional[int] = None
    total_ms: Optional[int] = None
    #: Engine and isolation of that sandbox, as in its fields of the same names.
    engine: Optional[str] = None
    isolation: Optional[str] = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunResult:
        """Read the server's JSON."""
        return cls(
            **vars(ExecResult.from_dict(data)),
            sandbox_id=optional_text(data, "sandbox_id"),
            create_ms=optional_integer(data, "create_ms"),
            total_ms=optional_integer(data, "total_ms"),
            engine=optional_text(data, "engine"),
            isolation=optional_text(data, "isolation"),
        )


#: Which of a command's two streams a chunk came from.
OutputStream = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class ExecChunk:
    """A piece of output, in the order it arrived."""

    stream: OutputStream
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class OutputGap:
    """Output that was dropped before it was read: bytes ``first`` up to, not including, ``end``."""

    stream: OutputStream
    first: int
    end: int


@dataclass(frozen=True)
class ProcessInfo:
    """A process of a sandbox. Offsets count bytes from the process's start."""

    id: int
    pid: int
    #: ``running`` or ``exited``.
    state: str
    command: str
    tag: Optional[str] = None
    #: ``None`` while it runs; 128 + signal when killed by one.
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    timed_out: bool = False
    #: It ended, but something that it started still runs.
    lingering: bool = False
    duration_ms: int = 0
    stdout_start: int = 0
    stdout_end: int = 0
    stderr_start: int = 0
    stderr_end: int = 0
    stdin_offset: int = 0
    #: Whether it has a terminal.
    is_terminal: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProcessInfo:
        """Read the server's JSON."""
        return cls(
            id=integer(data, "id"),
            pid=integer(data, "pid"),
            state=text(data, "state"),
            command=text(data, "command"),
            tag=optional_text(data, "tag"),
            exit_code=optional_integer(data, "exit_code"),
            signal=optional_integer(data, "signal"),
            timed_out=data.get("timed_out") is True,
            lingering=data.get("lingering") is True,
            duration_ms=integer(data, "duration_ms"),
            stdout_start=integer(data, "stdout_start"),
            stdout_end=integer(data, "stdout_end"),
            stderr_start=integer(data, "stderr_start"),
            stderr_end=integer(data, "stderr_end"),
            stdin_offset=integer(data, "stdin_offset"),
            is_terminal=isinstance(data.get("pty"), dict),
        )

    def with_stdin_offset(self, written: Mapping[str, Any]) -> ProcessInfo:
        """The same, after a write."""
        return replace(self, stdin_offset=integer(written, "offset"))


#: Action when the TTL ends.
OnTimeout = Literal["kill", "hibernate"]


#: State that a hibernated sandbox keeps: memory and disk, or only the disk.
Keep = Literal["memory", "disk"]


class Checkpoints(TypedDict, total=False):
    """Automatic snapshots of an active sandbox."""

    #: At least so long between two; 0 takes none.
    every_seconds: int
    keep_last: int


#: Base of a network policy: the public internet, or nothing.
Egress = Literal["all", "none"]
#: Visibility of a sandbox's ports.
Visibility = Literal["unlisted", "private", "off"]
#: Isolation that a sandbox needs.
RequiredIsolation = Literal["any", "hardware"]


class NetworkPolicy(TypedDict, total=False):
    """A sandbox's network policy. ``deny`` takes precedence over ``allow``.

    Entries are addresses, networks, names and ``*.`` names, with optional ports: ``"10.0.0.0/8:5432"``,
    ``"api.example.com"``, ``"*.example.com:443"``.
    """

    #: Default: ``"none"`` if ``allow`` or ``presets`` is set, otherwise ``"all"``.
    egress: Egress
    #: Lists kept by the platform: ``"package-registries"``.
    presets: List[str]
    allow: List[str]
    deny: List[str]


def network_body(network: Union[NetworkPolicy, Egress]) -> Dict[str, Any]:
    """A network policy as it is sent; a word alone is where it starts from."""
    return {"egress": network} if isinstance(network, str) else dict(network)


class Lifecycle(TypedDict, total=False):
    """Lifetime settings of a sandbox. Unknown fields are kept."""

    ttl_seconds: int
    persistent: bool
    idle_seconds: int
    idle_timeout_seconds: int
    sleeps_when_idle: bool
    on_timeout: OnTimeout
    expires_at: str
    awake_until: str
    checkpoints: Checkpoints


class SnapshotInfo(TypedDict, total=False):
    """A stored snapshot."""

    id: str
    sandbox_id: str
    template: str
    size_bytes: int
    created_at: str
    workspace: str
    name: str
    metadata: Dict[str, str]
    pause_ms: float
    #: ``manual`` or ``checkpoint``.
    kind: str
    expires_at: str
    #: The host that holds it.
    host: str


class Lineage(TypedDict, total=False):
    """A sandbox's ancestors, siblings and children."""

    id: str
    parent_id: str
    tree_id: str
    #: Its ancestors from its parent up, including deleted ones.
    ancestors: List[str]
    #: Sandboxes of the tree that exist, as in a list of sandboxes.
    children: List[Dict[str, Any]]
    siblings: List[Dict[str, Any]]


class PromoteResult(TypedDict, total=False):
    """The result of a promotion: the kept fork, deleted siblings, and siblings that could not be deleted."""

    winner: str
    tree_id: str
    deleted: List[str]
    failures: Dict[str, str]


class SandboxEvent(TypedDict, total=False):
    """An event of a sandbox. Unknown fields are kept."""

    id: int
    at: str
    kind: str
    #: Alias of ``kind``.
    type: str
    sandbox_id: str
    detail: str


class SandboxMetrics(TypedDict, total=False):
    """Resource usage of a sandbox. ``guest`` is absent while it does not run. Unknown fields are kept."""

    at: str
    status: str
    #: Process ID of the machine on its host; absent while it does not run.
    pid: int
    #: Alias of ``host["memory_bytes"]``.
    host_rss_bytes: int
    host: Dict[str, float]
    egress_denied: int
    guest: Dict[str, float]


_Period = TypedDict("_Period", {"from": str, "to": str}, total=False)


class Usage(_Period, total=False):
    """Usage of a workspace from ``from`` to ``to``, with totals per sandbox, kind of service and function."""

    total: Dict[str, int]
    sandboxes: List[Dict[str, Any]]
    #: By ``kind``: ``sandbox``, ``app``, ``function``, ``database`` or ``template``.
    kinds: List[Dict[str, Any]]
    functions: List[Dict[str, Any]]
    truncated: bool


class Snapshot(str):
    """A snapshot just taken. It is a string with its ID, so it can be used as an ID; ``info`` has the other fields."""

    info: SnapshotInfo

    def __new__(cls, snapshot_id: str, info: Optional[SnapshotInfo] = None) -> Snapshot:
        """Make the id carry its record."""
        made = super().__new__(cls, snapshot_id)
        made.info = info if info is not None else {"id": snapshot_id}
        return made

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return str(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Snapshot:
        """Read the server's JSON."""
        snapshot_id = optional_text(data, "id") or need_text(data, "snapshot_id", "a snapshot")
        info: SnapshotInfo = {**data, "id": snapshot_id}  # type: ignore[typeddict-item]
        return cls(snapshot_id, info)


@dataclass(frozen=True)
class Port:
    """A port of a sandbox."""

    port: int
    label: Optional[str] = None
    listening: bool = True
    source: Optional[str] = None
    proxy_url: Optional[str] = None
    #: The address it is bound to inside the sandbox.
    address: Optional[str] = None

    @classmethod
    def from_wire(cls, data: Any) -> Optional[Port]:
        """Read one entry, a bare number or an object; ``None`` for anything else."""
        if isinstance(data, int) and not isinstance(data, bool):
            return cls(port=data)
        number = optional_integer(data, "port") if isinstance(data, dict) else None
        if number is None:
            return None
        return cls(
            port=number,
            label=optional_text(data, "label"),
            listening=data.get("listening") is not False,
            source=optional_text(data, "source"),
            proxy_url=optional_text(data, "proxy_url"),
            address=optional_text(data, "address"),
        )


@dataclass(frozen=True)
class Template:
    """A template that sandboxes start from."""

    name: str
    rootfs_path: Optional[str] = None
    size_bytes: Optional[int] = None
    cpu: Optional[int] = None
    memory_mb: Optional[int] = None
    is_global: Optional[bool] = None
    workspace: Optional[str] = None
    label: Optional[str] = None
    description: Optional[str] = None
    category: Optional[str] = None
    base: Optional[str] = None
    tools: Optional[List[str]] = None
    meta: Optional[Dict[str, Any]] = None
    #: Other names it answers to.
    aliases: Optional[List[str]] = None
    #: ``ready``, ``baking``, ``unbaked`` or ``failed``.
    status: Optional[str] = None
    error: Optional[str] = None
    #: The volume that each sandbox of it comes with.
    volume: Optional[Dict[str, Any]] = None
    #: Version that was built or published: ``build_id``, ``created_at``, ``tags`` and ``config``.
    version: Optional[Dict[str, Any]] = None
    #: Sharing of your template: ``public`` and ``workspaces``.
    sharing: Optional[Dict[str, Any]] = None
    #: The workspace that shares the template, if it is not yours.
    shared_by: Optional[str] = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Template:
        """Read the server's JSON."""
        known = {name: data.get(name) for name in cls.__dataclass_fields__ if name != "name"}
        return cls(name=need_text(data, "name", "a template"), **known)
