"""The door for asyncpg keeps the contract: connections of one's own, and those of a pool."""

import asyncio
from typing import Any

import asyncpg
import pytest

from pillarbox.asyncpg import Inbox, Outbox
from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate
from pillarbox.core.message import Message
from pillarbox.testing.contracts.door import DoorContract
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.sqlite3_door import reception
from tests.contracts.postgres_doors import EFFECT, FEATURES, PostgresBench


class ConnectionBench(PostgresBench):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._opened: list[Any] = []
        self._transactions: dict[Any, Any] = {}
        self._calls = 0
        self._outbox, self._inbox = Outbox(max_payload=1000), Inbox("bench", self._connect)

    def _count(self, query: object) -> None:
        self._calls += 1

    async def _connect(self) -> Any:
        self._opened.append(await asyncpg.connect(self.database.url))
        return self._opened[-1]

    async def autocommit(self) -> Any:
        connection = await self._connect()
        connection.add_query_logger(self._count)
        return connection

    async def begin(self) -> Any:
        connection = await self.autocommit()
        self._transactions[connection] = connection.transaction()
        await self._transactions[connection].start()
        await asyncio.sleep(0)
        return connection

    async def commit(self, transaction: Any) -> None:
        await self._transactions[transaction].commit()

    async def roll_back(self, transaction: Any) -> None:
        await self._transactions[transaction].rollback()

    async def savepoint(self, transaction: Any) -> Any:
        block = transaction.transaction()
        await block.start()
        return block

    async def roll_back_to(self, transaction: Any, savepoint: Any) -> None:
        await savepoint.rollback()

    async def write(self, transaction: Any, what: str) -> None:
        await transaction.execute(EFFECT.format(what))
        await asyncio.sleep(0)  # asyncpg logs a query a moment after it

    async def add(self, transaction: Any, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        await self._outbox.add(transaction, *events, on_duplicate=on_duplicate)
        await asyncio.sleep(0)

    async def first_time(self, transaction: Any, message_id: str) -> bool:
        return await self._inbox.first_time(transaction, message_id)

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> object:
        inbox = await self._receiver()

        @inbox.handler("OrderPlaced")
        async def write_and_fail(connection: Any, event: Event[Any]) -> None:
            await connection.execute(EFFECT.format(what))
            if fail:
                raise RuntimeError("the bench fails it")

        return await inbox.perform(reception(inbox, message))

    async def _receiver(self) -> Inbox:
        return Inbox("bench", self._connect)

    def round_trips(self) -> int:
        return self._calls

    async def close(self) -> None:
        for connection in self._opened:
            await connection.close()
        self.database.close()


class PoolBench(ConnectionBench):
    async def _receiver(self) -> Inbox:
        self._opened.append(await asyncpg.create_pool(self.database.url, min_size=1, max_size=1))
        return Inbox("bench", self._opened[-1])

    async def _connect(self) -> Any:
        pool = await asyncpg.create_pool(self.database.url, min_size=1, max_size=1)
        self._opened.append(pool)
        return await pool.acquire()

    async def close(self) -> None:
        for pool in self._opened:
            pool.terminate()
        self.database.close()


@pytest.mark.parametrize("bench", [ConnectionBench, PoolBench])
@pytest.mark.parametrize("rule", rules_of(DoorContract, FEATURES))
async def test_asyncpg(rule: str, bench: type[ConnectionBench], doors: str) -> None:
    await check(DoorContract, rule, bench(doors))
