"""How fast the store reads and settles, without a relay and a broker, beside a plain SELECT by a bare client."""

import asyncio
from contextlib import closing
from functools import partial
from itertools import repeat
from time import perf_counter

from pillarbox.bench.places import Place
from pillarbox.bench.processes import BenchFailed
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.window import Settlement
from pillarbox.wiring import open_store

CHUNK = 1000
_settlement = partial(tuple.__new__, Settlement)  # as the window makes them


def store(place: Place, count: int) -> float:
    """Read and settle everything as a relay does; give events a second."""
    return asyncio.run(_store(place, count))


async def _store(place: Place, count: int) -> float:
    source = open_store(place.settings)
    await source.open()
    await source.take()
    began, found = perf_counter(), 0
    ahead = asyncio.create_task(source.entries(CHUNK))
    while entries := await ahead:
        ahead = asyncio.create_task(source.entries(CHUNK))  # as the relay does
        await source.settle(list(map(_settlement, zip(entries, repeat(PUBLISHED), strict=False))))
        found += len(entries)
    seconds = perf_counter() - began
    await source.release()
    await source.close()
    return _rate(count, found, seconds)


def select(place: Place, count: int) -> float:
    """Read the same columns as the store does, in the same chunks; give events a second."""
    sql = f"SELECT id, {place.columns} FROM {{p}}pillarbox_outbox WHERE id > %s ORDER BY id LIMIT {CHUNK}"
    with closing(place.connect()) as connection:
        began, found, last = perf_counter(), 0, 0
        while chunk := place.run(connection, sql, last):
            found, last = found + len(chunk), chunk[-1][0]
        seconds = perf_counter() - began
    return _rate(count, found, seconds)


def _rate(count: int, found: int, seconds: float) -> float:
    if found != count:
        raise BenchFailed(f"{found} events were read, not {count}")
    return count / seconds
