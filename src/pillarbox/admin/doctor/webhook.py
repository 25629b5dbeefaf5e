"""Whether a webhook's endpoint will let the relay in tomorrow."""

from collections.abc import Iterator
from datetime import timedelta

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.admin.wording import at
from pillarbox.facts import WebhookFacts

SOON = timedelta(days=3)
"""A certificate that runs out so soon is noted; those who renew theirs do it earlier."""


def _certificate(facts: Facts) -> Iterator[Trouble]:
    assert isinstance(facts.broker, WebhookFacts)
    until = facts.broker.certificate_until
    if until is not None and until - facts.now < SOON:
        line = (
            f"the certificate of {facts.broker.origin} runs out at {at(until)}: from then on events wait in the outbox;"
            " ask who runs it to renew it"
        )
        yield Trouble("note", line)


CHECKS: Checks = {"certificate": _certificate}
