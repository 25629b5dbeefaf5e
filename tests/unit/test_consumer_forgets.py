"""A running consumer forgets what is older than `retention.inbox`, in its own database: there may be no relay there."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pillarbox.core.insert import microseconds
from tests.unit.consumer_bench import ConsumerBench, id_of, message

KEPT = timedelta(days=30)


class ForgettingBench(ConsumerBench):
    """A bench whose inbox remembers things of any age."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.inbox.handler("OrderPlaced")(lambda connection, event: None)

    def handled(self, *numbers: int, days_ago: float, consumer: str = "billing") -> None:
        """Let these have been handled."""
        at = microseconds(datetime.now(UTC) - timedelta(days=days_ago))
        rows = [(consumer, id_of(number), at) for number in numbers]
        self.db.executemany("INSERT INTO pillarbox_inbox (consumer, event_id, handled_at) VALUES (?, ?, ?)", rows)

    def remembered(self, consumer: str = "billing") -> list[str]:
        sql = "SELECT event_id FROM pillarbox_inbox WHERE consumer = ? ORDER BY event_id"
        return [id for (id,) in self.db.execute(sql, [consumer])]

    def settled(self) -> list[str]:
        return [state for _, state, _ in self.parked()]

    async def run_until(self, remembered: list[int], *, remembers: timedelta | None = KEPT) -> None:
        """Run a consumer until it remembers only these."""
        async with self.consumer(remembers=remembers):
            await until(lambda: self.remembered() == [id_of(number) for number in remembered])


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something; the deadline only ends a test that has failed."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgettingBench]:
    monkeypatch.setattr("pillarbox.inbox.consumer.FORGET_FIRST", 0.0)
    monkeypatch.setattr("pillarbox.inbox.consumer.FORGET_NEXT", 0.0)
    monkeypatch.setattr("pillarbox.inbox.consumer.FORGET", 2)
    bench = ForgettingBench(tmp_path)
    yield bench
    bench.close()


async def test_what_is_too_old_goes_in_small_batches_and_the_rest_stays(bench: ForgettingBench) -> None:
    bench.handled(*range(1, 8), days_ago=31)
    bench.handled(8, 9, days_ago=29)
    bench.handled(1, days_ago=31, consumer="shipping")
    await bench.run_until([8, 9])
    assert bench.remembered("shipping") == [id_of(1)]


async def test_what_it_forgets_in_one_transaction_is_bounded(
    bench: ForgettingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.inbox.consumer.FORGET_NEXT", 1000.0)
    bench.handled(*range(1, 8), days_ago=31)
    async with bench.consumer(remembers=KEPT):
        await until(lambda: len(bench.remembered()) < 7)
    assert len(bench.remembered()) == 5


async def test_for_ever_is_for_ever(bench: ForgettingBench) -> None:
    bench.handled(1, days_ago=10_000)
    bench.publish(message(2))
    await bench.run_until([1, 2], remembers=None)


async def test_what_stands_in_the_parking_lot_is_not_forgotten(bench: ForgettingBench) -> None:
    bench.handled(1, 2, 3, days_ago=31)
    at = microseconds(datetime.now(UTC) - timedelta(days=31))
    for number, state in ((1, "dead"), (2, "handled"), (4, "dropped")):
        bench.db.execute(
            "INSERT INTO pillarbox_inbox_parked (consumer, event_id, state, attempts, parked_at, settled_at, topic,"
            " headers, body, aggregate_type, aggregate_id, event_type)"
            " VALUES ('billing', ?, ?, 1, ?, ?, 'order-events', '{}', x'', '', '', 'OrderPlaced')",
            [id_of(number), state, at, None if state == "dead" else at],
        )
    await bench.run_until([1])
    assert bench.settled() == ["dead"]
