"""Every rule of the store's contract is broken by a store that deserves it."""

import pytest

from pillarbox.errors import PillarboxError
from pillarbox.testing.clock import simulate
from pillarbox.testing.contracts.defects_store import DEFECTS, Broken, StoreDefect
from pillarbox.testing.contracts.memory_store import MemoryStoreBench
from pillarbox.testing.contracts.rules import rules_of
from pillarbox.testing.contracts.store import StoreContract

RULES = rules_of(StoreContract, MemoryStoreBench.features)
CASES = [pytest.param(defect, rule, id=f"{defect.name}-{rule}") for defect in DEFECTS for rule in defect.rules]
NOTICED = (AssertionError, pytest.fail.Exception, TimeoutError, PillarboxError, Broken, ValueError)
"""A rule notices by its assertion, by an error that did not come, by losing patience, or because the store gives up."""


@pytest.mark.parametrize(("defect", "rule"), CASES)
def test_the_rule_notices_the_defect(defect: StoreDefect, rule: str) -> None:
    bench = MemoryStoreBench(defect.store)
    with pytest.raises(NOTICED) as noticed:
        simulate(getattr(StoreContract(), rule)(bench), bench.clock)
    # `[entry] = await read(store)` is an assertion too
    assert noticed.type is not ValueError or "values to unpack" in str(noticed.value)


@pytest.mark.parametrize("rule", RULES)
def test_the_sound_store_passes_when_it_is_run_the_same_way(rule: str) -> None:
    bench = MemoryStoreBench()
    simulate(getattr(StoreContract(), rule)(bench), bench.clock)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_is_toothless(rule: str) -> None:
    assert [defect for defect in DEFECTS if rule in defect.rules]


def test_the_memory_store_is_asked_every_rule() -> None:
    every = {name for part in StoreContract.__mro__ for name in vars(part) if name.startswith("test_")}
    assert set(RULES) == every


def test_every_defect_has_a_name_of_its_own() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)
