"""Snapshots, templates, API keys and workspaces."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Sequence, Union, cast

from .._check import checked
from .. import _archive, _wire
from .._wire import segment
from ..errors import BadRequestError, PandaStackError, RequestTimeout, TemplateBuildError
from ..account_models import Token, WorkspaceInfo
from ..models import SnapshotInfo, Template
from ..recipe import TemplateRecipe
from ..template_models import TemplateBuild
from ._io import run_blocking, sleep
from .exec_stream import server_events
from .filesystem import _pieces
from .transport import AsyncTransport


@checked
class AsyncSnapshotsAPI:
    """``client.snapshots``. They are taken by ``sandbox.snapshot()``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, sandbox_id: Optional[str] = None) -> List[SnapshotInfo]:
        """List snapshots, newest first, optionally of one sandbox."""
        query = {} if sandbox_id is None else {"sandbox_id": sandbox_id}
        answer = await self._transport.send(_wire.get("/snapshots", query))
        return cast("List[SnapshotInfo]", answer.records("snapshots"))

    async def get(self, snapshot_id: str) -> SnapshotInfo:
        """Get a snapshot by ID or name."""
        answer = await self._transport.send(_wire.get(f"/snapshots/{segment(snapshot_id, 'snapshot id')}"))
        return cast("SnapshotInfo", answer.record())

    async def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot. Sandboxes created from it stay."""
        await self._transport.send(_wire.delete(f"/snapshots/{segment(snapshot_id, 'snapshot id')}"))


@checked
class AsyncTemplatesAPI:
    """``client.templates``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> List[Template]:
        """List templates."""
        answer = await self._transport.send(_wire.get("/templates"))
        return [Template.from_dict(record) for record in answer.records("templates")]

    async def get(self, name: str) -> Template:
        """Get a template."""
        answer = await self._transport.send(_wire.get(f"/templates/{segment(name, 'template name')}"))
        return Template.from_dict(answer.record())

    async def delete(self, name: str) -> None:
        """Delete a template of the workspace. Built-in templates cannot be deleted."""
        await self._transport.send(_wire.delete(f"/templates/{segment(name, 'template name')}"))

    async def build(
        self,
        name: str,
        directory: Optional[Union[str, Path]] = None,
        *,
        recipe: Optional[TemplateRecipe] = None,
        dockerfile: Optional[str] = None,
        steps: Sequence[Mapping[str, Any]] = (),
        tags: Sequence[str] = (),
        keep_latest: bool = False,
        args: Optional[Mapping[str, str]] = None,
        target: Optional[str] = None,
        start_command: Optional[str] = None,
        ready: Optional[Mapping[str, Any]] = None,
        cpu: Optional[int] = None,
        memory_mb: Optional[int] = None,
        no_cache: bool = False,
        registries: Sequence[Mapping[str, str]] = (),
        plain_http: Sequence[str] = (),
        secrets: Optional[Mapping[str, str]] = None,
        keep_inputs: bool = False,
        debug: bool = False,
    ) -> TemplateBuild:
        """Start a build from a ``recipe``, a ``dockerfile`` or the ``Dockerfile`` in ``directory``.

        The build can copy the files of ``directory``, except those that its ``.dockerignore`` excludes.
        ``steps`` follow the Dockerfile, such as ``{"run": {"command": "make"}}``. With ``keep_latest``, only
        ``tags`` point to the version. ``ready`` says when ``start_command`` is ready, such as
        ``{"port": 8080}``. ``registries`` are credentials for the images of ``FROM``, such as
        ``{"registry": "ghcr.io", "username": "me", "password": token}``; with ``aws_region``, they are an
        access key for Amazon ECR. Those in ``plain_http`` are
        reached over HTTP. ``secrets`` are contents by id for ``RUN --mount=type=secret,id=ID``; no layer has
        them. With ``keep_inputs``, the files, secrets and credentials are kept, so that the template can be
        rebuilt. With ``debug``, the machine of a step that fails is kept for an hour: its snapshot is
        ``failure["snapshot_id"]``.
        To wait for the end, call :meth:`wait_for_build`.
        """
        if recipe is not None:
            if dockerfile is not None or steps or start_command is not None or ready is not None:
                raise BadRequestError("a recipe has its own base, steps, start command and ready check")
            dockerfile, steps = f"FROM {recipe.base}\n", recipe.steps
            start_command, ready = recipe.start_command, recipe.ready
        if dockerfile is None:
            if directory is None:
                raise BadRequestError("give a recipe, a dockerfile, or a directory that has one")
            dockerfile = await run_blocking(Path(directory, "Dockerfile").read_text)
        begin = _wire.given(
            name=name,
            tags=list(tags) or None,
            keep_latest=keep_latest or None,
            cpu=cpu,
            memory_mb=memory_mb,
            keep_inputs=keep_inputs or None,
        )
        start = _wire.given(
            dockerfile=dockerfile,
            steps=[dict(step) for step in steps] or None,
            args=dict(args) if args else None,
            target=target,
            start_command=start_command,
            ready=dict(ready) if ready else None,
            no_cache=no_cache or None,
            registries=[dict(one) for one in registries] or None,
            plain_http=list(plain_http) or None,
            secrets=[{"id": id, "value": value} for id, value in (secrets or {}).items()] or None,
            debug=debug or None,
        )
        if directory is None:
            call = _wire.post("/templates/builds", {**begin, "start": start})
            return TemplateBuild.from_dict((await self._transport.send(call)).record())
        build = TemplateBuild.from_dict((await self._transport.send(_wire.post("/templates/builds", begin))).record())
        path = f"/templates/builds/{segment(build.id, 'build id')}"
        try:
            with await run_blocking(_archive.packed_context, directory) as archive:
                size = (await run_blocking(os.fstat, archive.fileno())).st_size
                call = _wire.Call("PUT", f"{path}/files", content_type="application/x-tar")
                await self._transport.send_stream(
                    call, _pieces(archive, size, None), size, idle_seconds_max=_wire.MACHINE_SECONDS_MAX
                )
            return TemplateBuild.from_dict((await self._transport.send(_wire.post(f"{path}/start", start))).record())
        except BaseException:
            # Otherwise it would wait for its files or its start until it expires.
            with suppress(PandaStackError):
                await self.cancel_build(build.id)
            raise

    async def cancel_build(self, build_id: str) -> None:
        """Cancel a build that is queued or running."""
        await self._transport.send(_wire.post(f"/templates/builds/{segment(build_id, 'build id')}/cancel", {}))

    async def rebuild(self, name: str) -> TemplateBuild:
        """Build a template again, ``NAME`` or ``NAME:TAG``, with fresh images and without the cache.

        The build's ``changes`` say what differs. To rebuild on a schedule, use
        :func:`~pandastack.rebuild_target`.
        """
        path = f"/templates/{segment(name, 'template name')}/rebuild"
        return TemplateBuild.from_dict((await self._transport.send(_wire.post(path, {}))).record())

    async def publish(
        self, snapshot_id: str, name: str, *, tags: Sequence[str] = (), description: Optional[str] = None
    ) -> TemplateBuild:
        """Publish a snapshot as a template version."""
        body = _wire.given(snapshot_id=snapshot_id, name=name, tags=list(tags) or None, description=description)
        return TemplateBuild.from_dict((await self._transport.send(_wire.post("/templates/publish", body))).record())

    async def set_sharing(
        self, name: str, workspaces: Sequence[str] = (), *, public: bool = False
    ) -> Template:
        """Replace the workspaces that may use a template, as ``WORKSPACE/NAME``.

        ``public`` shares with all workspaces. Without arguments, the template becomes private. Existing
        sandboxes are kept.
        """
        path = f"/templates/{segment(name, 'template name')}/sharing"
        call = _wire.post(path, {"public": public, "workspaces": list(workspaces)}, method="PUT")
        return Template.from_dict((await self._transport.send(call)).record())

    async def set_tag(self, name: str, tag: str, build_id: str) -> None:
        """Point a tag to a finished build; set ``latest`` to roll back."""
        path = f"/templates/{segment(name, 'template name')}/tags/{segment(tag, 'tag')}"
        await self._transport.send(_wire.post(path, {"build_id": build_id}, method="PUT"))

    async def delete_tag(self, name: str, tag: str) -> None:
        """Delete a tag of a template."""
        path = f"/templates/{segment(name, 'template name')}/tags/{segment(tag, 'tag')}"
        await self._transport.send(_wire.delete(path))

    async def builds(self) -> List[TemplateBuild]:
        """List running and finished builds."""
        answer = await self._transport.send(_wire.get("/templates/builds"))
        return [TemplateBuild.from_dict(record) for record in answer.records("builds")]

    async def get_build(self, build_id: str) -> TemplateBuild:
        """Get a template build."""
        answer = await self._transport.send(_wire.get(f"/templates/builds/{segment(build_id, 'build id')}"))
        return TemplateBuild.from_dict(answer.record())

    async def build_logs(self, build_id: str, *, follow: bool = True) -> AsyncIterator[str]:
        """Get the lines of a build's log. With ``follow``, stream until the build ends."""
        query: Dict[str, str] = {"follow": "1"} if follow else {}
        call = _wire.get(f"/templates/builds/{segment(build_id, 'build id')}/logs", query)
        call = _wire.as_event_stream(call, has_limit=False)
        idle = _wire.STREAM_IDLE_SECONDS_MAX
        async with await self._transport.open_stream(call, idle_seconds_max=idle) as stream:
            async for event in server_events(stream):
                if event.name == "done":
                    return
                yield event.data

    async def wait_for_build(
        self, build_id: str, *, poll_interval: float = 2.0, timeout_seconds: float = 1200.0
    ) -> TemplateBuild:
        """Wait until a build ends; :class:`~pandastack.TemplateBuildError` if it failed."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            build = await self.get_build(build_id)
            if build.is_failed:
                raise TemplateBuildError(f"the build of {build.name!r} failed: {build.error}", build=build)
            if build.is_done:
                return build
            if time.monotonic() + poll_interval > deadline:
                raise RequestTimeout(f"the build of {build.name!r} did not finish within {timeout_seconds:g} s")
            await sleep(poll_interval)


@checked
class AsyncTokensAPI:
    """``client.tokens``. With ``workspace``, an operator key manages the keys of another workspace."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, *, workspace: Optional[str] = None) -> List[Token]:
        """List API keys, without their secrets."""
        answer = await self._transport.send(_wire.get(_tokens(workspace)))
        return [Token.from_dict(record) for record in answer.records("tokens")]

    async def create(
        self,
        name: str,
        expires_in_days: Optional[int] = None,
        scope: Optional[str] = None,
        *,
        role: Optional[str] = None,
        operator: bool = False,
        expires_at: Optional[str] = None,
        allow_from: Sequence[str] = (),
        workspace: Optional[str] = None,
    ) -> Token:
        """Create an API key. Its secret, ``token``, is shown only in this result.

        ``role`` is ``viewer``, ``developer`` or ``owner``; ``scope`` is its earlier name. ``expires_at``
        is an RFC 3339 time. ``allow_from`` names the networks it may be used from.
        """
        body: Dict[str, object] = _wire.given(
            label=name,
            scope=scope,
            role=role,
            operator=operator or None,
            expires_in_days=expires_in_days,
            expires_at=expires_at,
            allow_from=[*allow_from] or None,
        )
        return Token.from_dict((await self._transport.send(_wire.post(_tokens(workspace), body))).record())

    async def rotate(
        self, prefix: str, *, overlap_seconds: Optional[int] = None, workspace: Optional[str] = None
    ) -> Token:
        """Rotate an API key: replace its secret. The old one keeps working for ``overlap_seconds``, a day by
        default."""
        path = f"{_tokens(workspace)}/{segment(prefix, 'token prefix')}/rotate"
        body = _wire.given(overlap_seconds=overlap_seconds)
        return Token.from_dict((await self._transport.send(_wire.post(path, body))).record())

    async def revoke(self, prefix: str, *, workspace: Optional[str] = None) -> None:
        """Revoke an API key by its prefix."""
        await self._transport.send(_wire.delete(f"{_tokens(workspace)}/{segment(prefix, 'token prefix')}"))


@checked
class AsyncWorkspacesAPI:
    """``client.workspaces``. Every call requires an operator key."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self, name: str, *, default_visibility: Optional[str] = None, **quota: Optional[int]
    ) -> WorkspaceInfo:
        """Create a workspace without API keys; see ``client.tokens.create(workspace=...)``."""
        limits = {limit: value for limit, value in quota.items() if value is not None}
        body = _wire.given(id=name, default_visibility=default_visibility, quota=limits or None)
        return await self._send(_wire.post("/workspaces", body))

    async def list(self) -> List[WorkspaceInfo]:
        """List workspaces, oldest first."""
        answer = await self._transport.send(_wire.get("/workspaces"))
        return cast("List[WorkspaceInfo]", answer.records("workspaces"))

    async def get(self, name: str) -> WorkspaceInfo:
        """Get a workspace."""
        return await self._send(_wire.get(_workspace(name)))

    async def suspend(self, name: str, reason: Optional[str] = None) -> WorkspaceInfo:
        """Suspend a workspace: put its machines to sleep and reject its keys. Nothing is lost."""
        body = _wire.given(reason=reason)
        call = _wire.post(_workspace(name, "/suspend"), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
        return await self._send(call)

    async def resume(self, name: str) -> WorkspaceInfo:
        """Resume a suspended workspace."""
        return await self._send(_wire.post(_workspace(name, "/resume"), {}))

    async def delete(self, name: str) -> None:
        """Delete a workspace and everything in it, including backups."""
        await self._transport.send(_wire.delete(_workspace(name)))

    async def quota(self, name: str) -> Dict[str, Any]:
        """Get a workspace's quotas (``quota``) and current usage (``used``)."""
        return (await self._transport.send(_wire.get(_workspace(name, "/quota")))).record()

    async def set_quota(self, name: str, **limits: Optional[int]) -> Dict[str, Any]:
        """Set a workspace's quotas. For omitted quotas, the platform's limits apply."""
        body = {limit: value for limit, value in limits.items() if value is not None}
        call = _wire.post(_workspace(name, "/quota"), body, method="PUT")
        return (await self._transport.send(call)).record()

    async def _send(self, call: _wire.Call) -> WorkspaceInfo:
        return cast("WorkspaceInfo", (await self._transport.send(call)).record())


def _workspace(name: str, rest: str = "") -> str:
    return f"/workspaces/{segment(name, 'workspace')}{rest}"


def _tokens(workspace: Optional[str]) -> str:
    return "/me/tokens" if workspace is None else _workspace(workspace, "/tokens")
