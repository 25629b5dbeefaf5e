"""How fast the store reads and settles, without a relay and a broker, beside a plain SELECT by a bare client."""

import asyncio
from functools import partial
from itertools import repeat
from time import perf_counter

import psycopg

from benchmarks.measure import Goal, Progress, Row, in_rounds
from benchmarks.postgres import shop
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.window import Settlement
from pillarbox.daemon import collect_rarely
from pillarbox.stores.postgres.rows import COLUMNS
from servers.postgres import RunningPostgres

CHUNK = 1000
SELECT = f"SELECT id, {COLUMNS} FROM pillarbox_outbox WHERE id > %s ORDER BY id LIMIT {CHUNK}"


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    count = 10_000 if quick else 200_000
    tell(f"filling an outbox with {count:,} events")
    with shop.database(server, count) as url:

        def both() -> tuple[float, float]:
            shop.rewind(url)
            collect_rarely()  # as the relay's process does; for both
            return asyncio.run(_store(url, count)), _select(url, count)

        return [in_rounds("PostgresStore.entries() and settle()", "events/s", both, tell, Goal(">=", 0.5))]


async def _store(url: str, count: int) -> float:
    store = shop.store_at(url)
    await store.open()
    await store.take()
    began, found = perf_counter(), 0
    ahead = asyncio.create_task(store.entries(CHUNK))
    while entries := await ahead:
        ahead = asyncio.create_task(store.entries(CHUNK))  # as the relay does
        await store.settle(list(map(_settlement, zip(entries, repeat(PUBLISHED), strict=False))))
        found += len(entries)
    seconds = perf_counter() - began
    await store.release()
    await store.close()
    return _rate(count, found, seconds)


_settlement = partial(tuple.__new__, Settlement)  # as the window makes them


def _select(url: str, count: int) -> float:
    """Read the same columns as the store does; in the binary format too, and prepared, which the store is not."""
    with psycopg.connect(url, autocommit=True) as connection:
        began, found, last = perf_counter(), 0, 0
        while chunk := connection.execute(SELECT.encode(), [last], binary=True).fetchall():
            found, last = found + len(chunk), chunk[-1][0]
        seconds = perf_counter() - began
    return _rate(count, found, seconds)


def _rate(count: int, found: int, seconds: float) -> float:
    if found != count:
        raise RuntimeError(f"{found} events were read, not {count}")
    return count / seconds
