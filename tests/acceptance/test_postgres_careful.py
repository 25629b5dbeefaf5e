"""An event that kills the relay is found and parked, everything else flows on; random kills park nothing."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.postgres_relays import Shop, assert_in_order, numbers, placed, until
from tests.conftest import EVERY_POSTGRES

pytestmark = pytest.mark.parametrize("database", EVERY_POSTGRES, indirect=True)

ORDERS = 20
DEATHS = 6
"""So often at most may it take the relay down before it is found; three open the search, two convict."""


@pytest.fixture
def shop(database: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(database, tmp_path)
    yield shop
    shop.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("before", [0, 200], ids=["at the front", "deep in a backlog"])
def test_an_event_that_kills_the_relay_is_parked_and_everything_else_flows(shop: Shop, before: int) -> None:
    deadly = shop.folder / "deadly"
    deadly.touch()
    shop.add(*(placed(order, n) for n in range(before) for order in range(ORDERS)))
    shop.add(placed(7, before, type="Deadly"))
    shop.add(*(placed(order, n) for n in range(before + 1, before + 20) for order in range(ORDERS)))
    everything = {("orders", order, n) for n in range(before + 20) for order in range(ORDERS) if n != before}
    behind = {("orders", 7, n) for n in range(before + 1, before + 20)}

    assert deaths_until_found(shop) <= DEATHS
    with shop.relay():
        until(lambda: numbers(shop.arrived()) == everything - behind, "everything else has arrived")
    [(type, state, error), *followers] = shop.parked()
    assert (type, state) == ("Deadly", "dead")
    assert error.startswith("crashed the relay")
    assert {state for _, state, _ in followers} == {"blocked"}
    assert len(told(shop)) == 1

    shop.type("dead retry --all --yes")
    assert deaths_until_found(shop) <= DEATHS, "it was brought back, and found again"
    assert found(shop)
    assert len(told(shop)) == 2

    deadly.unlink()
    shop.type("dead retry --all --yes")
    with shop.relay():
        until(lambda: numbers(shop.arrived()) == everything | {("orders", 7, before)}, "the rest has arrived")
    assert_in_order(shop.arrived())
    assert shop.parked() == []


def deaths_until_found(shop: Shop) -> int:
    """Start a relay again whenever it dies, until the deadly event is parked as dead; give how often it died."""
    for deaths in range(DEATHS + 1):
        if finds_out(shop):
            return deaths
    return DEATHS + 1


def finds_out(shop: Shop) -> bool:
    """Run a relay until it dies of the deadly event, or parks it."""
    process = shop.start()
    try:
        until(lambda: process.poll() is not None or found(shop), "the relay dies or finds out")
        if found(shop):
            until(lambda: "pillarbox_dead_total 1.0" in shop.metrics(), "the relay counts it, for the alert")
        return found(shop)
    finally:
        process.kill()
        process.wait()


def found(shop: Shop) -> bool:
    return any(row[:2] == ("Deadly", "dead") for row in shop.parked())


def told(shop: Shop) -> list[str]:
    """Give the lines of the relays' log that tell of its death."""
    return [line for line in shop.log() if line.startswith("Deadly ") and "is dead (attempt 1): crashed the" in line]


@pytest.mark.timeout(240)
def test_ten_random_kills_of_a_healthy_relay_park_nothing(shop: Shop) -> None:
    chance, stop = random.Random(4), threading.Event()
    written: list[tuple[str, int, int]] = []

    def write() -> None:
        n = 0
        while not stop.wait(0.01):
            shop.add(*(placed(order, n) for order in range(ORDERS)))
            written.extend(("orders", order, n) for order in range(ORDERS))
            n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            kill_at_work(shop, after=chance.random())
    finally:
        stop.set()
        writer.join()
    with shop.relay():
        until(lambda: numbers(shop.arrived()) == set(written), "everything has arrived")
    assert_in_order(shop.arrived())
    assert shop.sql.execute("SELECT count(*) FROM pillarbox_parked").fetchone() == (0,)


def kill_at_work(shop: Shop, after: float) -> None:
    """Start a relay and kill it so many seconds after it has begun to publish."""
    so_far = len(shop.arrived())
    process = shop.start()
    try:
        until(lambda: len(shop.arrived()) > so_far, "the relay is at work")
        time.sleep(after)  # the moment is random on purpose
    finally:
        process.kill()
        process.wait()
