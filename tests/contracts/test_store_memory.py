"""The memory store keeps the contract of a store."""

import pytest

from pillarbox.testing.contracts.memory_store import MemoryStoreBench
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.store import StoreContract


@pytest.mark.parametrize("rule", rules_of(StoreContract, MemoryStoreBench.features))
async def test_the_memory_store(rule: str) -> None:
    await check(StoreContract, rule, MemoryStoreBench())
