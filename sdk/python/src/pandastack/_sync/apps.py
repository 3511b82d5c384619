# Generated from _async/apps.py by tools/generate_sync.py: change that file, not this one.
"""Apps: sources that are built and served under an address that stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterator, Dict, List, Optional, Union, cast

from .._check import checked
from .. import _archive, _wire
from .._wire import segment
from ..app_models import App, AppMetrics
from ..errors import PandaStackError
from ..models import Lifecycle
from ._io import run_blocking
from .exec_stream import server_events
from .filesystem import _pieces
from .transport import Transport

Deployment = Dict[str, Any]


@checked
class AppsAPI:
    """``client.apps``. Apps are named by id or by name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, git_url: Optional[str] = None, **settings: Any) -> App:
        """Create an app. ``settings`` are ``git_branch``, ``framework``, ``install_command``, ``build_command``,
        ``start_command``, ``root_directory``, ``port``, ``health_path``, ``min_instances``, ``max_instances``, ``env``,
        ``template`` and so on."""
        body = {"name": name, **_wire.given(git_url=git_url), **settings}
        call = _wire.create("/apps", body, seconds_max=_wire.CREATE_SECONDS_MAX)
        return cast("App", (self._transport.send(call)).record())

    def list(self) -> List[App]:
        """List apps."""
        return cast("List[App]", (self._transport.send(_wire.get("/apps"))).records("items"))

    def get(self, app: str) -> App:
        """Get an app."""
        return cast("App", (self._transport.send(_wire.get(_path(app)))).record())

    def update(self, app: str, **settings: Any) -> App:
        """Update settings. They take effect with the next deployment or restart; template and size with the
        next build. An empty string clears a setting.
        """
        return cast("App", (self._transport.send(_wire.post(_path(app), settings, method="PATCH"))).record())

    def scale(
        self, app: str, *, min_instances: Optional[int] = None, max_instances: Optional[int] = None
    ) -> App:
        """Set the maximum number of instances, and the number that never sleeps. Takes effect immediately."""
        return self.update(app, **_wire.given(min_instances=min_instances, max_instances=max_instances))

    def delete(self, app: str) -> None:
        """Delete an app and its versions."""
        self._transport.send(_wire.delete(_path(app)))

    def deploy(
        self,
        app: str,
        *,
        git_ref: Optional[str] = None,
        directory: Optional[Union[str, Path]] = None,
        from_sandbox: Optional[str] = None,
        path: Optional[str] = None,
        clear_cache: bool = False,
    ) -> Deployment:
        """Deploy the repository's branch, a ``git_ref`` of it, a local ``directory`` (without build output such
        as ``node_modules``), or a ``path`` in a sandbox. With ``clear_cache``, dependencies are installed
        again.
        """
        if directory is None:
            body = _wire.given(git_ref=git_ref, from_sandbox=from_sandbox, path=path, clear_cache=clear_cache or None)
            call = _wire.post(_path(app, "/deploys"), body, seconds_max=_wire.MACHINE_SECONDS_MAX)
            return (self._transport.send(call)).record()
        with run_blocking(_archive.packed, directory, _archive.MADE_ANEW) as archive:
            size = (run_blocking(os.fstat, archive.fileno())).st_size
            query = {"clear_cache": "1"} if clear_cache else {}
            call = _wire.Call("POST", _path(app, "/deploys"), query=query, content_type="application/x-tar")
            answer = self._transport.send_stream(
                call, _pieces(archive, size, None), size, idle_seconds_max=_wire.MACHINE_SECONDS_MAX
            )
        return answer.record()

    def deployments(self, app: str) -> List[Deployment]:
        """List deployments of an app, newest first."""
        return (self._transport.send(_wire.get(_path(app, "/deploys")))).records("items")

    def deployment(self, app: str, deployment_id: str) -> Deployment:
        """Get a deployment with its log."""
        return (self._transport.send(_wire.get(_deploy_path(app, deployment_id)))).record()

    def deploy_logs(self, app: str, deployment_id: str) -> Iterator[str]:
        """Stream the lines of a deployment's log until it ends."""
        for line in self._lines(_wire.get(_deploy_path(app, deployment_id, "/logs"))):
            yield line

    def wait_for_deployment(self, app: str, deployment_id: str) -> Deployment:
        """Wait until a deployment is live; :class:`~pandastack.PandaStackError` if it fails."""
        for _ in self.deploy_logs(app, deployment_id):
            pass
        ended = self.deployment(app, deployment_id)
        if ended.get("status") != "live":
            raise PandaStackError(f"the deployment is {ended.get('status')}: {ended.get('error')}")
        return ended

    def cancel(self, app: str, deployment_id: str) -> Deployment:
        """Cancel a deployment that is not live yet."""
        return (self._transport.send(_wire.post(_deploy_path(app, deployment_id, "/cancel")))).record()

    def rollback(self, app: str, deployment_id: Optional[str] = None) -> Deployment:
        """Roll back to an earlier version: the previous one by default."""
        body = _wire.given(deployment_id=deployment_id)
        return (self._transport.send(_wire.post(_path(app, "/rollback"), body))).record()

    def restart(self, app: str) -> Deployment:
        """Start the live version in new machines, with the current settings and variables."""
        return (self._transport.send(_wire.post(_path(app, "/restart")))).record()

    def logs(
        self, app: str, *, follow: bool = False, search: Optional[str] = None, instance: Optional[str] = None
    ) -> Iterator[str]:
        """Get the live version's output, line by line. With ``follow``, stream new output too. Reads the first
        machine, or the ``instance`` with that ``sandbox_id``.
        """
        query = {"follow": "1" if follow else "0", **_wire.given(search=search, instance=instance)}
        for line in self._lines(_wire.get(_path(app, "/runtime-logs"), query)):
            yield line

    def metrics(self, app: str) -> AppMetrics:
        """Get the live version's resource usage, in total and per machine. Does not wake it."""
        return cast("AppMetrics", (self._transport.send(_wire.get(_path(app, "/metrics")))).record())

    def keep_awake(self, app: str, seconds: int) -> Lifecycle:
        """Keep the live version awake for this many seconds, for background work. Wakes its first machine. 0
        ends the lease.
        """
        call = _wire.post(_path(app, "/keep-awake"), {"seconds": seconds}, seconds_max=_wire.MACHINE_SECONDS_MAX)
        return cast("Lifecycle", (self._transport.send(call)).record())

    def previews(self, app: str) -> List[Dict[str, Any]]:
        """List previews of pull requests. Each is also an app, by its ``name``."""
        return (self._transport.send(_wire.get(_path(app, "/previews")))).records("items")

    def get_preview(self, app: str, number: int) -> Dict[str, Any]:
        """Get the preview of a pull request."""
        return (self._transport.send(_wire.get(_path(app, f"/previews/{int(number)}")))).record()

    def remove_preview(self, app: str, number: int) -> None:
        """Remove a preview. The next commit to its pull request creates it again."""
        self._transport.send(_wire.delete(_path(app, f"/previews/{int(number)}")))

    def list_env(self, app: str) -> List[Dict[str, Any]]:
        """List variables. Secret values are masked."""
        return (self._transport.send(_wire.get(_path(app, "/env")))).records("env")

    def set_env(
        self,
        app: str,
        key: str,
        value: str,
        *,
        secret: Optional[bool] = None,
        scope: Optional[str] = None,
        stage: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Set a variable. Options that are left out stay unchanged; a secret stays secret until it is removed.
        ``stage`` ``"build"`` or ``"run"`` sets it only in builds, or only at run time.
        """
        body = {"value": value, **_wire.given(secret=secret, scope=scope, stage=stage)}
        path = _path(app, f"/env/{segment(key, 'variable')}")
        return (self._transport.send(_wire.post(path, body, method="PUT"))).record()

    def unset_env(self, app: str, key: str) -> None:
        """Remove a variable."""
        self._transport.send(_wire.delete(_path(app, f"/env/{segment(key, 'variable')}")))

    def import_env(
        self,
        app: str,
        dotenv: str,
        *,
        secret: Optional[bool] = None,
        scope: Optional[str] = None,
        stage: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Set variables from the text of a ``.env`` file; ``scope`` and ``stage`` as for :meth:`set_env`."""
        body = {"dotenv": dotenv, **_wire.given(secret=secret, scope=scope, stage=stage)}
        return (self._transport.send(_wire.post(_path(app, "/env/import"), body))).record()

    def preview_repos(self) -> List[Dict[str, Any]]:
        """List GitHub repositories with previews enabled."""
        return (self._transport.send(_wire.get("/preview-repos"))).records("repos")

    def enable_preview_repo(
        self, github_repo_id: int, *, repo_full_name: Optional[str] = None
    ) -> Dict[str, Any]:
        """Enable previews for all apps of a repository, by its GitHub id, and ``owner/name`` for apps without a
        webhook delivery yet.
        """
        body = {"github_repo_id": int(github_repo_id), **_wire.given(repo_full_name=repo_full_name)}
        return (self._transport.send(_wire.post("/preview-repos", body))).record()

    def disable_preview_repo(self, github_repo_id: int) -> None:
        """Disable previews for all apps of a repository. Open previews stay until their pull request is closed."""
        self._transport.send(_wire.delete(f"/preview-repos/{int(github_repo_id)}"))

    def list_preview_env(self, github_repo_id: int) -> List[Dict[str, Any]]:
        """List variables of a repository's previews. Secret values are masked."""
        return (self._transport.send(_wire.get(_repo_path(github_repo_id)))).records("env")

    def set_preview_env(
        self, github_repo_id: int, key: str, value: str, *, secret: Optional[bool] = None
    ) -> Dict[str, Any]:
        """Set a variable of previews. A variable of the app with the same name takes precedence. Previews of
        forks see no secrets."""
        path = _repo_path(github_repo_id, f"/{segment(key, 'variable')}")
        call = _wire.post(path, {"value": value, **_wire.given(secret=secret)}, method="PUT")
        return (self._transport.send(call)).record()

    def unset_preview_env(self, github_repo_id: int, key: str) -> None:
        """Remove a variable of previews."""
        self._transport.send(_wire.delete(_repo_path(github_repo_id, f"/{segment(key, 'variable')}")))

    def import_preview_env(
        self, github_repo_id: int, dotenv: str, *, secret: Optional[bool] = None
    ) -> Dict[str, Any]:
        """Set variables from the text of a ``.env`` file."""
        body = {"dotenv": dotenv, **_wire.given(secret=secret)}
        return (self._transport.send(_wire.post(_repo_path(github_repo_id, "/import"), body))).record()

    def attach_database(
        self,
        app: str,
        database_id: str,
        *,
        env: Optional[str] = None,
        scope: Optional[str] = None,
        build: bool = False,
    ) -> Dict[str, Any]:
        """Attach a database. The variable ``env`` (``DATABASE_URL``) is set with the next deployment or restart."""
        body = {"build": build, **_wire.given(env=env, scope=scope)}
        path = _path(app, f"/databases/{segment(database_id, 'database id')}")
        return (self._transport.send(_wire.post(path, body, method="PUT"))).record()

    def detach_database(self, app: str, database_id: str) -> None:
        """Detach a database. The app loses access at once."""
        self._transport.send(_wire.delete(_path(app, f"/databases/{segment(database_id, 'database id')}")))

    def add_domain(self, app: str, domain: str) -> Dict[str, Any]:
        """Add a custom domain to an app."""
        return (self._transport.send(_wire.post(_path(app, "/domains"), {"domain": domain}))).record()

    def domains(self, app: str) -> List[Dict[str, Any]]:
        """List an app's custom domains."""
        return (self._transport.send(_wire.get(_path(app, "/domains")))).records("domains")

    def get_domain(self, app: str, domain: str) -> Dict[str, Any]:
        """Get a custom domain of an app."""
        return (self._transport.send(_wire.get(_path(app, f"/domains/{segment(domain, 'domain')}")))).record()

    def remove_domain(self, app: str, domain: str) -> None:
        """Remove a custom domain."""
        self._transport.send(_wire.delete(_path(app, f"/domains/{segment(domain, 'domain')}")))

    def _lines(self, call: _wire.Call) -> Iterator[str]:
        call = _wire.as_event_stream(call, has_limit=False)
        idle = _wire.STREAM_IDLE_SECONDS_MAX
        with self._transport.open_stream(call, idle_seconds_max=idle) as stream:
            for event in server_events(stream):
                if event.name == "done":
                    return
                yield event.data


def _repo_path(github_repo_id: int, rest: str = "") -> str:
    return f"/repos/{int(github_repo_id)}/preview-env{rest}"


def _path(app: str, rest: str = "") -> str:
    return f"/apps/{segment(app, 'app')}{rest}"


def _deploy_path(app: str, deployment_id: str, rest: str = "") -> str:
    return _path(app, f"/deploys/{segment(deployment_id, 'deployment id')}{rest}")
