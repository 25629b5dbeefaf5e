"""What a test sees of the outbox: inside its own transaction, which may be rolled back in the end.

Everything is read through the transaction that the test gives: a sqlite3 connection, or a SQLAlchemy Session or
Connection (`await session.run_sync(outbox.drain)` for the async ones). Nothing is committed, no relay runs.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.insert import EPOCH, check_identifier
from pillarbox.core.message import Delivery, Message, decode, encode
from pillarbox.core.payload import to_json
from pillarbox.inbox.inbox import Handlers

_COLUMNS = (
    "id, event_id, aggregate_type, aggregate_id, event_type, topic, coalesce(payload, body), content_type, headers,"
    " idempotency_key, number, available_at, occurred_at, created_at"
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

    def __init__(self, prefix: str = "pillarbox_") -> None:
        self._table = check_identifier("prefix", prefix) + "outbox"
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
        sql = f"SELECT {_COLUMNS} FROM {self._table} WHERE id > {after:d} ORDER BY id"
        return [_entry(row) for row in _reader(transaction)(sql)]


def _said(type: str, payload: object, aggregate: object) -> str:
    return f"Event({type!r}, {'…' if payload is ... else payload!r}, aggregate={aggregate!r})"


def _reader(transaction: Any) -> Callable[[str], Sequence[Sequence[Any]]]:
    """Find how this transaction is read: a SQLAlchemy Session or Connection, or a PEP 249 connection."""
    if hasattr(transaction, "connection") and hasattr(transaction, "flush"):
        transaction.flush()
        transaction = transaction.connection()
    if hasattr(transaction, "exec_driver_sql"):
        return lambda sql: transaction.exec_driver_sql(sql).fetchall()
    return lambda sql: transaction.execute(sql).fetchall()


def _entry(row: Sequence[Any]) -> Entry:
    stored, times = row[:11], [_instant(at) for at in row[11:]]
    return Entry(*stored, *times)


def _instant(stored: int | None) -> datetime | None:
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
    model = handler.model
    handler.function(transaction, decode(Delivery(message), lambda _: model))
