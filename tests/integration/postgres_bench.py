"""The PostgreSQL store with open transactions beside it, a clock that both go by, and rules taken out on purpose.

A *case* is a story that ends in assertions. It is told to the sound store, which must pass, and to every mutant of it
that the case names, which must fail: a rule without such a mutant could go unnoticed.
"""

import asyncio
import inspect
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import psycopg
import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.routing import Topic, Topics
from pillarbox.core.window import Settled, Settlement
from pillarbox.psycopg import Outbox
from pillarbox.stores.postgres import PostgresStore
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock
from tests.conftest import EVERY_POSTGRES

LEASE = 15.0
ROUNDS = 200
VERSIONS = pytest.mark.parametrize("database", EVERY_POSTGRES, indirect=True)

Transaction = psycopg.Connection[Any]
Story = Callable[["Bench"], Coroutine[Any, Any, None]]
Told = TypeVar("Told", bound=Story)


class InSql(NamedTuple):
    """A rule taken out of one of the database's functions: what stands there, and what stands there instead."""

    function: str
    instead: dict[str, str]


class InPython(NamedTuple):
    """A rule taken out of a class: which attribute becomes what."""

    of: type
    name: str
    value: Any


class InSource(NamedTuple):
    """A rule taken out of a method's own text: what stands there, and what stands there instead."""

    of: type
    name: str
    instead: dict[str, str]


Mutant = InSql | InPython | InSource


class DatabaseClock(ManualClock):
    """A manual clock that the database goes by too: `pillarbox_now()` is the only clock that our statements ask."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._connection = psycopg.connect(url, autocommit=True)

    def install(self) -> None:
        """Replace the database's clock."""
        self._connection.execute("CREATE TABLE test_clock AS SELECT %s::timestamptz AS at", [self.now()])
        self._connection.execute(
            "CREATE OR REPLACE FUNCTION pillarbox_now() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS 'SELECT at FROM public.test_clock'"
        )

    def advance(self, by: timedelta | float) -> None:
        super().advance(by)
        self._connection.execute("UPDATE test_clock SET at = %s", [self.now()])

    def close(self) -> None:
        self._connection.close()


class Bench:
    """One database with the tables, the stores that were opened on it, and the transactions that are open."""

    def __init__(self, url: str) -> None:
        self.url, self.clock = url, DatabaseClock(url)
        self._sql = psycopg.connect(url, autocommit=True)
        self._opened: list[Transaction] = []
        self.stores: list[PostgresStore] = []
        self.dead: list[str] = []
        """The types of the events of whose death the stores have told."""

    async def store(
        self, owner: str = "a", *, topics: dict[str, Topic] | None = None, url: str | None = None, **more: Any
    ) -> PostgresStore:
        """Open a store, as a relay in a process of its own would; every settlement is stored at once."""
        options = {"progress": timedelta(0), "lease": timedelta(seconds=LEASE), "hooks": Hooks(self._hear), **more}
        store = PostgresStore(url or self.url, owner=owner, topics=Topics(topics), clock=self.clock, **options)
        self.stores.append(store)
        await store.open()
        return store

    def _hear(self, moment: Moment, facts: Facts) -> None:
        if moment is Moment.EVENT_DEAD and isinstance(entry := facts["entry"], Entry):
            self.dead.append(entry.event_type)

    async def holder(self, owner: str = "a", **more: Any) -> PostgresStore:
        """Open a store that holds lanes."""
        store = await self.store(owner, **more)
        assert (await store.take()).lanes, f"{owner} got no lanes"
        return store

    async def crash(self, store: PostgresStore) -> None:
        """End a store as kill -9 would end its process: nothing is released."""
        backend = store._chores.direct_backend
        await store.close()
        if backend is not None:
            await until(self, "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %s)", backend[:1])

    async def takeover(self, store: PostgresStore, owner: str, **more: Any) -> PostgresStore:
        """Let a store crash and another one take its lanes."""
        await self.crash(store)
        return await self.holder(owner, **more)

    def begin(self, **more: Any) -> Transaction:
        """Open a connection that is not in autocommit; its transaction begins with its first statement."""
        transaction = psycopg.connect(self.url, **more)
        self._opened.append(transaction)
        return transaction

    def xid(self, transaction: Transaction) -> int:
        """Let a transaction have its id now; give it."""
        row = transaction.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        return int(row[0])

    def add(
        self, *names: str, of: str = "1", topic: str = "orders", within: Transaction | None = None, **more: Any
    ) -> None:
        """Add events, in a transaction of their own or in one that is open."""
        events = [Event(name, {"name": name}, aggregate=("order", of), topic=topic, **more) for name in names]
        if within is not None:
            Outbox().add(within, *events)
            return
        with self._sql.transaction():
            Outbox().add(self._sql, *events)

    def sql(self, text: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own."""
        cursor = self._sql.execute(text.encode() if parameters is None else cast(Any, text), parameters)
        return cursor.fetchall() if cursor.description else []

    def one(self, text: str, parameters: Sequence[Any] | None = None) -> Any:
        """Give the one value that a statement gives."""
        [[value]] = self.sql(text, parameters)
        return value

    def lane(self, of: str) -> int:
        """Give the lane of an aggregate."""
        return int(self.one("SELECT get_byte(sha256(%s::bytea), 0) & 63", [f"order:{of}"]))

    def break_rule(self, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take a rule out."""
        if isinstance(mutant, InPython):
            monkeypatch.setattr(mutant.of, mutant.name, mutant.value)
            return
        if isinstance(mutant, InSource):
            monkeypatch.setattr(mutant.of, mutant.name, _rewritten(mutant))
            return
        definition = str(
            self.one("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", [f"pillarbox_{mutant.function}"])
        )
        self.sql(_replaced(definition, mutant.instead))

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
        for connection in (*self._opened, self._sql):
            connection.close()
        for [prepared] in self._left_prepared():
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(f"ROLLBACK PREPARED '{prepared}'".encode())
        self.clock.close()

    def _left_prepared(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            ).fetchall()


def _rewritten(mutant: InSource) -> Any:
    source = textwrap.dedent(inspect.getsource(getattr(mutant.of, mutant.name)))
    names = dict(vars(sys.modules[mutant.of.__module__]))
    exec(_replaced(source, mutant.instead), names)
    return names[mutant.name]


def _replaced(text: str, instead: dict[str, str]) -> str:
    for rule, other in instead.items():
        assert rule in text, f"{rule!r} does not stand there any more:\n{text}"
        text = text.replace(rule, other)
    return text


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    """Make the tables in an empty database, and let it go by a clock that stands still."""
    bench = Bench(url)
    try:
        store = await bench.store("migrate")
        await store.up()
        bench.clock.install()
        await store.close()
        yield bench
    finally:
        await bench.close()


class Cases:
    """The stories of one file, each with the mutants that it must notice."""

    def __init__(self, mutants: dict[str, Mutant]) -> None:
        self._mutants = mutants
        self._stories: dict[str, tuple[Story, tuple[str, ...]]] = {}

    def notices(self, *mutants: str) -> Callable[[Told], Told]:
        """Note a story, and which broken rules it must notice."""

        def note(story: Told) -> Told:
            assert mutants, f"{story.__name__} notices nothing"
            self._stories[story.__name__] = story, mutants
            return story

        return note

    @property
    def sound(self) -> Iterable[Any]:
        """Every story."""
        return [pytest.param(story, id=name) for name, (story, _) in self._stories.items()]

    @property
    def broken(self) -> Iterable[Any]:
        """Every story with each of its mutants."""
        return [
            pytest.param(story, self._mutants[mutant], id=f"{name}: {mutant}")
            for name, (story, mutants) in self._stories.items()
            for mutant in mutants
        ]

    @property
    def unnoticed(self) -> set[str]:
        """The mutants that no story names."""
        return set(self._mutants) - {mutant for _, mutants in self._stories.values() for mutant in mutants}

    def tests(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[[], None]]:
        """Make the three tests of a file: every story holds, each is missed by its mutants, and no mutant by all."""

        @VERSIONS
        @pytest.mark.parametrize("story", self.sound)
        async def test_the_rule_holds(story: Story, bench: Bench) -> None:
            await story(bench)

        @pytest.mark.parametrize(("story", "mutant"), self.broken)
        async def test_the_rule_is_missed(
            story: Story, mutant: Mutant, bench: Bench, monkeypatch: pytest.MonkeyPatch
        ) -> None:
            bench.break_rule(mutant, monkeypatch)
            with pytest.raises((AssertionError, pytest.fail.Exception)):
                await story(bench)

        def test_every_mutant_is_noticed_somewhere() -> None:
            assert not self.unnoticed

        return test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere


def names(entries: Iterable[Entry]) -> list[str]:
    """List entries by their types."""
    return [entry.event_type for entry in entries]


async def settle(store: PostgresStore, entries: Iterable[Entry], verdict: Settled = PUBLISHED) -> None:
    """Settle entries, all with one verdict."""
    await store.settle([Settlement(entry, verdict) for entry in entries])


async def publish(store: PostgresStore, room: int = 100) -> list[str]:
    """Read and publish until there is nothing more now; give the names in the order in which they came out."""
    published: list[str] = []
    for _ in range(ROUNDS):
        entries = await store.entries(room)
        if not entries:
            return published
        await settle(store, entries)
        published += names(entries)
    raise AssertionError(f"entries come out without end: {published[:5]} and so on")


async def until(bench: Bench, query: str, parameters: Sequence[Any] | None = None) -> None:
    """Wait until a query finds something."""
    for _ in range(300):
        if bench.sql(query, parameters):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"nothing is found by {query} {parameters or ''}")


async def until_waiting(bench: Bench, function: str) -> None:
    """Wait until a statement that calls one of our functions waits for a lock."""
    waiting = "datname = current_database() AND wait_event_type = 'Lock' AND query LIKE %s"
    await until(bench, f"SELECT 1 FROM pg_stat_activity WHERE {waiting}", [f"%{function}(%"])
