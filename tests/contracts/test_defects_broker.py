"""Every rule of the publisher's and the subscriber's contract is broken by a broker that deserves it."""

from collections.abc import Collection

import pytest

from pillarbox.testing.clock import ManualClock, simulate
from pillarbox.testing.contracts.defects_broker import DEFECTS, Broken, Defect
from pillarbox.testing.contracts.memory_broker import (
    MemoryPublisherBench,
    MemorySubscriberBench,
    StandbySubscriberBench,
)
from pillarbox.testing.contracts.publisher import PublisherContract
from pillarbox.testing.contracts.rules import rules_of
from pillarbox.testing.contracts.subscriber import SubscriberContract

PUBLISHER_RULES = rules_of(PublisherContract, MemoryPublisherBench.features)
SUBSCRIBER_RULES = {
    rule
    for bench in (MemorySubscriberBench, StandbySubscriberBench)
    for rule in rules_of(SubscriberContract, bench.features)
}
CASES = [
    pytest.param(defect, suite, rule, id=f"{defect.name}-{rule}")
    for defect in DEFECTS
    for suite, rules in ((PublisherContract, defect.publisher_rules), (SubscriberContract, defect.subscriber_rules))
    for rule in rules
]


@pytest.mark.parametrize(("defect", "suite", "rule"), CASES)
def test_the_rule_notices_the_defect(defect: Defect, suite: type, rule: str) -> None:
    bench = (MemoryPublisherBench if suite is PublisherContract else MemorySubscriberBench)(defect.broker())
    # A rule notices by its assertion, by losing patience, or because nothing moves any more.
    with pytest.raises((AssertionError, TimeoutError, Broken, RuntimeError)) as noticed:
        simulate(getattr(suite(), rule)(bench), ManualClock())
    assert noticed.type is not RuntimeError or "the simulation is stuck" in str(noticed.value)


@pytest.mark.parametrize("rule", PUBLISHER_RULES)
def test_no_rule_of_the_publisher_is_toothless(rule: str) -> None:
    assert [defect for defect in DEFECTS if rule in defect.publisher_rules]


@pytest.mark.parametrize("rule", sorted(SUBSCRIBER_RULES))
def test_no_rule_of_the_subscriber_is_toothless(rule: str) -> None:
    assert [defect for defect in DEFECTS if rule in defect.subscriber_rules]


@pytest.mark.parametrize(
    ("suite", "asked"), [(PublisherContract, PUBLISHER_RULES), (SubscriberContract, SUBSCRIBER_RULES)]
)
def test_the_memory_broker_is_asked_every_rule(suite: type, asked: Collection[str]) -> None:
    assert set(asked) == {name for name in dir(suite) if name.startswith("test_")}
