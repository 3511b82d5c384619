"""Members of a workspace and their sessions."""

from __future__ import annotations

from typing import List, Optional, cast

from .._check import checked
from .. import _wire
from .._wire import segment
from ..account_models import Member, MemberSession
from .transport import AsyncTransport


@checked
class AsyncMembersAPI:
    """``client.members``: people who sign in through the login provider. Every call requires an owner key."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> List[Member]:
        """List members, oldest first."""
        answer = await self._transport.send(_wire.get("/members"))
        return cast("List[Member]", answer.records("members"))

    async def add(
        self, email: Optional[str] = None, *, subject: Optional[str] = None, role: Optional[str] = None
    ) -> Member:
        """Add a person by email address or by ``subject``, the login provider's identifier.

        ``role`` is ``viewer``, ``developer`` (default) or ``owner``.
        """
        return await self._send(_wire.post("/members", _wire.given(email=email, subject=subject, role=role)))

    async def set_role(self, member_id: str, role: str) -> Member:
        """Change a member's role. Applies to open sessions, too."""
        path = f"/members/{segment(member_id, 'member id')}"
        return await self._send(_wire.post(path, {"role": role}, method="PATCH"))

    async def remove(self, member_id: str) -> None:
        """Remove a member. Their sessions end; API keys that they created stay."""
        await self._transport.send(_wire.delete(f"/members/{segment(member_id, 'member id')}"))

    async def sessions(self) -> List[MemberSession]:
        """List sessions of members, newest first."""
        answer = await self._transport.send(_wire.get("/members/sessions"))
        return cast("List[MemberSession]", answer.records("sessions"))

    async def revoke(self, session_id: str) -> None:
        """Revoke a session. It ends immediately."""
        await self._transport.send(_wire.delete(f"/members/sessions/{segment(session_id, 'session id')}"))

    async def _send(self, call: _wire.Call) -> Member:
        return cast("Member", (await self._transport.send(call)).record())
