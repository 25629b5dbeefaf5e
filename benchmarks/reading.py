"""How fast the store reads the log, beside a plain SELECT of the same columns."""

import asyncio
from pathlib import Path
from time import perf_counter

from benchmarks import shop
from benchmarks.measure import Progress, Row, in_turns, one_after_the_other

CHUNK = 1000
SELECT = f"""
    SELECT id, event_id, aggregate_type, aggregate_id, event_type, topic, payload, body, content_type, headers,
           idempotency_key, number, available_at, occurred_at, created_at
    FROM pillarbox_outbox WHERE id > ? ORDER BY id LIMIT {CHUNK}
"""


def rows(place: Path, quick: bool, tell: Progress) -> list[Row]:
    count = 5_000 if quick else 50_000
    both = one_after_the_other(lambda at: _store(at, count), lambda at: _select(at, count))
    return [in_turns("SqliteStore.entries()", "events/s", both, place, tell)]


def _store(at: Path, count: int) -> float:
    path = shop.filled(at / "shop.db", count)

    async def read() -> float:
        store = shop.store_at(path)
        await store.open()
        await store.take()
        began, found = perf_counter(), 0
        while entries := await store.entries(CHUNK):
            found += len(entries)
        seconds = perf_counter() - began
        await store.release()
        await store.close()
        return _rate(count, found, seconds)

    return asyncio.run(read())


def _select(at: Path, count: int) -> float:
    connection = shop.connect(shop.filled(at / "shop.db", count))
    began, found, last = perf_counter(), 0, 0
    while chunk := connection.execute(SELECT, (last,)).fetchall():
        found, last = found + len(chunk), chunk[-1][0]
    seconds = perf_counter() - began
    connection.close()
    return _rate(count, found, seconds)


def _rate(count: int, found: int, seconds: float) -> float:
    if found != count:
        raise RuntimeError(f"{found} events were read, not {count}")
    return count / seconds
