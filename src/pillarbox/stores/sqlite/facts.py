"""How a database file is, seen through a connection that sets nothing: opening the store would set it right."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

from pillarbox.facts import Drift, SqliteFacts
from pillarbox.ports import SchemaStatus
from pillarbox.stores.sqlite.connection import PATIENCE, check_place, mapped, no_file
from pillarbox.stores.sqlite.schema import NEEDED, Tables


def look(path: str, prefix: str) -> SqliteFacts:
    """Look at a file; one that is not there has no tables."""
    check_place(path)
    if not os.path.exists(path):
        return SqliteFacts(SchemaStatus(0, NEEDED, instead=no_file(path)))
    file = f"file:{quote(path)}?mode=rw"  # not rwc: one that goes away meanwhile is not made anew
    with mapped(path), closing(sqlite3.connect(file, uri=True, timeout=PATIENCE)) as db:
        tables = Tables(path, prefix)
        schema = tables.status(db)
        return SqliteFacts(
            schema,
            tuple(_drift(db, tables)) if schema.version == NEEDED else (),
            db.execute("PRAGMA journal_mode").fetchone()[0],
            db.execute("PRAGMA synchronous").fetchone()[0],
        )


def _drift(db: sqlite3.Connection, tables: Tables) -> Iterator[Drift]:
    """Compare the tables with new ones in memory. Columns that somebody has added are theirs, if they may be empty."""
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(tables.sql())
        there = _made(db)
        for (kind, name), statement in _made(new).items():
            if (kind, name) not in there:
                yield Drift(f"the {kind} {name} is missing", statement)
            elif kind == "table":
                if "AUTOINCREMENT" in statement and "AUTOINCREMENT" not in there[kind, name].upper():
                    yield Drift(f"the ids of {name} are given out again when the newest rows are deleted")
                yield from _columns(name, _described(db, name), _described(new, name))
            elif _plain(there[kind, name]) != _plain(statement):
                yield Drift(f"the {kind} {name} is another one", f"DROP {kind.upper()} {name}; {statement}")


def _columns(
    table: str, there: dict[str, tuple[object, ...]], needed: dict[str, tuple[object, ...]]
) -> Iterator[Drift]:
    for column, description in needed.items():
        if column not in there:
            yield Drift(f"the column {column} of {table} is missing")
        elif there[column] != description:
            yield Drift(f"the column {column} of {table} is another one")
    for column, (_, not_null, has_default, _) in there.items():
        if column not in needed and not_null and not has_default:
            yield Drift(
                f"the column {column} of {table} is not ours, and cannot be empty: no event can be added without it",
                f"ALTER TABLE {table} DROP COLUMN {column}",
            )


def _made(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Give the statements that made everything, but for what SQLite makes by itself."""
    rows = db.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return {(kind, name): statement for kind, name, statement in rows}


def _described(db: sqlite3.Connection, table: str) -> dict[str, tuple[object, ...]]:
    """Give the type of each column, whether it cannot be empty and has a default, and its place in the primary key.

    Not the default itself: an application's own migrations may write the same one in other words.
    """
    rows = db.execute(
        "SELECT name, upper(type), \"notnull\" OR pk > 0, coalesce(upper(dflt_value), 'NULL') <> 'NULL', pk"
        " FROM pragma_table_xinfo(?)",
        (table,),
    )
    return {name: tuple(rest) for name, *rest in rows}


def _plain(statement: str) -> str:
    return " ".join(statement.split()).replace(" IF NOT EXISTS", "")
