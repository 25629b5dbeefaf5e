"""When a connection that breaks is the fault of an event."""

import pytest

from pillarbox.brokers.webhook import breaks
from pillarbox.brokers.webhook.breaks import Breaks

ONE, OTHER = ("orders", "1"), ("orders", "2")


def test_a_first_break_is_nobodys_fault_also_while_others_are_answered() -> None:
    noted = Breaks()
    noted.answered(OTHER, 1.0)
    assert not noted.broke(ONE, 1.0)
    noted.answered(OTHER, 2.0)
    assert not noted.broke(("orders", "3"), 2.0)


def test_however_often_it_breaks_it_is_nobodys_fault_while_nobody_is_answered() -> None:
    noted = Breaks()
    noted.answered(OTHER, 1.0)
    assert not any(noted.broke(event, now) for now in range(2, 600) for event in (ONE, OTHER))


def test_a_second_break_is_the_events_fault_if_others_were_answered_since_the_first() -> None:
    noted = Breaks()
    assert not noted.broke(ONE, 1.0)
    noted.answered(OTHER, 2.0)
    assert noted.broke(ONE, 3.0)
    assert not noted.broke(ONE, 4.0), "since the last one nobody was answered: it may be away now"
    noted.answered(OTHER, 5.0)
    assert noted.broke(ONE, 6.0)


def test_an_event_that_was_answered_begins_anew() -> None:
    noted = Breaks()
    noted.broke(ONE, 1.0)
    noted.answered(ONE, 2.0)
    assert not noted.broke(ONE, 3.0)


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaks, "MOST", 2)
    noted = Breaks()
    for number in range(3):
        noted.broke(("orders", str(number)), 1.0)
    noted.answered(("orders", "9"), 2.0)
    assert [noted.broke(("orders", str(number)), 3.0) for number in (2, 1)] == [True, True]
    assert not noted.broke(("orders", "0"), 3.0)
