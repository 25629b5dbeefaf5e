"""Writers commit late, roll back and do not wait for the disk, while a slot is read in steps: nothing is settled that
was not carried, and in the end everything is."""

import random
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from pillarbox.core.event import Event
from pillarbox.psycopg import Outbox
from tests.conftest import skip_unless_ours
from tests.integration.postgres_bench import Bench, InSql, opened
from tests.integration.postgres_slot import Carried, drop_slots

WRITERS = 4
SECONDS = 2.0
_ID = re.compile(r"table public\.pillarbox_outbox: INSERT: .* id\[bigint\]:(\d+)")


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    skip_unless_ours()
    async with opened(database) as bench:
        yield bench
        drop_slots(bench)


@contextmanager
def writing(url: str, seed: int) -> Iterator[None]:
    """Let writers work until the block ends."""
    stop = threading.Event()

    def write(chance: random.Random) -> None:
        with psycopg.connect(url) as connection:
            while not stop.is_set():
                connection.execute(f"SET LOCAL synchronous_commit = {chance.choice(['on', 'off'])}".encode())
                for n in range(chance.randint(1, 3)):
                    with connection.transaction(force_rollback=chance.random() < 0.1):
                        Outbox().add(connection, Event("X", {}, aggregate=("order", n)))
                    stop.wait(chance.random() * 0.01)
                if chance.random() < 0.15:
                    connection.rollback()
                else:
                    connection.commit()

    threads = [threading.Thread(target=write, args=(random.Random(seed * 100 + n),)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Stepwise:
    """Reads a slot to a place of its choice, and remembers what it was given up to there."""

    def __init__(self, bench: Bench, slot: str) -> None:
        self._bench, self._slot, self.given = bench, slot, set[int]()

    def go_on(self, share: float) -> None:
        """Read and confirm a share of what there is."""
        place = self._bench.one(
            "SELECT (confirmed_flush_lsn + trunc((pg_current_wal_flush_lsn() - confirmed_flush_lsn) * %s::numeric))"
            "::text FROM pg_replication_slots WHERE slot_name = %s",
            [share, self._slot],
        )
        rows = self._bench.sql("SELECT data FROM pg_logical_slot_peek_changes(%s, %s, NULL)", [self._slot, place])
        self.given |= {int(found[1]) for [line] in rows if (found := _ID.match(line))}
        self._bench.sql("SELECT pg_replication_slot_advance(%s, %s)", [self._slot, place])


async def settled_too_early(bench: Bench, seed: int) -> set[int]:
    """Watch a slot that is read in steps; give what was settled before it was carried."""
    carried, chance = await Carried.of(bench), random.Random(seed)
    reader = Stepwise(bench, carried.slot)
    early: set[int] = set()
    with writing(bench.url, seed):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and not early:
            reader.go_on(chance.choice([0, 0.3, 0.7, 1]))
            watched = await carried.watch()
            assert watched.doubt is None
            early = {id for [id] in bench.sql("SELECT id FROM pillarbox_events WHERE status = 'published'")}
            early -= reader.given
            if chance.random() < 0.1:
                await carried.prune()
    if not early:
        carried.beat()
        for _ in range(3):
            await carried.watch()
            carried.beat()
            reader.go_on(1)
        await carried.watch()
        assert bench.sql("SELECT id FROM pillarbox_events WHERE status <> 'published'") == []
        assert len(reader.given) > 50, "so few events prove nothing"
    return early


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_settled_before_it_was_carried_and_everything_in_the_end(bench: Bench, seed: int) -> None:
    assert await settled_too_early(bench, seed) == set()


@pytest.mark.parametrize(
    "mutant",
    [
        InSql("watch", {"t.whole, passed.s,": "t.whole, pg_current_snapshot(),"}),
        InSql("watch", {"(SELECT max(p.floor_id) FROM public.pillarbox_positions(-1) p)": "passed.m"}),
        InSql("watch", {"WHERE t.w <= seen.confirmed": "WHERE true"}),
    ],
    ids=["the snapshot of the moment", "by ids", "any place"],
)
async def test_a_broken_rule_is_noticed(bench: Bench, mutant: InSql, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.break_rule(mutant, monkeypatch)
    assert await settled_too_early(bench, 1) != set()
