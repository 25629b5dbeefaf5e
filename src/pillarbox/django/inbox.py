"""Inbox: what an application with Django receives events by. Settings are read when the first event is received."""

from typing import Any, Literal, TypeVar
from uuid import UUID

from django.db import transaction
from django.db import utils as errors

from pillarbox.core.insert import Rows, Statement
from pillarbox.django.connection import check_transaction, connection_of, dialect_of, failures, outages, run
from pillarbox.django.outbox import outbox_settings
from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.inbox import programs
from pillarbox.inbox.inbox import Registry, message_key
from pillarbox.inbox.statements import Texts, texts_of
from pillarbox.inbox.steps import (
    Call,
    ClosedByHandler,
    EndedByHandler,
    Program,
    call_sync,
    commit_failures,
    drive,
    guarded,
    is_open,
)

R = TypeVar("R")


class Inbox(Registry[Any, None]):
    """Receives events for one consumer, each once, in the database with the alias `using`. A handler gets Django's
    connection; whatever its models write with the same alias is in the same transaction.

    What is not given here comes from `PILLARBOX["outbox"]` in the settings: the tables are the same.

    >>> inbox = Inbox("billing")
    >>> @inbox.handler("OrderPlaced")
    ... def bill(connection, event):
    ...     Invoice.objects.create(order_id=event.payload["order_id"])
    """

    is_async: Literal[False] = False

    def __init__(
        self, consumer: str, using: str = "default", *, schema: str | None = None, prefix: str | None = None
    ) -> None:
        super().__init__(consumer, prefix or "pillarbox_", takes_async=False)
        self._using, self._schema, self._prefix = using, schema, prefix

    def first_time(self, message_id: str | UUID) -> bool:
        """Note a message in the transaction of `using`; False if this consumer has it already."""
        connection = connection_of(self._using)
        check_transaction(connection)
        program = programs.first_time(self.texts, message_key(message_id))
        return drive(program, lambda statement: _run(connection, statement))

    @property
    def texts(self) -> Texts:
        """The statements for the consumer's database."""
        dialect, settings = dialect_of(connection_of(self._using)), outbox_settings()
        place: str = self._prefix or settings.get("prefix", "pillarbox_")
        if dialect == "postgres":
            place = f"{self._schema or settings.get('schema', 'public')}.{place}"
        return texts_of(self.consumer, dialect, "%s", place)

    @property
    def most_workers(self) -> int | None:
        """SQLite has one writer at a time."""
        return 1 if dialect_of(connection_of(self._using)) == "sqlite" else None

    def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own, on this thread's connection; for the consumer."""
        connection = connection_of(self._using)
        if not connection.settings_dict["AUTOCOMMIT"]:
            raise ConfigError(
                f"DATABASES[{self._using!r}]: with AUTOCOMMIT off Django leaves commits to you, so nothing would ever"
                " be handled: switch it on for the inbox's alias"
            )
        connection.close_if_unusable_or_obsolete()

        def call(step: Call) -> object:
            with outages(connection), guarded(connection.connection, step):
                value = call_sync(step, connection)
            if connection.closed_in_transaction:
                raise ClosedByHandler
            if step.shared and not is_open(connection.connection):
                raise EndedByHandler
            return value

        try:
            with (
                failures(connection),
                commit_failures(errors.IntegrityError, errors.ProgrammingError),
                transaction.atomic(using=self._using, durable=True),
            ):
                return drive(program, lambda statement: _run(connection, statement), call)
        except StoreUnavailable:
            connection.close()  # the next program opens another
            raise

    def close(self) -> None:
        """Close this thread's connection."""
        connection_of(self._using).close()


def _run(connection: Any, statement: Statement) -> Rows:
    with failures(connection), connection.cursor() as cursor:
        return run(cursor, statement)
