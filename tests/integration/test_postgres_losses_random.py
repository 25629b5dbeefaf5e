"""The PostgreSQL store under random work: open transactions, several relays, crashes, sleeps, pauses, failures.

Two or three relays share the lanes, each with the real window before a broker that is a list. Writers keep several
transactions open, with savepoints, and prepare some; of one aggregate only one transaction holds the lock, as a row
lock would have it. A seed that fails repeats by itself.
"""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt, Untouched, Verdict
from pillarbox.core.routing import LANES, Topic, Topics
from pillarbox.core.window import Window
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.ports import Query, Retention
from pillarbox.stores.postgres import reading
from pillarbox.testing.contracts.store_bench import replayed
from tests.integration.postgres_bench import VERSIONS, Bench, InSql, Transaction, opened

TOPICS = ("orders", "invoices", "letters")
AGGREGATES = tuple("abcdefgh")
LEASE = 5.0
STEPS = 200


class Writer:
    """A transaction that is open: what it has added, which aggregates it has locked."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.added: list[str] = []
        self.locked: set[str] = set()
        self.prepared: str | None = None


class Relay:
    """A store, its window, and what is on its way to the broker."""

    def __init__(self, world: "World", owner: str) -> None:
        self.world, self.owner = world, owner
        self.flying: list[tuple[int, Entry, int]] = []
        self.sends = 0
        self.share = LANES

    async def start(self) -> None:
        world = self.world
        progress = timedelta(seconds=world.chance.choice((0, 0, 3600)))
        self.store = await world.bench.store(
            self.owner, topics=world.topics, lease=timedelta(seconds=LEASE), progress=progress, window=6
        )
        self.window: Window[Entry] = Window(50, Topics(world.topics).line_of, prefix_safe=world.chance.random() < 0.5)
        self.failed: set[tuple[int, str, str]] = set()
        await self.take()

    async def take(self) -> None:
        self.share = (await self.store.take()).share

    async def work(self, deed: Callable[[], Awaitable[None]]) -> None:
        """Do something; who has lost lanes forgets everything and begins anew, as the relay does."""
        try:
            await deed()
        except LaneLost:
            self.world.struck["lost"] += 1
            self.lose()
            await self.work(self.store.release)
        except StoreUnavailable:
            self.world.struck["away"] += 1

    def lose(self) -> None:
        """Forget what is in flight; it may still arrive."""
        self.world.ghosts += [
            (self.owner, send, entry)
            for _, entry, send in self.flying
            if (send, entry.topic, entry.aggregate_id) not in self.failed
        ]
        self.flying = []
        self.window.forget()

    async def read(self) -> None:
        if not self.store._lanes.epochs:
            return
        entries = await self.store.entries(self.world.chance.randint(1, 10))
        self.window.enter(entries, self.world.bench.clock.now())
        self.send()

    def send(self) -> None:
        self.sends += 1
        self.flying += [(ticket, entry, self.sends) for ticket, entry in self.window.ready(self.store.blocked)]

    async def answer(self) -> None:
        """Some of what is in flight is answered. Of one send and line what arrives is a prefix."""
        count = self.world.chance.randint(0, len(self.flying))
        answered, self.flying = self.flying[:count], self.flying[count:]
        verdicts: list[tuple[int, Verdict]] = []
        for ticket, entry, send in answered:
            key = send, entry.topic, entry.aggregate_id
            verdict = Untouched() if key in self.failed else self.world.judge()
            if verdict is PUBLISHED:
                self.world.arrived.append(entry.event_type)
            elif entry.aggregate_id:
                self.failed.add(key)
            verdicts.append((ticket, verdict))
        settlements = self.window.settle(verdicts, self.store.blocked)
        if settlements:
            await self.store.settle(settlements)
            if self.world.chance.random() < 0.1:
                await self.store.settle(settlements)
        self.send()

    async def give_up_surplus(self) -> None:
        """Hand lanes over, if nothing of them is in flight."""
        lanes = sorted(self.store._lanes.epochs)
        if len(lanes) > self.share and not self.window:
            await self.store.release(lanes[self.share :])

    async def renew(self) -> None:
        self.share = (await self.store.renew(None)).share


class World:
    """One database, its writers and relays, and everything that ever reached the broker."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.seed, self.chance = bench, seed, random.Random(seed)
        self.topics = {"letters": Topic(order="global")} if seed % 3 == 0 else {}
        self.writers: list[Writer] = []
        self.relays: list[Relay] = []
        self.ghosts: list[tuple[str, int, Entry]] = []
        self.line_of: dict[str, tuple[str, str]] = {}
        self.arrived: list[str] = []
        self.committed: set[str] = set()
        self.dropped: set[str] = set()
        self.struck: Counter[str] = Counter()
        self.count = self.generation = self.prepared = 0

    # Writers

    async def write(self) -> None:
        """Add events in a transaction, which may stay open."""
        if len(self.writers) < 4:
            self.writers.append(Writer(self.bench.begin()))
        writer = self.chance.choice(self.writers)
        if writer.prepared:
            return
        for _ in range(self.chance.randint(1, 4)):
            savepoint = self.chance.random()
            if savepoint < 0.3:
                writer.transaction.execute("SAVEPOINT here")
            names = self._add(writer)
            if savepoint < 0.15:
                writer.transaction.execute("ROLLBACK TO here")
            else:
                writer.added += names

    def _add(self, writer: Writer) -> list[str]:
        taken = set[str]().union(*(other.locked for other in self.writers if other is not writer))
        names = []
        for aggregate in self.chance.sample(AGGREGATES, self.chance.randint(1, 3)):
            if aggregate not in taken:
                writer.locked.add(aggregate)
                self.count += 1
                names.append(f"E{self.count}")
                topic = self.chance.choice(TOPICS)
                self.line_of[names[-1]] = topic, aggregate
                self.bench.add(names[-1], of=aggregate, topic=topic, within=writer.transaction)
        return names

    async def end(self) -> None:
        """Commit a transaction, or roll it back, or prepare it."""
        if not self.writers:
            return
        writer = self.chance.choice(self.writers)
        if not writer.prepared and writer.added and self.chance.random() < 0.2:
            self.prepared += 1
            writer.prepared = f"{self.bench.url[-12:]}-{self.prepared}"
            writer.transaction.execute(f"PREPARE TRANSACTION '{writer.prepared}'".encode())
            writer.transaction.close()
            return
        self._end(writer, commit=self.chance.random() < 0.8)

    def _end(self, writer: Writer, *, commit: bool) -> None:
        self.writers.remove(writer)
        if writer.prepared:
            self.bench.sql(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{writer.prepared}'")
        else:
            (writer.transaction.commit if commit else writer.transaction.rollback)()
            writer.transaction.close()
        if commit:
            self.committed |= set(writer.added)

    # Relays

    async def start(self) -> None:
        self.generation += 1
        relay = Relay(self, f"relay-{self.generation}")
        await relay.start()
        self.relays.append(relay)

    async def read(self) -> None:
        relay = self.chance.choice(self.relays)
        await relay.work(relay.read)

    async def answer(self) -> None:
        relay = self.chance.choice(self.relays)
        await relay.work(relay.answer)

    async def take(self) -> None:
        relay = self.chance.choice(self.relays)
        await relay.work(relay.take)

    async def give_up_surplus(self) -> None:
        for relay in self.relays:
            await relay.work(relay.give_up_surplus)

    async def crash(self) -> None:
        relay = self.relays.pop(self.chance.randrange(len(self.relays)))
        relay.lose()
        await self.bench.crash(relay.store)
        await self.start()

    async def sleep(self) -> None:
        """One relay sleeps past its lease, and may find its lanes taken; what it had sent may have arrived."""
        asleep = self.chance.choice(self.relays)
        for _ in range(3):
            self.bench.clock.advance(LEASE / 2)
            for relay in self.relays:
                if relay is not asleep:
                    await relay.work(relay.renew)
        for relay in self.relays:
            if relay is not asleep and self.chance.random() < 0.7:
                await relay.work(relay.take)
                await relay.work(relay.read)
        await asleep.work(self.chance.choice((asleep.answer, asleep.renew, asleep.read)))

    async def cut(self) -> None:
        """End a relay's connections."""
        self.bench.sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s",
            [self.chance.choice(("pillarbox", "pillarbox relay"))],
        )

    async def arrive(self) -> None:
        """Something that was on its way when its relay was lost arrives, or never does."""
        if self.ghosts:
            owner, _, entry = self.ghosts.pop(0)
            if self.chance.random() < 0.5:
                self.arrived.append(entry.event_type)
            else:
                self.ghosts = [
                    ghost
                    for ghost in self.ghosts
                    if (ghost[0], ghost[2].topic, ghost[2].aggregate_id) != (owner, entry.topic, entry.aggregate_id)
                ]

    def judge(self) -> Verdict:
        chance = self.chance.random()
        if chance < 0.8:
            return PUBLISHED
        if chance < 0.93:
            return RetryAt(self.bench.clock.now() + timedelta(seconds=self.chance.randint(1, 20)), "no")
        return Dead("never") if chance < 0.96 else Untouched()

    # Operators, on whichever store; one whose connection was cut is asked again

    async def operate(self, deed: Callable[[Any], Awaitable[Any]]) -> None:
        for _ in range(2):
            try:
                await deed(self.chance.choice(self.relays).store)
                return
            except StoreUnavailable:
                self.struck["away"] += 1

    async def pause(self) -> None:
        topic = self.chance.choice(TOPICS)
        await self.operate(lambda store: store.pause(topic, "ada", "why not"))

    async def resume(self) -> None:
        topic = self.chance.choice(TOPICS)
        await self.operate(lambda store: store.resume(topic))

    async def retry(self) -> None:
        await self.operate(lambda store: store.retry(Query(status=("dead",), limit=1000)))

    async def drop(self) -> None:
        await self.operate(lambda store: store.drop(Query(status=("dead",), limit=1)))
        self.dropped |= {
            name for [name] in self.bench.sql("SELECT event_type FROM pillarbox_parked WHERE state = 'dropped'")
        }

    async def replay(self) -> None:
        id = f"replay-{self.chance.random()}"
        await self.operate(lambda store: replayed(store, Query(status=("published",), limit=2), id))

    async def prune(self) -> None:
        retention = Retention(published=timedelta(seconds=self.chance.choice((0, 30))))
        await self.operate(lambda store: store.prune(retention))

    async def time(self) -> None:
        self.bench.clock.advance(self.chance.choice((0.5, 1, 2)))
        for relay in self.relays:
            await relay.work(relay.renew)

    async def work(self, steps: int) -> None:
        deeds: dict[Callable[[], Awaitable[None]], float] = {
            self.write: 8, self.end: 6, self.read: 14, self.answer: 14, self.take: 3, self.give_up_surplus: 3,
            self.crash: 1.5, self.sleep: 1, self.cut: 0.7, self.arrive: 4, self.pause: 2, self.resume: 2.5,
            self.retry: 0.5, self.drop: 0.3, self.replay: 0.3, self.prune: 1, self.time: 3,
        }  # fmt: skip
        for _ in range(steps):
            [deed] = self.chance.choices(list(deeds), list(deeds.values()))
            self.struck[deed.__name__] += 1
            await deed()

    async def finish(self) -> None:
        """Mend everything and publish what is left, with one relay."""
        for writer in list(self.writers):
            self._end(writer, commit=True)
        for topic in TOPICS:
            self.bench.sql("DELETE FROM pillarbox_pauses WHERE topic = %s", [topic])
        for relay in self.relays:
            relay.lose()
            await self.bench.crash(relay.store)
        while self.ghosts:
            await self.arrive()
        self.judge = lambda: PUBLISHED  # type: ignore[method-assign]
        self.bench.clock.advance(3 * LEASE)
        self.relays = []
        await self.start()
        [relay] = self.relays
        idle = rounds = 0
        while idle < 5:
            rounds += 1
            assert rounds < 2000, f"seed {self.seed}: it does not come to an end"
            before = len(self.arrived)
            await self.retry()
            self.bench.clock.advance(2)
            await relay.renew()
            await relay.read()
            while relay.flying:
                await relay.answer()
            await relay.answer()
            idle = idle + 1 if len(self.arrived) == before and not relay.window else 0
        await relay.store.release()  # which stores how far it came
        stats = await relay.store.stats()
        assert (stats.pending, stats.retrying, stats.blocked, stats.dead) == (0, 0, 0, 0), f"seed {self.seed}: {stats}"

    def check(self) -> None:
        arrived, needed = set(self.arrived), self.committed - self.dropped
        assert not arrived - self.committed, f"seed {self.seed}: phantoms {sorted(arrived - self.committed)}"
        assert not needed - arrived, f"seed {self.seed}: lost {self._where(needed - arrived)}"
        first_copies = list(dict.fromkeys(self.arrived))
        for line in {self.line_of[name] for name in self.committed}:
            order = [name for name in first_copies if self.line_of[name] == line]
            assert order == sorted(order, key=lambda name: int(name[1:])), f"seed {self.seed}: {line} came as {order}"

    def _where(self, names: Sequence[str] | set[str]) -> str:
        rows = self.bench.sql(
            "SELECT event_type, id, xid::text, topic, lane FROM pillarbox_outbox WHERE event_type = ANY (%s)",
            [list(names)],
        )
        return json.dumps([list(names), rows])


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


async def run(bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    """Work at random, then publish what is left, and judge."""
    bench.break_rule(InSql("take", {"ORDER BY random()": "ORDER BY lane"}), monkeypatch)  # else a seed does not repeat
    monkeypatch.setattr(reading, "STALE", 0 if seed % 2 else 1e9)
    world = World(bench, seed)
    for _ in range(2 + seed % 2):
        await world.start()
    await world.work(STEPS)
    await world.finish()
    world.check()
    return world


@VERSIONS
@pytest.mark.parametrize("seed", range(10))
async def test_nothing_is_lost_invented_or_out_of_order(
    seed: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(bench, seed, monkeypatch)
