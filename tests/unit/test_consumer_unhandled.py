"""Types that nothing handles: dead letters, passed over, or the end of the consumer, as `unhandled` says."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.core.message import Delivery, Message
from pillarbox.core.routing import Topics
from pillarbox.dbapi import Inbox
from pillarbox.errors import HandlerMissing, Reject
from pillarbox.telemetry.hooks import Moment
from tests.unit.consumer_bench import SKIP, TOPIC, ConsumerBench, Deliveries, id_of, message


class Bench(ConsumerBench):
    """A bench that handles OrderPlaced; `unknown` is of a type that it does not."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.failing: set[int] = set()
        self.handle("OrderPlaced")

    def handle(self, type: str, inbox: Inbox | None = None) -> Inbox:
        inbox = inbox or self.inbox

        @inbox.handler(type)
        def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
            connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])
            if event.payload["n"] in self.failing:
                raise Reject("no")

        return inbox

    def operator(self, state: str, number: int) -> None:
        """Do what `dead retry` and `dead drop` do."""
        sql = "UPDATE pillarbox_inbox_parked SET state = ?, due_at = 0, attempts = 0 WHERE event_id = ?"
        self.db.execute(sql, [state, id_of(number)])

    def noted(self) -> list[str]:
        return [id for (id,) in self.db.execute("SELECT event_id FROM pillarbox_inbox ORDER BY event_id")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def unknown(n: int, order: str | None = "7", **headers: str) -> Message:
    return message(n, order, "OrderShiped", **headers)


def numbered(n: int) -> Message:
    return message(n, number=str(n))


async def test_one_becomes_a_dead_letter_that_says_what_to_do(bench: Bench) -> None:
    bench.publish(unknown(1))
    assert await bench.consume() == 0
    assert bench.parked() == [("1", "dead", 1)]
    assert bench.column("last_error") == (
        "no handler for type 'OrderShiped' in the inbox 'billing':"
        f" register one and run `pillarbox dead retry {id_of(1)} --inbox --database sqlite:///{bench.path}`,"
        " or set inbox.unhandled"
    )
    assert [facts["type"] for facts in bench.told(Moment.EVENT_DEAD)] == ["OrderShiped"]
    assert (bench.unacknowledged(), bench.noted()) == (0, [])


async def test_dead_it_blocks_its_aggregate_and_no_other(bench: Bench) -> None:
    bench.publish(unknown(1), message(2), message(3, "8"))
    await bench.consume()
    assert bench.applied() == [3]
    assert bench.parked() == [("1", "dead", 1), ("2", "blocked", 0)]


async def test_dead_it_blocks_nobody_where_the_topic_skips_dead_ones(bench: Bench) -> None:
    bench.topics = Topics(SKIP)
    bench.publish(unknown(1, number="1"), message(2, number="2"))
    assert await bench.consume() == 1
    assert (bench.applied(), bench.parked()) == ([2], [("1", "dead", 1)])


async def test_once_there_is_a_handler_it_can_be_retried(bench: Bench) -> None:
    bench.publish(unknown(1), message(2))
    await bench.consume()
    bench.operator("retrying", 1)
    await bench.consume()
    assert [state for _, state, _ in bench.parked()] == ["dead", "blocked"]
    bench.handle("OrderShiped")
    bench.operator("retrying", 1)
    await bench.consume()
    assert bench.applied() == [1, 2]


async def test_if_it_is_to_be_ignored_after_all_its_followers_go_on(bench: Bench) -> None:
    bench.publish(unknown(1), message(2))
    await bench.consume()
    bench.operator("retrying", 1)
    assert await bench.consume(unhandled="ignore") == 1
    assert bench.applied() == [2]


@pytest.mark.parametrize("unhandled", ["dead", "fail"])
async def test_a_copy_of_what_was_handled_before_its_handler_went_is_a_copy(bench: Bench, unhandled: str) -> None:
    bench.publish(message(1))
    await bench.consume()
    bench.publish(message(1))
    await bench.consume(bench.handle("Other", Inbox("billing", bench.connect)), unhandled=unhandled)
    assert bench.parked() == []
    assert (bench.told(Moment.EVENT_DEAD), bench.unacknowledged()) == ([], 0)


async def test_ignored_it_is_acknowledged_without_a_row_and_told_once_per_type(bench: Bench) -> None:
    bench.publish(unknown(1), unknown(2), message(3))
    assert await bench.consume(unhandled="ignore") == 1
    assert bench.unacknowledged() == 0
    assert sum(facts["ignored"] for facts in bench.told(Moment.ACKNOWLEDGED)) == 2  # type: ignore[misc]
    assert [facts["type"] for facts in bench.told(Moment.TYPE_PASSED_OVER)] == ["OrderShiped"]
    assert (bench.noted(), bench.parked()) == ([id_of(3)], [])


async def test_an_ignored_one_waits_for_nobody(bench: Bench) -> None:
    bench.failing = {1}
    bench.publish(message(1), unknown(2))
    await bench.consume(unhandled="ignore")
    assert bench.parked() == [("1", "dead", 1)]


@pytest.mark.parametrize("stores", [False, True], ids=["handle", "store"])
async def test_the_number_of_an_ignored_one_counts(bench: Bench, stores: bool) -> None:
    bench.publish(numbered(1), unknown(2, number="2"), unknown(2, number="2"), numbered(3), numbered(5))
    consumer = bench.consumer(unhandled="ignore", stores=stores)
    assert await consumer.run_once(patience=0.01) == 2
    assert bench.applied() == [1, 3]
    assert bench.noted() == [id_of(1), id_of(2), id_of(3)]
    assert [(one, state) for one, state, _ in bench.parked()] == [("5", "dead")]
    assert consumer.passed_over == {"OrderShiped": 1}
    assert bench.unacknowledged() == 0


async def test_the_number_of_an_ignored_one_counts_in_its_turn(bench: Bench) -> None:
    bench.failing = {2}
    bench.publish(numbered(1), numbered(2), unknown(3, number="3"), numbered(4))
    await bench.consume(unhandled="ignore")
    assert bench.parked() == [("2", "dead", 1), ("3", "blocked", 0), ("4", "blocked", 0)]
    bench.failing = set()
    bench.operator("retrying", 2)
    await bench.consume(unhandled="ignore")
    assert bench.applied() == [1, 2, 4]


async def test_failing_it_stops_the_consumer_and_nothing_of_it_is_lost(bench: Bench) -> None:
    bench.publish(message(1), unknown(2), message(3), message(4, "8"))
    with pytest.raises(HandlerMissing) as caught:
        await bench.consume(unhandled="fail")
    for said in ("'OrderShiped'", repr(TOPIC), id_of(2), "'billing'"):
        assert said in str(caught.value)
    assert bench.parked() == []
    assert bench.unacknowledged() > 0
    assert 3 not in bench.applied()
    bench.handle("OrderShiped")
    await bench.consume(unhandled="fail")
    assert [n for n in bench.applied() if n != 4] == [1, 2, 3]
    assert bench.unacknowledged() == 0


async def test_failing_it_ends_a_daemon_too(bench: Bench) -> None:
    bench.publish(unknown(1))
    with pytest.raises(HandlerMissing):
        async with asyncio.timeout(20):
            await bench.consumer(unhandled="fail").run()
    assert bench.unacknowledged() == 1


async def test_failing_where_events_are_stored_first_it_stays_stored(bench: Bench) -> None:
    bench.publish(unknown(1), message(2))
    for _ in range(bench.policy.retries + 2):
        with pytest.raises(HandlerMissing):
            await bench.later(3, stores=True, unhandled="fail")
    bench.handle("OrderShiped")
    await bench.later(3, stores=True, unhandled="fail")
    assert bench.applied() == [1, 2]


async def test_one_that_comes_again_and_again_is_no_suspect(bench: Bench) -> None:
    for _ in range(bench.policy.retries + 2):
        subscriber = Deliveries(Delivery(unknown(1), redelivered=True))
        with pytest.raises(HandlerMissing):
            await bench.consume(open_subscriber=lambda it=subscriber: it, unhandled="fail")
        assert subscriber.acknowledged == []
    assert bench.parked() == []


async def test_what_others_had_out_is_given_back_when_a_missing_handler_stops_them(bench: Bench) -> None:
    bench.failing = {1}
    bench.publish(message(1, "8"))
    await bench.consume()
    bench.failing = set()
    bench.operator("retrying", 1)
    bench.publish(unknown(2))
    with pytest.raises(HandlerMissing):
        await bench.consume(unhandled="fail")
    assert "held" not in {state for _, state, _ in bench.parked()}
