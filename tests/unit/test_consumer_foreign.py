"""Messages that are not ours: where their id, type and aggregate come from is said by settings or by a handler."""

import json
import logging
import sqlite3
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.core.routing import Topic, Topics
from pillarbox.dbapi import Inbox
from pillarbox.errors import ConfigError, Reject
from pillarbox.inbox.inbox import HandlerOptions
from pillarbox.telemetry.logging import JsonLines, LogMoments
from tests.unit.consumer_bench import ConsumerBench, message

LEGACY = "legacy"
ANY: HandlerOptions = {"topic": LEGACY, "id": lambda message: message.headers["message-id"]}
BY_KEY: HandlerOptions = {**ANY, "aggregate": lambda message: ("order", message.key) if message.key else None}


class Bench(ConsumerBench):
    """A bench that listens to two topics, one of them not ours, and keeps the events that its handlers saw."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seen: list[Event[Any]] = []
        self.failing: set[object] = set()

    def handle(self, type: str, **options: Any) -> None:
        @self.inbox.handler(type, **options)
        def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
            connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])
            self.seen.append(event)
            if event.payload["n"] in self.failing:
                raise Reject("no")

    async def receive(self, *messages: Message, **more: Any) -> int:
        self.publish(*messages)
        topics = [LEGACY, "order-events"]
        return await self.consume(open_subscriber=lambda: self.broker.subscriber("billing", topics), **more)

    def keys(self) -> list[str]:
        return [id for (id,) in self.db.execute("SELECT event_id FROM pillarbox_inbox ORDER BY event_id")]

    def errors(self) -> list[str]:
        return [error for (error,) in self.db.execute("SELECT last_error FROM pillarbox_inbox_parked ORDER BY id")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def legacy(n: int, key: str | None = "7", kind: str = "placed", **headers: str) -> Message:
    return Message(LEGACY, key, {"message-id": f"m-{n}", **headers}, json.dumps({"n": n, "kind": kind}).encode())


PLACES = Topic(id="header message-id", type="body kind", key="key")


async def test_settings_say_where_id_type_and_key_are(bench: Bench) -> None:
    bench.topics = Topics({LEGACY: PLACES})
    bench.handle("placed")
    assert await bench.receive(legacy(1, tenant="blue"), legacy(1, tenant="blue"), legacy(2)) == 2
    assert (bench.applied(), bench.keys()) == ([1, 2], ["legacy/m-1", "legacy/m-2"])
    first = bench.seen[0]
    assert (first.type, first.aggregate, first.topic) == ("placed", (LEGACY, "7"), LEGACY)
    assert first.headers == {"message-id": "m-1", "tenant": "blue", "id": "m-1"}
    assert first.id.version == 5


async def test_its_key_keeps_it_in_order(bench: Bench) -> None:
    bench.topics, bench.failing = Topics({LEGACY: PLACES}), {1}
    bench.handle("placed")
    await bench.receive(legacy(1), legacy(2), legacy(3, "8"), legacy(4, None))
    assert sorted(bench.applied()) == [3, 4]
    assert bench.parked() == [("legacy/m-1", "dead", 1), ("legacy/m-2", "blocked", 0)]


async def test_out_of_the_parking_lot_it_is_the_same_event(bench: Bench) -> None:
    bench.topics, bench.failing = Topics({LEGACY: PLACES}), {1}
    bench.handle("placed")
    await bench.receive(legacy(1, tenant="blue"))
    bench.failing, bench.topics = set(), Topics()
    bench.db.execute("UPDATE pillarbox_inbox_parked SET state = 'retrying', due_at = 0, attempts = 0")
    assert await bench.receive() == 1
    before, after = bench.seen
    assert before == after
    assert bench.keys() == ["legacy/m-1"]


async def test_a_type_can_be_the_same_for_all_of_a_topic(bench: Bench) -> None:
    bench.topics = Topics({LEGACY: Topic(id="header message-id", type="is OrderPlaced")})
    bench.handle("OrderPlaced")
    assert await bench.receive(legacy(1), message(2)) == 2
    assert [event.type for event in bench.seen] == ["OrderPlaced", "OrderPlaced"]
    assert {event.topic: event.aggregate for event in bench.seen}[LEGACY] is None


async def test_two_topics_that_both_count_from_one_do_not_meet(bench: Bench) -> None:
    here = Topic(id="header message-id", type="is OrderPlaced")
    bench.topics = Topics({LEGACY: here, "order-events": here})
    bench.handle("OrderPlaced")
    assert await bench.receive(legacy(1), legacy(1)._replace(topic="order-events")) == 2
    assert len({event.id for event in bench.seen}) == 2


async def test_different_ids_never_share_a_place(bench: Bench) -> None:
    own = Topic(id="header message-id", type="is OrderPlaced")
    topics = ["legacy", "legacy/x", "t", "a", "b"]
    bench.topics = Topics(dict.fromkeys(topics, own))
    bench.handle("OrderPlaced", replays=True)
    digits = "0" * 31 + "1"
    named = [("legacy", "x/1"), ("legacy/x", "1"), ("t", "1/2"), ("t", "1"), ("a", digits), ("b", digits)]
    named += [("a", "1_2" + "0" * 29), ("a", "12_" + "0" * 29)]
    sent = [
        legacy(n)._replace(topic=topic, headers={"message-id": id, **({"pillarbox-replay": "2"} if n == 3 else {})})
        for n, (topic, id) in enumerate(named)
    ]
    bench.publish(*sent)
    await bench.consume(open_subscriber=lambda: bench.broker.subscriber("billing", topics))
    assert len(bench.seen) == len(named)
    assert len(set(bench.keys())) == len(named)


async def test_without_a_word_they_are_dead_letters(bench: Bench) -> None:
    bench.handle("placed")
    await bench.receive(legacy(1))
    [error] = bench.errors()
    assert error.startswith("the message on 'legacy' has no type, so it is not an event; if it is none of ours, say")


async def test_a_handler_takes_all_of_a_topic_that_says_no_type(bench: Bench) -> None:
    bench.handle("OrderPlaced", **BY_KEY)
    assert await bench.receive(legacy(1), legacy(1), legacy(2)) == 2
    assert [(event.type, event.aggregate) for event in bench.seen] == [("OrderPlaced", ("order", "7"))] * 2
    assert bench.keys() == ["legacy/m-1", "legacy/m-2"]


async def test_a_handler_of_a_topic_takes_nothing_of_another(bench: Bench) -> None:
    bench.handle("OrderPlaced", **ANY)
    await bench.receive(message(1))
    assert (bench.seen, len(bench.parked())) == ([], 1)


async def test_a_handler_of_a_topic_goes_before_one_for_all_topics(bench: Bench) -> None:
    bench.handle("OrderPlaced")
    bench.inbox.handler("OrderPlaced", **ANY)(lambda connection, event: bench.seen.append(event))
    await bench.receive(legacy(1, type="OrderPlaced"), message(2))
    assert sorted(event.topic or "" for event in bench.seen) == [LEGACY, "order-events"]
    assert bench.applied() == [2]


async def test_of_several_handlers_the_type_chooses(bench: Bench) -> None:
    bench.topics = Topics({LEGACY: Topic(type="body kind")})
    bench.handle("placed", **ANY)
    bench.handle("paid", topic=LEGACY, id=lambda message: f"paid/{message.headers['message-id']}")
    await bench.receive(legacy(1), legacy(2, kind="paid"), legacy(3, kind="lost"), legacy(4, kind=""))
    assert [event.type for event in bench.seen] == ["placed", "paid"]
    assert bench.keys() == ["legacy/m-1", "legacy/paid%2Fm-2"]
    missing, without = bench.errors()
    assert "has no id" in missing  # nobody says where that is: it is for no handler of this topic
    assert "has no type" in without


@pytest.mark.parametrize(
    ("id", "says"),
    [
        (lambda message: message.headers["absent"], "KeyError: 'absent'"),
        (lambda message: None, "there is none, so a copy of it could not be recognised"),
        (lambda message: object, "is no text"),
        (lambda message: "x" * 5000, "5000 characters"),
        (lambda message: "\ud800", "surrogate"),
    ],
    ids=["raises", "none", "no text", "too long", "no UTF-8"],
)
async def test_an_id_function_that_fails_makes_a_dead_letter_that_says_so(bench: Bench, id: Any, says: str) -> None:
    bench.handle("OrderPlaced", topic=LEGACY, id=id, aggregate=lambda message: ("order", message.key))
    bench.handle("OrderPlaced")
    await bench.receive(legacy(1), legacy(1), message(2, order="8"))
    assert bench.applied() == [2]
    ((key, state, _),) = bench.parked()
    assert (len(key), state, bench.unacknowledged()) == (64, "dead", 0)
    assert says in bench.errors()[0]
    assert bench.db.execute("SELECT body, line FROM pillarbox_inbox_parked").fetchone() == (
        legacy(1).body,
        '["legacy","order","7"]',
    )


async def test_an_aggregate_function_that_fails_makes_a_dead_letter_too(bench: Bench) -> None:
    bench.handle("OrderPlaced", **ANY, aggregate=lambda message: ("order", message.headers["absent"]))
    await bench.receive(legacy(1))
    assert "the aggregate of the message on 'legacy' cannot be read: KeyError" in bench.errors()[0]


async def test_where_events_are_stored_first_it_is_the_same(bench: Bench) -> None:
    bench.handle("OrderPlaced", **BY_KEY)
    assert await bench.receive(legacy(1), legacy(1), legacy(2), stores=True) == 2
    assert (bench.applied(), bench.keys()) == ([1, 2], ["legacy/m-1", "legacy/m-2"])


async def test_a_cloudevent_with_an_id_of_its_own_is_taken(bench: Bench) -> None:
    bench.handle("placed")
    headers = {"ce_specversion": "1.0", "ce_id": "A234-1", "ce_source": "/x", "ce_type": "placed"}
    assert await bench.receive(Message(LEGACY, None, headers, b'{"n": 1}')) == 1
    assert (bench.keys(), bench.seen[0].headers["id"]) == (["legacy/A234-1"], "A234-1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": LEGACY}, r"without their id a copy could not be recognised: .* id=lambda message"),
        ({"topic": LEGACY, "id": "message-id"}, "without their id a copy"),
        ({"topic": "", "id": lambda message: "1"}, "no name of a topic"),
        ({"id": lambda message: "1"}, "name their topic, topic="),
        ({"aggregate": lambda message: ("order", "1")}, "name their topic, topic="),
        ({**ANY, "aggregate": "key"}, "'key' is no function of the message"),
    ],
)
def test_a_handler_that_does_not_say_enough_is_refused(options: Any, says: str) -> None:
    inbox: Any = Inbox("billing", lambda: sqlite3.connect(":memory:"))
    with pytest.raises(ConfigError, match=f"handler of 'OrderPlaced': .*{says}"):
        inbox.handler("OrderPlaced", **options)(lambda connection, event: None)
    assert not inbox.handlers.types


def test_a_second_handler_for_a_type_of_a_topic_is_refused() -> None:
    inbox = Inbox("billing", lambda: sqlite3.connect(":memory:"))
    inbox.handler("OrderPlaced")(lambda connection, event: None)
    inbox.handler("OrderPlaced", **ANY)(lambda connection, event: None)
    with pytest.raises(ConfigError, match=r"is handled by .* already"):
        inbox.handler("OrderPlaced", **ANY)(lambda connection, event: None)


CARD = "4111111111111111"
CARRYING = [
    pytest.param(PLACES, {}, f"card {CARD}".encode(), id="no JSON"),
    pytest.param(PLACES, {}, json.dumps({"kind": {"card": CARD}}).encode(), id="no text"),
    pytest.param(PLACES, {}, json.dumps({"kind": CARD + "x" * 300}).encode(), id="too long"),
    pytest.param(Topic(), {"id": lambda message: int(message.body)}, f"card {CARD}".encode(), id="of a function"),
    pytest.param(Topic(), {"aggregate": lambda message: [CARD]}, b"{}", id="no pair"),
]


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize(("topic", "options", "body"), CARRYING)
async def test_what_it_carries_is_in_the_dead_letter_and_never_in_the_log(
    bench: Bench, topic: Topic, options: Any, body: bytes, stores: bool
) -> None:
    bench.topics = Topics({LEGACY: topic})
    bench.handle("placed", **({**ANY, **options} if options else {}))
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonLines())
    log = logging.Logger("test")
    log.addHandler(handler)
    bench.on = LogMoments(log)
    await bench.receive(Message(LEGACY, "7", {"message-id": "m-1"}, body), stores=stores)
    [error] = bench.errors()
    assert CARD in error
    assert "of the message on 'legacy' cannot be read: " in out.getvalue()
    assert CARD not in out.getvalue()


async def test_a_broken_cloudevent_is_in_the_dead_letter_and_never_in_the_log(bench: Bench) -> None:
    bench.handle("placed")
    out = StringIO()
    log = logging.Logger("test")
    log.addHandler(logging.StreamHandler(out))
    bench.on = LogMoments(log)
    headers = {"content-type": "application/cloudevents+json"}
    await bench.receive(Message(LEGACY, "7", headers, f"card {CARD}".encode()))
    assert "the message on 'legacy' is no CloudEvent" in out.getvalue()
    assert CARD not in out.getvalue()
