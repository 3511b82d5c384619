"""Volumes, as the API returns them."""

from __future__ import annotations

from typing import Any, Dict, List, TypedDict


class VolumeInfo(TypedDict, total=False):
    """A volume."""

    id: str
    name: str
    size_mb: int
    size_bytes: int
    #: Bytes it takes on its host, as of the host's last report.
    used_bytes: int
    #: Raised with every sandbox that may write it.
    generation: int
    host: str
    protected: bool
    delete_with_sandbox: bool
    #: Can be read and cloned, not written.
    snapshot: bool
    cloned_from: str
    #: Sandboxes that have it: ``{"sandbox_id": ..., "read_only": ...}``.
    attached_to: List[Dict[str, Any]]
    created_at: str
