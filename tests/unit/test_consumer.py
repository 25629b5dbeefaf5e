"""The consumer when all is well: effects once, in order, acknowledged after the commit."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.core.message import Delivery
from pillarbox.dbapi import Inbox
from pillarbox.errors import BrokerUnavailable, ConfigError, SchemaMismatch, StoreUnavailable
from pillarbox.inbox.consumer import ROOM
from pillarbox.telemetry.hooks import Facts, Moment
from tests.unit.consumer_bench import TOPIC, ConsumerBench, Deliveries, id_of, message


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ConsumerBench]:
    bench = ConsumerBench(tmp_path)

    @bench.inbox.handler("OrderPlaced")
    def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])

    yield bench
    bench.close()


async def test_events_are_applied_in_order_and_acknowledged(bench: ConsumerBench) -> None:
    bench.publish(*(message(n, order=str(n % 3)) for n in range(60)))
    assert await bench.consume() == 60
    for order in range(3):
        assert [n for n in bench.applied() if n % 3 == order] == list(range(order, 60, 3))
    assert bench.unacknowledged() == 0


async def test_more_than_the_window_holds_is_applied_too(bench: ConsumerBench) -> None:
    bench.publish(*(message(n, order=str(n % 50)) for n in range(ROOM + 100)))
    assert await bench.consume() == ROOM + 100
    assert sorted(bench.applied()) == list(range(ROOM + 100))


async def test_a_copy_has_no_effect(bench: ConsumerBench) -> None:
    bench.publish(message(1), message(1), message(2, order=None), message(2, order=None))
    assert await bench.consume() == 2
    assert sorted(bench.applied()) == [1, 2]
    assert sum(facts["copies"] for facts in bench.told(Moment.ACKNOWLEDGED)) == 2  # type: ignore[misc]


async def test_a_copy_in_a_later_run_has_no_effect(bench: ConsumerBench) -> None:
    bench.publish(message(1))
    await bench.consume()
    bench.publish(message(1))
    assert await bench.consume() == 0
    assert bench.applied() == [1]


async def test_a_consumer_knows_how_many_of_which_types_it_passed_over(bench: ConsumerBench) -> None:
    bench.publish(message(1), *(message(n, type="OrderShiped") for n in (2, 3)), message(4, type="OrderBilled"))
    consumer = bench.consumer(unhandled="ignore")
    await consumer.run_once(patience=0.01)
    assert consumer.passed_over == {"OrderShiped": 2, "OrderBilled": 1}


async def test_what_an_event_says_reaches_its_handler(bench: ConsumerBench) -> None:
    seen: list[Event[Any]] = []
    bench.inbox.handler("Seen")(lambda _, event: seen.append(event))
    bench.publish(message(5, type="Seen", number="3", tenant="blue"))
    await bench.consume()
    (event,) = seen
    assert (event.type, event.aggregate, event.number, event.headers) == ("Seen", ("order", "7"), 3, {"tenant": "blue"})
    assert event.delivery is not None
    assert (event.delivery.topic, event.delivery.attempt, event.delivery.redelivered) == (TOPIC, 1, False)


async def test_nothing_is_acknowledged_before_its_commit(bench: ConsumerBench) -> None:
    before_acknowledging: list[bool] = []

    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.COMMITTED:
            before_acknowledging.append(bench.applied() == [1] and bench.unacknowledged() == 1)

    bench.on = hear
    bench.publish(message(1))
    await bench.consume()
    assert before_acknowledging == [True]
    assert bench.unacknowledged() == 0


async def test_the_moments_come_in_their_order(bench: ConsumerBench) -> None:
    bench.publish(message(1))
    await bench.consume()
    assert [moment for moment, _ in bench.moments] == [
        Moment.DELIVERED,
        Moment.MARKED,
        Moment.HANDLED,
        Moment.COMMITTED,
        Moment.ACKNOWLEDGED,
    ]


async def test_a_replay_is_a_copy_unless_its_handler_asks_for_it(bench: ConsumerBench) -> None:
    @bench.inbox.handler("Counted", replays=True)
    def count(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])

    replay = {"pillarbox-replay": "again-1"}
    bench.publish(message(1), message(1, **replay), message(2, type="Counted"), message(2, type="Counted", **replay))
    bench.publish(message(2, type="Counted", **replay))
    await bench.consume()
    assert bench.applied() == [1, 2, 2]


async def test_a_handlers_thread_is_one_and_the_same(bench: ConsumerBench) -> None:
    threads: set[int] = set()
    bench.inbox.handler("Here")(lambda _, event: threads.add(threading.get_ident()))
    bench.publish(*(message(n, type="Here", order=str(n)) for n in range(20)))
    await bench.consume()
    assert len(threads) == 1  # SQLite has one writer, so one worker is all that is useful
    assert threading.get_ident() not in threads


async def test_stopping_finishes_what_has_begun_and_leaves_the_rest(bench: ConsumerBench) -> None:
    consumer, many = bench.consumer(), 1000  # they take longer than a worker goes on before it looks up
    loop = asyncio.get_running_loop()

    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.MARKED and facts["event_id"] == id_of(3):
            loop.call_soon_threadsafe(consumer.stop)

    bench.on = hear
    bench.publish(*(message(n) for n in range(many)))
    async with asyncio.timeout(20):
        await consumer.run()
    applied = bench.applied()
    assert applied == list(range(len(applied)))
    assert 4 <= len(applied) < many
    assert bench.unacknowledged() == many - len(applied)
    await bench.consume()
    assert bench.applied() == list(range(many))


async def test_it_runs_beside_an_application(bench: ConsumerBench) -> None:
    arrived = asyncio.Event()
    bench.on = lambda moment, _: arrived.set() if moment is Moment.COMMITTED else None
    async with asyncio.timeout(20), bench.consumer():
        bench.publish(message(1))
        await arrived.wait()
    assert bench.applied() == [1]
    assert bench.unacknowledged() == 0


async def test_a_broker_that_is_away_is_waited_for(bench: ConsumerBench) -> None:
    class Away(Deliveries):
        fails = 3

        async def deliveries(self, room: int, patience: float) -> Any:
            self.fails -= 1
            if self.fails >= 0:
                raise BrokerUnavailable("gone")
            return await super().deliveries(room, patience)

    consumer = bench.consumer(open_subscriber=lambda: Away(Delivery(message(1))))
    bench.on = lambda moment, _: consumer.stop() if moment is Moment.ACKNOWLEDGED else None
    async with asyncio.timeout(20):
        await consumer.run()
    assert bench.applied() == [1]
    assert [facts["error"] for facts in bench.told(Moment.BROKER_AWAY)] == ["gone"]
    assert len(bench.told(Moment.BROKER_BACK)) == 1


async def test_an_acknowledgement_that_fails_is_given_later(bench: ConsumerBench) -> None:
    class Deaf(Deliveries):
        fails = 2

        async def acknowledge(self, deliveries: Any) -> None:
            self.fails -= 1
            if self.fails >= 0:
                raise BrokerUnavailable("deaf")
            await super().acknowledge(deliveries)

    subscriber = Deaf(Delivery(message(1)), Delivery(message(2)))
    consumer = bench.consumer(open_subscriber=lambda: subscriber)
    bench.on = lambda moment, _: consumer.stop() if moment is Moment.ACKNOWLEDGED else None
    async with asyncio.timeout(20):
        await consumer.run()
    assert [delivery.message for delivery in subscriber.acknowledged] == [message(1), message(2)]


async def test_running_once_says_that_the_broker_is_away(bench: ConsumerBench) -> None:
    class Gone(Deliveries):
        async def deliveries(self, room: int, patience: float) -> Any:
            raise BrokerUnavailable("gone")

    with pytest.raises(BrokerUnavailable, match="gone"):
        await bench.consume(open_subscriber=Gone)


async def test_a_locked_database_counts_nothing_and_is_waited_for(bench: ConsumerBench) -> None:
    bench.publish(message(1))
    consumer = bench.consumer()

    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.STORE_AWAY:
            bench.db.execute("COMMIT")
        if moment is Moment.ACKNOWLEDGED:
            consumer.stop()

    bench.on = hear
    bench.db.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(20):
        await consumer.run()
    assert bench.applied() == [1]
    assert bench.parked() == []
    assert "locked" in str(bench.told(Moment.STORE_AWAY)[0]["error"])
    assert bench.told(Moment.STORE_BACK)


async def test_running_once_says_that_the_database_is_locked(bench: ConsumerBench) -> None:
    bench.publish(message(1))
    bench.db.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await bench.consume()
    bench.db.execute("COMMIT")
    assert await bench.consume() == 1


async def test_missing_tables_end_it_with_the_command_to_run(bench: ConsumerBench) -> None:
    bench.db.execute("DROP TABLE pillarbox_inbox_parked")
    with pytest.raises(SchemaMismatch, match="pillarbox migrate up --database sqlite:///"):
        await bench.consume()


async def test_tables_that_go_missing_meanwhile_end_it_too(bench: ConsumerBench) -> None:
    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.DELIVERED:
            bench.db.execute("DROP TABLE pillarbox_inbox")

    bench.on = hear
    bench.publish(message(1))
    with pytest.raises(SchemaMismatch, match="pillarbox_inbox"):
        await bench.consume()
    assert bench.unacknowledged() == 1


async def test_no_handler_and_no_concurrency_are_refused(bench: ConsumerBench) -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        bench.consumer(concurrency=0)
    with pytest.raises(ConfigError, match="has no handler"):
        bench.consumer(Inbox("empty", bench.connect))
