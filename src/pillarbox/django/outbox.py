"""Outbox: where an application with Django puts events. Settings are read when the first event is added."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Unpack

from django.conf import settings
from django.db import connections, transaction
from django.db import utils as errors

from pillarbox.core import postgres_facts, sqlite_facts
from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, PlaceOptions, Rows, Statement, insertion
from pillarbox.core.insert_texts import Dialect
from pillarbox.errors import ConfigError, NoTransaction
from pillarbox.inbox.steps import drive

_DIALECTS: dict[str, Dialect] = {"sqlite": "sqlite", "postgresql": "postgres"}
_BEGIN = "let DATABASES begin with 'OPTIONS': {'transaction_mode': 'IMMEDIATE'}"


class Outbox:
    """Where an application puts events, in its own transaction.

    What is not given here comes from `PILLARBOX["outbox"]` in the settings. `after_commit` is called after each commit
    with events: `relay.ring`, for a relay in the same process.

    >>> outbox = Outbox()
    >>> with transaction.atomic():                                                  # doctest: +SKIP
    ...     order = Order.objects.create(total=42)
    ...     outbox.add(Event("OrderPlaced", {"total": 42}, aggregate=("order", order.pk)))
    """

    def __init__(self, *, after_commit: Callable[[], object] | None = None, **place: Unpack[PlaceOptions]) -> None:
        self._given, self._after_commit = place, after_commit

    def add(self, *events: Event[Any], using: str = "default", on_duplicate: OnDuplicate = "raise") -> None:
        """Add events in the transaction of `using`; they are published if, and only if, it commits."""
        connection = connections[using]
        place = self._place(connection)
        _check_transaction(connection)
        with _failures(connection), connection.cursor() as cursor:
            drive(insertion(events, place, on_duplicate), lambda statement: _run(cursor, statement))
        if self._after_commit is not None and events:
            transaction.on_commit(self._after_commit, using=using)

    def _place(self, connection: Any) -> Place:
        if (dialect := _DIALECTS.get(connection.vendor)) is None:
            raise ConfigError(
                f"{connection.vendor} is no database that pillarbox.django knows: it writes to postgresql and sqlite"
            )
        options = {**_settings(), **self._given}
        return _made(tuple(sorted(options.items())), dialect)


@lru_cache(maxsize=64)
def _made(options: tuple[tuple[str, Any], ...], dialect: Dialect) -> Place:
    return Place(**dict(options), dialect=dialect, marker="%s")


def _settings() -> dict[str, Any]:
    named = getattr(settings, "PILLARBOX", {}).get("outbox", {})
    for name in named:
        if name not in PlaceOptions.__annotations__:
            near = get_close_matches(name, PlaceOptions.__annotations__, 1) or sorted(PlaceOptions.__annotations__)
            raise ConfigError(f"PILLARBOX['outbox']: {name!r} is no setting; did you mean {', '.join(near)}?")
    return dict(named)


def _check_transaction(connection: Any) -> None:
    if not connection.in_atomic_block and connection.get_autocommit():
        raise NoTransaction(
            f"the connection {connection.alias!r} is in autocommit, so nothing could be atomic with your changes:"
            " wrap it in `with transaction.atomic():`, with the same `using`"
        )


def _run(cursor: Any, statement: Statement) -> Rows:
    if statement.rows is not None:
        cursor.executemany(statement.sql, statement.rows)
        return ()
    cursor.execute(statement.sql, statement.parameters)
    rows: Rows = cursor.fetchall() if cursor.description else ()
    return rows


@contextmanager
def _failures(connection: Any) -> Iterator[None]:
    """Turn the driver's errors into ours; those of Django itself, such as a broken atomic block, stay."""
    try:
        yield
    except errors.Error as error:
        if not isinstance(original := error.__cause__, Exception):
            raise
        if connection.vendor == "postgresql":
            raise postgres_facts.error_of(original, getattr(original, "sqlstate", None)) from error
        raise sqlite_facts.error_of(original, str(connection.settings_dict["NAME"]), _BEGIN) from error
