"""kill -9 at every named crash point of relay and consumer, in real processes on SQLite."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from pillarbox import Event
from pillarbox.dbapi import Outbox
from pillarbox.telemetry.hooks import CRASH_POINTS, Hooks, Moment
from tests.acceptance.crashing import consumer, relay

ORDERS, EACH = 20, 6
RELAY_POINTS = {
    Moment.LANES_TAKEN: 1,
    Moment.ENTRIES_READ: 2,
    Moment.BEFORE_SEND: 2,
    Moment.SENT: 2,
    Moment.STORED_BY_BROKER: 2,
    Moment.ANSWERED: 2,
    Moment.SETTLING: 2,
    Moment.SETTLED: 2,
    Moment.LEASE_RENEWED: 1,
    Moment.PRUNED: 1,
    Moment.LANES_RELEASED: 1,
}
CONSUMER_POINTS = {
    Moment.DELIVERED: 1,
    Moment.MARKED: 7,
    Moment.HANDLED: 7,
    Moment.COMMITTED: 7,
    Moment.PARKED: 1,
    Moment.ACKNOWLEDGED: 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A shop with events of twenty orders, committed in order, and some that were rolled back; a billing database."""
    for name in ("shop", "billing"):
        command = [sys.executable, "-m", "pillarbox", "migrate", "up", "--database", f"sqlite:///{tmp_path / name}.db"]
        subprocess.run(command, check=True, capture_output=True)
    billing = sqlite3.connect(tmp_path / "billing.db")
    billing.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, event_id TEXT, order_id INTEGER, n INTEGER)")
    billing.close()
    shop = sqlite3.connect(tmp_path / "shop.db")
    for n in range(EACH):
        for order in range(ORDERS):
            Outbox().add(shop, Event("OrderPlaced", {"order": order, "n": n}, aggregate=("order", order)))
            shop.commit()
            Outbox().add(shop, Event("OrderPlaced", {"order": order, "n": 1000 + n}, aggregate=("order", order)))
            shop.rollback()
    shop.close()
    return tmp_path


def test_every_crash_point_has_a_test() -> None:
    assert set(RELAY_POINTS) | set(CONSUMER_POINTS) == CRASH_POINTS


@pytest.mark.parametrize("moment", RELAY_POINTS)
def test_a_relay_killed_at_any_moment_loses_and_invents_nothing(folder: Path, moment: Moment) -> None:
    die(folder, "relay", moment, RELAY_POINTS[moment])
    asyncio.run(relay(folder, Hooks()).run_once())
    wire = rows(
        folder / "stream.db",
        "SELECT CAST(body AS TEXT) ->> 'order', CAST(body AS TEXT) ->> 'n' FROM messages ORDER BY id",
    )
    assert_all_in_order(list(dict.fromkeys(wire)))


@pytest.mark.parametrize("moment", CONSUMER_POINTS)
def test_a_consumer_killed_at_any_moment_applies_each_event_once(folder: Path, moment: Moment) -> None:
    asyncio.run(relay(folder, Hooks()).run_once())
    die(folder, "consumer", moment, CONSUMER_POINTS[moment])
    deadline = Hooks()
    while len(invoices := rows(folder / "billing.db", "SELECT order_id, n FROM invoices ORDER BY id")) < ORDERS * EACH:
        asyncio.run(consumer(folder, deadline).run_once(patience=1.5))
    assert max(Counter(invoices).values()) == 1
    assert_all_in_order(invoices)


def die(folder: Path, kind: str, moment: Moment, nth: int) -> None:
    command = [sys.executable, "-m", "tests.acceptance.crashing", kind, str(folder), moment.value, str(nth)]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, f"it did not die at {moment!r}: {done.stderr}"


def rows(database: Path, sql: str) -> list[tuple[int, int]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def assert_all_in_order(seen: list[tuple[int, int]]) -> None:
    assert sorted(seen) == [(order, n) for order in range(ORDERS) for n in range(EACH)], "lost or invented"
    for order in range(ORDERS):
        numbers = [n for found, n in seen if found == order]
        assert all(a < b for a, b in pairwise(numbers)), f"order {order} came as {numbers}"
