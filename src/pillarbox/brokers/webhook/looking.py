"""Whether a webhook's endpoint is there: a connection, and no request, for that would be a message."""

from collections.abc import Sequence

from pillarbox.brokers.webhook.client import Client
from pillarbox.brokers.webhook.options import WebhookOptions
from pillarbox.facts import WebhookFacts


class WebhookLooking:
    """Connects to the endpoint as a relay does."""

    def __init__(self, options: WebhookOptions) -> None:
        self._options = options

    async def __call__(self, topics: Sequence[str]) -> WebhookFacts:
        client = Client(self._options)
        try:
            return WebhookFacts(self._options.origin, await client.reach())
        finally:
            await client.close()
