"""Insert: events → the statements that put them into the outbox. Sans-IO: a door runs them on the caller's connection.

`insertion` is a small program, a generator: it yields a Statement, the door runs it and sends the rows back.

    program = insertion(events, place)
    answer = None
    while statement := step(program, answer):
        answer = run(statement)          # the door's one line

Usually that is one statement for any number of events. Keys and numbers cost one more each, for all events together.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from pillarbox.core.event import Event
from pillarbox.core.routing import DEFAULT_TOPIC, check_template, topic_of
from pillarbox.errors import ConfigError, DuplicateEvent, InvalidEvent

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = (
    "event_id, aggregate_type, aggregate_id, event_type, topic, payload, body,"
    " content_type, headers, idempotency_key, number, available_at, occurred_at"
)


class Statement(NamedTuple):
    """SQL and its parameters. `rows` run as one executemany and return nothing; `parameters` run once, with rows."""

    sql: str
    parameters: Sequence[Any] = ()
    rows: Sequence[Sequence[Any]] | None = None


Rows = Sequence[Sequence[Any]]
Program = Generator[Statement, Rows, None]
OnDuplicate = Literal["raise", "ignore"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where events go: schema (PostgreSQL), the tables' prefix, the topic template and the payload's limit in bytes."""

    schema: str = "public"
    prefix: str = "pillarbox_"
    topic: str = DEFAULT_TOPIC
    max_payload: int = 262_144
    sql: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_template(self.topic)
        check_identifier("schema", self.schema)
        check_identifier("prefix", self.prefix)
        if self.max_payload < 1:
            raise ConfigError(f"max_payload: {self.max_payload} is not a number of bytes above 0")
        object.__setattr__(self, "sql", {name: text.format(p=self.prefix) for name, text in _SQLITE.items()})


def check_identifier(setting: str, name: str) -> str:
    """Refuse what cannot stand in SQL as a name without quotes."""
    if not (name.isascii() and name.isidentifier() and len(name) <= 40):
        raise ConfigError(f"{setting}: {name!r} must be letters, digits and underscores, at most 40")
    return name


_SQLITE = {
    "insert": f"INSERT INTO {{p}}outbox ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
    "insert_plain": (
        "INSERT INTO {p}outbox (event_id, aggregate_type, aggregate_id, event_type, topic, payload, content_type)"
        " VALUES (?,?,?,?,?,?,?)"
    ),
    "keys": (
        "INSERT INTO {p}keys (key, event_id, created_at)"
        " SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
        " CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
        " FROM json_each(?) WHERE true ON CONFLICT DO NOTHING RETURNING key"
    ),
    "forget_keys": "DELETE FROM {p}keys WHERE key IN (SELECT value FROM json_each(?))",
    "numbers": (
        "INSERT INTO {p}numbers (aggregate_type, aggregate_id, last)"
        " SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')"
        " FROM json_each(?) WHERE true"
        " ON CONFLICT DO UPDATE SET last = last + excluded.last RETURNING aggregate_type, aggregate_id, last"
    ),
}


def insertion(events: Sequence[Event[Any]], place: Place, on_duplicate: OnDuplicate = "raise") -> Program:
    """Put events into the outbox, in their order; one statement for all of them."""
    if (statement := plain_insertion(events, place, on_duplicate)) is not None:
        yield statement
        return
    # Everything that can be refused is refused before the first statement: nothing is written then.
    rows = [_row(event, place) for event in events]
    if any(row[_KEY] is not None for row in rows):
        taken = yield from _take_keys(rows, place, on_duplicate)
        events, rows = [events[index] for index in taken], [rows[index] for index in taken]
    if any(event.numbered for event in events):
        rows = yield from _draw_numbers(events, rows, place)
    if rows:
        yield Statement(place.sql["insert"], rows=rows)


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
    return Statement(place.sql["insert_plain"], rows=[_plain_row(event, place) for event in events])


Row = tuple[Any, ...]
_BODY, _KEY, _NUMBER = 6, 9, 10  # places in a row
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
    return (
        *_place_of(event, place),
        text,
        body,
        event.content_type,
        json.dumps(dict(event.headers), ensure_ascii=False) if event.headers else None,
        event.idempotency_key,
        event.number,
        None if event.available_at is None else microseconds(event.available_at),
        None if event.occurred_at is None else microseconds(event.occurred_at),
    )


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


def _take_keys(
    rows: Sequence[Row], place: Place, on_duplicate: OnDuplicate
) -> Generator[Statement, Rows, Sequence[int]]:
    """Take the idempotency keys; give the indexes of the rows whose key was free, and of those without one."""
    first_with: dict[str, int] = {}
    for index, row in enumerate(rows):
        if row[_KEY] is not None:
            first_with.setdefault(row[_KEY], index)
    wanted = [(key, rows[index][0]) for key, index in first_with.items()]
    taken = {row[0] for row in (yield Statement(place.sql["keys"], [json.dumps(wanted)]))}
    free = [i for i, row in enumerate(rows) if row[_KEY] is None or (row[_KEY] in taken and first_with[row[_KEY]] == i)]
    if len(free) < len(rows) and on_duplicate == "raise":
        # The transaction stays usable, so what this call has just taken is given back.
        yield Statement(place.sql["forget_keys"], [json.dumps(sorted(taken))])
        copy = rows[min(set(range(len(rows))) - set(free))]
        raise DuplicateEvent(
            f"an event with the idempotency key {copy[_KEY]!r} was added before ({copy[3]!r}); "
            "nothing was added now: on_duplicate='ignore' passes over such events"
        )
    return free


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


def microseconds(instant: datetime) -> int:
    """Write an instant as whole microseconds since 1970 in UTC, exactly."""
    passed = instant - EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
