"""The inbox's statements, one table of texts per database. {p} is where the tables are: the prefix of their names, on
PostgreSQL with the schema before it. `$1`, `$2`, … are the parameters.

An event is *parked* while its row is retrying, blocked or dead; a line is blocked while it has such a row. Only events
that block carry their line. `suspect` counts the tries of an event that may have killed its process; it blocks nobody.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pillarbox.core.insert import Statement
from pillarbox.core.insert_texts import Dialect, Marker
from pillarbox.inbox.received import PARKED_COLUMNS

_IS_PARKED = "state IN ('retrying', 'blocked', 'dead')"
_BLOCKED_LINE = (
    f"SELECT 1 FROM {{p}}inbox_parked WHERE consumer = $1 AND line = {{line}} AND line IS NOT NULL AND {_IS_PARKED}"
)
_IN_INBOX = "SELECT 1 FROM {p}inbox WHERE consumer = $1 AND event_id = $2"
_ALL = (
    "consumer, event_id, state, line, due_at, attempts, last_error, traceback, parked_at,"
    " topic, key, headers, body, aggregate_type, aggregate_id, event_type"
)
_REPLACED = (
    "state = excluded.state, line = excluded.line, due_at = excluded.due_at, attempts = excluded.attempts,"
    " last_error = excluded.last_error, traceback = excluded.traceback, parked_at = excluded.parked_at"
)

# What stands behind a name: consumer and event id come first, where a statement has them; instants are microseconds.
_BOTH = {
    # → how it is known: in the inbox, its state in the parking lot
    "why_not": f"SELECT ({_IN_INBOX}), (SELECT state FROM {{p}}inbox_parked WHERE consumer = $1 AND event_id = $2)",
    # → a row if our own row is still there after the handler
    "still_there": _IN_INBOX,
    "clear": "DELETE FROM {p}inbox_parked WHERE consumer = $1 AND event_id = $2 AND state = 'suspect'",
    # …, now
    "handled": (
        "UPDATE {p}inbox_parked SET state = 'handled', settled_at = {at_3}, due_at = NULL"
        " WHERE consumer = $1 AND event_id = $2"
    ),
    # the row (_ALL), line → attempts; no row if there is nothing to suspect
    "suspect": (
        f"INSERT INTO {{p}}inbox_parked AS it ({_ALL}) SELECT {{row}}"
        f" WHERE NOT EXISTS ({_IN_INBOX}) AND NOT EXISTS ({_BLOCKED_LINE.replace('{line}', '$17')})"
        " ON CONFLICT (consumer, event_id) DO UPDATE SET attempts = it.attempts + 1 WHERE it.state = 'suspect'"
        " RETURNING attempts"
    ),
    # the row (_ALL): its inbox row is there, because its handler committed by itself
    "park_committed": (
        f"INSERT INTO {{p}}inbox_parked ({_ALL}) SELECT {{row}} WHERE true"
        f" ON CONFLICT (consumer, event_id) DO UPDATE SET {_REPLACED}"
    ),
    # …, state, line, due_at, attempts, last_error, traceback
    "park_again": (
        "UPDATE {p}inbox_parked SET state = $3, line = $4, due_at = {at_5}, attempts = $6, last_error = $7,"
        " traceback = $8 WHERE consumer = $1 AND event_id = $2 AND state IN ('retrying', 'blocked')"
    ),
    # …, now, held until → attempts; no row if it is not due, not the head of its line, or settled meanwhile
    "try_parked": (
        "UPDATE {p}inbox_parked AS it SET state = 'retrying', attempts = attempts + 1, due_at = {at_4}"
        " WHERE consumer = $1 AND event_id = $2 AND state IN ('retrying', 'blocked')"
        " AND (due_at IS NULL OR due_at <= {at_3})"
        " AND NOT EXISTS (SELECT 1 FROM {p}inbox_parked AS before WHERE before.consumer = it.consumer"
        f" AND before.line = it.line AND before.id < it.id AND before.line IS NOT NULL AND before.{_IS_PARKED})"
        " RETURNING attempts"
    ),
    # consumer, now, limit → parked ones outside any line whose time has come
    "due_free": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE consumer = $1 AND state = 'retrying'"
        " AND due_at <= {at_2} AND line IS NULL ORDER BY due_at, id LIMIT $3"
    ),
    # consumer, line, limit → the head of a line; behind a blocked head, its followers too
    "due_line": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE consumer = $1 AND line = $2 AND line IS NOT NULL"
        f" AND {_IS_PARKED} ORDER BY id LIMIT $3"
    ),
}

_SQLITE = {
    # → a row if it is the first time
    "first_time": "INSERT INTO {p}inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING 1",
    # …, line → a row unless it is a copy, is parked, or its line is blocked
    "receive": (
        "INSERT INTO {p}inbox (consumer, event_id) SELECT $1, $2"
        " WHERE NOT EXISTS (SELECT 1 FROM {p}inbox_parked WHERE consumer = $1 AND event_id = $2 AND state <> 'suspect')"
        f" AND NOT EXISTS ({_BLOCKED_LINE.replace('{line}', '$3')}) ON CONFLICT DO NOTHING RETURNING 1"
    ),
    # around the handler: gone if it ended the transaction
    "mark": "SAVEPOINT {p}inbox_handler",
    "unmark": "RELEASE {p}inbox_handler",
    # the row (_ALL)
    "park": (
        f"INSERT INTO {{p}}inbox_parked AS it ({_ALL}) SELECT {{row}} WHERE NOT EXISTS ({_IN_INBOX})"
        f" ON CONFLICT (consumer, event_id) DO UPDATE SET {_REPLACED} WHERE it.state = 'suspect'"
    ),
    # consumer → every blocked line with the state, the due time and the id of its head, and how many stand in it
    "heads": (
        "SELECT line, state, coalesce(due_at, 0), min(id), count(*) FROM {p}inbox_parked"
        f" WHERE consumer = $1 AND line IS NOT NULL AND {_IS_PARKED} GROUP BY line"
    ),
}

_POSTGRES = {
    # The transaction's number comes back with the row: whoever ends the transaction gets another one.
    "first_time": (
        "INSERT INTO {p}inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        " RETURNING pg_current_xact_id()::text"
    ),
    "receive": "SELECT its FROM {p}receive($1::text, $2::text, $3::text) AS its WHERE its IS NOT NULL",
    # the number → a row if the handler has ended the transaction
    "unmark": "SELECT 1 WHERE pg_current_xact_id_if_assigned()::text IS DISTINCT FROM $1::text",
    "park": "SELECT {p}park_received({row})",
    "heads": (
        "SELECT line, state, coalesce((extract(epoch FROM due_at) * 1000000)::bigint, 0), id, standing FROM ("
        " SELECT line, state, due_at, id, count(*) OVER (PARTITION BY line) AS standing,"
        " row_number() OVER (PARTITION BY line ORDER BY id) AS place FROM {p}inbox_parked"
        f" WHERE consumer = $1 AND line IS NOT NULL AND {_IS_PARKED}) AS standing WHERE place = 1"
    ),
}

_ROW_TYPES = (
    *("text",) * 4, "at", "integer", "text", "text", "at", *("text",) * 3, "bytea", *("text",) * 3,
)  # fmt: skip


class Text(NamedTuple):
    """A statement as a tool wants it; `order` says which parameter each of its markers stands for."""

    sql: str
    order: tuple[int, ...] | None

    def given(self, parameters: Sequence[Any]) -> Sequence[Any]:
        """Put parameters in the order of the markers."""
        return parameters if self.order is None else tuple(parameters[index] for index in self.order)


class Texts(NamedTuple):
    """One consumer's statements."""

    consumer: str
    texts: Mapping[str, Text]

    def __call__(self, name: str, *parameters: object) -> Statement:
        text = self.texts[name]
        return Statement(text.sql, text.given(parameters))

    def many(self, name: str, rows: Sequence[Sequence[Any]]) -> Statement:
        """Run one statement for many rows of parameters."""
        text = self.texts[name]
        return Statement(text.sql, rows=[text.given(row) for row in rows])

    def __contains__(self, name: object) -> bool:
        return name in self.texts


def texts_of(consumer: str, dialect: Dialect, marker: Marker, place: str) -> Texts:
    """Give the statements of a consumer for the tables at a place."""
    return Texts(consumer, _texts(dialect, marker, place))


@lru_cache
def _texts(dialect: Dialect, marker: Marker, place: str) -> Mapping[str, Text]:
    texts = _BOTH | (_SQLITE if dialect == "sqlite" else _POSTGRES)
    instants = {f"at_{number}": _instant(dialect, number) for number in range(2, 6)}
    row = ", ".join(_typed(dialect, number, kind) for number, kind in enumerate(_ROW_TYPES, start=1))
    return {name: _marked(text.format(p=place, row=row, **instants), marker) for name, text in texts.items()}


def _typed(dialect: Dialect, number: int, kind: str) -> str:
    if kind == "at":
        return _instant(dialect, number)
    return f"${number}" if dialect == "sqlite" else f"${number}::{kind}"


def _instant(dialect: Dialect, number: int) -> str:
    if dialect == "sqlite":
        return f"${number}"
    return f"(timestamptz 'epoch' + ${number}::bigint * interval '1 microsecond')"


def _marked(text: str, marker: Marker) -> Text:
    if marker == "$":
        return Text(text, None)
    return Text(re.sub(r"\$\d+", marker, text), tuple(int(number) - 1 for number in re.findall(r"\$(\d+)", text)))
