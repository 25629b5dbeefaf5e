"""Events that may have killed their process: counted before the handler, so that they end as dead letters."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pillarbox.core.event import Event
from pillarbox.core.message import Delivery
from pillarbox.core.retry import RetryPolicy
from pillarbox.inbox import lot
from pillarbox.inbox.handling import Handling, Rules
from pillarbox.inbox.received import Received, receive
from pillarbox.inbox.waiting import Waiting
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from tests.unit.consumer_bench import ConsumerBench, Deliveries, id_of, message


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it, and nothing after it happens."""


class Deadly(ConsumerBench):
    """A bench whose process dies at a moment, as if killed: the transaction is lost, and nobody cleans up."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deadly = False
        self.only: int | None = None
        """Which event is deadly; any, if None."""

        @self.inbox.handler("OrderPlaced")
        def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
            connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])

        self.on = self._die

    def _die(self, moment: Moment, facts: Facts) -> None:
        if self.deadly and moment is Moment.HANDLED and self.only in (None, UUID(str(facts["event_id"])).int):
            raise Killed

    async def deliver(self, *deliveries: Delivery) -> Deliveries:
        subscriber = Deliveries(*deliveries)
        try:
            await self.consume(open_subscriber=lambda: subscriber)
        except Killed:
            assert self.deadly
        return subscriber


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Deadly]:
    bench = Deadly(tmp_path)
    yield bench
    bench.close()


def again(number: int, **more: Any) -> Delivery:
    return Delivery(message(number, **more), redelivered=True, attempt=2)


async def test_nobody_pays_for_a_first_delivery(bench: Deadly) -> None:
    statements: list[str] = []
    original = bench.connect

    def connect() -> sqlite3.Connection:
        connection = original()
        connection.set_trace_callback(statements.append)
        return connection

    bench.inbox._opener = connect
    await bench.deliver(Delivery(message(1)))
    assert bench.applied() == [1]
    assert not [sql for sql in statements if "INSERT INTO pillarbox_inbox_parked" in sql]


async def test_a_redelivered_event_that_succeeds_leaves_no_trace(bench: Deadly) -> None:
    await bench.deliver(again(1), again(2, order="8"))
    assert sorted(bench.applied()) == [1, 2]
    assert bench.parked() == []


async def test_each_death_is_counted_before_the_handler(bench: Deadly) -> None:
    bench.deadly = True
    await bench.deliver(Delivery(message(1)))
    assert bench.parked() == []
    await bench.deliver(again(1))
    assert bench.parked() == [("1", "suspect", 1)]
    await bench.deliver(again(1))
    assert bench.parked() == [("1", "held", 2)]
    assert bench.applied() == []


async def test_an_event_that_kills_every_time_ends_as_a_dead_letter(bench: Deadly) -> None:
    bench.deadly = True
    await bench.deliver(Delivery(message(1)))
    for _ in range(2):
        await bench.deliver(again(1))
    bench.clock.advance(2)
    await bench.deliver()
    assert bench.parked() == [("1", "held", 3)]
    bench.clock.advance(2)
    subscriber = await bench.deliver(again(1))
    assert bench.parked() == [("1", "dead", 4)]
    assert "stopped at once, 4 times" in bench.column("last_error")
    assert [one.message for one in subscriber.acknowledged] == [message(1)]


@pytest.mark.parametrize("retries", [0, 1])
async def test_few_retries_give_up_nobody_who_was_not_tried_alone(bench: Deadly, retries: int) -> None:
    bench.policy = RetryPolicy(retries=retries, jitter=0)
    bench.deadly, bench.only = True, 2
    deliveries = [again(1), again(2, order="8")]
    for _ in range(2):  # whichever of the two began first, the other one was counted beside it
        await bench.deliver(*deliveries)
    for _ in range(2):
        bench.clock.advance(100)
        await bench.deliver()
    assert bench.applied() == [1]
    assert [row for row in bench.parked() if row[1] != "handled"] == [("2", "dead", 4)]
    assert "stopped at once, 4 times" in bench.column("last_error", 2)


async def test_without_retries_a_suspect_that_fails_is_dead(bench: Deadly) -> None:
    bench.policy = RetryPolicy(retries=0)
    bench.db.execute("ALTER TABLE effects RENAME TO away")
    await bench.deliver(again(1))
    assert [row[:2] for row in bench.parked()] == [("1", "dead")]
    assert "no such table: effects" in bench.column("last_error")


async def test_nobody_waits_until_a_deadly_one_is_dead(bench: Deadly) -> None:
    bench.deadly, bench.only = True, 1
    deliveries = [again(1), again(2, order="8"), again(3), again(4, order="8")]
    await bench.deliver(*deliveries)
    assert bench.applied() == []
    subscriber = await bench.deliver(*deliveries)
    assert bench.applied() == [2, 4]
    assert bench.parked() == [("1", "held", 2), ("3", "blocked", 0)]
    assert len(subscriber.acknowledged) == 4


async def test_after_what_ends_the_consumer_no_worker_begins_anything(bench: Deadly) -> None:
    """Whatever it began would be counted, and stand there as what its process died with."""
    bench.deadly, bench.only = True, 1
    rules = Rules(
        bench.policy, bench.topics, 8, timeout=None, chance=lambda: 0, remembers=None, unordered=False, stores=False
    )
    handling = Handling(bench.inbox, rules, bench.clock, Hooks(bench.on), set())
    given = [receive(one, bench.inbox.handlers, bench.topics) for one in (again(1), again(2, order="8"), again(3))]
    handling.start()
    handling.give(enumerate(given))
    async with asyncio.timeout(10):
        while len(handling._answers) < len(given):  # as if the consumer were slow to notice
            await handling.answered.wait()
            handling.answered.clear()
    with pytest.raises(Killed):
        handling.check()
    await handling.close()
    assert bench.applied() == []
    assert bench.parked() == [("1", "suspect", 1)]


async def test_one_that_was_counted_beside_a_deadly_one_comes_before_it_from_the_next_restart_on(bench: Deadly) -> None:
    """Which of the two it was shows only when one of them is tried alone; from then on it comes last."""
    bench.deadly, bench.only = True, 1
    deliveries = [again(1), again(2, order="8"), again(3), again(4, order="8")]
    await bench.deliver(deliveries[0])
    bench.only = 2  # two workers were at it when the process died
    await bench.deliver(deliveries[1])
    bench.only = 1
    assert bench.parked() == [("1", "suspect", 1), ("2", "suspect", 1)]
    subscriber = await bench.deliver(*deliveries)
    assert bench.parked() == [("1", "held", 2), ("2", "held", 1), ("3", "blocked", 0), ("4", "blocked", 0)]
    assert len(subscriber.acknowledged) == 4
    await bench.deliver()
    assert bench.applied() == [2, 4]
    assert bench.parked()[0] == ("1", "held", 2)


async def test_a_deadly_one_comes_last_and_the_least_deadly_of_several_first(bench: Deadly) -> None:
    bench.deadly, bench.policy = True, RetryPolicy()
    for order in ("7", "8"):
        bench.only = int(order)
        await bench.deliver(again(bench.only, order=order))
        await bench.deliver(again(bench.only, order=order))
    bench.db.execute("UPDATE pillarbox_inbox_parked SET attempts = 3 WHERE event_id = ?", [id_of(7)])
    bench.deadly = False
    bench.clock.advance(2)
    await bench.deliver(again(1, order="1"), again(2, order="2"))
    assert bench.applied() == [1, 2, 8, 7]


class Endless(Deliveries):
    """Has always one more, a moment later, until something holds: the consumer is never idle."""

    def __init__(self, bench: Deadly, moment: float, until: Callable[[], bool], *first: Delivery) -> None:
        super().__init__(*first)
        self._bench, self._moment, self._until, self._given = bench, moment, until, 0

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        if self._until():
            return []
        self._bench.clock.advance(self._moment)
        self._given += 1
        first = await super().deliveries(room, patience)
        return [*first, Delivery(message(1000 + self._given, order=str(1000 + self._given)))]


async def test_under_load_a_deadly_one_waits_for_others_a_minute_at_most(bench: Deadly) -> None:
    bench.deadly, bench.policy = True, RetryPolicy()
    for _ in range(2):
        await bench.deliver(again(1))
    bench.db.execute("UPDATE pillarbox_inbox_parked SET attempts = 2")
    bench.deadly, began = False, bench.clock.now()
    subscriber = Endless(bench, 1, lambda: 1 in bench.applied())
    async with asyncio.timeout(60):
        await bench.consume(open_subscriber=lambda: subscriber)
    assert 1 in bench.applied()
    assert bench.clock.now() - began > lot.DEADLY_PATIENCE


async def test_under_load_those_that_were_tried_beside_a_deadly_one_are_tried_soon_and_one_at_a_time(
    bench: Deadly,
) -> None:
    bench.deadly, bench.policy = True, RetryPolicy()
    numbers = [1, 2, 3]
    for bench.only in numbers:  # as if three workers had been at them when the process died
        await bench.deliver(again(bench.only, order=str(bench.only)))
    bench.deadly = False
    held: list[int] = []
    sql = "SELECT count(*) FROM pillarbox_inbox_parked WHERE state = 'held' AND attempts > 1"

    def count(moment: Moment, facts: Facts) -> None:
        if moment is Moment.HANDLED and UUID(str(facts["event_id"])).int in numbers:
            held.extend(bench.db.execute(sql).fetchone())

    bench.on, began = count, bench.clock.now()
    deliveries = [again(n, order=str(n)) for n in numbers]
    subscriber = Endless(bench, 0.01, lambda: set(numbers) <= set(bench.applied()), *deliveries)
    async with asyncio.timeout(60):
        await bench.consume(open_subscriber=lambda: subscriber)
    assert held == [1, 1, 1]
    assert bench.clock.now() - began < lot.DEADLY_PATIENCE


async def test_whoever_was_tried_beside_a_deadly_one_comes_out_before_a_backlog_of_the_lot(bench: Deadly) -> None:
    bench.deadly, bench.only = True, 1
    for _ in range(2):
        await bench.deliver(again(1))
    bench.db.execute("UPDATE pillarbox_inbox_parked SET attempts = 1")
    bench.clock.advance(3)
    backlog = [stored(bench, n) for n in range(10, 20)]
    bench.inbox.perform(lot.store(bench.inbox.texts, backlog, bench.clock.now(), lambda one: True))
    taken = bench.inbox.perform(lot.claim(bench.inbox.texts, bench.clock.now(), 5, {}, idle=False))
    assert [UUID(one.key).int for one in taken] == [1, 10, 11, 12, 13]


def stored(bench: Deadly, number: int) -> Received:
    return receive(Delivery(message(number, order=str(number))), bench.inbox.handlers, bench.topics)


async def test_its_followers_wait_behind_it(bench: Deadly) -> None:
    bench.deadly = True
    for _ in range(3):
        bench.clock.advance(2)
        await bench.deliver(again(1))
    bench.deadly = False
    bench.clock.advance(2)
    await bench.deliver(again(1), again(2), Delivery(message(3)), again(4, order="8"))
    assert bench.applied() == [4]
    assert bench.parked() == [("1", "dead", 4), ("2", "blocked", 0), ("3", "blocked", 0)]


async def test_a_suspect_that_recovers_is_handled_once(bench: Deadly) -> None:
    bench.deadly = True
    await bench.deliver(again(1))
    bench.deadly = False
    await bench.deliver(again(1), again(1))
    assert bench.applied() == [1]
    assert bench.parked() == [("1", "handled", 3)]


async def test_a_suspect_that_was_handled_is_a_copy(bench: Deadly) -> None:
    await bench.deliver(Delivery(message(1)))
    subscriber = await bench.deliver(again(1))
    assert bench.applied() == [1]
    assert bench.parked() == []
    assert len(subscriber.acknowledged) == 1


async def test_a_suspect_whose_copy_was_handled_first_leaves_no_trace(bench: Deadly) -> None:
    bench.deadly = True
    await bench.deliver(again(1))
    bench.deadly = False
    await bench.deliver(Delivery(message(1)))
    await bench.deliver(again(1))
    assert bench.applied() == [1]
    assert bench.parked() == []


async def test_a_suspect_that_only_fails_is_parked_with_its_count(bench: Deadly) -> None:
    bench.deadly = True
    await bench.deliver(again(1))
    bench.deadly = False
    bench.db.execute("DROP TABLE effects")
    await bench.deliver(again(1))
    assert bench.parked() == [("1", "dead", 3)]
    assert "no such table: effects" in bench.column("last_error")


async def test_a_parked_event_that_kills_when_it_is_tried_again_ends_as_a_dead_letter(bench: Deadly) -> None:
    bench.db.execute("ALTER TABLE effects RENAME TO away")
    await bench.deliver(Delivery(message(1)))
    assert bench.parked() == [("1", "retrying", 1)]
    bench.db.execute("ALTER TABLE away RENAME TO effects")
    bench.deadly = True
    for deaths in (1, 2, 3):
        bench.clock.advance(100)
        await bench.deliver()
        assert bench.parked() == [("1", "held", deaths)]
    bench.clock.advance(100)
    await bench.deliver()
    assert bench.parked() == [("1", "dead", 4)]
    died = "the consumer's process died, or was stopped at once, at attempt 4, while this was handled"
    assert bench.column("last_error").startswith(
        f"{died}; before that it failed: Deadly.__init__.<locals>.bill raised OperationalError: no such"
    )
    [told] = bench.told(Moment.EVENT_DEAD)
    assert told["error"] == f"{died}; what it failed with before that is kept with the event"


async def test_after_a_death_a_parked_event_is_left_alone_for_a_while(bench: Deadly) -> None:
    bench.db.execute("ALTER TABLE effects RENAME TO away")
    await bench.deliver(Delivery(message(1)))
    bench.db.execute("ALTER TABLE away RENAME TO effects")
    bench.clock.advance(2)
    bench.deadly = True
    await bench.deliver()
    bench.deadly = False
    bench.clock.advance(1)
    await bench.deliver()
    assert bench.applied() == []
    bench.clock.advance(1)
    await bench.deliver()
    assert bench.applied() == [1]


async def test_a_deadly_one_waits_for_no_backlog_that_is_ready() -> None:
    """Else each of those that were tried beside it would wait for all that is in the window, one after the other."""
    ordinary, deadly = (Received(Delivery(message(n)), attempts=1) for n in (1, 2))
    deadly.abandoned = True
    waiting = Waiting()
    waiting.put([[(1, ordinary)], [(2, ordinary)], [(3, deadly)]])
    assert [await waiting.wait() for _ in range(3)] == [[(3, deadly)], [(1, ordinary)], [(2, ordinary)]]
