"""The inbox's statements, one table of texts per database. {p} is where the tables are: the prefix of their names, on
PostgreSQL with the schema before it, on SQLite with `main`. `$1`, `$2`, … are the parameters.

An event is *parked* while its row is stored, held, retrying, blocked or dead; a line is blocked while it has such a
row. Only events that block carry their line. `suspect` counts the tries of an event that may have killed its process;
it blocks nobody. A row is *held* while a consumer has it out, until due_at: one whose consumer died is taken again.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pillarbox.core.insert import Statement
from pillarbox.core.insert_texts import Dialect, Marker
from pillarbox.inbox.received import PARKED_COLUMNS

_IS_PARKED = "state IN ('stored', 'held', 'retrying', 'blocked', 'dead')"
_AGGREGATE = "consumer = $1 AND aggregate_type = $2 AND aggregate_id = $3"
_BLOCKED_LINE = (
    f"SELECT 1 FROM {{p}}inbox_parked WHERE consumer = $1 AND line = {{line}} AND line IS NOT NULL AND {_IS_PARKED}"
)
_IN_INBOX = "SELECT 1 FROM {p}inbox WHERE consumer = $1 AND event_id = $2"
_ALL = (
    "consumer, event_id, state, line, due_at, attempts, last_error, traceback, parked_at,"
    " topic, key, headers, body, aggregate_type, aggregate_id, event_type, number, numbering"
)
_REPLACED = (
    "state = excluded.state, line = excluded.line, due_at = excluded.due_at, attempts = excluded.attempts,"
    " last_error = excluded.last_error, traceback = excluded.traceback, parked_at = excluded.parked_at,"
    " numbering = excluded.numbering"
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
        "UPDATE {p}inbox_parked SET state = 'handled', settled_at = {at_3}, due_at = NULL, attempts = attempts + 1"
        " WHERE consumer = $1 AND event_id = $2"
    ),
    # the row (_ALL), line → attempts, last error; no row if there is nothing to suspect
    "suspect": (
        f"INSERT INTO {{p}}inbox_parked AS it ({_ALL}) SELECT {{row}}"
        f" WHERE NOT EXISTS ({_IN_INBOX}) AND NOT EXISTS ({_BLOCKED_LINE.replace('{line}', '$19')})"
        " ON CONFLICT (consumer, event_id) DO UPDATE SET attempts = it.attempts + 1 WHERE it.state = 'suspect'"
        " RETURNING attempts, last_error"
    ),
    # the row (_ALL): its inbox row is there, because its handler committed by itself
    "park_committed": (
        f"INSERT INTO {{p}}inbox_parked ({_ALL}) SELECT {{row}} WHERE true"
        f" ON CONFLICT (consumer, event_id) DO UPDATE SET {_REPLACED}"
    ),
    # …, state, line, due_at, attempts, last_error, traceback, numbering
    "park_again": (
        "UPDATE {p}inbox_parked SET state = $3, line = $4, due_at = {at_5}, attempts = $6, last_error = $7,"
        " traceback = $8, numbering = $9 WHERE consumer = $1 AND event_id = $2 AND state = 'held'"
    ),
    # …, held until → attempts, last error; no row if somebody has settled it meanwhile
    "try_held": (
        "UPDATE {p}inbox_parked SET attempts = attempts + 1, due_at = {at_3}"
        " WHERE consumer = $1 AND event_id = $2 AND state = 'held' RETURNING attempts, last_error"
    ),
    # consumer, keys: they were stored and are handled; the inbox remembers them
    "unstore": "DELETE FROM {p}inbox_parked WHERE consumer = $1 AND event_id {among_2} AND state = 'held'",
    # the row (_ALL)
    "store": (
        f"INSERT INTO {{p}}inbox_parked AS it ({_ALL}) SELECT {{row}} WHERE NOT EXISTS ({_IN_INBOX})"
        # A suspect is as if the process that died with it still had it: its tries stay counted.
        " ON CONFLICT (consumer, event_id) DO UPDATE SET state = 'held', line = excluded.line,"
        " due_at = excluded.parked_at, parked_at = excluded.parked_at WHERE it.state = 'suspect'"
    ),
    # consumer, now → a row if something outside any line may be due, or something is stored
    # consumer → how many stand aside, by how they do
    "left": (
        "SELECT CASE state WHEN 'held' THEN 'retrying' WHEN 'stored' THEN 'pending' ELSE state END, count(*)"
        f" FROM {{p}}inbox_parked WHERE consumer = $1 AND {_IS_PARKED} GROUP BY 1 ORDER BY 1"
    ),
    "waits": (
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM {p}inbox_parked WHERE consumer = $1 AND state = 'stored')"
        " OR EXISTS (SELECT 1 FROM {p}inbox_parked WHERE consumer = $1 AND line IS NULL"
        " AND state IN ('held', 'retrying') AND due_at <= {at_2})"
    ),
    # consumer, now, limit → those outside any line whose time has come
    "due_free": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE consumer = $1 AND line IS NULL"
        " AND (state = 'retrying' OR state = 'held' AND attempts = 0) AND due_at <= {at_2} ORDER BY due_at, id LIMIT $3"
    ),
    # consumer, when it must have been due if one process has died with it, and if more have → the least deadly of these
    "due_deadly": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE consumer = $1 AND state = 'held' AND attempts > 0"
        " AND due_at <= CASE attempts WHEN 1 THEN {at_2} ELSE {at_3} END ORDER BY attempts, id LIMIT 1"
    ),
    # consumer, line, limit → a line, from its head
    "due_line": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE consumer = $1 AND line = $2 AND line IS NOT NULL"
        f" AND {_IS_PARKED} ORDER BY id LIMIT $3"
    ),
    # consumer, aggregate, line, now → the one of a line whose number is the next, wherever it stands
    "due_number": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked WHERE {_AGGREGATE} AND line = $4 AND line IS NOT NULL"
        " AND (state IN ('stored', 'blocked') OR state = 'dead' AND numbering = 'gap'"
        " OR state IN ('retrying', 'held') AND due_at <= {at_5}) AND number = 1 + coalesce(("
        f"SELECT last FROM {{p}}inbox_numbers WHERE {_AGGREGATE}), 0) ORDER BY id LIMIT 1"
    ),
    # consumer, a list of aggregates → those of which the next number stands in the lot, however it stands there
    "going_on": (
        "SELECT type, id FROM ({pairs_2}) AS given WHERE EXISTS (SELECT 1 FROM {p}inbox_parked"
        " WHERE consumer = $1 AND aggregate_type = given.type AND aggregate_id = given.id AND state <> 'suspect'"
        " AND number = 1 + coalesce((SELECT last FROM {p}inbox_numbers AS counted WHERE counted.consumer = $1"
        " AND counted.aggregate_type = given.type AND counted.aggregate_id = given.id), 0))"
    ),
    # consumer, limit → what is stored, in order, but for what stands behind something else
    "due_stored": (
        f"SELECT {PARKED_COLUMNS} FROM {{p}}inbox_parked AS it WHERE consumer = $1 AND state = 'stored'"
        " AND NOT EXISTS (SELECT 1 FROM {p}inbox_parked AS head WHERE head.consumer = $1 AND head.line = it.line"
        # In the words of the index: SQLite does not see that fewer states are among more. An offset, because of which
        # PostgreSQL asks for each row: while it believes the table to be small, it would join all with all.
        f" AND head.line IS NOT NULL AND head.{_IS_PARKED} AND head.state <> 'stored' AND head.id < it.id"
        " LIMIT 1 OFFSET 0)"
        " ORDER BY id LIMIT $2"
    ),
    # consumer, held until, keys
    "hold": (
        "UPDATE {p}inbox_parked SET state = 'held', due_at = {at_2}"
        # Not in the words of an index on the state, of which there may be any number: by their ids.
        " WHERE consumer = $1 AND event_id {among_3} AND state NOT IN ('suspect', 'handled', 'dropped')"
    ),
    "hold_longer": (
        "UPDATE {p}inbox_parked SET due_at = {at_2} WHERE consumer = $1 AND event_id {among_3} AND state = 'held'"
    ),
    # consumer, now, keys: nothing was done with them
    "let_go": (
        "UPDATE {p}inbox_parked SET state = CASE WHEN line IS NULL OR attempts > 0 THEN 'retrying' ELSE 'blocked' END,"
        " due_at = CASE WHEN line IS NULL OR attempts > 0 THEN {at_2} END"
        " WHERE consumer = $1 AND event_id {among_3} AND state = 'held'"
    ),
    # consumer, lines: their missing numbers have been waited for long enough
    "give_up": (
        "UPDATE {p}inbox_parked SET state = 'dead'"
        " WHERE consumer = $1 AND line {among_2} AND state = 'blocked' AND numbering = 'gap'"
    ),
    # consumer, aggregate → its first and last number
    "numbers": f"SELECT first, last FROM {{p}}inbox_numbers WHERE {_AGGREGATE}",
    # consumer, aggregate, number: go on from here. What comes after a gap begins anew; what is from before the
    # beginning changes nothing.
    "accept": (
        "INSERT INTO {p}inbox_numbers AS it (consumer, aggregate_type, aggregate_id, first, last)"
        " VALUES ($1, $2, $3, $4, $4) ON CONFLICT (consumer, aggregate_type, aggregate_id)"
        " DO UPDATE SET last = excluded.last,"
        " first = CASE WHEN excluded.last > it.last THEN excluded.last ELSE it.first END"
        " WHERE excluded.last >= it.first"
    ),
    # consumer, aggregate, number: what was passed over with a higher one is of the time before the counter stepped back
    "begin_anew": f"UPDATE {{p}}inbox_parked SET number = NULL WHERE {_AGGREGATE} AND number > $4"
    " AND (state = 'dropped' OR line IS NULL)",
    # consumer, aggregate → a row if the next number stands in the lot as dropped, or outside its line: passed over
    "pass_by": (
        f"UPDATE {{p}}inbox_numbers AS it SET last = last + 1 WHERE {_AGGREGATE} AND EXISTS ("
        f"SELECT 1 FROM {{p}}inbox_parked AS gone WHERE {_AGGREGATE.replace('consumer', 'gone.consumer', 1)}"
        " AND gone.number = it.last + 1 AND gone.state <> 'suspect' AND (gone.state = 'dropped' OR gone.line IS NULL))"
        " RETURNING last"
    ),
}

_SETTLED = "state IN ('handled', 'dropped')"
# A dead letter whose handler committed by itself is known by its row in the inbox: it must not run again when retried.
_FORGETTABLE = (
    "FROM {p}inbox AS it WHERE consumer = $1 AND handled_at <= {ago} AND NOT EXISTS (SELECT 1 FROM {p}inbox_parked AS k"
    f" WHERE k.consumer = it.consumer AND k.event_id = it.event_id AND NOT k.{_SETTLED}) LIMIT $3"
)
_FORGETTABLE_PARKED = f"FROM {{p}}inbox_parked WHERE consumer = $1 AND {_SETTLED} AND settled_at <= {{ago}} LIMIT $3"

_STANDS = (
    "SELECT 1 FROM {p}inbox_parked WHERE consumer = $1 AND event_id = {id} AND state NOT IN ('handled', 'dropped')"
)

_SQLITE = {
    # → where the tables are, the database's URL as far as we may name it
    "where": "SELECT '{p}', 'sqlite:///' || nullif(file, '') FROM pragma_database_list WHERE name = 'main'",
    # → a row if it is the first time
    "first_time": "INSERT INTO {p}inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING 1",
    # …: one that we have out of the parking lot → nothing if it is a copy, or was dropped meanwhile
    "take": (
        "INSERT INTO {p}inbox (consumer, event_id) SELECT $1, $2"
        f" WHERE EXISTS ({_STANDS.replace('{id}', '$2')}) ON CONFLICT DO NOTHING RETURNING ''"
    ),
    # consumer, a list of ids: as take → the ids that were taken
    "take_many": (
        "INSERT INTO {p}inbox (consumer, event_id) SELECT $1, value FROM json_each($2)"
        f" WHERE EXISTS ({_STANDS.replace('{id}', 'value')}) ON CONFLICT DO NOTHING RETURNING event_id"
    ),
    # consumer, a list of ids and lines: as receive, but for numbers → the ids that are new
    "receive_many": (
        "INSERT INTO {p}inbox (consumer, event_id) SELECT $1, it.id"
        " FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS line FROM json_each($2)) AS it"
        " WHERE NOT EXISTS (SELECT 1 FROM {p}inbox_parked"
        " WHERE consumer = $1 AND event_id = it.id AND state <> 'suspect')"
        f" AND NOT EXISTS ({_BLOCKED_LINE.replace('{line}', 'it.line')}) ON CONFLICT DO NOTHING RETURNING event_id"
    ),
    # …, line, aggregate, number, from one → nothing if it is a copy, is parked, or its line is blocked; else the
    # transaction's number, if there is one, with a + behind it if the event's number was seen to be the next one
    "receive": (
        "INSERT INTO {p}inbox (consumer, event_id) SELECT $1, $2"
        " WHERE NOT EXISTS (SELECT 1 FROM {p}inbox_parked WHERE consumer = $1 AND event_id = $2 AND state <> 'suspect')"
        f" AND NOT EXISTS ({_BLOCKED_LINE.replace('{line}', '$3')}) ON CONFLICT DO NOTHING RETURNING ''"
    ),
    # consumer, aggregate, number, from one → a row if that is the next number, or the first one
    "count": (
        "INSERT INTO {p}inbox_numbers AS it (consumer, aggregate_type, aggregate_id, first, last)"
        " SELECT $1, $2, $3, $4, $4 WHERE NOT $5 OR $4 <= 1 OR EXISTS ("
        f"SELECT 1 FROM {{p}}inbox_numbers WHERE {_AGGREGATE})"
        " ON CONFLICT (consumer, aggregate_type, aggregate_id)"
        " DO UPDATE SET last = excluded.last WHERE it.last = excluded.last - 1 RETURNING 1"
    ),
    # around the handler: gone if it ended the transaction
    "mark": "SAVEPOINT {name}inbox_handler",
    "unmark": "RELEASE {name}inbox_handler",
    # the row (_ALL)
    "park": (
        f"INSERT INTO {{p}}inbox_parked AS it ({_ALL}) SELECT {{row}} WHERE NOT EXISTS ({_IN_INBOX})"
        f" ON CONFLICT (consumer, event_id) DO UPDATE SET {_REPLACED} WHERE it.state = 'suspect'"
    ),
    # consumer → every blocked line with its head: state, due time, numbering, when it was parked, aggregate, number;
    # how many stand in the line; the head's event id, its type, how often it was tried
    "heads": (
        "SELECT line, state, coalesce(due_at, 0), numbering, parked_at, aggregate_type, aggregate_id, number,"
        " topic, min(id), count(*), event_id, event_type, attempts FROM {p}inbox_parked"
        f" WHERE consumer = $1 AND line IS NOT NULL AND {_IS_PARKED} AND state <> 'stored' GROUP BY line"
    ),
    # consumer, how long things are remembered (by the database's clock), how many at most → a row for each that went
    "forget": (
        f"DELETE FROM {{p}}inbox WHERE (consumer, event_id) IN (SELECT consumer, event_id {_FORGETTABLE}) RETURNING 1"
    ),
    "forget_parked": f"DELETE FROM {{p}}inbox_parked WHERE id IN (SELECT id {_FORGETTABLE_PARKED}) RETURNING 1",
}

_POSTGRES = {
    # Who gets in there, and from where, is for the reader to say: a server behind a pooler does not know its address.
    "where": "SELECT '{p}'::text, 'postgresql://…/' || current_database()",
    # …: one that is out of the parking lot → the number of the transaction; NULL if it is a copy, or was dropped
    "take": "SELECT {p}take_received($1, $2)",
    # The transaction's number comes back with the row: whoever ends the transaction gets another one.
    "first_time": (
        "INSERT INTO {p}inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        " RETURNING pg_current_xact_id()::text"
    ),
    # Without casts, which the server would parse for every event: the functions' parameters tell the types.
    "receive": "SELECT {p}receive($1, $2, $3, $4, $5, $6, $7)",
    # consumer, as JSON lists: ids, lines, aggregates' types, their ids, numbers; from one, stored → the shared
    # transaction's row, a letter for each event's state unless all are new, whether every number was the next one
    "receive_all": "SELECT shared, states, counted FROM {p}receive_all($1, $2, $3, $4, $5, $6, $7, $8)",
    # the shared transaction's row → a row, unless that transaction is over: from now on it can be committed
    "unshare": "DELETE FROM {p}inbox_shared WHERE id = $1 RETURNING 1",
    "count": "SELECT 1 WHERE {p}count_received($1::text, $2::text, $3::text, $4::bigint, $5::boolean)",
    # One consumer's processes take things out of the parking lot one after the other.
    "lock": "SELECT 1 FROM pg_advisory_xact_lock(hashtextextended('{p}inbox_parked ' || $1::text, 0))",
    # the number → a row if the handler has ended the transaction
    "unmark": "SELECT 1 WHERE pg_current_xact_id_if_assigned()::text IS DISTINCT FROM $1::text",
    # …, the number → whether the handler has ended the transaction; RowUndone if it took our row along
    "keep": "SELECT {p}keep_received($1, $2, $3)",
    "park": "SELECT {p}park_received({row})",
    "heads": (
        "SELECT line, state, coalesce((extract(epoch FROM due_at) * 1000000)::bigint, 0), numbering,"
        " (extract(epoch FROM parked_at) * 1000000)::bigint, aggregate_type, aggregate_id, number, topic, id, standing,"
        " event_id, event_type, attempts"
        " FROM (SELECT *, count(*) OVER (PARTITION BY line) AS standing,"
        " row_number() OVER (PARTITION BY line ORDER BY id) AS place FROM {p}inbox_parked"
        f" WHERE consumer = $1 AND line IS NOT NULL AND {_IS_PARKED} AND state <> 'stored') AS them WHERE place = 1"
    ),
    "forget": f"DELETE FROM {{p}}inbox WHERE ctid = ANY (ARRAY(SELECT it.ctid {_FORGETTABLE})) RETURNING 1",
    "forget_parked": (
        f"DELETE FROM {{p}}inbox_parked WHERE id = ANY (ARRAY(SELECT id {_FORGETTABLE_PARKED})) AND {_SETTLED}"
        " RETURNING 1"
    ),
}

# Which database this is: cluster, database, table; the table's file, when the server was started; and how far its
# transactions count. The cluster is empty where this user may not see it.
_STAND = (
    "(SELECT oid::text FROM pg_catalog.pg_database WHERE datname = current_database()),"
    " '{p}inbox'::regclass::oid::text, pg_relation_filenode('{p}inbox'::regclass)::text,"
    " extract(epoch FROM pg_postmaster_start_time())::text,"
    " pg_snapshot_xmax(pg_current_snapshot())::text"
)
_POSTGRES |= {
    "names_cluster": "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')",
    "stand_named": f"SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()), {_STAND}",
    "stand": f"SELECT ''::text, {_STAND}",
}

_ROW_TYPES = (
    *("text",) * 4, "at", "integer", "text", "text", "at", *("text",) * 3, "bytea", *("text",) * 3, "bigint", "text",
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

    def last(self, name: str, *parameters: object, last: bool) -> Statement:
        """Give a statement after which, if it is the `last` one, nothing but the commit is left."""
        text = self.texts[name]
        return Statement(text.sql, text.given(parameters), last=last)

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
    name = place
    if dialect == "sqlite":  # never a temporary table of that name, nor one in an attached file
        place = f"main.{name}"
    instants = {f"at_{number}": _instant(dialect, number) for number in range(2, 6)}
    row = ", ".join(_typed(dialect, number, kind) for number, kind in enumerate(_ROW_TYPES, start=1))
    lists = {f"among_{number}": _AMONG[dialect].format(number) for number in (2, 3)}
    ago = _AGO[dialect].format(p=place)
    lists["pairs_2"] = _PAIRS[dialect].format(2)
    named = {"p": place, "name": name, "row": row, "ago": ago, **instants, **lists}
    return {name: _marked(text.format(**named), marker) for name, text in texts.items()}


_AGO = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) - $2",
    "postgres": "(SELECT {p}now() - $2::bigint * interval '1 microsecond')",
}
_PAIRS = {
    "sqlite": "SELECT json_extract(value, '$[0]') AS type, json_extract(value, '$[1]') AS id FROM json_each(${0})",
    "postgres": "SELECT value ->> 0 AS type, value ->> 1 AS id FROM jsonb_array_elements(${0}::jsonb)",
}
# PostgreSQL looks an array up in the index; a list from a query it may join with all that the table holds.
_AMONG = {
    "sqlite": "IN (SELECT value FROM json_each(${0}))",
    "postgres": "= ANY (ARRAY(SELECT jsonb_array_elements_text(${0}::jsonb)))",
}


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
