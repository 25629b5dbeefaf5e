"""The memory broker's far end keeps the subscriber's contract."""

import pytest

from pillarbox.testing.clock import ManualClock, simulate
from pillarbox.testing.contracts.memory_broker import MemorySubscriberBench, StandbySubscriberBench
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.subscriber import SubscriberContract


@pytest.mark.parametrize("rule", rules_of(SubscriberContract, MemorySubscriberBench.features))
def test_the_memory_subscriber_keeps_the_rule(rule: str) -> None:
    simulate(check(SubscriberContract, rule, MemorySubscriberBench()), ManualClock())


@pytest.mark.parametrize("rule", rules_of(SubscriberContract, StandbySubscriberBench.features))
def test_members_that_stand_by_keep_the_rule(rule: str) -> None:
    simulate(check(SubscriberContract, rule, StandbySubscriberBench()), ManualClock())
