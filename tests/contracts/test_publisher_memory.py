"""The memory broker's near end keeps the publisher's contract."""

import pytest

from pillarbox.testing.clock import ManualClock, simulate
from pillarbox.testing.contracts.memory_broker import MemoryPublisherBench
from pillarbox.testing.contracts.publisher import PublisherContract
from pillarbox.testing.contracts.rules import check, rules_of


@pytest.mark.parametrize("rule", rules_of(PublisherContract, MemoryPublisherBench.features))
def test_the_memory_publisher_keeps_the_rule(rule: str) -> None:
    simulate(check(PublisherContract, rule, MemoryPublisherBench()), ManualClock())
