"""Doors that are broken on purpose. Every rule of the door's contract fails on at least one of them."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any
from uuid import UUID

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.errors import DuplicateEvent, HandlerFailed, InvalidEvent, NoTransaction
from pillarbox.testing.contracts.sqlite3_door import Sqlite3DoorBench

Connection = sqlite3.Connection


def _file(connection: Connection) -> str:
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


@contextmanager
def _second(connection: Connection) -> Iterator[Connection]:
    other = sqlite3.connect(_file(connection), timeout=0.1)
    try:
        with other:
            yield other
    finally:
        other.close()


class CommitsByItself(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate=on_duplicate)
        connection.commit()


class WritesOnASecondConnection(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        with _second(connection) as other:
            super().add(other, *events, on_duplicate=on_duplicate)


class WritesAtTheNextCall(Outbox):
    """Keeps events until the next call, as a buffer would that nobody flushes."""

    kept: list[Event[Any]]

    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        waiting, self.kept = getattr(self, "kept", []), list(events)
        super().add(connection, *waiting, on_duplicate=on_duplicate)


class LosesTheOrder(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *reversed(events), on_duplicate=on_duplicate)


class PutsLaterCallsFirst(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate=on_duplicate)
        connection.execute("UPDATE pillarbox_outbox SET id = -id - 1000 WHERE id > 0")


class OneStatementPerEvent(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        for event in events:
            super().add(connection, event, on_duplicate=on_duplicate)


class AlwaysAsks(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        connection.execute("SELECT 1 FROM pillarbox_meta")
        super().add(connection, *events, on_duplicate=on_duplicate)


class BeginsByItself(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        try:
            super().add(connection, *events, on_duplicate=on_duplicate)
        except NoTransaction:
            connection.execute("BEGIN")
            super().add(connection, *events, on_duplicate=on_duplicate)
            connection.commit()


class NumbersEverythingTogether(Outbox):
    count = 0

    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate=on_duplicate)
        for event in events:
            if event.numbered:
                self.count += 1
                parameters = (self.count, str(event.id))
                connection.execute("UPDATE pillarbox_outbox SET number = ? WHERE event_id = ?", parameters)


class SwallowsTheDuplicate(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate="ignore")


class NeverIgnores(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate="raise")


class RollsBackOnADuplicate(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        try:
            super().add(connection, *events, on_duplicate=on_duplicate)
        except DuplicateEvent:
            connection.rollback()
            raise


class StopsHalfWay(Outbox):
    """Adds what it can before it refuses."""

    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        try:
            super().add(connection, *events, on_duplicate=on_duplicate)
        except (DuplicateEvent, InvalidEvent):
            for event in events:
                super().add(connection, event, on_duplicate=on_duplicate)
            raise


class KeepsKeysInMemory(Outbox):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keys: set[str] = set()

    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        keys = {event.idempotency_key for event in events if event.idempotency_key is not None}
        if self._keys & keys and on_duplicate == "raise":
            raise DuplicateEvent("it was in memory")
        super().add(connection, *events, on_duplicate=on_duplicate)
        self._keys |= keys


class ForgetsTheTopic(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate=on_duplicate)
        connection.execute("UPDATE pillarbox_outbox SET topic = 'events'")


class WritesThePayloadAnew(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate=on_duplicate)
        connection.execute("UPDATE pillarbox_outbox SET payload = replace(payload, ':', ': ') WHERE payload NOT NULL")


class ReadsBytesAsText(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate=on_duplicate)
        connection.execute("UPDATE pillarbox_outbox SET body = CAST(body AS TEXT) || '?' WHERE body NOT NULL")


class DropsTheHeaders(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        super().add(connection, *events, on_duplicate=on_duplicate)
        connection.execute("UPDATE pillarbox_outbox SET headers = '{}'")


class LosesTheTrace(Outbox):
    """Works where nothing is current, as a thread of its own would."""

    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        Context().run(super().add, connection, *events, on_duplicate=on_duplicate)


class ReplacesTheTrace(Outbox):
    def add(self, connection: Connection, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        for event in events:
            object.__setattr__(event, "headers", {n: v for n, v in event.headers.items() if n != "traceparent"})
        super().add(connection, *events, on_duplicate=on_duplicate)


class AlwaysTheFirstTime(Inbox):
    def first_time(self, connection: Connection, message_id: str | UUID) -> bool:
        super().first_time(connection, message_id)
        return True


class RemembersInMemory(Inbox):
    """Decides by a set of its own, which knows no rollback."""

    _seen: set[str]

    def first_time(self, connection: Connection, message_id: str | UUID) -> bool:
        self._seen = getattr(self, "_seen", set())
        first = str(message_id) not in self._seen
        self._seen.add(str(message_id))
        return first


class NotesOutsideTheTransaction(Inbox):
    def first_time(self, connection: Connection, message_id: str | UUID) -> bool:
        with _second(connection) as other:
            return super().first_time(other, message_id)


class LooksInsteadOfWriting(Inbox):
    """Looks whether the row is there, and leaves the writing to the end."""

    def first_time(self, connection: Connection, message_id: str | UUID) -> bool:
        known = connection.execute("SELECT 1 FROM pillarbox_inbox WHERE event_id = ?", (message_id,)).fetchone()
        return known is None


class CommitsBeforeTheHandler(Inbox):
    def perform(self, program: Any, *, reading: bool = False) -> Any:
        connection = self._connection()
        answer = connection.execute(*next(program)[:2]).fetchall()
        connection.commit()
        return super().perform(_rest(program, answer))


class CommitsEffectsAlone(Inbox):
    """Loses the inbox row: a copy is applied again."""

    def perform(self, program: Any, *, reading: bool = False) -> Any:
        result = super().perform(program, reading=reading)
        with self._connection() as connection:
            connection.execute("DELETE FROM pillarbox_inbox")
        return result


class CommitsWhatFailed(Inbox):
    def perform(self, program: Any, *, reading: bool = False) -> Any:
        try:
            return super().perform(_committing(program, self._connection()))
        except HandlerFailed:
            self._connection().commit()
            raise


class NeverCommits(Inbox):
    def perform(self, program: Any, *, reading: bool = False) -> Any:
        result = super().perform(_rolling_back(program, self._connection()))
        self._connection().rollback()
        return result


def _rest(program: Any, answer: Any) -> Any:
    step = program.send(answer)
    while True:
        try:
            answer = yield step
        except BaseException as error:  # noqa: BLE001 - handed on to the program
            step = program.throw(error)
        else:
            try:
                step = program.send(answer)
            except StopIteration as end:
                return end.value


def _committing(program: Any, connection: Connection) -> Any:
    try:
        return (yield from program)
    except HandlerFailed:
        connection.commit()
        raise


def _rolling_back(program: Any, connection: Connection) -> Any:
    result = yield from program
    connection.rollback()
    return result


def _bench(outbox: type[Outbox] = Outbox, inbox: type[Inbox] = Inbox) -> type[Sqlite3DoorBench]:
    broken = outbox if inbox is Inbox else inbox
    return type(broken.__name__, (Sqlite3DoorBench,), {"outbox_type": outbox, "inbox_type": inbox})


DEFECTS: list[type[Sqlite3DoorBench]] = [
    _bench(outbox)
    for outbox in (
        CommitsByItself,
        WritesOnASecondConnection,
        WritesAtTheNextCall,
        LosesTheOrder,
        PutsLaterCallsFirst,
        OneStatementPerEvent,
        AlwaysAsks,
        BeginsByItself,
        NumbersEverythingTogether,
        SwallowsTheDuplicate,
        NeverIgnores,
        RollsBackOnADuplicate,
        StopsHalfWay,
        KeepsKeysInMemory,
        ForgetsTheTopic,
        WritesThePayloadAnew,
        ReadsBytesAsText,
        DropsTheHeaders,
        LosesTheTrace,
        ReplacesTheTrace,
    )
] + [
    _bench(inbox=inbox)
    for inbox in (
        AlwaysTheFirstTime,
        RemembersInMemory,
        NotesOutsideTheTransaction,
        LooksInsteadOfWriting,
        CommitsBeforeTheHandler,
        CommitsEffectsAlone,
        CommitsWhatFailed,
        NeverCommits,
    )
]
"""Benches with a broken door each."""
