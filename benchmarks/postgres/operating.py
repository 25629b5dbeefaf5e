"""What an operator waits for on a large outbox, and what a relay notices of others' retention."""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from time import perf_counter

import psycopg

from benchmarks.measure import Goal, Progress, Row, alone, compared, in_turn
from benchmarks.postgres import relays, shop
from pillarbox.admin import looking
from pillarbox.admin.admin import Admin
from pillarbox.ports import Query, Retention
from pillarbox.settings import Settings
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
_spawn = multiprocessing.get_context("spawn")


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    """Look at an outbox of which half is published; then drain some of the rest, with and without a pruner beside."""
    deep, part, times = (60_000, 10_000, 5) if quick else (3_000_000, 200_000, 60)
    looking.STRETCH = min(looking.STRETCH, deep // 30)  # else a short log is read as a whole, and rightly so
    tell(f"filling an outbox with {deep:,} events")
    with shop.database(server, deep) as url:
        relays.drain(url, deep // 2)
        shop.settle_down(url)
        name = f"on {deep:,} events, a connection of its own each time, p95"
        found = [_look(url, f"pillarbox {look} {name}", LOOKS[look], times, tell) for look in LOOKS]
        ways = {"pruned": lambda: _drain_pruned(url, part), "alone": lambda: relays.drain(url, part)}
        rates = in_turn("drain while old events are pruned", ways, tell)
    return [*found, compared("drain while others prune, beside none", "events/s", rates["pruned"], rates["alone"])]


def _look(url: str, name: str, look: Look, times: int, tell: Progress) -> Row:
    tell(name)
    before = _walks(url)
    took = sorted(asyncio.run(_timed(url, look)) for _ in range(times))
    if _walks(url) != before:
        raise RuntimeError(f"{name}: somebody has walked over the whole log")
    return alone(name, "ms", took[int(times * 0.95)] * 1000, Goal("<=", 100))


async def _timed(url: str, look: Look) -> float:
    settings = Settings.load(flags={"database": url})
    began = perf_counter()
    async with open_admin(settings) as admin:
        await look(admin, settings)
    return perf_counter() - began


def _walks(url: str) -> int:
    """Say how often the log was read from end to end."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'pillarbox_outbox'")
        [[walks]] = found.fetchall()
        return int(walks)


def _drain_pruned(url: str, part: int) -> float:
    with _pruning(url):
        return relays.drain(url, part)


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
