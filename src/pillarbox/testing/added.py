"""What a test sees of the outbox: inside its own transaction, which may be rolled back in the end.

Everything is read through the transaction that the test gives: a sqlite3 or a psycopg connection, or a SQLAlchemy
Session or Connection (`await session.run_sync(outbox.drain)` for the async ones). Nothing is committed, no relay runs.
"""

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.insert import EPOCH, Statement, check_identifier
from pillarbox.core.insert_texts import Dialect
from pillarbox.core.message import Delivery, Message, decode, encode
from pillarbox.core.payload import to_json
from pillarbox.core.wording import a_kind_of
from pillarbox.inbox.inbox import Handlers

Read = Callable[[str], Sequence[Sequence[Any]]]

_ON_SQLITE = (
    "id, event_id, aggregate_type, aggregate_id, event_type, topic, payload, body, content_type, headers,"
    " idempotency_key, number, available_at, occurred_at, created_at"
)
# As text, what a connection may read with loaders of its own.
_ON_POSTGRES = (
    _ON_SQLITE.replace("event_id", "event_id::text", 1)
    .replace("payload", "payload::text")
    .replace("headers", "headers::text")
)


class Inbox(Protocol):
    """The part of a door's inbox that `drain` needs."""

    @property
    def handlers(self) -> Handlers: ...

    @property
    def is_async(self) -> bool: ...

    def first_time(self, transaction: Any, message_id: str, /) -> Any: ...


class AddedEvents:
    """The events added in a test's transaction. `drain` gives them out once, as a relay would."""

    def __init__(self, prefix: str = "pillarbox_", schema: str = "public") -> None:
        self._table = check_identifier("prefix", prefix) + "outbox"
        self._schema = check_identifier("schema", schema)
        self._drained = 0

    def events(self, transaction: Any) -> list[Event[Any]]:
        """List everything in the outbox that this transaction sees, in order."""
        return [_event(entry) for entry in self._entries(transaction, after=0)]

    def drain(self, transaction: Any, *inboxes: Inbox) -> list[Message]:
        """Give the messages of what was added since the last drain; hand each to the inboxes that handle its type.

        Plain handlers run at once, in this transaction, each event once; what they add themselves is drained too.
        A delayed event is handed out like the others: its time is in `events`.
        """
        for inbox in inboxes:
            if inbox.is_async:
                raise TypeError("drain calls plain handlers: give it an Inbox with plain functions, not an AsyncInbox")
        drained: list[Message] = []
        while entries := self._entries(transaction, after=self._drained):
            self._drained = entries[-1].position
            for entry in entries:
                message = encode(entry, 0)
                drained.append(message)
                for inbox in inboxes:
                    _handle(transaction, inbox, message)
        return drained

    def assert_added(
        self, transaction: Any, type: str, payload: object = ..., *, aggregate: tuple[str, Any] | None = None
    ) -> Event[Any]:
        """Assert that exactly one event of this type (and payload, and aggregate) was added; give it.

        A model as `payload` is compared as the JSON that it becomes.
        """
        wanted = None if aggregate is None else (aggregate[0], str(aggregate[1]))
        if payload is not ... and not isinstance(payload, bytes):
            payload = json.loads(to_json(payload))
        events = self.events(transaction)
        found = [
            event
            for event in events
            if event.type == type and payload in (..., event.payload) and wanted in (None, event.aggregate)
        ]
        assert len(found) == 1, f"{len(found)} events match {_said(type, payload, wanted)}; added were {events}"
        return found[0]

    def assert_nothing_added(self, transaction: Any, type: str | None = None) -> None:
        """Assert that no event (of this type) was added."""
        found = [event for event in self.events(transaction) if type in (None, event.type)]
        assert not found, f"expected no event{'' if type is None else f' {type!r}'}, found {found}"

    def _entries(self, transaction: Any, after: int) -> list[Entry]:
        database, read = _reader(transaction)
        table = self._table if database == "sqlite" else f"{self._schema}.{self._table}"
        columns = _ON_SQLITE if database == "sqlite" else _ON_POSTGRES
        return [_entry(row) for row in read(f"SELECT {columns} FROM {table} WHERE id > {after:d} ORDER BY id")]


def _said(type: str, payload: object, aggregate: object) -> str:
    return f"Event({type!r}, {'…' if payload is ... else payload!r}, aggregate={aggregate!r})"


_DATABASES: dict[str, Dialect] = {"sqlite": "sqlite", "postgresql": "postgres"}


def _reader(transaction: Any) -> tuple[Dialect, Read]:
    """Find which database this transaction is in, and how it is read there."""
    if hasattr(transaction, "connection") and hasattr(transaction, "flush"):
        transaction.flush()
        transaction = transaction.connection()
    if hasattr(transaction, "exec_driver_sql"):
        return _DATABASES[transaction.dialect.name], lambda sql: transaction.exec_driver_sql(sql).fetchall()
    if isinstance(transaction, sqlite3.Connection):
        return "sqlite", lambda sql: transaction.execute(sql).fetchall()
    if any(f"{kind.__module__}.{kind.__name__}" == "psycopg.Connection" for kind in type(transaction).__mro__):
        # Only with psycopg is there such a connection, and it may have a row factory of its own.
        from pillarbox.psycopg.exchange import run

        return "postgres", lambda sql: run(transaction, Statement(sql))
    raise TypeError(
        f"{a_kind_of(transaction)} is nothing that the outbox fixture can read: give a sqlite3 or psycopg connection,"
        " or a SQLAlchemy Session or Connection; of the async ones, `await session.run_sync(outbox.drain)`"
    )


def _entry(row: Sequence[Any]) -> Entry:
    *names, payload, body = row[:8]
    stored = [*names, body if payload is None else payload, *row[8:12]]
    return Entry(*stored, *map(_instant, row[12:]))


def _instant(stored: int | datetime | None) -> datetime | None:
    if isinstance(stored, datetime):
        return stored.astimezone(UTC)
    return None if stored is None else EPOCH + timedelta(microseconds=stored)


def _event(entry: Entry) -> Event[Any]:
    event = decode(Delivery(encode(entry, 0)))
    object.__setattr__(event, "available_at", entry.available_at)  # which does not go over the wire
    return event


def _handle(transaction: Any, inbox: Inbox, message: Message) -> None:
    event = decode(Delivery(message))
    if event.type not in inbox.handlers or not inbox.first_time(transaction, str(event.id)):
        return
    handler = inbox.handlers[event.type]
    event = decode(Delivery(message), handler.model_for)
    handler.function(transaction, [event] if handler.batch else event)
