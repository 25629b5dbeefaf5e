"""Figures: rates and ages of what a store has counted."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.admin.figures import Figures, TopicFigures, TopicSeen
from pillarbox.ports import Away, Pause, Record, RelaySeen, Stats

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = Stats(0, True, None, 0, 0, 0, 0, None)


def figures(**counted: object) -> Figures:
    return Figures(replace(NOTHING, **counted), NOW)  # type: ignore[arg-type]


def test_the_age_of_nothing_is_none() -> None:
    assert figures().oldest_pending_age is None


@pytest.mark.parametrize(("seconds", "age"), [(90, 90), (0, 0), (-5, 0)])
def test_an_age_is_never_below_zero_whatever_the_clocks_say(seconds: int, age: int) -> None:
    seen = figures(oldest_pending_at=NOW - timedelta(seconds=seconds))
    assert seen.oldest_pending_age == timedelta(seconds=age)


def test_a_delayed_event_waits_from_when_its_time_has_come() -> None:
    due = {"overdue_by_topic": {"orders": 2, "mails": 1}, "oldest_due_at": NOW - timedelta(seconds=90)}
    assert figures(delayed=1_005, **due).oldest_pending_age == timedelta(seconds=90)
    assert figures(delayed=1_005, **due).delayed_told == "1,005 (3 overdue)"
    assert figures(delayed=1_005, copies=2, **due).delayed_told == "1,005 (3 overdue, 2 replayed)"
    assert figures(delayed=2).delayed_told == "2"
    older = figures(pending=1, oldest_pending_at=NOW - timedelta(seconds=100), **due)
    assert older.oldest_pending_age == timedelta(seconds=100)


def test_beyond_what_is_counted_the_estimate_holds() -> None:
    assert figures(pending=10_000, pending_exact=False, pending_about=3_000_000).pending == 3_000_000
    assert figures(pending=10_000, pending_exact=False).pending == 10_000


def test_the_rate_is_that_of_the_last_minute() -> None:
    assert figures(published_lately=90).published_per_second == 1.5


def test_only_relays_whose_lease_runs_are_counted() -> None:
    lives = RelaySeen("a", NOW, NOW + timedelta(seconds=5), 64)
    assert figures(relays=[lives, replace(lives, owner="b", lease_until=NOW - timedelta(seconds=5))]).relays == 1


def test_a_topic_is_listed_if_something_is_pending_parked_or_paused() -> None:
    seen = figures(
        pending_by_topic={"orders": 2},
        parked_by_topic={"mails": {"dead": 1, "blocked": 3}},
        pauses=[Pause("letters", NOW, "ann", "why not"), Pause("orders", NOW, "ann", "why not")],
    )
    assert seen.topics == {
        "letters": TopicFigures(0, 0, 0, 0, 0, True),
        "mails": TopicFigures(0, 0, 3, 0, 1, False),
        "orders": TopicFigures(2, 0, 0, 0, 0, True),
    }


def head(topic: str, status: str, error: str) -> Record:
    return Record(1, "id", status, "Placed", topic, ("order", "1"), NOW, last_error=error)  # type: ignore[arg-type]


def test_a_topic_shows_what_keeps_it_back_and_those_come_first() -> None:
    away = Away(NOW, "topic held fails while others go: 503 no leader")
    seen = figures(
        pending_by_topic={"paused": 2, "calm": 1},
        oldest_by_topic={"paused": NOW - timedelta(seconds=9), "calm": NOW + timedelta(seconds=9)},
        parked_by_topic={"dead": {"dead": 1, "blocked": 3, "retrying": 1}, "tried": {"retrying": 2}, "held": {}},
        added_by_topic={"calm": 30, "quick": 60},
        heads=[head("dead", "retrying", "later"), head("dead", "dead", "550 no such user")],
        pauses=[Pause("paused", NOW, "ann", "the cellar")],
        relays=[RelaySeen("a", NOW, NOW + timedelta(seconds=5), 64, away)],
    ).seen
    assert seen == [
        TopicSeen("dead", 0, None, 0.0, 5, "dead", "550 no such user"),
        TopicSeen("held", 0, None, 0.0, 0, "held", "503 no leader"),
        TopicSeen("paused", 2, timedelta(seconds=9), 0.0, 0, "paused", "by ann: the cellar"),
        TopicSeen("tried", 0, None, 0.0, 2, "retrying", ""),
        TopicSeen("calm", 1, timedelta(0), 0.5, 0, "flows", ""),
        TopicSeen("quick", 0, None, 1.0, 0, "flows", ""),
    ]


def test_where_the_newest_events_are_younger_than_a_minute_the_rate_is_that_of_their_time() -> None:
    seen = figures(added_by_topic={"quick": 1_000}, added_since=NOW - timedelta(seconds=4)).seen
    assert seen[0].added_per_second == 250
