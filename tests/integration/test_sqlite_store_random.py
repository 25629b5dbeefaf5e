"""The SQLite store under random work: pauses, failures, crashes and takeovers; nothing lost, every line in order.

The real window stands between the store and a broker that is a list. A seed that fails repeats by itself.
"""

import random
import sqlite3
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt, Untouched, Verdict
from pillarbox.core.routing import Topics
from pillarbox.core.window import Window
from pillarbox.dbapi import Outbox
from pillarbox.ports import Query, Retention
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.clock import ManualClock

TOPICS = ("orders", "invoices", "letters")
AGGREGATES = ("1", "2", None)


class World:
    """One database, one relay at a time, and everything that ever reached the broker."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.path = str(directory / "shop.db")
        self.chance, self.clock, self.seed = random.Random(seed), ManualClock(), seed
        self.added: list[str] = []
        self.line_of: dict[str, tuple[str, str | None]] = {}
        self.arrived: list[str] = []
        self.struck: Counter[str] = Counter()
        self.topics = Topics()
        self.generation = 0

    async def start(self) -> None:
        """Open a store, as a new process, and let it take over."""
        self.generation += 1
        self.store = SqliteStore(
            self.path,
            owner=f"relay-{self.generation}",
            lease=timedelta(seconds=15),
            topics=self.topics,
            clock=self.clock,
            hooks=Hooks(),
        )
        await self.store.open()
        await self.store.up()
        assert (await self.store.take()).lanes
        prefix_safe = self.chance.random() < 0.5
        self.window: Window[Entry] = Window(50, self.topics.line_of, prefix_safe=prefix_safe)
        self.flying: list[tuple[int, Entry, int]] = []
        self.sends = 0
        self.failed: set[tuple[int, str, str]] = set()

    async def add(self) -> None:
        connection = sqlite3.connect(self.path)
        for _ in range(self.chance.randint(1, 6)):
            topic, aggregate = self.chance.choice(TOPICS), self.chance.choice(AGGREGATES)
            name = f"E{len(self.added)}"
            of = None if aggregate is None else ("order", aggregate)
            Outbox().add(connection, Event(name, {}, aggregate=of, topic=topic))
            self.added.append(name)
            self.line_of[name] = topic, aggregate
        connection.commit()
        connection.close()

    async def read(self) -> None:
        entries = await self.store.entries(self.chance.randint(1, 10))
        self.window.enter(entries, self.clock.now())
        self.send()

    def send(self) -> None:
        self.sends += 1
        self.flying += [(ticket, entry, self.sends) for ticket, entry in self.window.ready(self.store.blocked)]

    async def answer(self) -> None:
        """Some of what is in flight is answered. Of one send and line what arrives is a prefix."""
        count = self.chance.randint(0, len(self.flying))
        answered, self.flying = self.flying[:count], self.flying[count:]
        verdicts: list[tuple[int, Verdict]] = []
        for ticket, entry, send in answered:
            key = send, entry.topic, entry.aggregate_id
            verdict = Untouched() if key in self.failed else self.judge()
            if verdict is PUBLISHED:
                self.arrived.append(entry.event_type)
            elif entry.aggregate_id:
                self.failed.add(key)
            verdicts.append((ticket, verdict))
        settlements = self.window.settle(verdicts, self.store.blocked)
        await self.store.settle(settlements)
        if self.chance.random() < 0.1:
            await self.store.settle(settlements)
        self.send()

    def judge(self) -> Verdict:
        chance = self.chance.random()
        if chance < 0.8:
            return PUBLISHED
        if chance < 0.93:
            return RetryAt(self.clock.now() + timedelta(seconds=self.chance.randint(1, 20)), "no")
        return Dead("never") if chance < 0.96 else Untouched()

    async def crash(self) -> None:
        await self.store.close()
        await self.start()

    async def hand_over(self) -> None:
        await self.store.release()
        await self.crash()

    async def pause(self) -> None:
        await self.store.pause(self.chance.choice(TOPICS), "ada", "why not")

    async def resume(self) -> None:
        await self.store.resume(self.chance.choice(TOPICS))

    async def retry(self) -> None:
        await self.store.retry(Query(status=("dead",), limit=1000))

    async def prune(self) -> None:
        await self.store.prune(Retention(published=timedelta(seconds=self.chance.choice((0, 30)))))

    async def time(self) -> None:
        self.clock.advance(self.chance.randint(1, 10))
        await self.store.renew(None)

    async def work(self, steps: int) -> None:
        deeds = [self.add, self.read, self.answer, self.crash, self.hand_over, self.pause, self.resume]
        deeds += [self.retry, self.prune, self.time]
        weights = [5, 12, 12, 2, 0.5, 2, 2.5, 0.5, 1, 3]
        for _ in range(steps):
            [deed] = self.chance.choices(deeds, weights)
            self.struck[deed.__name__] += 1
            await deed()

    async def finish(self) -> None:
        """Mend everything and publish what is left."""
        self.judge = lambda: PUBLISHED  # type: ignore[method-assign]
        for topic in TOPICS:
            await self.store.resume(topic)
        await self.crash()
        idle = 0
        while idle < 3:
            await self.retry()
            await self.time()
            before = len(self.arrived)
            await self.read()
            while self.flying:
                await self.answer()
            await self.answer()
            idle = idle + 1 if len(self.arrived) == before and not self.window else 0
        stats = await self.store.stats()
        assert (stats.pending, stats.retrying, stats.blocked, stats.dead) == (0, 0, 0, 0)
        await self.store.close()

    def check(self) -> None:
        assert set(self.arrived) == set(self.added), f"seed {self.seed}: lost or invented"
        first_copies = list(dict.fromkeys(self.arrived))
        for line in {(topic, aggregate) for topic, aggregate in self.line_of.values() if aggregate is not None}:
            order = [name for name in first_copies if self.line_of[name] == line]
            assert order == [name for name in self.added if self.line_of[name] == line], f"seed {self.seed}: {line}"


@pytest.mark.parametrize("seed", range(30))
async def test_nothing_is_lost_and_every_line_keeps_its_order(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, seed)
    await world.start()
    await world.work(150)
    await world.finish()
    world.check()
