"""A shop whose broker is a file in an empty directory, driven through the real command. Its outbox is a file there too,
or a database on PostgreSQL."""

import asyncio
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pillarbox import Event, Settings
from pillarbox.dbapi import Outbox
from pillarbox.psycopg import Outbox as PostgresOutbox
from pillarbox.stores.sqlite.schema import Tables
from pillarbox.telemetry.logging import logger
from pillarbox.wiring import open_admin

PATIENCE = 30.0
INBOX = """
import sqlite3
from pillarbox.dbapi import Inbox
inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))
inbox.handler("OrderPlaced")(lambda connection, event: None)
"""


class Shop:
    """Types commands and looks what they did."""

    def __init__(self, directory: Path, database: str = "sqlite:///shop.db") -> None:
        self.directory = directory
        self.database, self.broker = database, "sqlite:///stream.db"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}

    def type(
        self, line: str, *, code: int = 0, answer: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Type a line and expect its exit code."""
        done = subprocess.run(
            self._arguments(line),
            cwd=self.directory,
            env=self.environment | environment,
            input=answer,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, line: str, *, code: int = 0, answer: str = "") -> Any:
        """Type a line and read its JSON."""
        return json.loads(self.type(line, code=code, answer=answer).stdout)

    def start(self, line: str) -> "subprocess.Popen[str]":
        """Start a daemon; the caller ends it."""
        return subprocess.Popen(
            self._arguments(line),
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def running(self, line: str) -> Iterator[subprocess.Popen[str]]:
        """Run a daemon meanwhile; it must stop well on SIGTERM."""
        process = self.start(line)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, process.communicate()
        finally:
            process.kill()
            process.communicate()

    def migrate(self, file: str) -> None:
        """Make the tables in a file, without the cost of a process."""
        migrate(f"sqlite:///{self.directory / file}")

    def _arguments(self, line: str) -> list[str]:
        command, *words = shlex.split(line)
        assert command == "pillarbox"
        return [sys.executable, "-m", "pillarbox", *words]

    def add(self, *events: Event[Any]) -> list[str]:
        """Add events in one transaction, as an application does; give their ids."""
        if not self.database.startswith("sqlite"):
            with psycopg.connect(self.database) as postgres:
                PostgresOutbox().add(postgres, *events)
            return [str(event.id) for event in events]
        connection = sqlite3.connect(self.directory / "shop.db")
        try:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                Outbox().add(connection, *events)
        finally:
            connection.close()
        return [str(event.id) for event in events]

    @property
    def url(self) -> str:
        """The outbox, from wherever one stands."""
        return self.database.replace("sqlite:///", f"sqlite:///{self.directory}/")

    def placed(self, number: int = 7) -> str:
        """Add one event of an order; give its id."""
        (id,) = self.add(Event("OrderPlaced", {"order_id": number}, aggregate=("order", number)))
        return id

    def received(self) -> list[str]:
        """Give the ids of what the broker has, in order."""
        if not (self.directory / "stream.db").is_file():
            return []
        connection = sqlite3.connect(self.directory / "stream.db")
        try:
            return [
                row[0] for row in connection.execute("SELECT json_extract(headers, '$.id') FROM messages ORDER BY id")
            ]
        except sqlite3.OperationalError:  # the broker is about to make its tables
            return []
        finally:
            connection.close()

    def status(self, *, code: int = 0) -> list[str]:
        """Ask why nothing happens; give the lines."""
        return self.type(
            f"pillarbox status --database {self.database} --broker {self.broker}", code=code
        ).stdout.splitlines()


def migrate(database: str) -> None:
    async def up() -> None:
        async with open_admin(Settings(database=database)) as admin:
            await admin.migrate()

    asyncio.run(up())


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds; fail if it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def migrated(shop: Shop) -> Shop:
    shop.migrate("shop.db")
    return shop


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def on_each(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """A shop with the tables, on every database."""
    shop = Shop(tmp_path) if request.param == "SQLite" else Shop(tmp_path, request.getfixturevalue("database"))
    migrate(shop.url)
    return shop


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in a directory with settings, tables and a module with an inbox; commands are called in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGNAME", "ann")
    for name in [name for name in os.environ if name.startswith("PILLARBOX_") and name != "PILLARBOX_GOLDEN"]:
        monkeypatch.delenv(name)
    (tmp_path / "pillarbox.toml").write_text('database = "sqlite:///shop.db"\nbroker = "sqlite:///stream.db"\n')
    (tmp_path / "billing.py").write_text(INBOX)
    monkeypatch.syspath_prepend(str(tmp_path))
    for file in ("shop.db", "billing.db"):
        connection = sqlite3.connect(file, isolation_level=None)
        Tables(str(tmp_path / file), "pillarbox_").up(connection)
        connection.close()
    before = logger.handlers, logger.level, logger.propagate
    yield tmp_path
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture(name="until")
def _until() -> Callable[[Callable[[], bool]], None]:
    return until
