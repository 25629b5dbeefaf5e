"""Many more simulated runs: some by fixed seeds, some by fresh ones, which are printed."""

import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.simulation.run import run_one

RUNS = 1500


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("first", [100_000, random.SystemRandom().randrange(10**6, 10**9)], ids=["fixed", "fresh"])
def test_thousands_of_runs_keep_the_promises(first: int, record_property: Callable[[str, object], None]) -> None:
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(run_one, range(first, first + RUNS), chunksize=25))
    failed = [result for result in results if result.faults]
    committed, copies = sum(r.committed for r in results), sum(r.copies for r in results)
    record_property(
        "says", f"{RUNS} runs from seed {first}: {committed} committed, {copies} copies, {len(failed)} failed"
    )
    assert not failed, "\n".join(map(str, failed))
