"""The door's contract can fail: every rule finds at least one broken door, and every broken door is found."""

import asyncio
import sqlite3
from collections.abc import Mapping

import pytest

from pillarbox.errors import PillarboxError
from pillarbox.testing.contracts.defects_door import DEFECTS
from pillarbox.testing.contracts.door import DoorContract
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.sqlite3_door import Sqlite3DoorBench

RULES = rules_of(DoorContract, Sqlite3DoorBench.features)
Found = Mapping[str, set[str]]


async def finds(rule: str, bench: Sqlite3DoorBench) -> bool:
    try:
        await check(DoorContract, rule, bench)
    except (AssertionError, PillarboxError, sqlite3.Error, ValueError, TypeError):
        return True
    return False


@pytest.fixture(scope="module")
def found() -> Found:
    """Which defects each rule finds."""

    async def broken(rule: str) -> set[str]:
        answers = await asyncio.gather(*(finds(rule, bench()) for bench in DEFECTS))
        return {bench.__name__ for bench, found in zip(DEFECTS, answers, strict=True) if found}

    async def find() -> Found:
        return {rule: await broken(rule) for rule in RULES}

    return asyncio.run(find())


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_finds_a_broken_door(rule: str, found: Found) -> None:
    assert found[rule], f"{rule} passes on every broken door"


@pytest.mark.parametrize("defect", [bench.__name__ for bench in DEFECTS])
def test_the_broken_door_is_found(defect: str, found: Found) -> None:
    assert any(defect in defects for defects in found.values()), f"no rule finds {defect}"


async def test_no_rule_finds_fault_with_the_door_itself() -> None:
    assert [rule for rule in RULES if await finds(rule, Sqlite3DoorBench())] == []
