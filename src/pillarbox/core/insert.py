"""Insert: events → the statements that put them into the outbox. Sans-IO: a door runs them on the caller's connection.

`insertion` is a small program, a generator: it yields a Statement, the door runs it and sends the rows back.

    program = insertion(events, place)
    answer = None
    while statement := step(program, answer):
        answer = run(statement)          # the door's one line

Usually that is one statement for any number of events. Keys and numbers cost one more each, for all events together;
on PostgreSQL they cost none: it is always one, and a door for PostgreSQL alone needs no program:

    if (statement := postgres_insertion(events, place)) is not None:
        refuse_duplicates(events, run(statement), on_duplicate)
"""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypedDict

from pillarbox.core.event import Event
from pillarbox.core.insert_texts import Dialect, Marker, texts_of
from pillarbox.core.routing import DEFAULT_TOPIC, check_template, topic_of
from pillarbox.errors import ConfigError, DuplicateEvent, InvalidEvent

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Statement(NamedTuple):
    """SQL and its parameters. `rows` run as one executemany and return nothing; `parameters` run once, with rows.

    `answers` says that the rows of a PostgreSQL statement are wanted. After the `last` one, nothing but the commit is
    left of its transaction: a door may send both at once.
    """

    sql: str
    parameters: Sequence[Any] = ()
    rows: Sequence[Sequence[Any]] | None = None
    answers: bool = False
    last: bool = False


Rows = Sequence[Sequence[Any]]
Program = Generator[Statement, Rows, None]
OnDuplicate = Literal["raise", "ignore"]
MAX_PAYLOAD = 262_144
"""So many bytes an event's payload may have, unless an Outbox says otherwise."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where events go: schema (PostgreSQL), the tables' prefix, the topic template and the payload's limit in bytes.

    `notify` rings PostgreSQL's bell at every commit. `dialect` and `marker` are the door's: the database, and how the
    tool writes parameters.
    """

    schema: str = "public"
    prefix: str = "pillarbox_"
    topic: str = DEFAULT_TOPIC
    max_payload: int = MAX_PAYLOAD
    notify: bool = False
    dialect: Dialect = "sqlite"
    marker: Marker = "?"
    sql: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.notify and self.dialect != "postgres":
            raise ConfigError("notify: only PostgreSQL has NOTIFY; leave it out here")
        check_template(self.topic)
        check_identifier("schema", self.schema)
        check_identifier("prefix", self.prefix)
        if self.max_payload < 1:
            raise ConfigError(f"max_payload: {self.max_payload} is not a number of bytes above 0")
        texts = texts_of(self.dialect, self.marker, self.schema, self.prefix, self.notify)
        object.__setattr__(self, "sql", texts)

    def on(self, dialect: Dialect, marker: Marker) -> "Place":
        """Give the same place as another database or another tool writes it."""
        return _place_on(self, dialect, marker)


@lru_cache(maxsize=64)
def _place_on(place: Place, dialect: Dialect, marker: Marker) -> Place:
    return replace(place, dialect=dialect, marker=marker)


class PlaceOptions(TypedDict, total=False):
    """What every Outbox is told about its place; see Place."""

    schema: str
    prefix: str
    topic: str
    max_payload: int
    notify: bool


def check_identifier(setting: str, name: str) -> str:
    """Refuse what cannot stand in SQL as a name without quotes, or would stand there for another one."""
    if not (name.isascii() and name.isidentifier() and name == name.lower() and len(name) <= 40):
        raise ConfigError(f"{setting}: {name!r} must be small letters, digits and underscores, at most 40")
    if f" {name} " in _RESERVED:
        raise ConfigError(f"{setting}: {name!r} is a word of SQL itself: choose another name")
    return name


_RESERVED = (
    " all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create default"
    " deferrable desc distinct do else end except false fetch for foreign from grant group having in initially"
    " intersect into lateral leading limit not null offset on only or order placing primary references returning select"
    " some symmetric table then to trailing true union unique user using variadic when where window with "
)


def insertion(events: Sequence[Event[Any]], place: Place, on_duplicate: OnDuplicate = "raise") -> Program:
    """Put events into the outbox, in their order; one statement for all of them."""
    if place.dialect == "postgres":
        if (statement := postgres_insertion(events, place, on_duplicate)) is not None:
            refuse_duplicates(events, (yield statement), on_duplicate)
        return
    if (statement := plain_insertion(events, place, on_duplicate)) is not None:
        yield statement
        return
    # Everything that can be refused is refused before the first statement: nothing is written then.
    events = _without_copies(events, on_duplicate)
    rows = [_row(event, place) for event in events]
    _refuse_shared_ids(rows)
    if any(event.idempotency_key is not None for event in events):
        free = yield from _take_keys(events, place, on_duplicate)
        events, rows = [events[index] for index in free], [rows[index] for index in free]
    if any(event.numbered for event in events):
        rows = yield from _draw_numbers(events, rows, place)
    if rows:
        try:
            yield Statement(place.sql["insert"], rows=rows)
        except Exception as error:
            try:
                yield from _give_back(events, rows, place)
            except Exception as failure:  # noqa: BLE001 - the first one says what is wrong
                error.add_note(f"its keys and numbers were not given back: {failure}")
            raise error


def plain_insertion(
    events: Sequence[Event[Any]], place: Place, on_duplicate: OnDuplicate = "raise"
) -> Statement | None:
    """Give the one statement that puts plain events into the outbox; None if it takes more than that.

    Most events are plain. A door asks here first: driving a program costs more than all the rest of an `add`.
    """
    if on_duplicate not in ("raise", "ignore"):
        raise ConfigError(f"on_duplicate: {on_duplicate!r} is neither 'raise' nor 'ignore'")
    if not events or not all(map(_is_plain, events)):
        return None
    # Few columns, because sqlite3 takes longer to bind a None than a text.
    rows = [_plain_row(event, place) for event in events]
    _refuse_shared_ids(rows)
    if place.dialect == "sqlite":
        return Statement(place.sql["insert_plain"], rows=rows)
    if len(rows) == 1:
        return Statement(place.sql["insert_one"], rows[0])
    return Statement(place.sql["insert_plain"], _columns(rows))


def postgres_insertion(
    events: Sequence[Event[Any]], place: Place, on_duplicate: OnDuplicate = "raise"
) -> Statement | None:
    """Give the one statement that puts any events into the outbox; None if there are none.

    What it answers goes to `refuse_duplicates`.
    """
    if (plain := plain_insertion(events, place, on_duplicate)) is not None or not events:
        return plain
    events = _without_copies(events, on_duplicate)
    rows = [_row(event, place) for event in events]
    _refuse_shared_ids(rows)
    if not any(event.numbered or event.idempotency_key is not None for event in events):
        return Statement(place.sql["insert"], _columns(rows))
    if len(rows) == 1:
        return Statement(place.sql["add_one"], [*rows[0], str(events[0].numbered)], answers=True)
    text = place.sql["settle_or_refuse" if on_duplicate == "raise" else "settle_or_pass"]
    return Statement(text, [*_columns(rows), [str(event.numbered) for event in events]], answers=True)


def refuse_duplicates(events: Sequence[Event[Any]], answer: Rows, on_duplicate: OnDuplicate) -> None:
    """Raise DuplicateEvent if PostgreSQL answered that keys were taken before; nothing was written then.

    It answers with these keys; for one event it says whether its key was.
    """
    if on_duplicate == "raise" and answer and (held := answer[0][0]):
        raise _duplicate(next(event for event in events if held is True or event.idempotency_key in held))


Row = tuple[Any, ...]
_TYPE, _BODY, _NUMBER = 3, 6, 10  # places in a row
_NOTHING = (None,) * 5


def full_row(row: Sequence[Any]) -> Row:
    """Give a row of either insert with all columns."""
    return tuple(row) if len(row) > 7 else (*row[:_BODY], None, row[_BODY], *_NOTHING)


def _check_kind(event: object) -> None:
    if not isinstance(event, Event):
        raise InvalidEvent(f"expected an Event, found {type(event).__name__} {event!r:.60}")


def _is_plain(event: Event[Any]) -> bool:
    """Tell whether an event has nothing but an aggregate and a payload in JSON."""
    _check_kind(event)
    return not (
        event.headers
        or event.numbered
        or event.number is not None
        or event.idempotency_key is not None
        or event.available_at is not None
        or event.occurred_at is not None
        or event.data.__class__ is bytes
    )


def _plain_row(event: Event[Any], place: Place) -> Row:
    return (*_place_of(event, place), event.data, event.content_type)


def _row(event: Event[Any], place: Place) -> Row:
    _check_kind(event)
    data = event.data
    text, body = (None, data) if isinstance(data, bytes) else (data, None)
    stored = _for_sqlite if place.dialect == "sqlite" else _for_postgres
    return (
        *_place_of(event, place),
        text,
        stored(body),
        event.content_type,
        json.dumps(dict(event.headers), ensure_ascii=False) if event.headers else None,
        event.idempotency_key,
        stored(event.number),
        stored(event.available_at),
        stored(event.occurred_at),
    )


def _for_sqlite(value: bytes | int | datetime | None) -> bytes | int | None:
    return microseconds(value) if isinstance(value, datetime) else value


def _for_postgres(value: bytes | int | datetime | None) -> str | None:
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    return None if value is None else str(value)


def _place_of(event: Event[Any], place: Place) -> Row:
    """Give id, aggregate, type and topic of an event; refuse it if its payload is too large."""
    data = event.data
    size = len(data) if isinstance(data, bytes) or data.isascii() else len(data.encode())
    if size > place.max_payload:
        raise InvalidEvent(
            f"payload of {event.type!r} ({event.id}): {size:,} bytes, at most {place.max_payload:,}: "
            "store it elsewhere and send its address, or raise max_payload here and at the broker"
        )
    kind, id = event.aggregate or ("", "")
    return str(event.id), kind, id, event.type, event.topic or topic_of(place.topic, kind, event.type)


def _columns(rows: Sequence[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _refuse_shared_ids(rows: Sequence[Row]) -> None:
    """Refuse two events that differ and have one id: whoever receives them would take the second one for a copy."""
    if len(rows) == 1 or len({row[0] for row in rows}) == len(rows):
        return
    first: dict[str, Row] = {}
    for row in rows:
        if (other := first.setdefault(row[0], row)) != row:
            raise InvalidEvent(
                f"id: {other[_TYPE]!r} and {row[_TYPE]!r} are two events with one id, {row[0]}, and a consumer would"
                " take the second one for a copy of the first: leave id out; to have an event once, give it an"
                " idempotency_key"
            )


def _without_copies(events: Sequence[Event[Any]], on_duplicate: OnDuplicate) -> Sequence[Event[Any]]:
    """Refuse, or leave out, an event with the key of an earlier one of the same call."""
    keys: set[str] = set()
    kept = []
    for event in events:
        _check_kind(event)
        if event.idempotency_key is not None:
            if event.idempotency_key in keys and on_duplicate == "raise":
                raise _duplicate(event)
            if event.idempotency_key in keys:
                continue
            keys.add(event.idempotency_key)
        kept.append(event)
    return kept


def _duplicate(copy: Event[Any]) -> DuplicateEvent:
    return DuplicateEvent(
        f"an event with the idempotency key {copy.idempotency_key!r} was added before ({copy.type!r}); "
        "nothing was added now: on_duplicate='ignore' passes over such events"
    )


def _take_keys(
    events: Sequence[Event[Any]], place: Place, on_duplicate: OnDuplicate
) -> Generator[Statement, Rows, Sequence[int]]:
    """Take the idempotency keys; give the indexes of the events whose key was free, and of those without one."""
    wanted = [(event.idempotency_key, str(event.id)) for event in events if event.idempotency_key is not None]
    taken = {row[0] for row in (yield Statement(place.sql["keys"], [json.dumps(wanted)]))}
    if len(taken) < len(wanted) and on_duplicate == "raise":
        # The transaction stays usable, so what this call has just taken is given back.
        yield Statement(place.sql["forget_keys"], [json.dumps(sorted(taken))])
        raise _duplicate(next(e for e in events if e.idempotency_key is not None and e.idempotency_key not in taken))
    return [i for i, event in enumerate(events) if event.idempotency_key is None or event.idempotency_key in taken]


def _draw_numbers(
    events: Sequence[Event[Any]], rows: Sequence[Row], place: Place
) -> Generator[Statement, Rows, list[Row]]:
    """Draw gap-free numbers for the events that ask for one; give the rows with them."""
    wanted: dict[tuple[str, str], list[int]] = {}
    for index, event in enumerate(events):
        if event.numbered and event.aggregate is not None:
            wanted.setdefault(event.aggregate, []).append(index)
    counts = [[*aggregate, len(indexes)] for aggregate, indexes in sorted(wanted.items())]
    numbered = list(rows)
    for kind, id, last in (yield Statement(place.sql["numbers"], [json.dumps(counts)])):
        indexes = wanted[kind, id]
        for number, index in enumerate(indexes, last - len(indexes) + 1):
            numbered[index] = (*rows[index][:_NUMBER], number, *rows[index][_NUMBER + 1 :])
    return numbered


def _give_back(events: Sequence[Event[Any]], rows: Sequence[Row], place: Place) -> Program:
    """Give back the keys and numbers of events that were not inserted: SQLite lets the caller commit after an error;
    then such a key would refuse the event for ever, and such a number would be missing."""
    added = {id for (id,) in (yield Statement(place.sql["added"], [json.dumps([row[0] for row in rows])]))}
    for event, row in zip(reversed(events), reversed(rows), strict=True):
        if row[0] in added:
            continue
        if event.idempotency_key is not None:
            yield Statement(place.sql["give_back_key"], [event.idempotency_key, row[0]])
        if event.numbered:
            yield Statement(place.sql["give_back_number"], [row[1], row[2], row[_NUMBER]])


def microseconds(instant: datetime) -> int:
    """Write an instant as whole microseconds since 1970 in UTC, exactly."""
    passed = instant - EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
