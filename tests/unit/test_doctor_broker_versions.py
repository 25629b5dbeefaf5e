"""Doctor: brokers that are too old, from values alone; no server that old is at hand."""

from datetime import UTC, datetime

import pytest

from pillarbox.admin.doctor import Facts, examine
from pillarbox.facts import BrokerFacts, NatsFacts, RedisFacts
from pillarbox.settings import Settings


def redis(*version: int) -> RedisFacts:
    return RedisFacts(True, "yes", "always", 0, "noeviction", version=version)  # type: ignore[arg-type]


def nats(*version: int) -> NatsFacts:
    return NatsFacts([], version)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broker", "severity"),
    [
        (redis(6, 2), "problem"),
        (redis(7, 0), None),
        (redis(7, 2), None),
        (redis(10, 0), None),
        (nats(2, 9), "note"),
        (nats(2, 11), None),
        (nats(3, 0), None),
    ],
)
def test_a_broker_that_is_too_old_is_told(broker: BrokerFacts, severity: str | None) -> None:
    found = examine(Facts(Settings(), datetime(2026, 1, 1, tzinfo=UTC), broker=broker))
    told = [(one.severity, one.check) for one in found if one.severity != "fine"]
    assert told == ([] if severity is None else [(severity, "version of the broker")])
