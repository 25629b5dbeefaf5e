"""Log lines: one a noteworthy moment, for people or as JSON."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.core.entry import Entry
from pillarbox.telemetry.hooks import Hooks, Moment
from pillarbox.telemetry.logging import LogMoments, log_to, logger

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ENTRY = Entry(1, "0198-7", "order", "7", "OrderPlaced", "order-events", "{}", None, None, None, None, None, None, NOW)


@pytest.fixture
def _logger_as_before() -> Iterator[None]:
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture
def lines(_logger_as_before: None) -> io.StringIO:
    stream = io.StringIO()
    log_to(stream)
    return stream


def test_a_dead_event_is_named_with_its_error(lines: io.StringIO) -> None:
    Hooks(LogMoments()).reach(Moment.EVENT_DEAD, entry=ENTRY, error="refused")
    assert lines.getvalue()[9:] == "ERROR OrderPlaced 0198-7 for order 7 in order-events is dead: refused\n"


def test_a_retry_says_when(lines: io.StringIO) -> None:
    Hooks(LogMoments()).reach(Moment.EVENT_RETRYING, entry=ENTRY, error="timeout", at=NOW)
    assert lines.getvalue()[9:] == (
        "WARNING OrderPlaced 0198-7 for order 7 in order-events failed and is tried again at 12:00:00 UTC: timeout\n"
    )


def test_a_broker_that_goes_and_comes_back_makes_two_lines(lines: io.StringIO) -> None:
    hooks = Hooks(LogMoments())
    hooks.reach(Moment.BROKER_AWAY, error="refused")
    hooks.reach(Moment.BROKER_BACK, away=timedelta(seconds=2.5))
    assert [line[9:] for line in lines.getvalue().splitlines()] == [
        "WARNING the broker is away; nothing is lost: refused",
        "INFO the broker is back after 2.5 s",
    ]


def test_a_database_that_stays_away_is_mentioned_once(lines: io.StringIO) -> None:
    hooks = Hooks(LogMoments())
    for _ in range(3):
        hooks.reach(Moment.STORE_AWAY, error="locked")
    hooks.reach(Moment.STORE_BACK)
    hooks.reach(Moment.STORE_AWAY, error="locked")
    assert [line[9:] for line in lines.getvalue().splitlines()] == [
        "WARNING the database is away: locked",
        "INFO the database is back",
        "WARNING the database is away: locked",
    ]


def test_everyday_moments_are_not_logged(lines: io.StringIO) -> None:
    Hooks(LogMoments()).reach(Moment.SENT, count=5)
    assert lines.getvalue() == ""


@pytest.mark.usefixtures("_logger_as_before")
def test_json_lines_carry_the_moment_and_its_facts() -> None:
    stream = io.StringIO()
    log_to(stream, as_json=True)
    Hooks(LogMoments()).reach(Moment.EVENT_RETRYING, entry=ENTRY, error="timeout", at=NOW)
    line = json.loads(stream.getvalue())
    assert set(line) == {"at", "level", "moment", "text", "facts"}
    assert (line["level"], line["moment"]) == ("warning", "event retrying")
    assert line["facts"] == {
        "entry": {
            "event_id": "0198-7",
            "type": "OrderPlaced",
            "topic": "order-events",
            "aggregate": ["order", "7"],
            "attempts": 0,
        },
        "error": "timeout",
        "at": "2026-01-31T12:00:00Z",
    }


def test_an_application_decides_itself_where_the_lines_go(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pillarbox"):
        Hooks(LogMoments()).reach(Moment.LANES_TAKEN, lanes=64)
    assert caplog.messages == ["holds 64 lanes and relays"]
