"""The door for SQLAlchemy keeps the contract: Session, Connection and their async twins, on SQLite and PostgreSQL."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate
from pillarbox.core.message import Message
from pillarbox.sqlalchemy import AsyncInbox, AsyncOutbox, Inbox, Outbox
from pillarbox.testing.contracts.door import DoorContract, DoorFeatures
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.sqlite3_door import SqliteFile, reception
from tests.contracts.postgres_doors import FEATURES, DoorDatabase

EFFECT = text("INSERT INTO effects VALUES (:what)")


class Bench:
    """What the four have in common; `scheme` is that of SQLAlchemy's URL."""

    features = DoorFeatures()

    def __init__(self, database: SqliteFile | DoorDatabase, scheme: str) -> None:
        self.database = database
        self.url = (
            f"{scheme}:///{database.path}"
            if isinstance(database, SqliteFile)
            else database.url.replace("postgresql", scheme, 1)
        )
        self._calls = 0

    def _count(self, *_: Any) -> None:
        self._calls += 1

    def round_trips(self) -> int:
        return self._calls

    async def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        return self.database.rows(table)


class SessionBench(Bench):
    def __init__(self, database: SqliteFile | DoorDatabase, scheme: str) -> None:
        super().__init__(database, scheme)
        self.engine = create_engine(self.url)
        event.listen(self.engine, "before_cursor_execute", self._count)
        self._opened: list[Any] = []
        self._outbox, self._inbox = Outbox(max_payload=1000), Inbox("bench", sessionmaker(self.engine))

    def _open(self, **options: Any) -> Any:
        return Session(self.engine.execution_options(**options))

    async def begin(self) -> Any:
        self._opened.append(self._open())
        return self._opened[-1]

    async def autocommit(self) -> Any:
        self._opened.append(self._open(isolation_level="AUTOCOMMIT"))
        return self._opened[-1]

    async def commit(self, transaction: Any) -> None:
        transaction.commit()

    async def roll_back(self, transaction: Any) -> None:
        transaction.rollback()

    async def savepoint(self, transaction: Any) -> Any:
        return transaction.begin_nested()

    async def roll_back_to(self, transaction: Any, savepoint: Any) -> None:
        savepoint.rollback()

    async def write(self, transaction: Any, what: str) -> None:
        transaction.execute(EFFECT, {"what": what})

    async def add(self, transaction: Any, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        self._outbox.add(transaction, *events, on_duplicate=on_duplicate)

    async def first_time(self, transaction: Any, message_id: str) -> bool:
        return await asyncio.to_thread(self._inbox.first_time, transaction, message_id)

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> object:
        inbox = Inbox("bench", sessionmaker(self.engine))

        @inbox.handler("OrderPlaced")
        def write_and_fail(session: Session, event: Event[Any]) -> None:
            session.execute(EFFECT, {"what": what})
            if fail:
                raise RuntimeError("the bench fails it")

        return inbox.perform(reception(inbox, message))

    async def close(self) -> None:
        for transaction in self._opened:
            transaction.close()
        self.engine.dispose()
        self.database.close()


class ConnectionBench(SessionBench):
    def _open(self, **options: Any) -> Connection:
        return self.engine.connect().execution_options(**options)


class AsyncSessionBench(Bench):
    async_handler = True

    def __init__(self, database: SqliteFile | DoorDatabase, scheme: str) -> None:
        super().__init__(database, scheme)
        self.engine = create_async_engine(self.url)
        event.listen(self.engine.sync_engine, "before_cursor_execute", self._count)
        self._opened: list[Any] = []
        self._outbox, self._inbox = AsyncOutbox(max_payload=1000), AsyncInbox("bench", async_sessionmaker(self.engine))

    async def _open(self, **options: Any) -> Any:
        return AsyncSession(self.engine.execution_options(**options))

    async def begin(self) -> Any:
        self._opened.append(await self._open())
        return self._opened[-1]

    async def autocommit(self) -> Any:
        self._opened.append(await self._open(isolation_level="AUTOCOMMIT"))
        return self._opened[-1]

    async def commit(self, transaction: Any) -> None:
        await transaction.commit()

    async def roll_back(self, transaction: Any) -> None:
        await transaction.rollback()

    async def savepoint(self, transaction: Any) -> Any:
        return await transaction.begin_nested()

    async def roll_back_to(self, transaction: Any, savepoint: Any) -> None:
        await savepoint.rollback()

    async def write(self, transaction: Any, what: str) -> None:
        await transaction.execute(EFFECT, {"what": what})

    async def add(self, transaction: Any, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        await self._outbox.add(transaction, *events, on_duplicate=on_duplicate)

    async def first_time(self, transaction: Any, message_id: str) -> bool:
        return await self._inbox.first_time(transaction, message_id)

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> object:
        inbox = AsyncInbox("bench", async_sessionmaker(self.engine))

        async def write_and_fail(session: AsyncSession, event: Event[Any]) -> None:
            await session.execute(EFFECT, {"what": what})
            if fail:
                raise RuntimeError("the bench fails it")

        def write_and_fail_in_sync(session: Session, event: Event[Any]) -> None:
            session.execute(EFFECT, {"what": what})
            if fail:
                raise RuntimeError("the bench fails it")

        inbox.handler("OrderPlaced")(write_and_fail if self.async_handler else write_and_fail_in_sync)
        return await inbox.perform(reception(inbox, message))

    async def close(self) -> None:
        for transaction in self._opened:
            await transaction.close()
        await self.engine.dispose()
        self.database.close()


class AsyncConnectionBench(AsyncSessionBench):
    async_handler = False

    async def _open(self, **options: Any) -> Any:
        connection = await self.engine.connect()
        return await connection.execution_options(**options)


SYNC, ASYNC = [SessionBench, ConnectionBench], [AsyncSessionBench, AsyncConnectionBench]


@pytest.mark.parametrize("bench", [*SYNC, *ASYNC])
@pytest.mark.parametrize("rule", rules_of(DoorContract, Bench.features))
async def test_sqlite(rule: str, bench: type[SessionBench]) -> None:
    await check(DoorContract, rule, bench(SqliteFile(), "sqlite" if bench in SYNC else "sqlite+aiosqlite"))


@pytest.mark.parametrize(
    ("bench", "driver"),
    [(bench, "psycopg") for bench in (*SYNC, *ASYNC)] + [(bench, "asyncpg") for bench in ASYNC],
)
@pytest.mark.parametrize("rule", rules_of(DoorContract, FEATURES))
async def test_postgres(rule: str, bench: type[SessionBench], driver: str, doors: str) -> None:
    await check(DoorContract, rule, bench(DoorDatabase(doors), f"postgresql+{driver}"))
