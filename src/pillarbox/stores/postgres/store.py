"""The PostgreSQL store: joins lanes, log, records, retention and tables on two connections.

One connection reads and settles, so that nothing else delays it; the other one does everything that is not urgent. A
third one listens for the doorbell, where no pooler stands between.
"""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.insert import check_identifier
from pillarbox.core.routing import Line, Topics
from pillarbox.core.window import Settlement
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.facts import PostgresFacts
from pillarbox.ports import (
    Away,
    Clock,
    DeadGroup,
    Deed,
    Holding,
    Pause,
    Query,
    Record,
    Replay,
    Retention,
    SchemaStatus,
    Stats,
    Watched,
)
from pillarbox.stores.postgres.adopt import adopt
from pillarbox.stores.postgres.canary import Canaries
from pillarbox.stores.postgres.checks import check_server
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.doorbell import Doorbell
from pillarbox.stores.postgres.facts import Looking
from pillarbox.stores.postgres.lanes import LaneTable
from pillarbox.stores.postgres.log import Log
from pillarbox.stores.postgres.mending import Mending
from pillarbox.stores.postgres.records import Finder
from pillarbox.stores.postgres.replaying import Replaying
from pillarbox.stores.postgres.retention import Pruner
from pillarbox.stores.postgres.schema import Tables
from pillarbox.stores.postgres.slot import Slot
from pillarbox.stores.postgres.stats import Overview
from pillarbox.telemetry.hooks import Hooks

PROGRESS = timedelta(milliseconds=250)
"""How often progress inside a batch is stored. A crash repeats what came after it."""


class PostgresStore:
    """An outbox in PostgreSQL, for the relay and the admin service."""

    def __init__(
        self,
        url: str,
        *,
        owner: str,
        schema: str = "public",
        prefix: str = "pillarbox_",
        lease: timedelta,
        topics: Topics,
        clock: Clock,
        hooks: Hooks,
        window: int = 2000,
        progress: timedelta = PROGRESS,
    ) -> None:
        check_identifier("schema", schema)
        check_identifier("prefix", prefix)
        place = f"{schema}.{prefix}"
        self._place = place
        self._reading, self._chores = Connection(url, "pillarbox relay"), Connection(url, "pillarbox")
        self._doorbell = Doorbell(url, f"{prefix}outbox")
        self._tables = Tables(schema, prefix)
        self._lanes = LaneTable(place, owner, lease)
        self._log = Log(
            place, self._reading, self._lanes, topics, clock, hooks,
            progress=progress.total_seconds(), window=window,
        )  # fmt: skip
        self._finder = Finder(place)
        self._slot = Slot(place)
        self._overview = Overview(place, self._finder)
        self._mending = Mending(place, self._finder)
        self._replaying = Replaying(place, self._finder)
        self._pruner = Pruner(place)
        self._canaries = Canaries(place, self._finder)
        self._looking = Looking(self._tables, clock)
        self._one_holder = asyncio.Lock()

    async def open(self) -> None:
        await self._chores.open()

    async def close(self) -> None:
        await self._doorbell.close()
        await self._reading.close()
        await self._chores.close()
        self._forget()

    async def check(self) -> None:
        await check_server(self._chores, self._place)
        await self._tables.check(self._chores)

    async def status(self) -> SchemaStatus:
        return await self._tables.status(self._chores)

    async def facts(self) -> PostgresFacts:
        return await self._looking.facts(self._chores, self._reading)

    async def up(self) -> Sequence[int]:
        await check_server(self._chores, self._place)
        return await self._tables.up(self._chores)

    def sql(self) -> str:
        return self._tables.sql()

    def roles(self) -> str:
        return self._tables.roles()

    @property
    def blocked(self) -> frozenset[Line]:
        return self._log.blocked

    async def entries(self, room: int) -> Sequence[Entry]:
        try:
            return await self._log.entries(room)
        except LaneLost:
            self._forget()
            raise
        except StoreUnavailable as error:  # what we know may not hold on the server that answers next
            self._forget()
            raise LaneLost(str(error)) from error

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        if not settlements:
            return
        try:
            await self._log.settle(settlements)
        except LaneLost:
            self._forget()
            raise
        except StoreUnavailable as error:
            self._forget()
            raise LaneLost(str(error)) from error

    def hold(self, topics: frozenset[str]) -> None:
        self._log.hold(topics)

    async def wait(self, seconds: float) -> None:
        self._doorbell.listen(self._log.ring, direct=self._chores.direct_backend is not None)
        await self._log.wait(seconds)

    async def take(self) -> Holding:
        async with self._one_holder:
            behind = frozenset[str]()
            try:
                if taken := await self._lanes.take(self._chores):
                    behind = await self._log.load(taken, self._chores)
            except BaseException as error:
                held = self._log.holds
                self._forget()
                if held and isinstance(error, StoreUnavailable):  # what was given out is forgotten: they must know
                    raise LaneLost(str(error)) from error
                raise
            return self._lanes.holding._replace(behind=behind)

    async def renew(self, away: Away | None) -> Holding:
        async with self._one_holder:
            try:
                return await self._lanes.renew(self._chores, away)
            except LaneLost:
                self._forget()
                raise

    async def release(self, lanes: Collection[int] | None = None) -> None:
        async with self._one_holder:
            if lanes is None:
                if self._lanes.epochs and self._log.holds:
                    await self._log.save()
                await self._lanes.release(self._chores, None)
                self._forget()
            elif lanes:
                await self._log.release(lanes)
                await self._lanes.release(self._chores, lanes)

    def _forget(self) -> None:
        self._lanes.forget()
        self._log.forget()

    async def stats(self) -> Stats:
        return await self._overview.stats(self._chores)

    async def find(self, query: Query) -> Sequence[Record]:
        return await self._finder.find(self._chores, query)

    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        return await self._finder.group_dead(self._chores, query)

    async def retry(self, query: Query) -> int:
        if query.side == "outbox":
            await self._slot.refuse(self._chores, "retry")
        return await self._mending.retry(self._chores, query)

    async def edit(self, event_id: str, data: str | bytes) -> int:
        await self._slot.refuse(self._chores, "retry")
        return await self._mending.edit(self._chores, event_id, data)

    async def drop(self, query: Query) -> int:
        return await self._mending.drop(self._chores, query)

    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        await self._slot.refuse(self._chores, "replay")
        return await self._replaying.begin(self._chores, id, query, again, to, rate)

    async def replay(self, id: str) -> Replay | None:
        await self._slot.refuse(self._chores, "replay")
        return await self._replaying.go_on(self._chores, id)

    async def find_replay(self, id: str) -> Replay | None:
        return await self._replaying.find(self._chores, id)

    async def resume_replay(self, id: str) -> None:
        await self._replaying.resume(self._chores, id)

    async def write_down(self, what: str) -> int:
        return await self._replaying.write_down(self._chores, what)

    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        await self._slot.refuse(self._chores, "pause")
        return await self._mending.pause(self._chores, topic, who, why)

    async def resume(self, topic: str) -> bool:
        return await self._mending.resume(self._chores, topic)

    async def deeds(self, since: datetime | None = None, limit: int = 100) -> Sequence[Deed]:
        return await self._mending.deeds(self._chores, since, limit)

    async def add_canary(self, event: Event[Any]) -> None:
        await self._canaries.add(self._chores, event)

    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        return await self._pruner.prune(self._chores, retention, deed)

    async def adopt(self) -> int:
        return await adopt(self._chores, self._place)

    async def watch(self) -> Watched | None:
        return await self._slot.watch(self._chores)

    async def watch_slot(self, name: str) -> None:
        await self._slot.begin(self._chores, name)

    async def unwatch(self) -> None:
        await self._slot.end(self._chores)
