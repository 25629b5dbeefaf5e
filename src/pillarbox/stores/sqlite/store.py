"""The SQLite store: joins lanes, log, records, retention and tables on one connection, in one thread."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.insert import check_identifier
from pillarbox.core.routing import Line, Topics
from pillarbox.core.window import Settlement
from pillarbox.errors import ConfigError, LaneLost, SchemaMismatch, StoreError
from pillarbox.facts import SqliteFacts
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
)
from pillarbox.stores.sqlite.canary import Canaries
from pillarbox.stores.sqlite.connection import Connection, no_file
from pillarbox.stores.sqlite.facts import look
from pillarbox.stores.sqlite.lanes import PREFIX, LaneGroup
from pillarbox.stores.sqlite.log import Log
from pillarbox.stores.sqlite.mending import Mending
from pillarbox.stores.sqlite.records import Finder
from pillarbox.stores.sqlite.replaying import Replaying
from pillarbox.stores.sqlite.retention import Pruner
from pillarbox.stores.sqlite.schema import NEEDED, Tables
from pillarbox.stores.sqlite.stats import Overview
from pillarbox.telemetry.hooks import Hooks

FIRST_LOOK, LONGEST_LOOK = 0.0015, 0.02
"""Seconds between two looks at the doorbell, while waiting."""

P = ParamSpec("P")
R = TypeVar("R")


class SqliteStore:
    """An outbox in an SQLite file, for the relay and the admin service."""

    def __init__(
        self,
        path: str,
        *,
        owner: str,
        prefix: str = PREFIX,
        lease: timedelta,
        topics: Topics,
        clock: Clock,
        hooks: Hooks,
    ) -> None:
        check_identifier("prefix", prefix)
        self._path, self._prefix = path, prefix
        self._connection = Connection(path)
        self._tables = Tables(path, prefix)
        file = os.path.abspath(path)  # the working directory may change
        self._lanes = LaneGroup(file, owner, prefix, lease, clock)
        self._log = Log(owner, prefix, topics, self._lanes, clock, hooks)
        self._finder = Finder(prefix)
        self._overview = Overview(prefix, self._finder, file, clock)
        self._mending = Mending(prefix, self._finder, clock)
        self._replaying = Replaying(prefix, self._finder, clock)
        self._pruner = Pruner(prefix, clock)
        self._canaries = Canaries(prefix, self._finder, clock)
        self._one_reader = asyncio.Lock()
        self._heard: object = None
        self._taken_in = 0

    async def open(self) -> None:
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()
        self._lanes.forget()
        self._log.forget()

    async def check(self) -> None:
        await self._connection.run(self._tables.check)

    async def status(self) -> SchemaStatus:
        try:
            return await self._connection.run(self._tables.status)
        except SchemaMismatch:  # no file, so no tables
            return SchemaStatus(0, NEEDED, instead=no_file(self._path))

    async def facts(self) -> SqliteFacts:
        return await asyncio.to_thread(look, self._path, self._prefix)

    async def up(self) -> Sequence[int]:
        await self._connection.create()
        return await self._connection.run(self._tables.up)

    def sql(self) -> str:
        return self._tables.sql()

    def roles(self) -> str:
        raise ConfigError("SQLite has no roles: who may open the file may do everything")

    async def adopt(self) -> int:
        raise StoreError("an SQLite file belongs to no cluster: a copy of it can be used as it is, nothing to adopt")

    @property
    def blocked(self) -> frozenset[Line]:
        return self._log.blocked

    async def entries(self, room: int) -> Sequence[Entry]:
        async with self._one_reader:
            self._heard = self._connection.bell()  # before reading: what is committed meanwhile ends the next wait
            entries = await self._held(self._log.entries, room)
            self._log.claimed()  # a caller that was cancelled does not come here: the next one gets them
            return entries

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        if settlements:
            await self._held(self._log.settle, settlements)

    def hold(self, topics: frozenset[str]) -> None:
        self._log.held = topics

    async def wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline, look = loop.time() + seconds, FIRST_LOOK
        if self._heard is None:
            self._heard = self._connection.bell()
        while self._connection.bell() == self._heard and (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(look, left))
            look = min(look * 1.5, LONGEST_LOOK)

    async def take(self) -> Holding:
        return await self._held(self._take)

    def _take(self, db: sqlite3.Connection) -> Holding:
        behind = frozenset[str]()
        with self._lanes.taking(db) as taken:
            if taken:
                self._taken_in = self._connection.opened
                self._log.load(db)
                behind = self._log.behind(db)
        return self._lanes.holding._replace(behind=behind)

    async def renew(self, away: Away | None) -> Holding:
        await self._held(self._lanes.renew, away)
        return self._lanes.holding

    async def release(self, lanes: Collection[int] | None = None) -> None:
        if lanes is None or lanes:  # one group: some is all
            await self._held(self._release)

    def _release(self, db: sqlite3.Connection) -> None:
        self._lanes.release(db)
        self._log.forget()

    async def _held(self, work: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Do what needs the lanes; if they are lost, forget everything at once, in the thread that knows it first."""

        def job(db: sqlite3.Connection) -> R:
            try:
                self._check_file()
                return work(db, *args, **named)
            except LaneLost:
                self._lanes.forget()
                self._log.forget()
                raise

        return await self._connection.run(job)

    def _check_file(self) -> None:
        if self._lanes.holding.lanes and self._taken_in != self._connection.opened:
            raise LaneLost(f"the database {self._connection.path} was replaced by another file; it is opened anew")

    async def stats(self) -> Stats:
        return await self._connection.run(self._overview.stats)

    async def find(self, query: Query) -> Sequence[Record]:
        return await self._connection.run(self._finder.find, query)

    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        return await self._connection.run(self._finder.group_dead, query)

    async def retry(self, query: Query) -> int:
        return await self._connection.run(self._mending.retry, query)

    async def edit(self, event_id: str, data: str | bytes) -> int:
        return await self._connection.run(self._mending.edit, event_id, data)

    async def drop(self, query: Query) -> int:
        return await self._connection.run(self._mending.drop, query)

    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        return await self._connection.run(self._replaying.begin, id, query, again, to, rate)

    async def replay(self, id: str) -> Replay | None:
        return await self._connection.run(self._replaying.go_on, id)

    async def find_replay(self, id: str) -> Replay | None:
        return await self._connection.run(self._replaying.find, id)

    async def resume_replay(self, id: str) -> None:
        await self._connection.run(self._replaying.resume, id)

    async def write_down(self, what: str) -> int:
        return await self._connection.run(self._replaying.write_down, what)

    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        return await self._connection.run(self._mending.pause, topic, who, why)

    async def resume(self, topic: str) -> bool:
        return await self._connection.run(self._mending.resume, topic)

    async def deeds(self, since: datetime | None = None, limit: int = 100) -> Sequence[Deed]:
        return await self._connection.run(self._mending.deeds, since, limit)

    async def add_canary(self, event: Event[Any]) -> None:
        await self._connection.run(self._canaries.add, event)

    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        return await self._connection.run(self._pruner.prune, retention, deed)
