"""50,000 more simulated runs: half of them by fixed seeds, half by fresh ones, which are printed."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.faults import expected
from tests.simulation.run import Result, run_one

SHARDS, RUNS = 20, 2_500
FIXED = range(100_000, 100_000 + SHARDS // 2 * RUNS, RUNS)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("first", [*FIXED, *(f"fresh {number}" for number in range(SHARDS - len(FIXED)))], ids=str)
def test_thousands_of_runs_keep_the_promises(first: int | str, record_property: Callable[[str, object], None]) -> None:
    start = first if isinstance(first, int) else random.SystemRandom().randrange(10**6, 10**9)
    struck, failed = Counter[tuple[str, str]](), list[Result]()
    committed = copies = 0
    for seed in range(start, start + RUNS):
        result = run_one(seed)
        struck += result.hits
        committed, copies = committed + result.committed, copies + result.copies
        if result.faults:
            failed.append(result)
    record_property(
        "says", f"{RUNS} runs from seed {start}: {committed} committed, {copies} copies, {len(failed)} failed"
    )
    assert not failed, "\n".join(map(str, failed))
    assert not [place for place in expected() if not struck[place]], "a fault never struck one of its points"
