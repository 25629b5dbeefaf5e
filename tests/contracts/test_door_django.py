"""The door for Django keeps the contract, on PostgreSQL and on SQLite."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import pytest

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate
from pillarbox.core.message import Message
from pillarbox.django import Inbox, Outbox
from pillarbox.testing.contracts.door import DoorContract
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.sqlite3_door import SqliteFile, reception
from tests.contracts.postgres_doors import EFFECT, FEATURES, DoorDatabase
from tests.integration.django_settings import connections, django_database, transaction

Made = TypeVar("Made")


class DjangoTransaction:
    """A thread with a connection of its own, as every request has one."""

    def __init__(self, alias: str, count: Callable[..., Any]) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._alias, self._count = alias, count
        self._atomic: Any = None

    async def do(self, work: Callable[[Any], Made]) -> Made:
        """Do something with the connection, in its thread."""
        run = copy_context().run  # as Django's own way into a thread does
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: run(lambda: work(connections[self._alias]))
        )

    async def begin(self) -> None:
        def enter(connection: Any) -> None:
            connection.execute_wrappers.append(self._count)
            self._atomic = transaction.atomic(using=self._alias)
            self._atomic.__enter__()

        await self.do(enter)

    async def end(self, *, commit: bool) -> None:
        def leave(connection: Any) -> None:
            connection.needs_rollback = not commit
            self._atomic.__exit__(None, None, None)

        await self.do(leave)

    async def close(self) -> None:
        await self.do(lambda connection: connection.close())
        self._thread.shutdown()


class DjangoBench:
    features = FEATURES

    def __init__(self, database: SqliteFile | DoorDatabase) -> None:
        self.database = database
        self._alias = django_database(database.path if isinstance(database, SqliteFile) else database.url)
        self._opened: list[DjangoTransaction] = []
        self._calls = 0
        self._outbox, self._inbox = Outbox(max_payload=1000), Inbox("bench", self._alias)

    def _count(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self._calls += 1
        return execute(sql, params, many, context)

    async def autocommit(self) -> DjangoTransaction:
        self._opened.append(DjangoTransaction(self._alias, self._count))
        return self._opened[-1]

    async def begin(self) -> DjangoTransaction:
        opened = await self.autocommit()
        await opened.begin()
        return opened

    async def commit(self, transaction: DjangoTransaction) -> None:
        await transaction.end(commit=True)

    async def roll_back(self, transaction: DjangoTransaction) -> None:
        await transaction.end(commit=False)

    async def savepoint(self, transaction: DjangoTransaction) -> Any:
        return await transaction.do(lambda connection: connection.savepoint())

    async def roll_back_to(self, transaction: DjangoTransaction, savepoint: Any) -> None:
        await transaction.do(lambda connection: connection.savepoint_rollback(savepoint))

    async def write(self, transaction: DjangoTransaction, what: str) -> None:
        await transaction.do(lambda connection: connection.cursor().execute(EFFECT.format(what)))

    async def add(
        self, transaction: DjangoTransaction, *events: Event[Any], on_duplicate: OnDuplicate = "raise"
    ) -> None:
        await transaction.do(lambda _: self._outbox.add(*events, using=self._alias, on_duplicate=on_duplicate))

    async def first_time(self, transaction: DjangoTransaction, message_id: str) -> bool:
        return await transaction.do(lambda _: self._inbox.first_time(message_id))

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> object:
        inbox = Inbox("bench", self._alias)

        @inbox.handler("OrderPlaced")
        def write_and_fail(connection: Any, event: Event[Any]) -> None:
            connection.cursor().execute(EFFECT.format(what))
            if fail:
                raise RuntimeError("the bench fails it")

        opened = await self.autocommit()
        return await opened.do(lambda _: inbox.perform(reception(inbox, message)))

    def round_trips(self) -> int:
        return self._calls

    async def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        return self.database.rows(table)

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()
        self.database.close()


@pytest.mark.parametrize("rule", rules_of(DoorContract, FEATURES))
async def test_postgres(rule: str, doors: str) -> None:
    await check(DoorContract, rule, DjangoBench(DoorDatabase(doors)))


@pytest.mark.parametrize("rule", rules_of(DoorContract, FEATURES))
async def test_sqlite(rule: str) -> None:
    await check(DoorContract, rule, DjangoBench(SqliteFile()))
