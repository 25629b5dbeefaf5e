"""The error tree is the one that is drawn at the top of errors.py."""

import inspect
from datetime import timedelta

import pytest

from pillarbox import errors
from pillarbox.errors import ConfigError, HandlerSignal, InvalidEvent, MissingExtra, PillarboxError, Reject, RetryLater


def drawn() -> dict[str, str]:
    """Read the drawing: each class with the one it stands below."""
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines()[2:]:
        bare = line.lstrip("│├└─ ")
        if not bare:
            above = []
            continue
        depth = len(line) - len(bare)
        above = [(d, name) for d, name in above if d < depth]
        first = bare.split("(")[0].split()[0]
        siblings = [part.strip() for part in bare.split("  ")[-1].split("·")] if "·" in bare else []
        if above:
            parents[first] = above[-1][1]
        parents |= dict.fromkeys(siblings, first)
        above.append((depth, first))
    return parents


def test_the_tree_is_as_drawn() -> None:
    real = {
        name: value.__mro__[1].__name__
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, Exception) and value not in (PillarboxError, HandlerSignal)
    }
    assert drawn() == real


def test_a_missing_extra_is_the_line_that_installs_it() -> None:
    error = MissingExtra("kafka", "kafka://")
    assert str(error) == "kafka:// needs the extra 'kafka': pip install 'pillarbox[kafka]'"
    assert error.extra == "kafka"
    assert isinstance(error, ConfigError)


def test_an_invalid_event_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="wrong"):
        raise InvalidEvent("wrong")


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_handler_may_ask_for_later_in_seconds_or_as_a_timedelta(delay: timedelta | float) -> None:
    signal = RetryLater(delay)
    assert signal.delay == timedelta(seconds=90)
    assert str(signal) == "the handler asked to try later"
    assert str(RetryLater(1, "the bank is closed")) == "the bank is closed"


def test_a_handler_may_reject_with_a_reason() -> None:
    assert (Reject("no such order").reason, str(Reject("no such order"))) == ("no such order", "no such order")


def test_what_a_handler_may_raise_is_no_error_of_ours() -> None:
    assert not issubclass(HandlerSignal, PillarboxError)


@pytest.mark.parametrize(
    ("delay", "days"), [(timedelta.max, 365), (1e12, 365), (float("inf"), 365), (-5, 0), (timedelta.min, 0)], ids=repr
)
def test_later_is_between_now_and_a_year(delay: timedelta | float, days: int) -> None:
    assert RetryLater(delay).delay == timedelta(days=days)


def test_later_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="nan is no number of seconds"):
        RetryLater(float("nan"))
