"""The consumer when something fails: parked durably, tried again in order, dead in the end; nothing lost or doubled."""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.core.routing import Topic, Topics
from pillarbox.dbapi import Inbox
from pillarbox.errors import ConfigError, Reject, RetryLater
from pillarbox.telemetry.hooks import Facts, Moment
from tests.unit.consumer_bench import SKIP, TOPIC, ConsumerBench, id_of, message


class Billing(ConsumerBench):
    """A bench whose handler fails for some events."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.failing: dict[int, Exception] = {}
        self.tries: list[tuple[int, int]] = []
        self.inbox.handler("OrderPlaced")(self._bill)

    def _bill(self, connection: sqlite3.Connection, event: Event[Any]) -> None:
        number = event.payload["n"]
        assert event.delivery is not None
        self.tries.append((number, event.delivery.attempt))
        connection.execute("INSERT INTO effects VALUES (?)", [number])
        if number in self.failing:
            raise self.failing[number]

    def operator(self, state: str, number: int = 1) -> None:
        """Do what `dead retry` and `dead drop` do."""
        sql = "UPDATE pillarbox_inbox_parked SET state = ?, due_at = 0, attempts = 0 WHERE event_id = ?"
        self.db.execute(sql, [state, id_of(number)])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Billing]:
    bench = Billing(tmp_path)
    yield bench
    bench.close()


async def test_a_failed_event_is_parked_with_its_traceback_and_acknowledged(bench: Billing) -> None:
    bench.failing[1] = ValueError("no such customer")
    bench.publish(message(1, tenant="blue"))
    await bench.consume()
    assert bench.parked() == [("1", "retrying", 1)]
    assert "bill raised ValueError: no such customer" in bench.column("last_error")
    assert 'File "' in bench.column("traceback")
    assert bench.column("body") == b'{"n": 1}'
    assert json.loads(bench.column("headers"))["tenant"] == "blue"
    assert (bench.column("topic"), bench.column("key"), bench.column("event_type")) == (TOPIC, "7", "OrderPlaced")
    assert bench.applied() == []
    assert bench.unacknowledged() == 0


async def test_it_is_parked_before_it_is_acknowledged(bench: Billing) -> None:
    order: list[tuple[Moment, int]] = []
    bench.on = lambda moment, _: order.append((moment, bench.unacknowledged()))
    bench.failing[1] = ValueError("no")
    bench.publish(message(1))
    await bench.consume()
    assert order[-3:] == [(Moment.PARKED, 1), (Moment.EVENT_RETRYING, 1), (Moment.ACKNOWLEDGED, 0)]


async def test_it_is_tried_again_when_its_time_has_come(bench: Billing) -> None:
    bench.failing[1] = ValueError("no")
    bench.publish(message(1))
    await bench.consume()
    assert await bench.later(0.9) == 0
    bench.failing.clear()
    assert await bench.later(0.2) == 1
    assert bench.applied() == [1]
    assert bench.tries == [(1, 1), (1, 2)]
    assert bench.parked() == [("1", "handled", 2)]
    assert bench.column("settled_at") is not None


async def test_it_is_dead_after_its_retries(bench: Billing) -> None:
    bench.failing[1] = ValueError("no")
    bench.publish(message(1))
    await bench.consume()
    for _ in range(5):
        await bench.later(100)
    assert bench.tries == [(1, 1), (1, 2), (1, 3)]
    assert bench.parked() == [("1", "dead", 3)]
    (facts,) = bench.told(Moment.EVENT_DEAD)
    assert (facts["event_id"], facts["type"]) == (id_of(1), "OrderPlaced")


async def test_followers_wait_behind_it_and_follow_in_order(bench: Billing) -> None:
    bench.failing[2] = ValueError("no")
    bench.publish(*(message(n) for n in range(1, 6)), message(9, order="8"))
    await bench.consume()
    assert sorted(bench.applied()) == [1, 9]
    assert bench.parked() == [("2", "retrying", 1), ("3", "blocked", 0), ("4", "blocked", 0), ("5", "blocked", 0)]
    bench.failing.clear()
    bench.publish(message(6))
    await bench.later(1.1)
    await bench.later(1.1)
    assert [n for n in bench.applied() if n != 9] == [1, 2, 3, 4, 5, 6]
    assert {state for _, state, _ in bench.parked()} == {"handled"}


async def test_a_later_event_waits_also_in_a_later_run(bench: Billing) -> None:
    bench.failing[1] = ValueError("no")
    bench.publish(message(1))
    await bench.consume()
    bench.publish(message(2))
    await bench.consume()
    assert bench.applied() == []
    assert bench.parked() == [("1", "retrying", 1), ("2", "blocked", 0)]


async def test_a_line_that_another_process_blocked_meanwhile_is_respected(bench: Billing) -> None:
    """The set in memory does not know it yet; the transaction itself finds out."""

    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.DELIVERED:
            line = json.dumps([TOPIC, "order", "7"], separators=(",", ":"))
            sql = (
                "INSERT INTO pillarbox_inbox_parked (consumer, event_id, state, line, parked_at, topic, headers, body,"
                " aggregate_type, aggregate_id, event_type)"
                " VALUES ('billing', ?, 'dead', ?, 0, ?, '{}', '', '', '', '')"
            )
            bench.db.execute(sql, [id_of(1), line, TOPIC])

    bench.on = hear
    bench.publish(message(2))
    await bench.consume()
    assert bench.applied() == []
    assert bench.parked() == [("1", "dead", 0), ("2", "blocked", 0)]
    assert bench.unacknowledged() == 0


async def test_a_dead_head_keeps_its_line_until_somebody_drops_it(bench: Billing) -> None:
    bench.failing[1] = Reject("never")
    bench.publish(message(1), message(2))
    await bench.consume()
    await bench.later(1000)
    assert bench.parked() == [("1", "dead", 1), ("2", "blocked", 0)]
    bench.operator("dropped")
    await bench.consume()
    assert bench.applied() == [2]


async def test_one_that_is_dropped_when_it_is_out_already_is_not_tried_again(bench: Billing) -> None:
    bench.failing = {1: ValueError("no"), 2: ValueError("no")}
    bench.publish(message(1, "1"), message(2, "2"))
    await bench.consume(concurrency=1)
    bench.failing.clear()
    sql = "UPDATE pillarbox_inbox_parked SET state = 'dropped', settled_at = 0 WHERE event_id = ?"

    def drop_the_other(moment: Moment, facts: Facts) -> None:
        if moment is Moment.COMMITTED and facts["event_id"] == id_of(1):
            bench.db.execute(sql, [id_of(2)])

    bench.on = drop_the_other
    await bench.later(2, concurrency=1)
    assert bench.applied() == [1]
    assert bench.parked() == [("1", "handled", 2), ("2", "dropped", 1)]


async def test_a_dead_event_can_be_tried_again(bench: Billing) -> None:
    bench.failing[1] = Reject("never")
    bench.publish(message(1), message(2))
    await bench.consume()
    bench.failing.clear()
    bench.operator("retrying")
    await bench.consume()
    assert bench.applied() == [1, 2]


async def test_a_dead_event_can_let_its_line_go_on(bench: Billing) -> None:
    bench.topics = Topics(SKIP)
    bench.failing[1] = Reject("never")
    bench.publish(message(1), message(2))
    await bench.consume()
    assert bench.applied() == [2]
    assert bench.parked() == [("1", "dead", 1)]


async def test_an_event_without_an_aggregate_holds_back_nobody(bench: Billing) -> None:
    bench.failing[1] = ValueError("no")
    bench.publish(message(1, order=None), message(2, order=None))
    await bench.consume()
    assert bench.applied() == [2]
    bench.failing.clear()
    await bench.later(1.1)
    assert bench.applied() == [2, 1]


async def test_reject_is_dead_at_once(bench: Billing) -> None:
    bench.failing[1] = Reject("this customer is closed")
    bench.publish(message(1))
    await bench.consume()
    assert bench.parked() == [("1", "dead", 1)]
    assert bench.column("last_error") == "this customer is closed"
    assert bench.column("traceback") is None


async def test_retry_later_waits_as_long_as_it_says_and_counts(bench: Billing) -> None:
    bench.failing[1] = RetryLater(60)
    bench.publish(message(1))
    await bench.consume()
    await bench.later(59)
    assert bench.tries == [(1, 1)]
    await bench.later(2)
    assert bench.tries == [(1, 1), (1, 2)]
    await bench.later(61)
    await bench.later(1000)
    assert bench.parked() == [("1", "dead", 3)]


@pytest.mark.parametrize("order", ["7", None])
async def test_a_copy_of_a_parked_event_is_neither_lost_nor_applied_twice(bench: Billing, order: str | None) -> None:
    bench.failing[1] = ValueError("no")
    bench.publish(message(1, order=order))
    await bench.consume()
    bench.failing.clear()
    bench.publish(message(1, order=order))
    await bench.consume()
    assert bench.applied() == []
    assert bench.unacknowledged() == 0
    await bench.later(1.1)
    bench.publish(message(1, order=order))
    await bench.consume()
    assert bench.applied() == [1]
    assert bench.parked() == [("1", "handled", 2)]


async def test_a_copy_of_a_dropped_event_has_no_effect(bench: Billing) -> None:
    bench.failing[1] = Reject("never")
    bench.publish(message(1))
    await bench.consume()
    bench.failing.clear()
    bench.operator("dropped")
    bench.publish(message(1))
    await bench.consume()
    assert bench.applied() == []
    assert bench.parked() == [("1", "dropped", 0)]


async def test_what_failed_here_but_was_handled_elsewhere_is_not_parked(bench: Billing) -> None:
    bench.failing[1] = ValueError("no")
    bench.publish(message(1))
    original = bench.inbox.perform

    def perform(program: Any, *, reading: bool = False) -> Any:
        try:
            return original(program, reading=reading)
        except Exception:
            bench.db.execute("INSERT INTO pillarbox_inbox (consumer, event_id) VALUES ('billing', ?)", [id_of(1)])
            raise

    bench.inbox.perform = perform  # type: ignore[method-assign]
    await bench.consume()
    assert bench.parked() == []
    assert bench.unacknowledged() == 0


async def test_a_body_that_is_no_json_is_dead_at_once(bench: Billing) -> None:
    broken = message(1)._replace(body=b"{oops")
    bench.publish(broken, message(2, order="8"))
    await bench.consume()
    assert bench.applied() == [2]
    assert bench.parked() == [("1", "dead", 1)]
    assert "{oops" in bench.column("last_error")


async def test_a_payload_that_does_not_fit_its_model_is_dead_at_once(bench: Billing) -> None:
    inbox = Inbox("billing", bench.connect)
    inbox.handler("OrderPlaced", payload=str)(lambda connection, event: None)
    bench.publish(message(1))
    await bench.consume(inbox)
    assert bench.parked() == [("1", "dead", 1)]
    assert "does not fit str" in bench.column("last_error")


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({}, "has no type"),
        ({"type": "OrderPlaced"}, "has no id"),
        ({"type": "OrderPlaced", "id": ""}, "has no id"),
        ({"type": "OrderPlaced", "id": "x" * 256}, "longer than 255"),
        ({"content-type": "application/cloudevents+json"}, "no CloudEvent"),
    ],
)
async def test_what_is_no_event_becomes_a_dead_letter(bench: Billing, headers: dict[str, str], says: str) -> None:
    bench.publish(Message(TOPIC, None, headers, b"hello"), Message(TOPIC, None, headers, b"hello"), message(2))
    await bench.consume()
    ((id, state, _),) = bench.parked()
    assert state == "dead"
    assert len(id) == 64
    error, body = bench.db.execute("SELECT last_error, body FROM pillarbox_inbox_parked").fetchone()
    assert says in error
    assert body == b"hello"
    assert bench.applied() == [2]
    assert bench.unacknowledged() == 0


async def test_an_event_whose_handler_is_gone_stays_parked(bench: Billing) -> None:
    bench.failing[1] = ValueError("no")
    bench.publish(message(1))
    await bench.consume()
    inbox = Inbox("billing", bench.connect)
    inbox.handler("Other")(lambda connection, event: None)
    await bench.later(2, inbox=inbox)
    assert bench.parked() == [("1", "dead", 2)]
    assert "no handler for type 'OrderPlaced'" in bench.column("last_error")


async def test_many_followers_come_out_of_the_parking_lot_in_order(bench: Billing) -> None:
    bench.failing[0] = ValueError("no")
    bench.publish(*(message(n) for n in range(300)))
    await bench.consume()
    assert bench.applied() == []
    bench.failing.clear()
    await bench.later(1.1)
    assert bench.applied() == list(range(300))


async def test_while_the_database_is_full_nothing_is_lost(bench: Billing) -> None:
    pages = bench.db.execute("PRAGMA page_count").fetchone()[0]
    limit = [pages]

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(bench.path, timeout=0.2)
        connection.execute(f"PRAGMA max_page_count = {limit[0]}")
        return connection

    inbox = Inbox("billing", connect)

    @inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES (zeroblob(20000))")

    bench.publish(*(message(n) for n in range(10)))
    consumer = bench.consumer(inbox)
    bench.on = lambda moment, _: consumer.stop() if moment is Moment.STORE_AWAY else None
    await consumer.run()
    assert "full" in str(bench.told(Moment.STORE_AWAY)[0]["error"])
    assert bench.parked() == []
    limit[0] = pages + 1000
    bench.on = lambda moment, facts: None
    await bench.consume(inbox)
    assert len(bench.applied()) == 10


@pytest.mark.parametrize(("before", "now"), [("aggregate", "global"), ("global", "aggregate")])
async def test_another_order_is_refused_while_events_are_parked_in_the_old_one(
    bench: Billing, before: Any, now: Any
) -> None:
    bench.topics = Topics({TOPIC: Topic(order=before)})
    bench.failing[1] = Reject("never")
    bench.publish(message(1), message(2))
    await bench.consume()
    bench.topics = Topics({TOPIC: Topic(order=now)})
    bench.publish(message(3))
    with pytest.raises(ConfigError, match=rf"topic\.{TOPIC}\.order: .*2 events stand parked.*dead retry --inbox"):
        await bench.consume()
    assert bench.applied() == []
    bench.topics = Topics({TOPIC: Topic(order=before)})
    bench.operator("dropped")
    await bench.consume()
    bench.topics = Topics({TOPIC: Topic(order=now)})
    await bench.consume()
    assert bench.applied() == [2, 3]


async def test_a_constraint_that_waits_for_the_commit_is_the_handlers_to_keep(bench: ConsumerBench) -> None:
    bench.db.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY)")
    bench.db.execute("CREATE TABLE invoices (account INTEGER REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)")

    def connect() -> sqlite3.Connection:
        connection = bench.connect()
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    inbox = Inbox("billing", connect)

    @inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO invoices VALUES (99)")

    bench.publish(message(1))
    await bench.consume(inbox)
    assert bench.parked() == [("1", "retrying", 1)]
    assert "refused at the commit" in bench.column("last_error")


async def test_logs_are_told_where_a_handler_failed_and_not_its_words(bench: Billing) -> None:
    bench.failing[1] = ValueError("cannot charge the card 4111-canary")
    bench.publish(message(1))
    await bench.consume()
    (facts,) = bench.told(Moment.EVENT_RETRYING)
    assert "4111-canary" not in str(facts)
    place = r"bill raised ValueError at test_consumer_failures\.py, line \d+; its words are kept with the event"
    assert re.search(place, str(facts["error"]))
    assert "cannot charge the card 4111-canary" in bench.column("last_error")
