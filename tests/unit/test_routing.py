"""Routing: topics, lines and lanes. The lane's vectors are shared with SQL."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.entry import Entry
from pillarbox.core.routing import LANES, Topic, Topics, check_template, lane_of, topic_of
from pillarbox.errors import ConfigError, InvalidEvent

EVENT_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def entry(**fields: Any) -> Entry:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    one = Entry(1, EVENT_ID, "order", "7", "X", "orders", "{}", None, None, None, None, None, None, now)
    return one._replace(**fields)


LANE_VECTORS = [
    ("order", "42", "", 26),
    ("order", "43", "", 20),
    ("Bestellung", "Straße 1", "", 14),
    ("注文", "東京", "", 32),
    ("path", "C:\\temp\\new", "", 2),
    ("path", "\\\\x41\\101", "", 3),
    ("order", "😀", "", 53),
    ("a:b", "c", "", 48),
    ("a", "b:c", "", 48),
    ("", "7", "", 27),
    ("", "", EVENT_ID, 7),
    ("order", "", EVENT_ID, 7),
]


@pytest.mark.parametrize(("aggregate_type", "aggregate_id", "event_id", "lane"), LANE_VECTORS)
def test_the_lane_is_fixed_by_vectors(aggregate_type: str, aggregate_id: str, event_id: str, lane: int) -> None:
    assert lane_of(aggregate_type, aggregate_id, event_id) == lane


def test_an_event_without_an_aggregate_hashes_its_own_id() -> None:
    assert lane_of("", "", EVENT_ID) == sha256(EVENT_ID.encode()).digest()[0] % 64


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_every_aggregate_has_one_of_the_lanes(kind: str, id: str) -> None:
    assert 0 <= lane_of(kind, id, EVENT_ID) < LANES


def test_aggregates_spread_evenly_over_the_lanes() -> None:
    lanes = [lane_of("order", str(n), "") for n in range(6400)]
    counts = [lanes.count(lane) for lane in range(LANES)]
    assert min(counts) > 60
    assert max(counts) < 150


@pytest.mark.parametrize(
    ("template", "aggregate_type", "topic"),
    [
        ("{aggregate_type}-events", "Order", "order-events"),
        ("{aggregate_type}-events", "ÜBERWEISUNG", "überweisung-events"),
        ("{aggregate_type}-events", "", "events"),
        ("{aggregate_type}-events", "_private", "_private-events"),
        ("{aggregate_type}.{event_type}", "Order", "order.Placed"),
        ("{aggregate_type}.{event_type}", "", "Placed"),
        ("{event_type}", "Order", "Placed"),
        ("{aggregate_type}", "", "Placed"),
        ("_outbox", "Order", "_outbox"),
        ("everything", "", "everything"),
        ("shop.{aggregate_type}.v1", "Order", "shop.order.v1"),
        ("{{{aggregate_type}}}", "Order", "{order}"),
    ],
)
def test_a_topic_template_is_filled(template: str, aggregate_type: str, topic: str) -> None:
    assert topic_of(check_template(template), aggregate_type, "Placed") == topic


def test_a_topic_that_becomes_too_long_is_refused() -> None:
    assert len(topic_of("{event_type}-events", "", "x" * 248)) == 255
    with pytest.raises(InvalidEvent, match=r"topic: 'x+'… has 256 characters, at most 255; give the event a topic"):
        topic_of("{event_type}-events", "", "x" * 249)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{order}", "names ['order']; known are aggregate_type and event_type"),
        ("{}", "known are"),
        ("{0}", "known are"),
        ("{event_type.__class__}", "known are"),
        ("{event_type[0]}", "known are"),
        ("{aggregate_type", "is not a template"),
        ("}", "is not a template"),
        ("{event_type!r}", "write it bare"),
        ("{event_type:>9}", "write it bare"),
        ("{event_type:{x}}", "write it bare"),
        ("", "is empty"),
        ("a\nb", "control characters"),
        ("a\0b", "control characters"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(template: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_template(template)
    assert str(raised.value).startswith("topic: ")
    assert words in str(raised.value)


def test_a_topic_without_settings_has_the_defaults() -> None:
    topics = Topics({"audit": Topic(order="none", when_dead="skip", format="cloudevents")})
    assert topics["audit"].when_dead == "skip"
    assert topics["orders"] == Topic("aggregate", "block", "plain")
    assert Topics()["orders"] == Topic()


@pytest.mark.parametrize(
    ("order", "fields", "line"),
    [
        ("aggregate", {}, ("orders", "order", "7")),
        ("aggregate", {"aggregate_type": "", "aggregate_id": ""}, None),
        ("aggregate", {"aggregate_type": ""}, ("orders", "", "7")),
        ("aggregate", {"ordered": False}, None),
        ("aggregate", {"parked": True}, ("orders", "order", "7")),
        ("global", {}, ("orders", "", "")),
        ("global", {"aggregate_id": ""}, ("orders", "", "")),
        ("global", {"ordered": False}, None),
        ("none", {}, None),
        ("aggregate", {"ordered": False, "replay": ""}, ("orders", "\0replayed order", "7")),
        ("global", {"ordered": False, "replay": "r1"}, ("orders", "\0replayed order", "7")),
        ("aggregate", {"ordered": False, "replay": "", "aggregate_id": ""}, None),
        ("none", {"ordered": False, "replay": ""}, None),
    ],
)
def test_the_line_of_an_entry_follows_the_order_of_its_topic(order: Any, fields: Any, line: Any) -> None:
    assert Topics({"orders": Topic(order=order)}).line_of(entry(**fields)) == line


def test_topics_know_which_of_them_keep_no_order_and_which_pass_over_the_dead() -> None:
    topics = Topics({"a": Topic(order="none"), "b": Topic(when_dead="skip"), "c": Topic(order="global")})
    assert (topics.without_order, topics.passing_over_dead) == (["a"], ["b"])


def test_the_same_aggregate_in_two_topics_has_two_lines() -> None:
    line_of = Topics().line_of
    assert line_of(entry(topic="a")) != line_of(entry(topic="b"))
