"""One of three topics is down for half of the run: the others do not notice, and it goes on where it stopped."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.postgres_relays import Shop, assert_in_order, numbers, placed, until

TOPICS = ("orders", "invoices", "mails")
ORDERS = 40
SECONDS = 12.0
LEASE = 4.0


@pytest.fixture
def shop(database: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(database, tmp_path, LEASE)
    yield shop
    shop.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["away", pytest.param("late", marks=pytest.mark.soak)])
def test_the_events_of_other_topics_wait_for_no_more_than_the_lease_and_two_seconds(
    shop: Shop, how: str, record_property: Callable[[str, object], None]
) -> None:
    down = shop.folder / "down-orders"
    with shop.relay(), shop.relay():
        until(lambda: shop.holders() == 2, "both relays have lanes")
        with writing(shop) as written:
            spend(SECONDS / 4)
            down.write_text(how)
            spend(SECONDS / 2)
            status = shop.type("status --json", code=3)
            down.unlink()
            spend(SECONDS / 4)
        until(lambda: numbers(shop.arrived()) == written.numbers, "everything has arrived")
    assert "topic orders fails while others go" in status
    arrived = shop.arrived()
    assert_in_order(arrived)
    first = {(topic, body["order"], body["n"]): at - body["at"] for at, topic, body in reversed(arrived)}
    longest = max(waited for (topic, _, _), waited in first.items() if topic != "orders")
    copies = len(arrived) - len(first)
    record_property("says", f"a topic that is {how}: others waited {longest:.2f} s at most, {copies} copies")
    assert longest < LEASE + 2
    assert shop.parked() == []


class Writer:
    """Adds an event of every order in every topic, again and again."""

    def __init__(self, shop: Shop) -> None:
        self.numbers: set[tuple[str, float, float]] = set()
        self._shop, self._stopped = shop, threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        n = 0
        while not self._stopped.wait(0.2):
            for topic in TOPICS:
                self._shop.add(*(placed(order, n, topic=topic) for order in range(ORDERS)))
                self.numbers |= {(topic, order, n) for order in range(ORDERS)}
            n += 1


@contextmanager
def writing(shop: Shop) -> Iterator[Writer]:
    writer = Writer(shop)
    try:
        yield writer
    finally:
        writer.stop()


def spend(seconds: float) -> None:
    """Let time pass: how long the topic is down is what is tested here."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
