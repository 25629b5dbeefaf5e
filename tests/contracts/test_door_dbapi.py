"""The door for sqlite3 keeps the contract, in every transaction mode that this Python has."""

import pytest

from pillarbox.testing.contracts.door import DoorContract
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.sqlite3_door import Sqlite3DoorBench


@pytest.mark.parametrize("isolation_level", ["", "IMMEDIATE", None], ids=["deferred", "immediate", "explicit"])
@pytest.mark.parametrize("rule", rules_of(DoorContract, Sqlite3DoorBench.features))
async def test_sqlite3(rule: str, isolation_level: str | None) -> None:
    await check(DoorContract, rule, Sqlite3DoorBench(isolation_level))
