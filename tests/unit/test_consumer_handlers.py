"""Handlers that misbehave: each is told of in a clear line, and nothing is lost."""

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from pillarbox.core.event import Event
from pillarbox.inbox import handling
from pillarbox.sqlalchemy import AsyncInbox
from pillarbox.telemetry.hooks import Facts, Moment
from tests.unit.consumer_bench import ConsumerBench, id_of, message

Handler = Any


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ConsumerBench]:
    bench = ConsumerBench(tmp_path)
    yield bench
    bench.close()


def write(connection: sqlite3.Connection, event: Event[Any]) -> None:
    connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])


async def failure(bench: ConsumerBench, handler: Handler) -> str:
    """Handle one event with it, and give the error under which the event is parked."""
    bench.inbox.handler("OrderPlaced")(handler)
    bench.publish(message(1))
    await bench.consume()
    assert bench.applied() == []
    assert bench.parked() == [("1", "retrying", 1)]
    return str(bench.column("last_error"))


async def test_one_that_returns_a_coroutine_has_run_nothing(bench: ConsumerBench) -> None:
    async def bill(event: Event[Any]) -> None:
        """Never reached."""

    error = await failure(bench, lambda connection, event: bill(event))
    assert "returned a coroutine, of which nothing ran" in error
    assert "AsyncInbox" in error


async def test_one_that_returns_a_generator_has_run_nothing(bench: ConsumerBench) -> None:
    assert "remove the yield" in await failure(bench, lambda connection, event: (n for n in range(3)))


async def test_one_that_exits_the_program_only_fails(bench: ConsumerBench) -> None:
    assert "raised SystemExit: 3" in await failure(bench, lambda connection, event: sys.exit(3))


async def test_one_that_raises_stop_iteration_only_fails(bench: ConsumerBench) -> None:
    assert "raised StopIteration" in await failure(bench, lambda connection, event: next(iter([])))


async def test_one_that_rolls_back_loses_nothing(bench: ConsumerBench) -> None:
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        write(connection, event)
        connection.rollback()

    assert "rolled back the transaction it was given" in await failure(bench, handler)


async def test_one_that_commits_by_itself_is_still_applied_once(bench: ConsumerBench) -> None:
    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        write(connection, event)
        connection.commit()

    bench.publish(message(1), message(1))
    assert await bench.consume() == 1
    assert bench.applied() == [1]
    assert bench.parked() == []


async def test_one_that_waits_for_a_lock_of_its_own_transaction_fails_in_the_end(bench: ConsumerBench) -> None:
    bench.policy = bench.policy.__class__(retries=0)

    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        other = sqlite3.connect(bench.path, timeout=0)
        try:
            other.execute("INSERT INTO effects VALUES (1)")
        finally:
            other.close()

    bench.publish(message(1))
    consumer = bench.consumer()
    bench.on = lambda moment, _: consumer.stop() if moment is Moment.ACKNOWLEDGED else None
    async with asyncio.timeout(30):
        await consumer.run()
    assert bench.parked() == [("1", "dead", 1)]
    assert "found the database locked" in bench.column("last_error")


async def test_what_one_returns_is_told_once_and_ignored(bench: ConsumerBench) -> None:
    @bench.inbox.handler("OrderPlaced")  # type: ignore[arg-type]
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> int:
        write(connection, event)
        return 7

    bench.publish(message(1), message(2))
    await bench.consume()
    assert bench.applied() == [1, 2]
    (facts,) = bench.told(Moment.HANDLER_RETURNED)
    assert (facts["value"], facts["type"], facts["attempt"]) == ("int", "OrderPlaced", 1)


async def test_one_that_hangs_is_told_of_and_waited_for(bench: ConsumerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "SLOW_AFTER", 0.05)
    monkeypatch.setattr(handling, "SLOW_AGAIN", 0.05)
    monkeypatch.setattr("pillarbox.inbox.consumer.DRAIN_QUIETLY", 0.01)
    monkeypatch.setattr(handling, "WATCH_EVERY", 0.01)
    go_on = threading.Event()

    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        write(connection, event)
        assert go_on.wait(20)

    consumer = bench.consumer()

    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.HANDLER_SLOW and len(bench.told(Moment.HANDLER_SLOW)) == 2:
            assert consumer.is_slow
            consumer.stop()
        if moment is Moment.HANDLER_AWAITED:
            go_on.set()

    bench.on = hear
    bench.publish(message(1))
    async with asyncio.timeout(20):
        await consumer.run()
    assert bench.applied() == [1]
    assert bench.unacknowledged() == 0
    assert bench.told(Moment.HANDLER_SLOW)[0]["event_id"] == id_of(1)
    (awaited,) = bench.told(Moment.HANDLER_AWAITED)
    assert awaited["event_id"] == id_of(1)
    assert not consumer.is_slow


class AsyncBench(ConsumerBench):
    """The same with an AsyncInbox."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}")
        self.async_inbox = AsyncInbox("billing", async_sessionmaker(self.engine))


@pytest.fixture
async def async_bench(tmp_path: Path) -> Any:
    bench = AsyncBench(tmp_path)
    yield bench
    await bench.engine.dispose()
    bench.close()


async def write_async(session: AsyncSession, event: Event[Any]) -> None:
    await session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": event.payload["n"]})


async def test_async_and_sync_handlers_live_in_one_async_inbox(async_bench: AsyncBench) -> None:
    async_bench.async_inbox.handler("OrderPlaced")(write_async)
    async_bench.async_inbox.handler("OrderPaid")(
        lambda session, event: session.execute(text("INSERT INTO effects VALUES (100)")) and None
    )
    async_bench.publish(message(1), message(2), message(3, type="OrderPaid"), message(1))
    assert await async_bench.consume(async_bench.async_inbox) == 3
    assert async_bench.applied() == [1, 2, 100]
    assert async_bench.unacknowledged() == 0


async def test_an_async_one_that_fails_is_parked_and_tried_again(async_bench: AsyncBench) -> None:
    failing = [True]

    @async_bench.async_inbox.handler("OrderPlaced")
    async def handler(session: AsyncSession, event: Event[Any]) -> None:
        await write_async(session, event)
        if failing:
            raise ValueError("no")

    async_bench.publish(message(1), message(2))
    await async_bench.consume(async_bench.async_inbox)
    assert async_bench.applied() == []
    failing.clear()
    await async_bench.later(1.1, inbox=async_bench.async_inbox)
    assert async_bench.applied() == [1, 2]


async def test_an_async_one_is_cancelled_after_the_timeout(async_bench: AsyncBench) -> None:
    @async_bench.async_inbox.handler("OrderPlaced")
    async def handler(session: AsyncSession, event: Event[Any]) -> None:
        await write_async(session, event)
        await asyncio.Event().wait()

    async_bench.publish(message(1), message(2, order="8"))
    async with asyncio.timeout(20):
        await async_bench.consume(async_bench.async_inbox, timeout=timedelta(seconds=0.05))
    assert async_bench.applied() == []
    assert [state for _, state, _ in async_bench.parked()] == ["retrying", "retrying"]
    assert "cancelled after 0.05 s" in async_bench.column("last_error")


async def test_an_async_one_that_cancels_itself_only_fails(async_bench: AsyncBench) -> None:
    @async_bench.async_inbox.handler("OrderPlaced")
    async def handler(session: AsyncSession, event: Event[Any]) -> None:
        raise asyncio.CancelledError

    async_bench.publish(message(1))
    async with asyncio.timeout(20):
        await async_bench.consume(async_bench.async_inbox)
    assert "although nobody cancelled it" in async_bench.column("last_error")


async def test_an_async_one_that_rolls_back_loses_nothing(async_bench: AsyncBench) -> None:
    @async_bench.async_inbox.handler("OrderPlaced")
    async def handler(session: AsyncSession, event: Event[Any]) -> None:
        await write_async(session, event)
        await session.rollback()

    async_bench.publish(message(1))
    await async_bench.consume(async_bench.async_inbox)
    assert async_bench.parked() == [("1", "retrying", 1)]
    assert "rolled back" in async_bench.column("last_error")
