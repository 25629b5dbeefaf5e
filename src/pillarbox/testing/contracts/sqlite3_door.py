"""The door for sqlite3 on the bench, in its transaction modes. An example for benches of one's own."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate
from pillarbox.core.message import Delivery, Message
from pillarbox.core.routing import Topics
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.inbox.programs import Means, Reception, receive
from pillarbox.inbox.received import receive as look_at
from pillarbox.stores.sqlite.schema import Tables
from pillarbox.testing.contracts.door import DoorFeatures


@cache
def _empty() -> bytes:
    """Make such a database once; a bench begins with a copy of it."""
    with tempfile.TemporaryDirectory(prefix="pillarbox-door-") as folder:
        path = Path(folder) / "empty.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        Tables(str(path), "pillarbox_").up(connection)
        connection.execute("CREATE TABLE effects (what TEXT NOT NULL)")
        connection.close()
        return path.read_bytes()


class SqliteFile:
    """A database in a file, with our tables and the benches' own; read without any door's help."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pillarbox-door-")
        self.path = str(Path(self._folder.name) / "door.db")
        Path(self.path).write_bytes(_empty())

    def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        connection = sqlite3.connect(self.path)
        connection.row_factory = sqlite3.Row
        if table == "inbox":
            found = connection.execute("SELECT * FROM pillarbox_inbox ORDER BY handled_at").fetchall()
        else:
            name = "effects" if table == "effects" else f"pillarbox_{table}"
            found = connection.execute(f"SELECT rowid, * FROM {name} ORDER BY rowid").fetchall()
        connection.close()
        return [dict(row) for row in found]

    def close(self) -> None:
        self._folder.cleanup()


class Counting(sqlite3.Connection):
    """A connection that counts its calls to the database."""

    calls = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        type(self).calls += 1
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        type(self).calls += 1
        return super().executemany(*arguments)


def reception(inbox: Any, message: Message) -> Any:
    """Give the program that receives a message once, for any door's inbox to perform."""
    received = look_at(Delivery(message), inbox.handlers, Topics())
    means = Means(inbox.handlers, datetime.now(UTC), None, False, lambda *_: None, lambda *_: None)
    return receive(inbox.texts, received, means)


class Sqlite3DoorBench:
    """A bench for `pillarbox.dbapi`; its connections keep transactions as `isolation_level` says."""

    features = DoorFeatures()
    outbox_type: Callable[..., Outbox] = Outbox
    inbox_type: Callable[..., Inbox] = Inbox

    def __init__(self, isolation_level: Any = "") -> None:
        self._isolation_level = isolation_level
        self.file = SqliteFile()
        self._opened: list[sqlite3.Connection] = []
        self._counting: Any = type("Counted", (Counting,), {"calls": 0})
        self._outbox = self.outbox_type(max_payload=1000)
        self._inbox = self.inbox_type("bench", self._connect)

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(
            self.file.path, isolation_level=self._isolation_level, factory=self._counting, check_same_thread=False
        )
        self._opened.append(connection)
        return connection

    async def begin(self) -> sqlite3.Connection:
        connection = self._connect()
        if self._isolation_level is None:
            connection.execute("BEGIN")
        return connection

    async def commit(self, transaction: sqlite3.Connection) -> None:
        transaction.commit()

    async def roll_back(self, transaction: sqlite3.Connection) -> None:
        transaction.rollback()

    async def autocommit(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.isolation_level = None
        return connection

    async def savepoint(self, transaction: sqlite3.Connection) -> str:
        transaction.execute("SAVEPOINT here")
        return "here"

    async def roll_back_to(self, transaction: sqlite3.Connection, savepoint: str) -> None:
        transaction.execute(f"ROLLBACK TO {savepoint}")

    async def write(self, transaction: sqlite3.Connection, what: str) -> None:
        transaction.execute("INSERT INTO effects VALUES (?)", (what,))

    async def add(
        self, transaction: sqlite3.Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise"
    ) -> None:
        self._outbox.add(transaction, *events, on_duplicate=on_duplicate)

    async def first_time(self, transaction: sqlite3.Connection, message_id: str) -> bool:
        return await asyncio.to_thread(self._inbox.first_time, transaction, message_id)

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> Reception:
        inbox = self.inbox_type("bench", self._connect)

        @inbox.handler("OrderPlaced")
        def write_and_fail(connection: sqlite3.Connection, event: Event[Any]) -> None:
            connection.execute("INSERT INTO effects VALUES (?)", (what,))
            if fail:
                raise RuntimeError("the bench fails it")

        result: Reception = inbox.perform(reception(inbox, message))
        return result

    def round_trips(self) -> int:
        return int(self._counting.calls)

    async def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        return self.file.rows(table)

    async def close(self) -> None:
        for connection in self._opened:
            connection.close()
        self.file.close()
