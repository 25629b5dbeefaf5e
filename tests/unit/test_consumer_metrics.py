"""What becomes of numbered events, in the metrics and in the log: an aggregate that stands still is told of in both."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillarbox.errors import Reject
from pillarbox.inbox import lot
from pillarbox.telemetry.hooks import Facts, Moment
from pillarbox.telemetry.logging import LogMoments
from pillarbox.telemetry.prometheus import ConsumerMetrics
from tests.unit.consumer_bench import id_of
from tests.unit.test_consumer_numbers import NumberBench, numbered


class WatchedBench(NumberBench):
    """A bench with metrics and a log."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metrics, self._log = ConsumerMetrics(dict), LogMoments()
        self.on = self._watch

    def _watch(self, moment: Moment, facts: Facts) -> None:
        self._metrics(moment, facts)
        self._log(moment, facts)

    def dead(self) -> int:
        """Give how many dead ones the metrics have counted."""
        [line] = [line for line in self._metrics.page().decode().splitlines() if 'result="dead"' in line]
        return int(float(line.split()[-1]))

    def dead_rows(self) -> int:
        return sum(state == "dead" for _, state, _ in self.parked())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[WatchedBench]:
    bench = WatchedBench(tmp_path)
    yield bench
    bench.close()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def test_a_missing_number_counts_as_a_dead_letter(bench: WatchedBench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.receive(1, 3, 4)
    assert (bench.dead(), bench.dead_rows()) == (1, 1)
    [line] = errors(caplog)
    assert line.startswith(
        f"order 7 in order-events stands still at OrderPlaced {id_of(3)} (attempt 1): its number is 3, and one"
        " before it has not come."
    )


async def test_a_number_that_was_taken_counts_as_a_dead_letter(
    bench: WatchedBench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.receive(1, 2, numbered(2, id=id_of(102)))
    assert (bench.dead(), bench.dead_rows()) == (1, 1)
    [line] = errors(caplog)
    assert line.startswith(
        f"order 7 in order-events stands still at OrderPlaced {id_of(102)} (attempt 1): number 2 of order 7 was taken"
        " by another event"
    )


async def test_without_order_a_number_that_was_given_up_counts_as_a_dead_letter(
    bench: WatchedBench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.reordered(1, 3)
    assert (bench.dead(), bench.dead_rows(), errors(caplog)) == (0, 0, [])
    bench.clock.advance(lot.PATIENCE)
    await bench.reordered()
    assert (bench.dead(), bench.dead_rows()) == (1, 1)
    [line] = errors(caplog)
    assert line.startswith(
        f"order 7 in order-events stands still at OrderPlaced {id_of(3)} (attempt 1): its number is 3, and one"
        " before it has not come."
    )


async def test_one_that_is_rejected_after_somebody_went_on_from_its_number_is_told_of_as_dead_and_no_conflict(
    bench: WatchedBench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.receive(1, 3)
    caplog.clear()
    bench.failing[3] = Reject("no such order")
    bench.retry(3)
    await bench.consume()
    assert (bench.dead(), bench.dead_rows()) == (2, 1)
    [line] = errors(caplog)
    assert "is dead (attempt 1): no such order" in line
