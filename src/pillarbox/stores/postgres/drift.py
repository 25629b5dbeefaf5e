"""Drift: what of the tables is not as the migrations made it, from the migrations' own script and the catalogue."""

import re
from collections.abc import Iterator

from pillarbox.facts import Drift
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.schema import COLUMN, TABLE, Tables

_INDEX = re.compile(r"^(CREATE INDEX (?:IF NOT EXISTS )?(\w+) ON .*?);$", re.MULTILINE | re.DOTALL)
_VIEW = re.compile(r"^CREATE VIEW \w+\.(\w+) AS", re.MULTILINE)
_TRIGGER = re.compile(r"^CREATE CONSTRAINT TRIGGER (\w+) .*? ON \w+\.(\w+)$", re.MULTILINE)
_FUNCTION = re.compile(r"^CREATE FUNCTION \w+\.(\w+)\(.*?\bAS (\$\$|')(.*?)\2", re.MULTILINE | re.DOTALL)


def names_of(tables: Tables) -> list[str]:
    """Give the names of all tables."""
    return [found[1] for found in TABLE.finditer(tables.sql())]


async def drift_of(connection: Connection, tables: Tables) -> list[Drift]:
    """Compare. What somebody has added is theirs, unless no event can be added without it."""
    script, schema = tables.sql(), tables.schema
    columns = await connection.run(
        "SELECT c.relname, a.attname, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', c.relpersistence <> 'p'"
        " FROM pg_class c"
        " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'p', 'v')",
        [schema],
    )
    indexes: dict[str, bool] = dict(
        await connection.run(
            "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE c.relnamespace = to_regnamespace(%s)",
            [schema],
        )
    )
    functions = await connection.run(
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = to_regnamespace(%s)", [schema]
    )
    triggers: dict[str, bool] = dict(
        await connection.run(
            "SELECT tgname, tgenabled <> 'D' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
            " WHERE c.relnamespace = to_regnamespace(%s) AND NOT tgisinternal",
            [schema],
        )
    )
    return [
        *_tables(script, schema, columns),
        *_indexes(script, schema, indexes),
        *_triggers(script, schema, triggers),
        *_functions(script, schema, functions),
    ]


def _tables(script: str, schema: str, columns: list[tuple[str, str, bool, bool]]) -> Iterator[Drift]:
    there = {table: unlogged for table, _, _, unlogged in columns}
    for view in _VIEW.findall(script):
        if view not in there:
            yield Drift(f"the view {schema}.{view} is missing")
    for table, body in TABLE.findall(script):
        if table not in there:
            yield Drift(f"the table {schema}.{table} is missing")
            continue
        if there[table]:
            mend = f"ALTER TABLE {schema}.{table} SET LOGGED"
            yield Drift(f"the table {schema}.{table} is unlogged: a crash of the server empties it", mend)
        needed, found = COLUMN.findall(body), {name: must for of, name, must, _ in columns if of == table}
        for column in needed:
            if column not in found:
                yield Drift(f"the column {column} of {schema}.{table} is missing")
        for column, must_be_given in found.items():
            if column not in needed and must_be_given:
                yield Drift(
                    f"the column {column} of {schema}.{table} is not ours, and cannot be empty: no row can be added"
                    " without it",
                    f"ALTER TABLE {schema}.{table} ALTER {column} DROP NOT NULL",
                )


def _indexes(script: str, schema: str, valid: dict[str, bool]) -> Iterator[Drift]:
    for statement, name in _INDEX.findall(script):
        if name not in valid:
            make = " ".join(statement.split()).replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1)
            yield Drift(f"the index {schema}.{name} is missing", make)
        elif not valid[name]:
            yield Drift(
                f"the index {schema}.{name} is invalid, for making it was broken off",
                f"REINDEX INDEX CONCURRENTLY {schema}.{name}",
            )


def _triggers(script: str, schema: str, enabled: dict[str, bool]) -> Iterator[Drift]:
    for name, table in _TRIGGER.findall(script):
        if name not in enabled:
            yield Drift(f"the trigger {name} of {schema}.{table} is missing")
        elif not enabled[name]:
            yield Drift(
                f"the trigger {name} of {schema}.{table} is disabled",
                f"ALTER TABLE {schema}.{table} ENABLE TRIGGER {name}",
            )


def _functions(script: str, schema: str, functions: list[tuple[str, str]]) -> Iterator[Drift]:
    there = set(functions)
    names = {name for name, _ in there}
    for name, _, body in _FUNCTION.findall(script):
        if name not in names:
            yield Drift(f"the function {schema}.{name} is missing")
        elif (name, body) not in there:
            yield Drift(f"the function {schema}.{name} is another one")
