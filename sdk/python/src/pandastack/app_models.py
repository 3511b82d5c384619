"""Apps, as the API returns them."""

from __future__ import annotations

from typing import Any, Dict, List, TypedDict


class AppInstance(TypedDict, total=False):
    """An instance of an app."""

    sandbox_id: str
    #: As of any sandbox; ``"failed"`` also if it is gone, until it is replaced.
    status: str


class AppInstanceMetrics(TypedDict, total=False):
    """Resource usage of one instance of an app; ``host`` and ``guest`` as for a sandbox, absent where unknown."""

    sandbox_id: str
    status: str
    host: Dict[str, float]
    guest: Dict[str, float]


class AppMetrics(TypedDict, total=False):
    """Resource usage of an app. Unknown fields are kept."""

    at: str
    #: The version that serves; absent before the first one does.
    deployment_id: str
    #: All machines together: ``cpu_used_percent`` of ``cpu_count``, ``memory_bytes`` and so on.
    total: Dict[str, float]
    #: Each machine, in the order in which they are used.
    instances: List[AppInstanceMetrics]


class App(TypedDict, total=False):
    """An app. Unknown fields are kept."""

    id: str
    workspace: str
    name: str
    git_url: str
    git_branch: str
    git_host: str
    git_public_key: str
    git_known_hosts: str
    framework: str
    install_command: str
    build_command: str
    start_command: str
    root_directory: str
    port: int
    health_path: str
    idle_timeout_seconds: int
    #: Machines that never sleep.
    min_instances: int
    #: Machines that serve it; those beyond ``min_instances`` sleep until the load requires them.
    max_instances: int
    env: Dict[str, str]
    template: str
    cpu: int
    memory_mb: int
    #: The machine that serves, the first one of several.
    sandbox_id: str
    #: All machines that serve, in the order in which they are used.
    instances: List[AppInstance]
    active_deployment_id: str
    #: ``created``, ``building``, ``running``, ``hibernated``, ``error`` or ``stopped``.
    status: str
    url: str
    webhook_url: str
    poll_seconds: int
    previews: str
    databases: List[Dict[str, Any]]
    preview_of: str
    created_at: str
    updated_at: str
