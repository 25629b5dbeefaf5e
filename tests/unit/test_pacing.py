"""Pacing: how long until the next poll."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.pacing import SHORTEST, Pacing


def waits(first: float, longest: float, count: int) -> list[float]:
    pacing = Pacing(timedelta(seconds=first), timedelta(seconds=longest))
    return [pacing.quiet() for _ in range(count)]


def test_the_wait_doubles_up_to_its_bound() -> None:
    assert waits(0.005, 0.03, 5) == [0.005, 0.01, 0.02, 0.03, 0.03]


def test_it_starts_over_when_something_happens() -> None:
    pacing = Pacing(timedelta(seconds=1), timedelta(seconds=8))
    assert [pacing.quiet(), pacing.quiet()] == [1, 2]
    pacing.busy()
    assert pacing.quiet() == 1


def test_a_bound_below_the_first_wait_is_lifted_to_it() -> None:
    assert waits(2, 1, 3) == [2, 2, 2]


def test_a_first_wait_of_zero_does_not_poll_without_end() -> None:
    assert waits(0, 1, 20)[-1] == 1
    assert waits(0, 0, 2) == [SHORTEST, SHORTEST]


@given(st.floats(0, 10), st.floats(0, 10))
def test_waits_never_shrink_while_nothing_happens(first: float, longest: float) -> None:
    series = waits(first, longest, 20)
    assert series == sorted(series)
    assert series[-1] <= max(first, longest, SHORTEST) + 1e-6
