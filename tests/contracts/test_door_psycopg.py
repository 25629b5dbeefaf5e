"""The door for psycopg keeps the contract: in plain transactions, and in the transaction blocks of autocommit."""

import asyncio
from typing import Any

import psycopg
import pytest

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate
from pillarbox.core.message import Message
from pillarbox.psycopg import AsyncInbox, AsyncOutbox, Inbox, Outbox
from pillarbox.testing.contracts.door import DoorContract
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.sqlite3_door import reception
from tests.contracts.postgres_doors import EFFECT, FEATURES, PostgresBench, Wire


class SyncBench(PostgresBench):
    autocommits = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._wire = Wire()
        self._opened: list[Any] = []
        self._outbox, self._inbox = Outbox(max_payload=1000), Inbox("bench", self._open)

    def _open(self, **options: Any) -> Any:
        connection = psycopg.connect(self.database.url, **options)
        self._opened.append(connection)
        self._wire.trace(connection)
        return connection

    async def begin(self) -> Any:
        connection = self._open(autocommit=self.autocommits)
        if self.autocommits:
            connection.execute("BEGIN")
        return connection

    async def autocommit(self) -> Any:
        return self._open(autocommit=True)

    async def commit(self, transaction: Any) -> None:
        transaction.commit()

    async def roll_back(self, transaction: Any) -> None:
        transaction.rollback()

    async def savepoint(self, transaction: Any) -> Any:
        block = transaction.transaction()
        block.__enter__()
        return block

    async def roll_back_to(self, transaction: Any, savepoint: Any) -> None:
        undo = psycopg.Rollback()
        savepoint.__exit__(type(undo), undo, None)

    async def write(self, transaction: Any, what: str) -> None:
        transaction.execute(EFFECT.format(what))

    async def add(self, transaction: Any, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        self._outbox.add(transaction, *events, on_duplicate=on_duplicate)

    async def first_time(self, transaction: Any, message_id: str) -> bool:
        return await asyncio.to_thread(self._inbox.first_time, transaction, message_id)

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> object:
        inbox = Inbox("bench", lambda: self._open(autocommit=self.autocommits))

        @inbox.handler("OrderPlaced")
        def write_and_fail(connection: psycopg.Connection[Any], event: Event[Any]) -> None:
            connection.execute(EFFECT.format(what).encode())
            if fail:
                raise RuntimeError("the bench fails it")

        return inbox.perform(reception(inbox, message))

    def round_trips(self) -> int:
        return self._wire.round_trips()

    async def close(self) -> None:
        self._wire.close()
        for connection in self._opened:
            connection.close()
        self.database.close()


class BlockBench(SyncBench):
    """A transaction in a connection that is else in autocommit."""

    autocommits = True


class AsyncBench(PostgresBench):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._wire = Wire()
        self._opened: list[Any] = []
        self._outbox, self._inbox = AsyncOutbox(max_payload=1000), AsyncInbox("bench", self._open)

    async def _open(self, **options: Any) -> Any:
        connection = await psycopg.AsyncConnection.connect(self.database.url, **options)
        self._opened.append(connection)
        self._wire.trace(connection)
        return connection

    async def begin(self) -> Any:
        return await self._open()

    async def autocommit(self) -> Any:
        return await self._open(autocommit=True)

    async def commit(self, transaction: Any) -> None:
        await transaction.commit()

    async def roll_back(self, transaction: Any) -> None:
        await transaction.rollback()

    async def savepoint(self, transaction: Any) -> Any:
        block = transaction.transaction()
        await block.__aenter__()
        return block

    async def roll_back_to(self, transaction: Any, savepoint: Any) -> None:
        undo = psycopg.Rollback()
        await savepoint.__aexit__(type(undo), undo, None)

    async def write(self, transaction: Any, what: str) -> None:
        await transaction.execute(EFFECT.format(what))

    async def add(self, transaction: Any, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        await self._outbox.add(transaction, *events, on_duplicate=on_duplicate)

    async def first_time(self, transaction: Any, message_id: str) -> bool:
        return await self._inbox.first_time(transaction, message_id)

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> object:
        inbox = AsyncInbox("bench", self._open)

        @inbox.handler("OrderPlaced")
        async def write_and_fail(connection: psycopg.AsyncConnection[Any], event: Event[Any]) -> None:
            await connection.execute(EFFECT.format(what).encode())
            if fail:
                raise RuntimeError("the bench fails it")

        return await inbox.perform(reception(inbox, message))

    def round_trips(self) -> int:
        return self._wire.round_trips()

    async def close(self) -> None:
        self._wire.close()
        for connection in self._opened:
            await connection.close()
        self.database.close()


@pytest.mark.parametrize("bench", [SyncBench, BlockBench, AsyncBench])
@pytest.mark.parametrize("rule", rules_of(DoorContract, FEATURES))
async def test_psycopg(rule: str, bench: type[SyncBench], doors: str) -> None:
    await check(DoorContract, rule, bench(doors))
