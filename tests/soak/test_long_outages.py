"""Outages that last minutes, with the real relay: nothing counted, nothing lost, nothing reordered."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pillarbox import Event
from pillarbox.dbapi import Outbox

MINUTES_AWAY = 180.0
LONGER_THAN_THE_LEASE = 45.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pillarbox(tmp_path, "migrate", "up")
    return tmp_path


@pytest.mark.timeout(600)
def test_a_broker_that_is_away_for_minutes_costs_no_attempt(folder: Path) -> None:
    with relay(folder), closing(sqlite3.connect(folder / "shop.db")) as shop:
        place(shop, range(100))
        until(lambda: wire(folder) == [*range(100)])
        with locked(folder / "stream.db"):
            place(shop, range(100, 600))
            until(lambda: away(folder))
            spend(MINUTES_AWAY)
        until(lambda: len(wire(folder)) >= 600)
        assert list(dict.fromkeys(wire(folder))) == [*range(600)]
        attempts = {record["attempts"] for record in json.loads(pillarbox(folder, "events", "list", "--json"))}
        assert attempts == {0}


@pytest.mark.timeout(600)
def test_a_database_that_is_locked_longer_than_the_lease_loses_nothing(folder: Path) -> None:
    with relay(folder), closing(sqlite3.connect(folder / "shop.db", timeout=60)) as shop:
        place(shop, range(100))
        until(lambda: wire(folder) == [*range(100)])
        place(shop, range(100, 2000))
        with locked(folder / "shop.db"):
            spend(LONGER_THAN_THE_LEASE)
        place(shop, range(2000, 2100))
        until(lambda: len(set(wire(folder))) == 2100)
        assert list(dict.fromkeys(wire(folder))) == [*range(2100)]


def pillarbox(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "pillarbox", *words, "--database", f"sqlite:///{folder / 'shop.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def away(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        return bool(shop.execute("SELECT count(*) FROM pillarbox_relays WHERE away_since IS NOT NULL").fetchone()[0])


@contextmanager
def relay(folder: Path) -> Iterator[None]:
    files = ["--database", f"sqlite:///{folder / 'shop.db'}", "--broker", f"sqlite:///{folder / 'stream.db'}"]
    process = subprocess.Popen([sys.executable, "-m", "pillarbox", "relay", "run", *files])
    try:
        yield
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep everybody else from writing."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def place(shop: sqlite3.Connection, numbers: range) -> None:
    with shop:
        Outbox(topic="orders").add(shop, *(Event("Placed", n, aggregate=("shop", 1)) for n in numbers))


def wire(folder: Path) -> list[int]:
    if not (folder / "stream.db").is_file():
        return []
    with closing(sqlite3.connect(folder / "stream.db")) as stream:
        try:
            return [int(body) for (body,) in stream.execute("SELECT body FROM messages ORDER BY id")]
        except sqlite3.OperationalError:  # the broker is about to make its tables
            return []


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come; the deadline only ends a test that has failed."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def spend(seconds: float) -> None:
    """Let time pass: the length of the outage is what is tested here."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.2)
