"""Whatever a handler raises, or whatever a message holds, the consumer counts it and goes on, or ends with a word."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from pillarbox.core.event import Event
from pillarbox.core.message import Delivery, Message
from pillarbox.errors import RetryLater
from pillarbox.inbox import handling
from pillarbox.sqlalchemy import AsyncInbox, Inbox
from pillarbox.telemetry.hooks import Facts, Moment
from tests.unit.consumer_bench import TOPIC, ConsumerBench, Deliveries, id_of, message


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Eternal(RetryLater):
    """A signal that never asked how long."""

    def __init__(self) -> None:
        Exception.__init__(self, "later")
        self.delay = timedelta.max


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ConsumerBench]:
    bench = ConsumerBench(tmp_path)
    yield bench
    bench.close()


def failing(bench: ConsumerBench, error: BaseException, number: int = 1) -> None:
    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])
        if event.payload["n"] == number:
            raise error


async def within(bench: ConsumerBench, inbox: Any = None) -> int:
    async with asyncio.timeout(10):
        return await bench.consume(inbox)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Wordless(), "raised Wordless: Wordless"),
        (ValueError("the name \ud800"), "raised ValueError: the name \\ud800"),
        (ValueError("a\0b"), "raised ValueError: a\\x00b"),
        (ValueError("x" * 1_000_000), "raised ValueError: xxx"),
        (asyncio.CancelledError(), "although nobody cancelled it"),
        (GeneratorExit(), "GeneratorExit"),
        (BaseException("of its own kind"), "it raised BaseException: of its own kind"),
        (Eternal(), "later"),
    ],
    ids=["no words", "surrogate", "NUL", "long", "cancelled", "generator exit", "own kind", "eternal"],
)
async def test_whatever_a_handler_raises_is_parked_and_the_others_go_on(
    bench: ConsumerBench, error: BaseException, words: str
) -> None:
    failing(bench, error)
    bench.publish(message(1), message(2, order="8"))
    assert await within(bench) == 1
    assert bench.parked() == [("1", "retrying", 1)]
    assert words in bench.column("last_error")
    assert len(bench.column("last_error")) <= 10_000
    assert bench.applied() == [2]
    assert bench.unacknowledged() == 0


@pytest.mark.parametrize(
    "broken",
    [
        Message(TOPIC, "\ud800", {"type": "OrderPlaced", "id": id_of(1), "x": "\ud800"}, b"{"),
        Message(TOPIC, None, {"type": "OrderPlaced", "id": "\ud800"}, b"1"),
        Message(TOPIC, None, {"type": "OrderPlaced", "id": id_of(1), "aggregate_id": "\ud800"}, b"1"),
        Message(TOPIC, None, {"type": "OrderPlaced", "id": id_of(1), "content-type": 5}, b"1"),  # type: ignore[dict-item]
    ],
    ids=["header", "id", "aggregate", "number for a text"],
)
async def test_a_message_that_cannot_be_said_is_a_dead_letter(bench: ConsumerBench, broken: Message) -> None:
    failing(bench, ValueError("never reached"))
    deliveries = Deliveries(Delivery(broken), Delivery(message(2)))
    async with asyncio.timeout(10):
        await bench.consumer(open_subscriber=lambda: deliveries).run_once(patience=0.01)
    assert [state for _, state, _ in bench.parked()] == ["dead"]
    (headers,) = bench.db.execute("SELECT headers FROM pillarbox_inbox_parked").fetchone()
    assert json.loads(headers) == broken.headers
    assert bench.applied() == [2]
    assert len(deliveries.acknowledged) == 2


async def test_the_end_of_the_watcher_is_the_end_of_the_consumer(
    bench: ConsumerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(handling.Handling, "_watch", broken)
    failing(bench, ValueError())
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(10):
            await bench.consumer().run()


@pytest.mark.parametrize("stopped", [False, True], ids=["at work", "stopping"])
async def test_the_end_of_a_worker_is_the_end_of_the_consumer(bench: ConsumerBench, stopped: bool) -> None:
    failing(bench, ValueError())
    consumer = bench.consumer()

    def cancel(moment: Moment, facts: Facts) -> None:
        if moment is Moment.DELIVERED:
            workers = [task for task in asyncio.all_tasks() if task.get_name().startswith("worker")]
            for task in workers:
                task.cancel()
            if stopped:
                consumer.stop()

    bench.on = cancel
    bench.publish(message(2))
    with pytest.raises(RuntimeError, match="worker 0 of the consumer was cancelled"):
        async with asyncio.timeout(10):
            await consumer.run()


def commits(connection: sqlite3.Connection) -> None:
    connection.commit()


def commits_in_a_block(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("INSERT INTO effects VALUES (0)")


def commits_and_writes_on(connection: sqlite3.Connection) -> None:
    connection.commit()
    connection.execute("INSERT INTO effects VALUES (-1)")


def commits_behind_its_back(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None
    connection.execute("COMMIT")


@pytest.mark.parametrize("commit", [commits, commits_in_a_block, commits_and_writes_on, commits_behind_its_back])
@pytest.mark.parametrize("error", [ValueError("after it"), RetryLater(1)], ids=["error", "signal"])
async def test_one_that_commits_and_then_fails_is_a_dead_letter_that_holds_back_nobody(
    bench: ConsumerBench, commit: Callable[[sqlite3.Connection], None], error: Exception
) -> None:
    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])
        if event.payload["n"] == 1:
            commit(connection)
            raise error

    bench.publish(message(1), message(2))
    assert await within(bench) == 1
    assert bench.parked() == [("1", "dead", 1)]
    assert "committed by itself: what it did up to there stands" in bench.column("last_error")
    assert [n for n in bench.applied() if n] == [1, 2]
    assert bench.unacknowledged() == 0


async def test_one_that_commits_when_it_is_tried_again_is_a_dead_letter_too(bench: ConsumerBench) -> None:
    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES (1)")
        assert event.delivery is not None
        if event.delivery.attempt == 2:
            connection.commit()
        raise ValueError("again")

    bench.publish(message(1))
    await within(bench)
    await bench.later(2)
    assert bench.parked() == [("1", "dead", 2)]
    await bench.later(100)
    assert bench.applied() == [1]


async def test_one_that_commits_and_returns_is_handled_and_told_of_once(bench: ConsumerBench) -> None:
    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        commits(connection)

    bench.publish(message(1), message(2))
    assert await within(bench) == 2
    (facts,) = bench.told(Moment.HANDLER_COMMITTED)
    assert facts["type"] == "OrderPlaced"
    assert "handler" in str(facts["handler"])


async def test_one_that_closes_its_connection_only_fails(bench: ConsumerBench) -> None:
    @bench.inbox.handler("OrderPlaced")
    def handler(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO effects VALUES (?)", [event.payload["n"]])
        if event.payload["n"] == 1:
            connection.close()

    bench.publish(message(1), message(2, order="8"))
    assert await within(bench) == 1
    assert "closed the connection it was given" in bench.column("last_error")
    assert bench.applied() == [2]


class Base(DeclarativeBase):
    pass


class Row(Base):
    """The inbox's own row: a second one is refused, and that undoes the whole transaction of the session."""

    __tablename__ = "pillarbox_inbox"
    consumer: Mapped[str] = mapped_column(primary_key=True)
    event_id: Mapped[str] = mapped_column(primary_key=True)


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "not committed"])
async def test_a_session_that_was_committed_is_noticed_as_well(bench: ConsumerBench, commit: bool) -> None:
    engine = create_engine(f"sqlite:///{bench.path}")
    inbox = Inbox("billing", sessionmaker(engine))

    @inbox.handler("OrderPlaced")
    def handler(session: Session, event: Event[Any]) -> None:
        session.execute(text("INSERT INTO effects VALUES (1)"))
        if commit:
            session.commit()
        session.add(Row(consumer="billing", event_id=id_of(1)))
        session.flush()

    bench.publish(message(1))
    await within(bench, inbox)
    assert bench.parked() == [("1", "dead" if commit else "retrying", 1)]
    assert bench.applied() == ([1] if commit else [])
    assert IntegrityError.__name__ in bench.column("last_error")
    engine.dispose()


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "not committed"])
async def test_so_is_an_async_one(bench: ConsumerBench, commit: bool) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{bench.path}")
    inbox = AsyncInbox("billing", async_sessionmaker(engine))

    @inbox.handler("OrderPlaced")
    async def handler(session: AsyncSession, event: Event[Any]) -> None:
        await session.execute(text("INSERT INTO effects VALUES (1)"))
        if commit:
            await session.commit()
        raise ValueError("after it")

    bench.publish(message(1))
    await within(bench, inbox)
    assert bench.parked() == [("1", "dead" if commit else "retrying", 1)]
    assert bench.applied() == ([1] if commit else [])
    await engine.dispose()
