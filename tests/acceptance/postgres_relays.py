"""Relays in processes of their own on one PostgreSQL, with taps for brokers; and the events that they carry."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg

from pillarbox import Event, Settings
from pillarbox.psycopg import Outbox
from pillarbox.wiring import open_admin
from servers.process import free_port
from tests.acceptance.tapping import Arrival, arrivals

PATIENCE = 60.0


class Shop:
    """A database with the tables, and what its relays have brought to the tap."""

    def __init__(self, database: str, folder: Path, lease: float = 4.0) -> None:
        self.database, self.folder, self.lease = database, folder, lease
        self.sql = psycopg.connect(database, autocommit=True)
        asyncio.run(self._migrate())

    async def _migrate(self) -> None:
        async with open_admin(Settings(database=self.database)) as admin:
            await admin.migrate()

    def close(self) -> None:
        self.sql.close()

    def start(self) -> "subprocess.Popen[bytes]":
        """Start a relay; the caller ends it."""
        self.port = free_port()
        words = [self.database, str(self.folder), str(self.lease), str(self.port)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "tests.acceptance.tapping", *words], stderr=log)

    def log(self) -> list[str]:
        """Read what its relays have logged so far."""
        return (self.folder / "log").read_text().splitlines()

    def metrics(self) -> list[str]:
        """Read what the relay that was started last counts."""
        return httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=10).text.splitlines()

    @contextmanager
    def relay(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a relay meanwhile; it must stop well on SIGTERM."""
        process = self.start()
        try:
            yield process
            # All may have arrived before it came; a process that has hardly begun would be ended by the signal.
            until(lambda: self.knows(process), "the relay is at work")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()

    def knows(self, process: "subprocess.Popen[bytes]") -> bool:
        """Tell whether that relay has come to the database."""
        found = self.sql.execute("SELECT 1 FROM pillarbox_relays WHERE name LIKE %s", [f"%-{process.pid}-%"])
        return found.fetchone() is not None

    def add(self, *events: Event[Any]) -> None:
        """Add events in one transaction."""
        with self.sql.transaction():
            Outbox().add(self.sql, *events)

    def type(self, line: str, *, code: int = 0) -> str:
        """Type a command, without the word pillarbox, and expect its exit code."""
        words = [sys.executable, "-m", "pillarbox", *line.split(), "--database", self.database]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, input="y\n")
        assert done.returncode == code, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def arrived(self) -> list[Arrival]:
        return arrivals(self.folder)

    def holders(self) -> int:
        """Count the relays that have lanes."""
        [[count]] = self.sql.execute("SELECT count(DISTINCT owner) FROM pillarbox_lanes").fetchall()
        return int(count)

    def parked(self) -> list[tuple[Any, ...]]:
        """List type, state and error of what is parked."""
        return self.sql.execute(
            "SELECT event_type, state, last_error FROM pillarbox_parked"
            " WHERE state IN ('retrying', 'blocked', 'dead') ORDER BY position"
        ).fetchall()


def placed(order: int, n: int, *, type: str = "Placed", topic: str = "orders") -> Event[Any]:
    return Event(type, {"order": order, "n": n, "at": time.time()}, aggregate=("order", order), topic=topic)


def assert_in_order(arrived: list[Arrival]) -> None:
    """Of each order in each topic, the first copies arrived in the order of their numbers."""
    lines: dict[tuple[str, float], dict[float, None]] = {}
    for _, topic, body in arrived:
        lines.setdefault((topic, body["order"]), {})[body["n"]] = None
    for line, numbers in lines.items():
        assert list(numbers) == sorted(numbers), f"out of order on {line}"


def numbers(arrived: list[Arrival]) -> set[tuple[str, float, float]]:
    """Give topic, order and number of everything that arrived."""
    return {(topic, body["order"], body["n"]) for _, topic, body in arrived}


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.05)
