"""Outbox and AsyncOutbox: where an application with SQLAlchemy puts events."""

from collections.abc import Callable
from typing import Any, Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, PlaceOptions, insertion
from pillarbox.errors import ConfigError
from pillarbox.inbox.steps import drive
from pillarbox.sqlalchemy.transaction import (
    AsyncTransaction,
    Transaction,
    async_half,
    connection_of,
    database_of,
    failures,
    run,
)
from pillarbox.tracing import with_trace


class Outbox:
    """Where an application puts events, in its own transaction.

    `after_commit` is called after each commit of a Session with events: `relay.ring`, for a relay in the same process.

    >>> outbox = Outbox()
    >>> with Session(engine) as session, session.begin():                           # doctest: +SKIP
    ...     outbox.add(session, Event("OrderPlaced", {"total": 42}, aggregate=("order", 7)))
    """

    def __init__(self, *, after_commit: Callable[[], object] | None = None, **place: Unpack[PlaceOptions]) -> None:
        self._place = Place(dialect="postgres", marker="%s", **place)
        self._after_commit = after_commit

    def add(self, transaction: Transaction, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        """Add events in the session's transaction, after what is pending; published if, and only if, it commits."""
        connection = connection_of(transaction)
        place = self._place.on(*database_of(connection))
        with failures(connection.engine):
            drive(insertion(with_trace(events), place, on_duplicate), lambda statement: run(connection, statement))
        if self._after_commit is not None and events:
            self._call_after_commit(transaction)

    def _call_after_commit(self, transaction: Transaction) -> None:
        session = transaction() if isinstance(transaction, scoped_session) else transaction
        if not isinstance(session, Session):
            raise ConfigError(
                "after_commit: a Connection does not tell when it has committed: use a Session, or call it yourself"
            )
        if not sa.event.contains(session, "after_commit", self._committed):
            sa.event.listen(session, "after_commit", self._committed)

    def _committed(self, session: Session) -> None:
        if (
            self._after_commit is not None and not session.in_nested_transaction()
        ):  # the end of a savepoint is no commit
            self._after_commit()


class AsyncOutbox:
    """The same for AsyncSession and AsyncConnection.

    >>> outbox = AsyncOutbox()
    """

    def __init__(self, *, after_commit: Callable[[], object] | None = None, **place: Unpack[PlaceOptions]) -> None:
        self._outbox = Outbox(after_commit=after_commit, **place)

    async def add(
        self, transaction: AsyncTransaction, *events: Event[Any], on_duplicate: OnDuplicate = "raise"
    ) -> None:
        """Add events in the session's transaction, after what is pending; published if, and only if, it commits."""
        await async_half(transaction).run_sync(lambda sync: self._outbox.add(sync, *events, on_duplicate=on_duplicate))
