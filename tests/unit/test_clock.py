"""The manual clock and the loop that moves it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.testing.clock import ManualClock, simulate

START = datetime(2030, 5, 6, tzinfo=UTC)


def test_the_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock(START)
    assert clock.now() == clock.now() == START
    clock.advance(1.5)
    clock.advance(timedelta(minutes=1))
    assert clock.now() == START + timedelta(seconds=61.5)
    assert clock.elapsed == 61.5


def test_waiting_moves_the_clock_and_costs_no_time() -> None:
    clock = ManualClock(START)

    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, clock.elapsed))

        await asyncio.gather(wait("day", 86_400), wait("hour", 3_600), wait("now", 0))
        return seen

    began = time.monotonic()
    assert simulate(main(), clock) == [("now", 0), ("hour", 3_600), ("day", 86_400)]
    assert time.monotonic() - began < 5


def test_timeouts_strike_at_their_time() -> None:
    clock = ManualClock()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.Event().wait()

    simulate(main(), clock)
    assert clock.elapsed == pytest.approx(10)


def test_a_simulation_in_which_everybody_waits_for_nothing_says_so() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="the simulation is stuck"):
        simulate(main(), ManualClock())


def test_an_error_comes_out_of_the_simulation() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise LookupError("inside")

    with pytest.raises(LookupError, match="inside"):
        simulate(main(), ManualClock())


def test_two_runs_are_the_same() -> None:
    def run() -> list[float]:
        clock, seen = ManualClock(), []

        async def tick(step: float) -> None:
            for _ in range(5):
                await asyncio.sleep(step)
                seen.append(clock.elapsed)

        async def main() -> None:
            await asyncio.gather(*(tick(step) for step in (0.3, 0.7, 1.1)))

        simulate(main(), clock)
        return seen

    assert run() == run()
