"""Store first, handle later: what arrives is kept and acknowledged at once; the rules are the same."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.core.message import Delivery
from pillarbox.core.routing import Topic, Topics
from pillarbox.errors import Reject, StoreUnavailable
from pillarbox.telemetry.hooks import Facts, Moment
from tests.unit.consumer_bench import TOPIC, ConsumerBench, Deliveries, id_of, message


class Killed(BaseException):
    """Stands for the end of the process."""


class StoreBench(ConsumerBench):
    """A bench whose consumer stores first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.failing: dict[int, BaseException] = {}
        self.deadly: Moment | None = None

        @self.inbox.handler("OrderPlaced")
        def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
            connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])
            if event.payload["n"] in self.failing:
                raise self.failing[event.payload["n"]]

        self.on = self._die

    def _die(self, moment: Moment, facts: Facts) -> None:
        if moment is self.deadly:
            raise Killed

    async def take(self, *deliveries: Delivery) -> Deliveries:
        subscriber = Deliveries(*deliveries)
        try:
            await self.consume(open_subscriber=lambda: subscriber, stores=True)
        except Killed:
            assert self.deadly
        return subscriber


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    bench = StoreBench(tmp_path)
    yield bench
    bench.close()


async def test_everything_is_handled_once_and_in_order_and_nothing_is_left(bench: StoreBench) -> None:
    bench.publish(*(message(n, str(n % 7)) for n in range(300)), *(message(n, str(n % 7)) for n in range(0, 300, 5)))
    assert await bench.consume(stores=True) == 300
    for order in range(7):
        assert [n for n in bench.applied() if n % 7 == order] == list(range(order, 300, 7))
    assert len(bench.applied()) == 300
    assert bench.parked() == []
    assert bench.unacknowledged() == 0


async def test_it_is_acknowledged_before_it_is_handled(bench: StoreBench) -> None:
    bench.deadly = Moment.MARKED
    subscriber = await bench.take(Delivery(message(1)), Delivery(message(2, "8")))
    assert len(subscriber.acknowledged) == 2
    assert bench.applied() == []
    assert {state for _, state, _ in bench.parked()} == {"held"}


async def test_nothing_is_acknowledged_that_was_not_stored(bench: StoreBench) -> None:
    bench.db.execute("ALTER TABLE pillarbox_inbox_parked RENAME TO away")
    subscriber = Deliveries(Delivery(message(1)))
    with pytest.raises(Exception, match="inbox_parked"):
        await bench.consume(open_subscriber=lambda: subscriber, stores=True)
    assert subscriber.acknowledged == []


async def test_while_it_cannot_be_stored_nothing_is_acknowledged(bench: StoreBench) -> None:
    bench.db.execute("BEGIN IMMEDIATE")
    subscriber = Deliveries(Delivery(message(1)))
    with pytest.raises(StoreUnavailable, match="locked"):
        await bench.consume(open_subscriber=lambda: subscriber, stores=True)
    assert subscriber.acknowledged == []


async def test_one_that_was_stored_and_not_acknowledged_is_a_copy(bench: StoreBench) -> None:
    bench.deadly = Moment.STORED
    subscriber = await bench.take(Delivery(message(1)), Delivery(message(2)))
    assert subscriber.acknowledged == []
    assert bench.parked() == [("1", "stored", 0), ("2", "stored", 0)]
    bench.deadly = None
    await bench.take(*(Delivery(message(n), redelivered=True) for n in (1, 2, 3)))
    assert bench.applied() == [1, 2, 3]


async def test_one_that_fails_is_tried_again_and_its_followers_wait(bench: StoreBench) -> None:
    bench.failing[2] = ValueError("no")
    await bench.take(*(Delivery(message(n)) for n in (1, 2, 3)), Delivery(message(4, "8")))
    assert sorted(bench.applied()) == [1, 4]
    assert bench.parked() == [("2", "retrying", 1), ("3", "blocked", 0)]
    await bench.take(Delivery(message(5)))
    assert bench.parked() == [("2", "retrying", 1), ("3", "blocked", 0), ("5", "stored", 0)]
    bench.failing.clear()
    bench.clock.advance(1)
    await bench.take()
    assert bench.applied()[-3:] == [2, 3, 5]


async def test_a_dead_letter_holds_its_aggregate(bench: StoreBench) -> None:
    bench.failing[1] = Reject("no")
    await bench.take(*(Delivery(message(n)) for n in (1, 2)), Delivery(message(3, "8")))
    assert bench.applied() == [3]
    assert bench.parked() == [("1", "dead", 1), ("2", "blocked", 0)]


async def test_one_that_kills_its_process_is_dead_after_its_retries(bench: StoreBench) -> None:
    bench.deadly = Moment.HANDLED
    await bench.take(Delivery(message(1)))
    for deaths in (1, 2, 3):
        bench.clock.advance(2)
        await bench.take()
        assert bench.parked() == [("1", "held", deaths)]
    bench.clock.advance(2)
    await bench.take()
    assert bench.parked() == [("1", "dead", 4)]
    assert "process died, or was stopped at once, " in bench.column("last_error")


async def test_one_that_was_handled_when_its_process_was_killed_is_found_done(bench: StoreBench) -> None:
    bench.deadly = Moment.COMMITTED
    await bench.take(Delivery(message(1)), Delivery(message(2)))
    assert bench.applied() == [1]
    bench.deadly = None
    bench.clock.advance(3)
    await bench.take()
    assert bench.applied() == [1, 2]
    assert {state for _, state, _ in bench.parked()} <= {"handled"}


async def test_those_that_waited_when_their_process_was_killed_by_another_are_not_counted(bench: StoreBench) -> None:
    bench.deadly = Moment.HANDLED
    await bench.take(Delivery(message(1)), Delivery(message(2)), Delivery(message(3, "8")))
    bench.deadly = None
    bench.clock.advance(2)
    await bench.take()
    assert sorted(bench.applied()) == [1, 2, 3]


async def test_lines_that_a_dead_process_had_out_come_out_as_a_whole(bench: StoreBench) -> None:
    bench.deadly = Moment.HANDLED
    await bench.take(*(Delivery(message(n, str(n % 2))) for n in range(10)))
    bench.deadly = None
    bench.clock.advance(2)
    await bench.take()
    assert bench.applied() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]


async def test_nothing_passes_a_head_that_a_former_holder_puts_back(bench: StoreBench) -> None:
    bench.deadly = Moment.MARKED
    await bench.take(Delivery(message(1)), Delivery(message(2)))
    assert bench.parked() == [("1", "held", 0), ("2", "held", 0)]
    bench.deadly = None
    bench.db.execute(
        "CREATE TRIGGER it_was_slow_and_not_dead AFTER UPDATE ON pillarbox_inbox_parked"
        f" WHEN OLD.state = 'held' AND NEW.state = 'held' AND NEW.event_id = '{id_of(1)}' BEGIN"
        " UPDATE pillarbox_inbox_parked SET state = 'retrying', attempts = 1 WHERE id = NEW.id; END"
    )
    await bench.later(5, stores=True)
    assert bench.applied() == []
    assert bench.parked() == [("1", "retrying", 1), ("2", "blocked", 0)]
    await bench.later(5, stores=True)
    assert bench.applied() == [1, 2]


async def test_those_behind_a_deadly_one_are_blocked_when_it_is_dead(bench: StoreBench) -> None:
    bench.deadly = Moment.HANDLED
    await bench.take(Delivery(message(1)), Delivery(message(2)))
    for _ in range(4):
        bench.clock.advance(2)
        await bench.take()
    assert bench.parked() == [("1", "dead", 4), ("2", "blocked", 0)]


async def test_a_consumer_that_stops_gives_back_what_it_has_not_begun(bench: StoreBench) -> None:
    consumer = bench.consumer(stores=True)
    bench.on = lambda moment, facts: consumer.stop() if moment is Moment.MARKED else None
    bench.publish(*(message(n) for n in range(900)))
    await consumer.run()
    done = len(bench.applied())
    assert 1 <= done < 900
    assert [n for n, _, _ in bench.parked()] == [str(n) for n in range(done, 900)]
    assert {state for _, state, _ in bench.parked()} <= {"blocked", "stored"}  # and nothing is held
    bench.on = lambda moment, facts: None
    await bench.consume(stores=True)
    assert bench.applied() == list(range(900))


DROP = "UPDATE pillarbox_inbox_parked SET state = 'dropped', settled_at = 0, due_at = NULL WHERE event_id = ?"


async def test_what_was_dropped_when_it_was_out_is_not_handled(bench: StoreBench) -> None:
    @bench.inbox.handler("OrderCancelled")
    def cancel(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute(DROP, [id_of(2)])

    bench.publish(message(1, "1", "OrderCancelled"), message(2, "2"), message(3, "3"))
    assert await bench.consume(stores=True, concurrency=1) == 2
    assert bench.applied() == [3]
    assert bench.parked() == [("2", "dropped", 0)]


async def test_what_is_stored_is_handled_before_what_arrives_in_the_other_mode(bench: StoreBench) -> None:
    bench.deadly = Moment.STORED
    await bench.take(*(Delivery(message(n)) for n in (1, 2)))
    bench.deadly = None
    subscriber = Deliveries(Delivery(message(3)), Delivery(message(4, "8")))
    await bench.consume(open_subscriber=lambda: subscriber)
    assert [n for n in bench.applied() if n != 4] == [1, 2, 3]


async def test_a_suspect_of_the_other_mode_is_not_lost(bench: StoreBench) -> None:
    bench.deadly = Moment.MARKED
    again = Deliveries(Delivery(message(1), redelivered=True))
    with pytest.raises(Killed):
        await bench.consume(open_subscriber=lambda: again)
    assert bench.parked() == [("1", "suspect", 1)]
    bench.deadly = None
    subscriber = await bench.take(Delivery(message(1), redelivered=True))
    assert (bench.applied(), len(subscriber.acknowledged)) == ([1], 1)


async def test_what_cannot_be_read_is_dead_at_once(bench: StoreBench) -> None:
    bench.topics = Topics({TOPIC: Topic(id="header message-id")})
    await bench.take(Delivery(message(1)), Delivery(message(2)))
    assert bench.applied() == []
    assert [state for _, state, _ in bench.parked()] == ["dead", "dead"]
    bench.db.execute("UPDATE pillarbox_inbox_parked SET state = 'retrying', due_at = 0")
    await bench.take()
    assert bench.applied() == []
    assert {state for _, state, _ in bench.parked()} == {"dead"}


async def test_types_that_are_ignored_are_not_stored(bench: StoreBench) -> None:
    subscriber = Deliveries(Delivery(message(1, type="OrderSeen")), Delivery(message(2)))
    await bench.consume(open_subscriber=lambda: subscriber, stores=True, unhandled="ignore")
    assert bench.applied() == [2]
    assert len(subscriber.acknowledged) == 2
