"""The demo's workload: the same for the same seed, exactly as many events as asked for, and some rollbacks."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.demo.shop import STAGES, WRITERS, Change, in_stages, plan


def whole_plan(events: int, seed: int) -> list[Change]:
    return [change for writer in range(WRITERS) for change in plan(events, seed, writer)]


@given(events=st.integers(1, 400), seed=st.integers(0, 1000))
def test_all_writers_together_commit_exactly_as_many_events_as_asked_for(events: int, seed: int) -> None:
    assert sum(change.events for change in whole_plan(events, seed)) == events


def test_the_same_seed_gives_the_same_workload() -> None:
    assert whole_plan(500, seed=7) == whole_plan(500, seed=7)
    assert whole_plan(500, seed=7) != whole_plan(500, seed=8)


def test_changes_have_names_of_their_own() -> None:
    assert max(Counter(change.id for change in whole_plan(500, seed=7)).values()) == 1


def test_some_transactions_are_rolled_back() -> None:
    changes = whole_plan(2000, seed=7)
    assert 0.05 < sum(change.rolled_back for change in changes) / len(changes) < 0.15


def test_an_order_is_placed_then_paid_then_shipped() -> None:
    steps: dict[int, list[str]] = {}
    for change in whole_plan(2000, seed=7):
        if not change.rolled_back:
            steps.setdefault(change.order, []).append(change.status)
    assert Counter(map(tuple, steps.values())).keys() == {
        ("placed",),
        ("placed", "paid"),
        ("placed", "paid", "shipped"),
    }


def test_products_are_sold_by_several_writers() -> None:
    sellers: dict[str, set[str]] = {}
    for change in whole_plan(2000, seed=7):
        if change.product is not None:
            sellers.setdefault(change.product, set()).add(change.id.split("-")[0])
    assert all(len(writers) == WRITERS for writers in sellers.values())


@pytest.mark.parametrize("events", [1, 4, 20, 50, 1000])
def test_stages_hold_the_whole_plan_and_the_first_commits_something(events: int) -> None:
    changes = plan(events, seed=7, writer=0)
    stages = list(in_stages(changes))
    assert len(stages) == STAGES
    assert [change for stage in stages for change in stage] == changes
    assert sum(change.events for change in stages[0]) > 0
