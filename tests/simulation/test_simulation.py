"""2,000 simulated runs by seed; mutants that they must find; seeds that once failed, for ever."""

import multiprocessing
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from pillarbox.telemetry.hooks import CRASH_POINTS
from tests.simulation.edition import NEWEST, Edition
from tests.simulation.faults import expected
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.run import Result, how_to_repeat, run_one

USUAL_RUNS = 2000
RUNS = int(os.environ.get("PILLARBOX_SIMULATIONS", USUAL_RUNS))
FAILED_ONCE: dict[Edition, tuple[int, ...]] = {
    Edition.FIRST: (42, 514, 652, 745, 867, 912, 1000, 1119, 1357, 102498, 387499622, 545696653, 690913877),
    Edition.TOPICS_FAIL: (28, 208, 454, 474, 498, 588, 753, 792, 1000),
    Edition.OPERATED: (101581, 105742, 124721, 61714149, 98187401, 98188768, 498079903, 662979687),
}


@pytest.mark.timeout(1500)
def test_nothing_is_lost_invented_reordered_or_applied_twice(record_property: Callable[[str, object], None]) -> None:
    struck: Counter[tuple[str, str]] = Counter()
    failed: list[Result] = []
    committed = copies = 0
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for result in pool.map(run_one, range(RUNS), chunksize=25):
            struck += result.hits
            committed, copies = committed + result.committed, copies + result.copies
            if result.faults:
                failed.append(result)
    record_property(
        "says", f"{RUNS} simulated runs: {committed} events committed, {copies} copies, {len(failed)} failed"
    )
    if RUNS < USUAL_RUNS:
        record_property("says", f"  PILLARBOX_SIMULATIONS={RUNS}: fewer than the usual {USUAL_RUNS:,}")
    for fault, point in expected():
        record_property("says", f"  {fault} struck at {point}: {struck[fault, point]}")
    assert not failed, "\n".join(map(str, failed))
    assert not [place for place in expected() if not struck[place]], "a fault never struck one of its points"


def test_every_crash_point_is_simulated() -> None:
    assert {point for fault, point in expected() if fault == "crash"} >= CRASH_POINTS


@pytest.mark.parametrize(
    ("edition", "seed"), [(edition, seed) for edition, ones in FAILED_ONCE.items() for seed in ones]
)
def test_a_seed_that_failed_once_stays_mended(edition: Edition, seed: int) -> None:
    result = run_one(seed, edition=edition)  # the world that it was
    assert not result.faults, str(result)


FOUND_BY = (0, 2, 9, 204)
"""Seeds that have found a broken rule before; tried first, to save time."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    with mutant():
        results = (run_one(seed) for seed in (*FOUND_BY, *range(USUAL_RUNS)))
        found = next((result for result in results if result.faults), None)
    assert found is not None, f"2,000 runs did not notice: {mutant.__doc__}"
    first, *told = str(found).splitlines()
    assert first.startswith(f"seed {found.seed}: ")
    assert told[: len(found.faults)] == found.faults
    assert f"repeat it: .venv/bin/python -m tests.simulation --seed {found.seed}" in told
    record_property("says", f"simulation: {mutant.__name__} is found by seed {found.seed}")


@pytest.mark.parametrize("edition", [NEWEST, Edition.FIRST], ids=["newest", "first"])
def test_the_command_that_is_told_lives_the_same_world_once_more(edition: Edition) -> None:
    result = run_one(42, edition=edition)
    python, *arguments = shlex.split(how_to_repeat(42, edition).removeprefix("repeat it: "))
    assert python == ".venv/bin/python"
    repeated = subprocess.run(
        [sys.executable, *arguments], cwd=Path(__file__).parents[2], capture_output=True, check=True, text=True
    )
    assert repeated.stdout == f"{result}\n"
