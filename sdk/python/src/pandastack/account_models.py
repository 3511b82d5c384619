"""Workspaces, members, API keys and the audit log, and how they are read from the server's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, TypedDict

from ._fields import optional_text, text


class WorkspaceInfo(TypedDict, total=False):
    """A workspace, as shown to operators."""

    id: str
    #: ``active``, ``suspended`` or ``deleting``.
    state: str
    created_at: str
    suspended_at: str
    suspend_reason: str
    #: Quotas; a limit that is absent is the platform's own.
    quota: Dict[str, int]
    #: Current use.
    used: Dict[str, int]
    default_visibility: str


class Member(TypedDict, total=False):
    """A person with a role in the workspace."""

    id: str
    email: str
    name: str
    #: The login provider's identifier of the person.
    subject: str
    #: ``viewer``, ``developer`` or ``owner``.
    role: str
    #: Whether the role comes from groups of the login provider.
    from_groups: bool
    #: Whether the person may also manage the installation.
    operator: bool
    created_at: str
    last_sign_in_at: str


class MemberSession(TypedDict, total=False):
    """A sign-in of a member that has not ended."""

    id: str
    #: ID of the member.
    member: str
    #: Email address or subject of the person.
    label: str
    #: Browser or device.
    client: str
    role: str
    created_at: str
    last_used_at: str
    expires_at: str


class AuditEntry(TypedDict, total=False):
    """An entry of the audit log."""

    id: int
    at: str
    token_prefix: str
    token_label: str
    method: str
    route: str
    path: str
    sandbox_id: str
    status: int
    request_id: str
    took_ms: int


class AuditVerification(TypedDict, total=False):
    """The result of verifying the audit log. ``problem`` says how it was tampered with."""

    checked: int
    first: int
    since: str
    head: str
    next: int
    problem: str


class OutdatedComponent(TypedDict, total=False):
    """An outdated component of a frozen state. ``found`` is absent if its version is unknown."""

    component: str
    found: str
    current: str
    advisories: List[Dict[str, Any]]


class OutdatedState(TypedDict, total=False):
    """A sleeping sandbox, snapshot or template with outdated components."""

    kind: str
    id: str
    name: str
    workspace_id: str
    host_id: str
    owner: str
    components: List[OutdatedComponent]
    reported_at: str
    action: str
    action_from: str
    next_step: str


class OutdatedList(TypedDict, total=False):
    """Outdated states. ``complete`` is false if a host did not answer."""

    items: List[OutdatedState]
    complete: bool


@dataclass(frozen=True)
class Token:
    """An API key. ``token`` is present only in the response that created it."""

    prefix: str
    name: str = ""
    token: Optional[str] = field(default=None, repr=False)
    scope: str = ""
    created_at: Optional[str] = None
    expires_at: Optional[str] = None
    role: str = ""
    operator: bool = False
    last_used_at: Optional[str] = None
    allow_from: List[str] = field(default_factory=list)
    replaces: Optional[str] = None
    replaced_until: Optional[str] = None

    @property
    def label(self) -> str:
        """Alias of ``name``."""
        return self.name

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Token:
        """Read the server's JSON."""
        return cls(
            prefix=text(data, "prefix"),
            name=text(data, "name") or text(data, "label"),
            token=optional_text(data, "token"),
            scope=text(data, "scope"),
            created_at=optional_text(data, "created_at"),
            expires_at=optional_text(data, "expires_at"),
            role=text(data, "role"),
            operator=bool(data.get("operator")),
            last_used_at=optional_text(data, "last_used_at"),
            allow_from=[str(network) for network in data.get("allow_from") or []],
            replaces=optional_text(data, "replaces"),
            replaced_until=optional_text(data, "replaced_until"),
        )
