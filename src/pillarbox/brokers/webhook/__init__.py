"""Webhooks: each event is one signed HTTPS request to one endpoint, and a 2xx answer means published.

    options.py     the URL and the table [webhooks], checked before anything is opened
    addresses.py   which addresses are nobody's business: private, loopback, metadata and the like
    client.py      one pool of connections, to addresses that were checked; the only importer of httpx
    wire.py        a message → HTTP headers
    signature.py   Standard Webhooks: keys and signatures
    answers.py     what a status means
    breaks.py      what it means that a connection breaks
    looking.py     whether the endpoint is there
    publisher.py   the near end: one call in flight per key, many keys at once

There is no far end: the endpoint is somebody's web application.
"""

from pillarbox.brokers.given import Given, Publishers
from pillarbox.brokers.webhook.looking import WebhookLooking
from pillarbox.brokers.webhook.options import WebhookOptions
from pillarbox.brokers.webhook.publisher import WebhookPublisher
from pillarbox.facts import Looking

__all__ = ["WebhookOptions", "WebhookPublisher", "open_looking", "open_publisher"]


def open_publisher(given: Given) -> Publishers:
    options = _read(given)
    return lambda: WebhookPublisher(options, publish_timeout=given.publish_timeout)


def open_looking(given: Given) -> Looking:
    return WebhookLooking(_read(given))


def _read(given: Given) -> WebhookOptions:
    return WebhookOptions.read(":".join(given.url), given.tables.get("webhooks", {}))
