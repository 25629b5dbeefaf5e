"""Outbox: where an application with Django puts events. Settings are read when the first event is added."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Unpack

from django.conf import settings
from django.db import connections, transaction

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate, Place, PlaceOptions, insertion
from pillarbox.core.insert_texts import Dialect
from pillarbox.django.connection import check_transaction, dialect_of, failures, run
from pillarbox.errors import ConfigError
from pillarbox.inbox.steps import drive
from pillarbox.tracing import with_trace


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
        check_transaction(connection)
        with failures(connection), connection.cursor() as cursor:
            drive(insertion(with_trace(events), place, on_duplicate), lambda statement: run(cursor, statement))
        if self._after_commit is not None and events:
            transaction.on_commit(self._after_commit, using=using)

    def _place(self, connection: Any) -> Place:
        options = {**outbox_settings(), **self._given}
        return _made(tuple(sorted(options.items())), dialect_of(connection))


@lru_cache(maxsize=64)
def _made(options: tuple[tuple[str, Any], ...], dialect: Dialect) -> Place:
    return Place(**dict(options), dialect=dialect, marker="%s")


def outbox_settings() -> dict[str, Any]:
    named = getattr(settings, "PILLARBOX", {}).get("outbox", {})
    for name in named:
        if name not in PlaceOptions.__annotations__:
            near = get_close_matches(name, PlaceOptions.__annotations__, 1) or sorted(PlaceOptions.__annotations__)
            raise ConfigError(f"PILLARBOX['outbox']: {name!r} is no setting; did you mean {', '.join(near)}?")
    return dict(named)
