"""Consumers in a simulated world: the real consumer and its real programs, on a SQLite database in memory."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pillarbox.core.event import Event
from pillarbox.core.insert import Rows, Statement
from pillarbox.core.message import Delivery
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.errors import BrokerUnavailable
from pillarbox.inbox.consumer import Consumer
from pillarbox.inbox.inbox import Handlers
from pillarbox.inbox.statements import texts_of
from pillarbox.inbox.steps import Call, Program, drive_async
from pillarbox.telemetry.hooks import Hooks
from tests.simulation.faults import Life

if TYPE_CHECKING:
    from tests.simulation.world import World

R = TypeVar("R")
POLICY = RetryPolicy(retries=3)
Copy = tuple[str, str | None]
"""An event's id, and the id of the replay that sent it on purpose."""


@cache
def _empty_database() -> bytes:
    """Make the tables once; a copy costs a quarter of that."""
    with closing(sqlite3.connect(":memory:")) as connection:
        script = files("pillarbox").joinpath("stores/sqlite/schema/0001.sql").read_text()
        connection.executescript(script.replace("{prefix}", "pillarbox_"))
        connection.execute("CREATE TABLE effects (n INTEGER PRIMARY KEY, event_id TEXT, replay TEXT)")
        return connection.serialize()


class Billing:
    """The consumer's database: the inbox tables and one business table. One transaction at a time."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.deserialize(_empty_database())
        self.turn = asyncio.Lock()

    def applied(self) -> list[Copy]:
        """Give event and replay of every effect, in the order of the commits."""
        return self.connection.execute("SELECT event_id, replay FROM effects ORDER BY n").fetchall()

    def retry_dead(self) -> None:
        self.connection.execute(
            "UPDATE pillarbox_inbox_parked SET state = 'retrying', due_at = 0, attempts = 0 WHERE state = 'dead'"
        )

    def waiting(self) -> int:
        sql = "SELECT count(*) FROM pillarbox_inbox_parked WHERE state NOT IN ('handled', 'dropped')"
        return int(self.connection.execute(sql).fetchone()[0])


class ConsumerLife(Life):
    """One life of a consumer's process."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._subscriber = world.broker.subscriber("billing", world.topics)
        self.daemon = Consumer(
            SimulatedInbox(self), lambda: world.parts.subscriber(self, self._subscriber), POLICY, 4, Topics(),
            world.clock, Hooks(self.hear), chance=world.random.random, stores=world.stores,
        )  # fmt: skip

    def die(self) -> None:
        super().die()
        self._subscriber.crash()


class SimulatedSubscriber:
    """The memory broker's far end, unreachable while the broker is away, and silent for the dead."""

    def __init__(self, life: ConsumerLife, subscriber: Any) -> None:
        self._life, self._subscriber = life, subscriber

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        self._check()
        found: Sequence[Delivery] = await self._subscriber.deliveries(room, patience)
        return found

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check()
        await self._subscriber.acknowledge(deliveries)

    async def close(self) -> None:
        if not self._life.dead:
            await self._subscriber.close()

    def _check(self) -> None:
        if self._life.dead:
            raise asyncio.CancelledError("this process is dead")
        if self._life.world.clock.elapsed < self._life.world.down_until:
            raise BrokerUnavailable("simulated: away")


class SimulatedInbox:
    """An inbox whose transactions run on the loop, so that the clock and the faults are the simulation's."""

    is_async: Literal[True] = True
    most_workers = None
    consumer = "billing"

    def __init__(self, life: ConsumerLife) -> None:
        self._life, self._billing = life, life.world.billing
        self.handlers = Handlers("billing", takes_async=True)
        self.texts = texts_of("billing", "sqlite", "?", "pillarbox_")
        for topic in life.world.topics:
            bill = self._bill_all if life.world.batch else self._bill
            self.handlers.register(topic, bill, batch=life.world.batch, replays=True)

    async def _bill_all(self, connection: sqlite3.Connection, events: Sequence[Event[Any]]) -> None:
        for event in events:
            await self._bill(connection, event)

    async def _bill(self, connection: sqlite3.Connection, event: Event[Any]) -> None:
        assert event.delivery is not None
        effect = [str(event.id), event.delivery.replay]
        connection.execute("INSERT INTO effects (event_id, replay) VALUES (?, ?)", effect)
        await asyncio.sleep(self._life.world.random.random() * 0.02)
        if self._life.chance("handler", "raises", 0.03):
            raise ValueError("simulated: the handler fails")

    async def close(self) -> None:
        """The database outlives whoever dies here."""

    async def perform(self, program: Program[R], *, reading: bool = False) -> R:
        connection = self._billing.connection

        async def run(statement: Statement) -> Rows:
            if statement.rows is not None:
                connection.executemany(statement.sql, statement.rows)
                return ()
            return connection.execute(statement.sql, statement.parameters).fetchall()

        async def call(step: Call) -> object:
            return await step.handler(connection, step.given)

        async with self._billing.turn:
            await self._life.strike("inbox begins")
            connection.execute("BEGIN")
            try:
                result = await drive_async(program, run, call)
                if self._life.dead:
                    raise asyncio.CancelledError("this process is dead")
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            await self._life.strike("inbox committed")
        return result
