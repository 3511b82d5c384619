"""Webhooks: URLs that receive the events of a workspace."""

from __future__ import annotations

from typing import List, Optional, Sequence, cast

from .._check import checked
from .. import _wire
from .._wire import segment
from ..webhook_models import Webhook, WebhookDelivery
from .transport import AsyncTransport


@checked
class AsyncWebhooksAPI:
    """``client.webhooks``: URLs that receive events such as ``sandbox.failed``.

    Receivers check the signature with :func:`pandastack.verify_webhook`.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self, url: str, *, events: Optional[Sequence[str]] = None, description: Optional[str] = None
    ) -> Webhook:
        """Create a webhook. Only this response contains its ``secret``.

        ``events`` are kinds such as ``sandbox.failed``, or all of a resource, such as ``sandbox.*``.
        Default: all events.
        """
        chosen = None if events is None else list(events)
        body = _wire.given(url=url, events=chosen, description=description)
        return await self._send(_wire.post("/webhooks", body))

    async def list(self) -> List[Webhook]:
        """List webhooks, oldest first."""
        answer = await self._transport.send(_wire.get("/webhooks"))
        return cast("List[Webhook]", answer.records("webhooks"))

    async def get(self, webhook_id: str) -> Webhook:
        """Get a webhook."""
        return await self._send(_wire.get(self._path(webhook_id)))

    async def update(
        self,
        webhook_id: str,
        *,
        url: Optional[str] = None,
        events: Optional[Sequence[str]] = None,
        description: Optional[str] = None,
        enabled: Optional[bool] = None,
    ) -> Webhook:
        """Change a webhook. Omitted settings are kept; an empty list of ``events`` means all."""
        chosen = None if events is None else list(events)
        body = _wire.given(url=url, events=chosen, description=description, enabled=enabled)
        return await self._send(_wire.post(self._path(webhook_id), body, method="PATCH"))

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook and its deliveries."""
        await self._transport.send(_wire.delete(self._path(webhook_id)))

    async def rotate_secret(self, webhook_id: str) -> Webhook:
        """Replace the secret. For 24 hours, deliveries are also signed with the old one."""
        return await self._send(_wire.post(f"{self._path(webhook_id)}/rotate-secret", {}))

    async def test(self, webhook_id: str) -> WebhookDelivery:
        """Send a test message of type ``ping``."""
        return await self._delivery(_wire.post(f"{self._path(webhook_id)}/test", {}))

    async def deliveries(self, webhook_id: str, *, limit: Optional[int] = None) -> List[WebhookDelivery]:
        """List deliveries, newest first."""
        query = {} if limit is None else {"limit": str(limit)}
        answer = await self._transport.send(_wire.get(f"{self._path(webhook_id)}/deliveries", query))
        return cast("List[WebhookDelivery]", answer.records("deliveries"))

    async def redeliver(self, webhook_id: str, delivery_id: int) -> WebhookDelivery:
        """Send a delivery that has ended again."""
        path = f"{self._path(webhook_id)}/deliveries/{delivery_id}/redeliver"
        return await self._delivery(_wire.post(path, {}))

    @staticmethod
    def _path(webhook_id: str) -> str:
        return f"/webhooks/{segment(webhook_id, 'webhook id')}"

    async def _send(self, call: _wire.Call) -> Webhook:
        return cast("Webhook", (await self._transport.send(call)).record())

    async def _delivery(self, call: _wire.Call) -> WebhookDelivery:
        return cast("WebhookDelivery", (await self._transport.send(call)).record())
