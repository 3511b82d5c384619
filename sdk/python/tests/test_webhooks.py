"""Webhooks, and verifying what they received."""

import base64
import hashlib
import hmac
import json
import time

import pytest

from pandastack import WebhookVerificationError, verify_webhook

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def test_webhooks_and_their_deliveries(server, client):
    hook = {"id": "w1", "url": "https://example.com/x", "events": ["sandbox.*"], "enabled": True}
    sent = {"id": 7, "event_id": "evt_1", "type": "ping", "state": "pending", "attempts": 0}
    server.on("POST", "/v1/webhooks", 201, {**hook, "secret": SECRET})
    server.on("GET", "/v1/webhooks", 200, {"items": [hook]})
    server.on("GET", "/v1/webhooks/w1", 200, hook)
    server.on("PATCH", "/v1/webhooks/w1", 200, {**hook, "enabled": False})
    server.on("DELETE", "/v1/webhooks/w1", 204)
    server.on("POST", "/v1/webhooks/w1/rotate-secret", 200, {**hook, "secret": "whsec_new"})
    server.on("POST", "/v1/webhooks/w1/test", 202, sent)
    server.on("GET", "/v1/webhooks/w1/deliveries", 200, {"items": [sent]})
    server.on("POST", "/v1/webhooks/w1/deliveries/7/redeliver", 202, sent)
    assert client.webhooks.create("https://example.com/x", events=["sandbox.*"])["secret"] == SECRET
    assert server.requests[-1].json == {"url": "https://example.com/x", "events": ["sandbox.*"]}
    assert client.webhooks.list() == [hook]
    assert client.webhooks.get("w1") == hook
    assert client.webhooks.update("w1", enabled=False, events=[])["enabled"] is False
    assert server.requests[-1].json == {"enabled": False, "events": []}
    assert client.webhooks.rotate_secret("w1")["secret"] == "whsec_new"
    assert client.webhooks.test("w1") == sent
    assert client.webhooks.deliveries("w1", limit=5) == [sent]
    assert client.webhooks.redeliver("w1", 7) == sent
    client.webhooks.delete("w1")


def signed(body, secret=SECRET, age_seconds=0):
    seconds = int(time.time()) - age_seconds
    key = base64.b64decode(secret[len("whsec_"):])
    text = f"evt_1.{seconds}.{body}".encode()
    signature = "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    signatures = f"v1,b3RoZXI= {signature}"
    return {"Webhook-Id": "evt_1", "Webhook-Timestamp": str(seconds), "Webhook-Signature": signatures}


def test_a_signed_message_is_accepted():
    body = json.dumps({"type": "sandbox.failed"})
    assert verify_webhook(body, signed(body), SECRET) == {"type": "sandbox.failed"}
    assert verify_webhook(body.encode(), signed(body), SECRET)["type"] == "sandbox.failed"


@pytest.mark.parametrize("change", ["body", "secret", "age", "header", "timestamp"])
def test_other_messages_are_refused(change):
    body = json.dumps({"type": "sandbox.failed"})
    headers = signed(body, age_seconds=301 if change == "age" else 0)
    secret = "whsec_" + base64.b64encode(b"o" * 32).decode() if change == "secret" else SECRET
    if change == "header":
        del headers["Webhook-Signature"]
    if change == "timestamp":
        headers["Webhook-Timestamp"] = "soon"
    with pytest.raises(WebhookVerificationError):
        verify_webhook(body + " " if change == "body" else body, headers, secret)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!"])
def test_an_empty_secret_verifies_nothing(secret):
    headers = signed("{}", secret="whsec_")
    with pytest.raises(WebhookVerificationError):
        verify_webhook("{}", headers, secret)
