"""What an operator waits for on a large outbox, and what a relay notices of others' retention."""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import perf_counter, sleep
from typing import Any, NamedTuple

import psycopg

from benchmarks.measure import Goal, Progress, Row, alone, compared, in_turn
from benchmarks.postgres import relays, shop
from pillarbox.admin import looking
from pillarbox.admin.admin import Admin
from pillarbox.bench import drain as bench
from pillarbox.ports import Query, Retention
from pillarbox.relay import chores
from pillarbox.settings import RetentionSettings, Settings
from pillarbox.stores.postgres.stats import COUNTED, WALK
from pillarbox.wiring import open_admin
from servers.postgres import RunningPostgres

AT_ONCE = Retention(published=timedelta(0))
Look = Callable[[Admin, Settings], Awaitable[object]]
UNMATCHED = {
    "--type unknown": Query(type="unknown"),
    "--topic unknown": Query(topic="unknown"),
    "--topic unknown --oldest-first": Query(topic="unknown", newest_first=False),
    "--aggregate order:unknown": Query(aggregate=("order", "unknown")),
    "--type unknown --until 9999": Query(type="unknown", until=datetime.max.replace(tzinfo=UTC) - timedelta(days=9)),
    "--since 2000 --oldest-first --type unknown": Query(
        type="unknown", since=datetime(2000, 1, 1, tzinfo=UTC), newest_first=False
    ),
    "--status dead": Query(status=("dead",)),
    "--status pending --topic unknown": Query(status=("pending",), topic="unknown"),
    "--status pending --topic unknown --oldest-first": Query(status=("pending",), topic="unknown", newest_first=False),
    "--status published": Query(status=("published",)),
}
"""No event matches any of these, but the last, of which the newest are far behind the backlog."""


async def _list(admin: Admin, _: Settings, *, query: Query) -> object:
    return await admin.look_for(query)


LOOKS: dict[str, Look] = {
    "stats": lambda admin, _: admin.figures(),
    "events list": lambda admin, _: admin.look_for(Query()),
    **{f"events list {flags}": partial(_list, query=query) for flags, query in UNMATCHED.items()},
    "health": lambda admin, settings: admin.report(settings),
}
OTHERS = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    " AND pid <> pg_backend_pid()"
)
READ = (
    "SELECT seq_scan, seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid)"
    " FROM pg_stat_user_tables t WHERE relname = 'pillarbox_outbox'"
)
_spawn = multiprocessing.get_context("spawn")


class _Read(NamedTuple):
    walks: int
    """How often the log was read from end to end."""
    rows: int


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    """Look at an outbox of which half is published; then drain, with and without somebody who prunes."""
    deep, times = (60_000, 5) if quick else (3_000_000, 60)
    looking.STRETCH = min(looking.STRETCH, deep // 30)  # else a short log is read as a whole, and rightly so
    tell(f"filling an outbox with {deep:,} events")
    with shop.database(server, deep) as url:
        relays.drain(url, deep // 2)
        shop.settle_down(url)
        name = f"on {deep:,} events, a connection of its own each time, p95"
        found = [_look(url, f"pillarbox {look} {name}", LOOKS[look], times, deep, tell) for look in LOOKS]
    return [*found, *_pruned(server, quick, tell)]


def _pruned(server: RunningPostgres, quick: bool, tell: Progress) -> Iterator[Row]:
    """Drain beside a process that does nothing but prune, beside the relay's own chore, and beside nobody."""
    deep, part = (2_100_000, 150_000) if quick else (4_000_000, 250_000)  # a drain has to last for some prunings
    tell(f"filling an outbox with {deep:,} events")
    with shop.database(server, deep) as url:
        relays.drain(url, deep // 3)
        shop.settle_down(url)
        ways = {
            "pruned": lambda: _drain_pruned(url, part),
            "alone": lambda: relays.drain(url, part),
            "pruning": lambda: _drain_pruning(url, part),
        }
        rates = in_turn("drain while old events are pruned", ways, tell)
    alone = rates["alone"]
    yield compared("drain while others prune, beside none", "events/s", rates["pruned"], alone)
    name = "drain by a relay that prunes, beside one that has nothing to prune"
    yield compared(name, "events/s", rates["pruning"], alone, Goal(">=", 0.9))


def _look(url: str, name: str, look: Look, times: int, deep: int, tell: Progress) -> Row:
    tell(name)
    before = _read(url)
    took = sorted(asyncio.run(_timed(url, look)) for _ in range(times))
    after = _read(url)
    if after.walks != before.walks or after.rows - before.rows > times * _most(deep):
        raise RuntimeError(f"{name}: somebody has walked over the log: {before}, then {after}")
    return alone(name, "ms", took[int(times * 0.95)] * 1000, Goal("<=", 100))


async def _timed(url: str, look: Look) -> float:
    settings = Settings.load(flags={"database": url})
    began = perf_counter()
    async with open_admin(settings) as admin:
        await look(admin, settings)
    return perf_counter() - began


def _most(deep: int) -> int:
    """Say how many rows a look may read, or entries of an index, which a count prefers: no more of a longer log."""
    return min(deep // 2, WALK) + 3 * COUNTED + 2 * looking.STRETCH


def _read(url: str) -> _Read:
    """Say what has been read of the log so far, once those are gone who read it: they tell when they end."""
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(OTHERS).fetchall():
            sleep(0.01)
        [row] = connection.execute(READ).fetchall()
        return _Read(*map(int, row))


def _drain_pruned(url: str, part: int) -> float:
    with _pruning(url):
        return relays.drain(url, part)


def _drain_pruning(url: str, part: int) -> float:
    """Drain as a relay does that keeps nothing of what it has published: behind the first batch comes the next."""
    before = _kept(url)
    settings = replace(shop.place_at(url).settings, retention=RetentionSettings(published=timedelta(0)))
    drained = bench.drain(replace(shop.place_at(url), settings=settings), part, _relaying_and_pruning)
    if (pruned := before - _kept(url)) < chores.MANY:
        raise RuntimeError(f"the relay has pruned {pruned} events: what was measured is a relay alone")
    return drained.rate


def _relaying_and_pruning(*arguments: Any) -> None:
    chores.PRUNE_FIRST = timedelta(0)  # else all is drained before it begins
    bench.relaying(*arguments)


def _kept(url: str) -> int:
    with psycopg.connect(url) as connection:
        [[kept]] = connection.execute("SELECT count(*) FROM pillarbox_outbox").fetchall()
        return int(kept)


@contextmanager
def _pruning(url: str) -> Iterator[None]:
    """Prune in a process of its own what is published, as long as there is something."""
    pruner = _spawn.Process(target=_prune, args=(url,), daemon=True)
    pruner.start()
    try:
        yield
        if not pruner.is_alive():
            raise RuntimeError("there was not enough to prune: what was measured is a relay alone")
    finally:
        pruner.kill()
        pruner.join()


def _prune(url: str) -> None:
    async def prune() -> None:
        async with open_admin(Settings.load(flags={"database": url})) as admin:
            await admin.prune(AT_ONCE)

    asyncio.run(prune())
