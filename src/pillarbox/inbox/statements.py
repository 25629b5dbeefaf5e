"""The inbox's statements, one table of texts per database. {p} is the tables' prefix.

An event is *parked* while its row is retrying, blocked or dead; a line is blocked while it has such a row. Only events
that block carry their line. `suspect` counts the tries of an event that may have killed its process; it blocks nobody.
"""

from collections.abc import Mapping
from functools import lru_cache

from pillarbox.inbox.received import PARKED_COLUMNS

_IS_PARKED = "state IN ('retrying', 'blocked', 'dead')"
_BLOCKED_LINE = f"SELECT 1 FROM {{p}}inbox_parked WHERE consumer = ? AND line = ? AND line IS NOT NULL AND {_IS_PARKED}"
_IN_INBOX = "SELECT 1 FROM {p}inbox WHERE consumer = ? AND event_id = ?"
_ALL = (
    "consumer, event_id, state, line, due_at, attempts, last_error, traceback, parked_at,"
    " topic, key, headers, body, aggregate_type, aggregate_id, event_type"
)

SQLITE = {
    # consumer, key → a row if it is the first time
    "first_time": "INSERT INTO {p}inbox (consumer, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING 1",
    # consumer, key, consumer, key, consumer, line → a row unless it is a copy, is parked, or its line is blocked
    "receive": (
        "INSERT INTO {p}inbox (consumer, event_id) SELECT ?, ?"
        " WHERE NOT EXISTS (SELECT 1 FROM {p}inbox_parked WHERE consumer = ? AND event_id = ? AND state <> 'suspect')"
        f" AND NOT EXISTS ({_BLOCKED_LINE}) ON CONFLICT DO NOTHING RETURNING 1"
    ),
    # consumer, key, consumer, key → why it was not received: in the inbox, its state in the parking lot
    "why_not": (f"SELECT ({_IN_INBOX}), (SELECT state FROM {{p}}inbox_parked WHERE consumer = ? AND event_id = ?)"),
    # around the handler: gone if it ended the transaction
    "mark": "SAVEPOINT {p}inbox_handler",
    "unmark": "RELEASE {p}inbox_handler",
    # consumer, key → a row if our own row is still there after the handler
    "still_there": _IN_INBOX,
    # consumer, key
    "clear": "DELETE FROM {p}inbox_parked WHERE consumer = ? AND event_id = ? AND state = 'suspect'",
    # now, consumer, key
    "handled": (
        "UPDATE {p}inbox_parked SET state = 'handled', settled_at = ?, due_at = NULL"
        " WHERE consumer = ? AND event_id = ?"
    ),
    # the row (_ALL), consumer, key, consumer, line → attempts; no row if there is nothing to suspect
    "suspect": (
        f"INSERT INTO {{p}}inbox_parked ({_ALL}) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
        f" WHERE NOT EXISTS ({_IN_INBOX}) AND NOT EXISTS ({_BLOCKED_LINE})"
        " ON CONFLICT (consumer, event_id) DO UPDATE SET attempts = attempts + 1 WHERE state = 'suspect'"
        " RETURNING attempts"
    ),
    # the row (_ALL), consumer, key
    "park": (
        f"INSERT INTO {{p}}inbox_parked ({_ALL}) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
        f" WHERE NOT EXISTS ({_IN_INBOX})"
        " ON CONFLICT (consumer, event_id) DO UPDATE SET state = excluded.state, line = excluded.line,"
        " due_at = excluded.due_at, attempts = excluded.attempts, last_error = excluded.last_error,"
        " traceback = excluded.traceback, parked_at = excluded.parked_at WHERE state = 'suspect'"
    ),
    # the row (_ALL): its inbox row is there, because its handler committed by itself
    "park_committed": (
        f"INSERT INTO {{p}}inbox_parked ({_ALL}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (consumer, event_id) DO UPDATE SET state = excluded.state, line = excluded.line,"
        " due_at = excluded.due_at, attempts = excluded.attempts, last_error = excluded.last_error,"
        " traceback = excluded.traceback, parked_at = excluded.parked_at"
    ),
    # state, line, due_at, attempts, last_error, traceback, consumer, key
    "park_again": (
        "UPDATE {p}inbox_parked SET state = ?, line = ?, due_at = ?, attempts = ?, last_error = ?, traceback = ?"
        " WHERE consumer = ? AND event_id = ? AND state IN ('retrying', 'blocked')"
    ),
    # held until, consumer, key, now → attempts; no row if it is not due, not the head of its line, or settled meanwhile
    "try_parked": (
        "UPDATE {p}inbox_parked AS it SET state = 'retrying', attempts = attempts + 1, due_at = ?"
        " WHERE consumer = ? AND event_id = ? AND state IN ('retrying', 'blocked') AND coalesce(due_at, 0) <= ?"
        " AND NOT EXISTS (SELECT 1 FROM {p}inbox_parked AS before WHERE before.consumer = it.consumer"
        f" AND before.line = it.line AND before.id < it.id AND before.line IS NOT NULL AND before.{_IS_PARKED})"
        " RETURNING attempts"
    ),
    # consumer → every blocked line with the state, the due time and the id of its head, and how many stand in it
    "heads": (
        "SELECT line, state, coalesce(due_at, 0), min(id), count(*) FROM {p}inbox_parked"
        f" WHERE consumer = ? AND line IS NOT NULL AND {_IS_PARKED} GROUP BY line"
    ),
    # consumer, now, limit → parked ones outside any line whose time has come
    "due_free": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE consumer = ? AND state = 'retrying' AND due_at <= ?"
        " AND line IS NULL ORDER BY due_at, id LIMIT ?"
    ),
    # consumer, line, limit → the head of a line; behind a blocked head, its followers too
    "due_line": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE consumer = ? AND line = ? AND line IS NOT NULL"
        f" AND {_IS_PARKED} ORDER BY id LIMIT ?"
    ),
}


@lru_cache
def sqlite_texts(prefix: str) -> Mapping[str, str]:
    """Give SQLite's statements for tables with this prefix."""
    return {name: text.format(p=prefix) for name, text in SQLITE.items()}
