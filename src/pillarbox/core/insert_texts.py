"""The texts of `core/insert.py`, per database. A `?` stands for a parameter; each is used once, in this order."""

from collections.abc import Mapping
from itertools import count
from typing import Literal

Dialect = Literal["sqlite", "postgres"]
Marker = Literal["?", "%s", "$"]
"""How the tool that runs a text writes a parameter: `?`, `%s`, or `$1`, `$2`, …"""

COLUMNS = (
    "event_id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "topic",
    "payload",
    "body",
    "content_type",
    "headers",
    "idempotency_key",
    "number",
    "available_at",
    "occurred_at",
)
PLAIN = (*COLUMNS[:6], "content_type")

_SQLITE = {
    "insert": f"INSERT INTO {{p}}outbox ({', '.join(COLUMNS)}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
    "insert_plain": f"INSERT INTO {{p}}outbox ({', '.join(PLAIN)}) VALUES (?,?,?,?,?,?,?)",
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
    # What an insert that failed has left; each looks whether it is still as it was, for SQLite may have rolled back.
    "added": "SELECT event_id FROM {p}outbox WHERE event_id IN (SELECT value FROM json_each(?))",
    "give_back_key": "DELETE FROM {p}keys WHERE key = ? AND event_id = ?",
    "give_back_number": (
        "UPDATE {p}numbers SET last = last - 1 WHERE aggregate_type = ? AND aggregate_id = ? AND last = ?"
    ),
}

# Every parameter is sent as text: a connection may have codecs of its own for the other types, and asyncpg asks the
# server about arrays that it does not know yet.
_TYPES = {
    "event_id": "uuid",
    "payload": "json",
    "headers": "json",
    "body": "bytea",
    "number": "bigint",
    "available_at": "timestamptz",
    "occurred_at": "timestamptz",
    "numbered": "boolean",
}


def _named(columns: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(column, f"?::text::{_TYPES.get(column, 'text')}") for column in columns]


def _values(columns: tuple[str, ...]) -> str:
    return ", ".join(value for _, value in _named(columns))


def _unnested(columns: tuple[str, ...]) -> str:
    arrays = ", ".join(f"?::text[]::{_TYPES.get(column, 'text')}[]" for column in columns)
    return f"unnest({arrays}) WITH ORDINALITY AS event ({', '.join(columns)}, place)"


def _insert_many(columns: tuple[str, ...]) -> str:
    names = ", ".join(columns)
    return f"INSERT INTO {{p}}outbox ({names}) SELECT {names} FROM {_unnested(columns)} ORDER BY place"


# For one event a function is three times as fast as the statement below; all that it checks has been checked.
_ADD_ONE = (
    f"SELECT {{p}}add({', '.join(f'{column} => {value}' for column, value in _named((*COLUMNS, 'numbered')))},"
    " on_duplicate => 'ignore', max_payload => 2147483647, notify => {notify}) IS NULL"
)

_NUMBER = "CASE WHEN numbered THEN last + 1 - from_last ELSE number END"
# One statement, so that keys and numbers cost no round trip of their own. Its parts run in the order in which they
# stand: each is materialised and reads the one before. So a number is drawn, and its counter locked, before any row
# gets its id; in a trigger or in the target list it would come after, and numbers would not follow the ids.
_SETTLED = f"""\
WITH event AS MATERIALIZED (SELECT * FROM {_unnested((*COLUMNS, "numbered"))}),
held AS MATERIALIZED (
    SELECT key FROM {{p}}take_keys(
        ARRAY(SELECT idempotency_key FROM event WHERE idempotency_key IS NOT NULL ORDER BY place),
        ARRAY(SELECT event_id FROM event WHERE idempotency_key IS NOT NULL ORDER BY place), {{whole}}) key),
fresh AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY numbered, aggregate_type, aggregate_id ORDER BY place DESC) AS from_last
    FROM event WHERE NOT EXISTS (SELECT FROM held WHERE {{whole}} OR key = idempotency_key)),
drawn AS MATERIALIZED (
    SELECT * FROM {{p}}draw_numbers(
        ARRAY(SELECT aggregate_type FROM fresh WHERE numbered), ARRAY(SELECT aggregate_id FROM fresh WHERE numbered))),
added AS (
    INSERT INTO {{p}}outbox ({", ".join(COLUMNS)})
    SELECT {", ".join(_NUMBER if column == "number" else column for column in COLUMNS)}
    FROM fresh LEFT JOIN drawn USING (aggregate_type, aggregate_id) ORDER BY place)
SELECT ARRAY(SELECT key FROM held){{bell}}"""

_POSTGRES = {
    "insert_one": f"INSERT INTO {{p}}outbox ({', '.join(PLAIN)}) VALUES ({_values(PLAIN)})",
    "insert_plain": _insert_many(PLAIN),
    "insert": _insert_many(COLUMNS),
}


def texts_of(dialect: Dialect, marker: Marker, schema: str, prefix: str, notify: bool) -> Mapping[str, str]:
    """Give the texts for tables with this prefix, by name."""
    if dialect == "sqlite":
        # Never a temporary table of that name, nor one in an attached file, which is committed apart from the main one.
        texts = {name: text.format(p=f"main.{prefix}") for name, text in _SQLITE.items()}
    else:
        texts = _postgres(f"{schema}.{prefix}", f", pg_notify('{prefix}outbox', '')" if notify else "")
    return {name: _marked(text, marker) for name, text in texts.items()}


def _postgres(place: str, bell: str) -> dict[str, str]:
    texts = {name: text.format(p=place) for name, text in _POSTGRES.items()}
    if bell:
        texts = {name: f"WITH added AS ({text}) SELECT NULL{bell}" for name, text in texts.items()}
    texts["add_one"] = _ADD_ONE.format(p=place, notify="true" if bell else "false")
    for name, whole in (("settle_or_refuse", "true"), ("settle_or_pass", "false")):
        texts[name] = _SETTLED.format(p=place, whole=whole, bell=bell)
    return texts


def _marked(text: str, marker: Marker) -> str:
    if marker != "$":
        return text.replace("?", marker)
    first, *others = text.split("?")
    return first + "".join(f"${number}{part}" for number, part in zip(count(1), others, strict=False))
