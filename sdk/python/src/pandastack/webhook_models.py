"""Webhooks and their deliveries, and verifying what a webhook received."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from typing import Any, Dict, List, Mapping, TypedDict, Union, cast

#: Oldest message that is accepted, in seconds.
TOLERANCE_SECONDS = 300


class Webhook(TypedDict, total=False):
    """A URL that receives events of the workspace."""

    id: str
    url: str
    #: Events that are sent; empty for all.
    events: List[str]
    description: str
    enabled: bool
    #: Reason why the server disabled it.
    disabled_reason: str
    #: Time of the first failed attempt since the last delivery that was accepted.
    failing_since: str
    created_at: str
    #: Only in the responses to ``create`` and ``rotate_secret``.
    secret: str


class WebhookDelivery(TypedDict, total=False):
    """An event on its way to a webhook, or sent."""

    id: int
    #: The same for every attempt; receivers get it as ``webhook-id``.
    event_id: str
    #: Kind of the event, such as ``sandbox.failed``.
    type: str
    #: ``pending``, ``delivered`` or ``failed``.
    state: str
    attempts: int
    #: Result of the last attempt.
    result: str
    created_at: str
    next_attempt_at: str
    ended_at: str


class WebhookVerificationError(ValueError):
    """A received message is not from the webhook, or too old."""


def verify_webhook(
    body: Union[str, bytes],
    headers: Mapping[str, str],
    secret: str,
    *,
    tolerance_seconds: int = TOLERANCE_SECONDS,
) -> Dict[str, Any]:
    """Check the signature of a received message and return the event.

    ``body`` is the request body as it was received, and ``headers`` are the request's headers. Raises
    :class:`WebhookVerificationError` if the message was not signed with ``secret``, or is older than
    ``tolerance_seconds``.
    """
    values = {name.lower(): value for name, value in headers.items()}
    raw = body.encode("utf-8") if isinstance(body, str) else bytes(body)
    try:
        event, seconds = values["webhook-id"], int(values["webhook-timestamp"])
        signatures = values["webhook-signature"].split(" ")
        text = secret[len("whsec_"):] if secret.startswith("whsec_") else secret
        key = base64.b64decode(text, validate=True)
    except (KeyError, ValueError, binascii.Error) as error:
        raise WebhookVerificationError("a header or the secret is missing or malformed") from error
    if not key:
        raise WebhookVerificationError("the secret is empty")
    if abs(time.time() - seconds) > tolerance_seconds:
        raise WebhookVerificationError("the message is too old, or the clock of this machine is wrong")
    signed = f"{event}.{seconds}.".encode("utf-8") + raw
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode("ascii")
    if not any(hmac.compare_digest(expected.encode(), given.encode()) for given in signatures):
        raise WebhookVerificationError("the signature does not match")
    return cast("Dict[str, Any]", json.loads(raw))
