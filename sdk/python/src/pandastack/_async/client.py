"""The client: one server, and what it offers."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union, cast

from .._check import checked, checked_init
from .. import _wire
from .._config import normalize_base_url, resolve_config
from .._retry import CreateRetryEvent, parse_budget
from .._wire import Command
from ..errors import BadRequestError
from ..account_models import AuditEntry, AuditVerification, OutdatedList
from ..models import (
    Checkpoints,
    Egress,
    NetworkPolicy,
    OnTimeout,
    PromoteResult,
    RequiredIsolation,
    RunResult,
    SandboxEvent,
    Usage,
    Visibility,
    network_body,
)
from .functions import AsyncFunctionsAPI
from .apps import AsyncAppsAPI
from .databases import AsyncDatabasesAPI
from .members import AsyncMembersAPI
from .resources import AsyncSnapshotsAPI, AsyncTemplatesAPI, AsyncTokensAPI, AsyncWorkspacesAPI
from .sandbox import AsyncSandbox
from .schedules import AsyncSchedulesAPI
from .transport import AsyncTransport
from .volumes import AsyncVolumesAPI
from .webhooks import AsyncWebhooksAPI

#: Template of a sandbox when none is named.
TEMPLATE_DEFAULT = "code-interpreter"


@checked_init
@checked
class AsyncPandaStack:
    """A PandaStack server.

    Address: ``base_url`` (or ``api_url``, ``api_base``), then ``PANDASTACK_API``, then
    ``PANDASTACK_API_URL``, then the config file, then ``http://127.0.0.1:8080``. Key: ``api_key`` (or
    ``token``), then ``PANDASTACK_API_KEY``, then ``PANDASTACK_TOKEN``, then the config file.

    ``timeout`` bounds a plain call as a whole; calls that move memory or files have longer limits of
    their own. Creates refused for lack of room are repeated for ``max_create_retry_seconds``
    (``PANDASTACK_MAX_CREATE_RETRY_SECONDS``, default 60, 0 = never).
    """

    def __init__(
        self,
        api_url: Optional[str] = None,
        api_key: Optional[str] = None,
        timeout: float = _wire.CALL_SECONDS_DEFAULT,
        api_base: Optional[str] = None,
        max_create_retry_seconds: Optional[float] = None,
        on_create_retry: Optional[Callable[[CreateRetryEvent], Any]] = None,
        *,
        base_url: Optional[str] = None,
        token: Optional[str] = None,
        preview_host: Optional[str] = None,
    ) -> None:
        config = resolve_config(base_url or api_url or api_base, api_key or token)
        budget = parse_budget(os.environ.get("PANDASTACK_MAX_CREATE_RETRY_SECONDS"))
        self._transport = AsyncTransport(
            config,
            call_seconds_max=timeout,
            create_retry_seconds=budget if max_create_retry_seconds is None else max_create_retry_seconds,
            on_create_retry=on_create_retry,
        )
        self.base_url = normalize_base_url(config.base_url)
        #: Host suffix of previews, when it is not the API's own.
        self.preview_host = preview_host or os.environ.get("PANDASTACK_PREVIEW_HOST") or None
        #: Sandboxes.
        self.sandboxes = AsyncSandboxesAPI(self)
        #: Apps.
        self.apps = AsyncAppsAPI(self._transport)
        #: Snapshots.
        self.snapshots = AsyncSnapshotsAPI(self._transport)
        #: Templates.
        self.templates = AsyncTemplatesAPI(self._transport)
        #: Functions.
        self.functions = AsyncFunctionsAPI(self._transport)
        #: Schedules.
        self.schedules = AsyncSchedulesAPI(self._transport)
        #: Databases.
        self.databases = AsyncDatabasesAPI(self._transport)
        #: API keys.
        self.tokens = AsyncTokensAPI(self._transport)
        #: Members of the workspace and their sessions.
        self.members = AsyncMembersAPI(self._transport)
        #: Webhooks, which receive events of the workspace.
        self.webhooks = AsyncWebhooksAPI(self._transport)
        #: Workspaces, for operators.
        self.workspaces = AsyncWorkspacesAPI(self._transport)
        #: Durable disks that outlive sandboxes.
        self.volumes = AsyncVolumesAPI(self._transport)

    def __repr__(self) -> str:
        scheme, _, rest = self.base_url.partition("://")
        return f"{type(self).__name__}(base_url={scheme + '://' + rest.rpartition('@')[2]!r})"

    @property
    def api_url(self) -> str:
        """Alias of ``base_url``."""
        return self.base_url

    async def me(self) -> Dict[str, Any]:
        """Get the workspace and role of the API key."""
        return (await self._transport.send(_wire.get("/me"))).record()

    async def run(
        self,
        cmd: Command,
        *,
        template: Optional[str] = None,
        timeout_seconds: Optional[float] = None,
        cwd: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
    ) -> RunResult:
        """Create a sandbox, run one command in it and delete it, in one round trip.

        Without ``template`` the server takes its default.
        """
        call = _wire.run_call(
            cmd,
            timeout_seconds,
            template=template,
            cwd=cwd,
            env=None if env is None else dict(env),
            user=user,
        )
        return RunResult.from_dict((await self._transport.send(call)).record())

    async def usage(self, *, since: Optional[str] = None, until: Optional[str] = None) -> Usage:
        """Get usage in total and by sandbox. Times are RFC 3339; the default is the last 30 days."""
        query = _wire.given(**{"from": since, "to": until})
        return cast("Usage", (await self._transport.send(_wire.get("/usage", query))).record())

    async def audit(
        self, *, sandbox_id: Optional[str] = None, before: Optional[int] = None, limit: Optional[int] = None
    ) -> List[AuditEntry]:
        """List the audit log, newest first. Requires an owner key."""
        numbers = {"before": before, "limit": limit}
        query = _wire.given(sandbox_id=sandbox_id, **{k: None if v is None else str(v) for k, v in numbers.items()})
        answer = await self._transport.send(_wire.get("/audit", query))
        return cast("List[AuditEntry]", answer.records("entries"))

    async def verify_audit(self, *, after: Optional[int] = None) -> AuditVerification:
        """Verify the hash chain of the installation's audit log. Requires an operator key.

        A long log takes several calls: pass ``next`` of a result as ``after``.
        """
        query = {} if after is None else {"after": str(after)}
        return cast("AuditVerification", (await self._transport.send(_wire.get("/audit/verify", query))).record())

    async def events(self, tail: Optional[int] = None) -> List[SandboxEvent]:
        """List events of the workspace's sandboxes, oldest first. With ``tail``, only the last that many."""
        query = {} if tail is None else {"tail": str(tail)}
        answer = await self._transport.send(_wire.get("/events", query))
        return cast("List[SandboxEvent]", answer.records("events"))

    async def hosts(self) -> List[Dict[str, Any]]:
        """List the installation's hosts. Requires an operator key."""
        return (await self._transport.send(_wire.get("/hosts"))).records("items")

    async def outdated(self, *, all: bool = False) -> OutdatedList:
        """List sleeping sandboxes, snapshots and templates with outdated components. Wakes nothing.

        With ``all``, those of all workspaces and the platform's templates; requires an operator key.
        """
        query = {"all": "true"} if all else {}
        return cast("OutdatedList", (await self._transport.send(_wire.get("/outdated", query))).record())

    async def quota(self) -> Dict[str, Any]:
        """Get workspace quotas (``quota``) and current usage (``used``)."""
        return (await self._transport.send(_wire.get("/me/quota"))).record()

    async def set_quota(self, **limits: Optional[int]) -> Dict[str, Any]:
        """Set workspace quotas: ``sandboxes``, ``cpu``, ``memory_mb``, ``snapshot_mb``, ``requests_per_second``.

        For omitted quotas, the platform's limits apply. Requires an operator key.
        """
        body = {name: limit for name, limit in limits.items() if limit is not None}
        return (await self._transport.send(_wire.post("/me/quota", body, method="PUT"))).record()

    async def workspace(self) -> Dict[str, Any]:
        """Get the workspace's ``id`` and its defaults for new sandboxes: ``default_visibility``."""
        return (await self._transport.send(_wire.get("/me/workspace"))).record()

    async def set_workspace(self, *, default_visibility: Optional[Visibility] = None) -> Dict[str, Any]:
        """Set the workspace's defaults for new sandboxes. Requires an owner key."""
        body = _wire.given(default_visibility=default_visibility)
        return (await self._transport.send(_wire.post("/me/workspace", body, method="PATCH"))).record()

    async def close(self) -> None:
        """Close the connections. Sandboxes keep running."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncPandaStack:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@checked
class AsyncSandboxesAPI:
    """``client.sandboxes``."""

    def __init__(self, client: AsyncPandaStack) -> None:
        self._client = client

    async def create(
        self,
        template: str = TEMPLATE_DEFAULT,
        cpu: Optional[int] = None,
        memory_mb: Optional[int] = None,
        ttl_seconds: Optional[int] = None,
        persistent: bool = False,
        metadata: Optional[Mapping[str, str]] = None,
        from_snapshot: Optional[str] = None,
        volumes: Optional[Sequence[Mapping[str, Any]]] = None,
        *,
        name: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        idle_timeout_seconds: Optional[int] = None,
        on_timeout: Optional[OnTimeout] = None,
        checkpoints: Optional[Checkpoints] = None,
        network: Union[NetworkPolicy, Egress, None] = None,
        visibility: Optional[Visibility] = None,
        host_header: Optional[str] = None,
        isolation: Optional[RequiredIsolation] = None,
    ) -> AsyncSandbox:
        """Create a sandbox from a template, or from ``from_snapshot``. It is ready when this returns.

        ``name`` is unique in the workspace and can be used instead of the ID.
        Use it in a ``with`` block to have it deleted at the end. ``env`` is the environment of every
        command. At the end of ``ttl_seconds`` the sandbox is deleted, or put to sleep with
        ``on_timeout="hibernate"``; a ``persistent`` one has no such end. Persistent ones, and those that were
        given ``idle_timeout_seconds``, sleep after that long without use. With ``checkpoints`` the platform
        takes snapshots by itself, to ``rollback`` to. ``network`` says what it may reach: ``"none"``, ``"all"``, or
        lists such as ``{"allow": ["*.example.com"]}``; ``visibility`` is that of its ports, and
        ``host_header`` the ``Host`` that their programs see, such as ``"localhost:${PORT}"``. ``volumes``
        are mounted in it: ``[{"name": "data", "path": "/data", "read_only": False}]``. ``cpu`` and ``memory_mb``
        (steps of 128) may differ from the template's; the first sandbox of a size waits until that is baked. One
        ``from_snapshot`` has the snapshot's. ``isolation="hardware"`` refuses hosts that emulate processors.
        """
        body = _wire.given(
            template=template,
            cpu=cpu if from_snapshot is None else None,
            memory_mb=memory_mb if from_snapshot is None else None,
            ttl_seconds=ttl_seconds,
            persistent=persistent or None,
            metadata=dict(metadata) if metadata else None,
            from_snapshot=None if from_snapshot is None else str(from_snapshot),
            name=name,
            volumes=[dict(volume) for volume in volumes] if volumes else None,
            env=dict(env) if env else None,
            idle_timeout_seconds=idle_timeout_seconds,
            on_timeout=on_timeout,
            checkpoints=None if checkpoints is None else dict(checkpoints),
            network=None if network is None else network_body(network),
            visibility=visibility,
            host_header=host_header,
            isolation=isolation,
        )
        call = _wire.create("/sandboxes", body, seconds_max=_wire.CREATE_SECONDS_MAX)
        record = (await self._client._transport.send(call)).record()
        return AsyncSandbox.from_dict(record, self._client, persistent)

    async def list(self) -> List[AsyncSandbox]:
        """List sandboxes."""
        answer = await self._client._transport.send(_wire.get("/sandboxes"))
        return [AsyncSandbox.from_dict(record, self._client) for record in answer.records("sandboxes")]

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Get a sandbox by ID or name. Does not wake it."""
        answer = await self._client._transport.send(_wire.get(_wire.sandbox_path(sandbox_id)))
        return AsyncSandbox.from_dict(answer.record(), self._client)

    async def delete(self, sandbox_id: str) -> None:
        """Delete a sandbox."""
        await self._client._transport.send(_wire.delete(_wire.sandbox_path(sandbox_id)))

    async def fork(self, sandbox_id: str, metadata: Optional[Mapping[str, str]] = None) -> AsyncSandbox:
        """Fork a running sandbox: copy its memory and disk."""
        return (await self._fork(_wire.sandbox_path(sandbox_id, "/fork"), {}, metadata))[0]

    async def fork_tree(
        self, sandbox_id: str, count: int, metadata: Optional[Mapping[str, str]] = None
    ) -> List[AsyncSandbox]:
        """Create ``count`` forks at the same point in time. The server may create fewer."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise BadRequestError(f"count must be at least 1, got {count!r}")
        return await self._fork(_wire.sandbox_path(sandbox_id, "/fork-tree"), {"count": count}, metadata)

    async def promote(
        self, sandbox_id: str, *, cleanup_siblings: bool = False, tree_id: Optional[str] = None
    ) -> PromoteResult:
        """Keep a fork and, on request, delete its siblings."""
        body: Dict[str, Any] = {"cleanup_siblings": cleanup_siblings}
        if tree_id is not None:
            body["tree_id"] = tree_id
        call = _wire.post(
            _wire.sandbox_path(sandbox_id, "/promote"), body, seconds_max=_wire.MACHINE_SECONDS_MAX
        )
        record = (await self._client._transport.send(call)).record()
        result: PromoteResult = {"winner": sandbox_id, "deleted": [], "failures": {}}
        result.update(record)  # type: ignore[typeddict-item]
        return result

    async def _fork(
        self, path: str, body: Dict[str, Any], metadata: Optional[Mapping[str, str]]
    ) -> List[AsyncSandbox]:
        if metadata:
            body["metadata"] = dict(metadata)
        call = _wire.create(path, body or None, seconds_max=_wire.MACHINE_SECONDS_MAX)
        children = _wire.fork_children(await self._client._transport.send(call))
        return [AsyncSandbox.from_dict(child, self._client) for child in children]
