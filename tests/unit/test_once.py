"""`once`: a plain function that runs only the first time that a message comes, in the caller's transaction."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from pillarbox.dbapi import Inbox
from pillarbox.errors import ConfigError, InvalidEvent, NoTransaction
from pillarbox.sqlalchemy import AsyncInbox
from pillarbox.stores.sqlite.schema import Tables


class Bench:
    """A file with the inbox's tables, and one for effects."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "billing.db")
        self.db = sqlite3.connect(self.path)
        Tables(self.path, "pillarbox_").up(self.db)
        self.db.execute("CREATE TABLE effects (n INTEGER)")
        self.db.commit()
        self.inbox = Inbox("billing", lambda: sqlite3.connect(self.path))

    def effects(self) -> list[int]:
        return [n for (n,) in self.db.execute("SELECT n FROM effects ORDER BY rowid")]

    def noted(self) -> list[str]:
        return [id for (id,) in self.db.execute("SELECT event_id FROM pillarbox_inbox ORDER BY event_id")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.db.close()


def applying(bench: Bench) -> Callable[..., bool]:
    @bench.inbox.once
    def apply(connection: sqlite3.Connection, message_id: str, n: int, *, factor: int = 1) -> None:
        """Write an effect."""
        connection.execute("INSERT INTO effects VALUES (?)", [n * factor])

    assert (apply.__name__, apply.__doc__) == ("apply", "Write an effect.")
    return apply


def test_it_runs_the_first_time_only_and_says_so(bench: Bench) -> None:
    apply = applying(bench)
    with bench.db:
        assert apply(bench.db, "m-1", 3, factor=2) is True
    with bench.db:
        assert apply(bench.db, "m-1", 3, factor=2) is False
        assert apply(bench.db, "m-2", 4) is True
    assert (bench.effects(), bench.noted()) == ([6, 4], ["m-1", "m-2"])


def test_it_is_in_the_callers_transaction(bench: Bench) -> None:
    apply = applying(bench)
    assert apply(bench.db, "m-1", 1) is True
    bench.db.rollback()
    assert (bench.effects(), bench.noted()) == ([], [])
    with bench.db:
        assert apply(bench.db, "m-1", 1) is True
    assert bench.effects() == [1]


def test_what_it_raises_comes_out_and_the_rollback_takes_the_note_along(bench: Bench) -> None:
    @bench.inbox.once
    def fail(connection: sqlite3.Connection, message_id: str) -> None:
        connection.execute("INSERT INTO effects VALUES (1)")
        raise ValueError("no such customer")

    with pytest.raises(ValueError, match="no such customer"), bench.db:
        fail(bench.db, "m-1")
    assert (bench.effects(), bench.noted()) == ([], [])


def test_the_message_is_noted_before_the_function_runs(bench: Bench) -> None:
    seen: list[list[str]] = []
    look = bench.inbox.once(lambda connection, message_id: seen.append(bench.noted()))
    with bench.db:
        look(bench.db, "m-1")
    assert seen == [["m-1"]]


def test_outside_a_transaction_it_refuses_to_run(bench: Bench) -> None:
    apply = applying(bench)
    connection = sqlite3.connect(bench.path, isolation_level=None)
    with pytest.raises(NoTransaction):
        apply(connection, "m-1", 1)
    connection.close()
    assert (bench.effects(), bench.noted()) == ([], [])


def test_what_is_no_id_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidEvent, match="nothing to recognise a message by"), bench.db:
        applying(bench)(bench.db, "", 1)
    assert bench.effects() == []


async def coroutine(connection: Any, message_id: str) -> None: ...


def plain(connection: Any, message_id: str) -> None: ...


def generator(connection: Any, message_id: str) -> Any:
    yield


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (coroutine, "coroutine is async and this Inbox is not"),
        (partial(coroutine), "is async and this Inbox is not"),
        (generator, "remove the yield"),
        (7, "7 cannot be called"),
    ],
)
def test_what_would_run_nothing_is_refused(bench: Bench, function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        bench.inbox.once(function)


@pytest.fixture
async def session(bench: Bench) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{bench.path}")
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


async def test_an_inbox_that_is_awaited_takes_an_async_function(bench: Bench, session: AsyncSession) -> None:
    inbox = AsyncInbox("billing", async_sessionmaker(session.bind))

    @inbox.once
    async def apply(session: AsyncSession, message_id: str, n: int) -> None:
        await session.execute(text(f"INSERT INTO effects VALUES ({n})"))

    ran = []
    for _ in range(2):
        async with session.begin():
            ran.append(await apply(session, "m-1", 5))
    assert (ran, bench.effects(), bench.noted()) == ([True, False], [5], ["m-1"])
    with pytest.raises(ConfigError, match="plain is a plain function, and this Inbox is awaited"):
        inbox.once(plain)
