"""What the tests of webhooks share: a reader of requests that knows only what the documentation says, and options."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pillarbox.brokers.webhook import WebhookOptions
from pillarbox.core.message import Message
from servers.webhook_receiver import Received

KEY = bytes(range(32))
OLD_KEY = b"an old key of 24 bytes!!"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
OLD_SECRET = f"whsec_{base64.b64encode(OLD_KEY).decode()}"
FIELDS = ("id", "type", "aggregate_type", "aggregate_id", "idempotency_key", "number", "occurred_at")


def options(url: str, **table: Any) -> WebhookOptions:
    """Read options for a receiver of ours, on loopback."""
    return WebhookOptions.read(url, {"secrets": [SECRET], "allow": ["127.0.0.1", "localhost"], **table})


def expected_signature(key: bytes, received: Received) -> str:
    """Work out by hand what Standard Webhooks asks for."""
    headers = received.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + received.body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def message_of(received: Received) -> Message:
    """Read a message back."""
    assert expected_signature(KEY, received) in received.headers["webhook-signature"].split(" ")
    wire = dict(received.headers)
    exact: dict[str, Any] = json.loads(unquote(wire.pop("pillarbox-exact", "%7B%7D")))
    topic = unquote(wire.pop("pillarbox-topic"))
    given_key = wire.pop("pillarbox-key", None)
    found = _headers(wire) | exact.get("headers", {})
    key = found.get("aggregate_id") or found.get("ce_partitionkey") if given_key is None else unquote(given_key)
    return Message(topic, exact.get("key", key), found, received.body)


def _headers(wire: Mapping[str, str]) -> dict[str, str]:
    names = {f"pillarbox-{name.replace('_', '-')}": name for name in FIELDS}
    is_cloudevent = "ce-specversion" in wire or wire.get("content-type", "").startswith("application/cloudevents+json")
    found: dict[str, str] = {}
    for name, value in wire.items():
        if name == "content-type":
            found["content-type" if is_cloudevent else "content_type"] = value
        elif name in names:
            found[names[name]] = unquote(value)
        elif name.startswith("ce-"):
            found[f"ce_{name[3:]}"] = unquote(value)
        elif name in ("traceparent", "tracestate", "pillarbox-replay"):
            found[name] = unquote(value)
        elif name.startswith("pillarbox-"):
            found[name.removeprefix("pillarbox-")] = unquote(value)
    return found
