"""Log lines: one a noteworthy moment, for people or as JSON."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.message import Message
from pillarbox.telemetry.hooks import Hooks, Moment
from pillarbox.telemetry.logging import By, LogMoments, log_to, logger
from tests.unit.consumer_bench import TOPIC, ConsumerBench, id_of

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def entry(type: str = "OrderPlaced", topic: str = "order-events", data: str | bytes = "{}") -> Entry:
    return Entry(1, "0198-7", "order", "7", type, topic, data, None, None, None, None, None, None, NOW)


ENTRY = entry()

KEYS = ("relay", "consumer", "event_id", "topic", "attempt")


@dataclass
class Card:
    number: int


class PydanticCard(pydantic.BaseModel):
    number: int


class MsgspecCard(msgspec.Struct):
    number: int


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
    assert lines.getvalue()[9:] == "ERROR OrderPlaced 0198-7 for order 7 in order-events is dead (attempt 1): refused\n"


def test_a_retry_says_when(lines: io.StringIO) -> None:
    Hooks(LogMoments()).reach(Moment.EVENT_RETRYING, entry=ENTRY, error="timeout", at=NOW)
    assert lines.getvalue()[9:] == (
        "WARNING OrderPlaced 0198-7 for order 7 in order-events failed (attempt 1) and is tried again at 12:00:00 UTC:"
        " timeout\n"
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
    log_to(stream, as_json=True, by=By("relay", "web-4711-9f3c"))
    Hooks(LogMoments()).reach(Moment.EVENT_RETRYING, entry=ENTRY, error="timeout", at=NOW)
    line = json.loads(stream.getvalue())
    assert list(line) == [*("at", "level", "moment", "text"), *KEYS, "facts"]
    assert [line[key] for key in KEYS] == ["web-4711-9f3c", None, "0198-7", "order-events", 1]
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


@pytest.mark.usefixtures("_logger_as_before")
@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "a\r\x00b", "\x9b31m", "a\u2028b", "\x7f"])
@pytest.mark.parametrize("as_json", [False, True])
def test_no_control_character_gets_into_a_line(as_json: bool, text: str) -> None:
    stream = io.StringIO()
    log_to(stream, as_json=as_json, by=By("relay", f"web{text}"))
    event = entry(f"Order{text}", f"order{text}")
    Hooks(LogMoments()).reach(Moment.EVENT_DEAD, entry=event, error=f"refused {text} by the broker")
    logger.warning("somebody says %s", text)
    lines = stream.getvalue().removesuffix("\n").split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines), lines
    if as_json:
        read = json.loads(lines[0])
        assert (read["topic"], read["relay"]) == (f"order{text}", f"web{text}")


@pytest.mark.usefixtures("_logger_as_before")
def test_a_line_for_people_says_who_writes_it() -> None:
    stream = io.StringIO()
    log_to(stream, by=By("consumer", "bill%(x)sing"))
    Hooks(LogMoments()).reach(Moment.BROKER_BACK, away=timedelta(seconds=1))
    assert stream.getvalue()[9:] == "bill%(x)sing INFO the broker is back after 1.0 s\n"


@pytest.mark.parametrize(
    ("moment", "more"),
    [
        (Moment.EVENT_RETRYING, {"error": "no", "at": NOW}),
        (Moment.EVENT_DEAD, {"error": "no"}),
        (Moment.NUMBER_MISSING, {"aggregate": ("order", "7"), "number": 4}),
        (Moment.NUMBER_CONFLICT, {"aggregate": ("order", "7"), "number": 4, "error": "no"}),
        (Moment.HANDLER_SLOW, {"seconds": 30}),
        (Moment.HANDLER_AWAITED, {"seconds": 30}),
        (Moment.HANDLER_RETURNED, {"handler": "bill", "value": "str"}),
        (Moment.HANDLER_COMMITTED, {"handler": "bill"}),
    ],
)
def test_a_line_of_a_consumer_about_an_event_names_it_and_its_attempt(
    lines: io.StringIO, moment: Moment, more: dict[str, Any]
) -> None:
    event = {"type": "OrderPlaced", "event_id": "0198-7", "topic": "order-events", "attempt": 2}
    Hooks(LogMoments()).reach(moment, **event, **more)
    line = lines.getvalue()
    assert "OrderPlaced 0198-7" in line
    assert "(attempt 2)" in line
    assert line.count("in order-events") == 1


@pytest.mark.usefixtures("_logger_as_before")
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("data", ['{"card": "4111"}', b'{"card": "4111"}'])
def test_what_an_endpoint_repeats_of_an_event_is_not_logged(data: str | bytes, as_json: bool) -> None:
    stream = io.StringIO()
    log_to(stream, as_json=as_json)
    event = entry(data=data)
    Hooks(LogMoments()).reach(Moment.EVENT_DEAD, entry=event, error='400: cannot take {"card": "4111"}')
    assert "4111" not in stream.getvalue()
    assert "400: cannot take (payload)" in stream.getvalue()


@pytest.mark.usefixtures("_logger_as_before")
@pytest.mark.parametrize("model", [Card, PydanticCard, MsgspecCard, int])
async def test_no_line_of_a_consumer_has_what_an_event_carries(model: Any, tmp_path: Path) -> None:
    stream = io.StringIO()
    log_to(stream, as_json=True, by=By("consumer", "billing"))
    bench = ConsumerBench(tmp_path)
    bench.on = LogMoments()

    @bench.inbox.handler("OrderPlaced", payload=model)
    def bill(connection: Any, event: Any) -> None: ...

    @bench.inbox.handler("OrderKept")
    def keep(connection: Any, event: Any) -> Any:
        return event.payload

    headers = {"type": "OrderPlaced"}
    bodies = (b'{"number": "4111-canary"}', b"4111-canary", b'{"number": {"4111-canary": 1}}')
    bench.publish(
        *(Message(TOPIC, None, {"id": id_of(n), **headers}, body) for n, body in enumerate(bodies)),
        Message(TOPIC, None, {"id": id_of(9), "type": "OrderKept"}, bodies[0]),
    )
    await bench.consume()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["moment"] for line in lines].count("event dead") == len(bodies)
    assert all(line["consumer"] == "billing" and line["topic"] == TOPIC and line["attempt"] == 1 for line in lines)
    assert all(line["event_id"] for line in lines)
    assert "canary" not in stream.getvalue()
