"""The tables: numbered files, each applied in one transaction; the version that is there stands in the meta table."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from importlib.resources import files

from pillarbox.errors import ConfigError, SchemaMismatch
from pillarbox.ports import SchemaStatus
from pillarbox.stores.sqlite.connection import cure, writing
from pillarbox.stores.sqlite.lanes import PREFIX

_FILES = sorted(
    (file for file in files("pillarbox.stores.sqlite").joinpath("schema").iterdir() if file.name.endswith(".sql")),
    key=lambda file: file.name,
)
NEEDED = len(_FILES)
_STREAM = {"broker", "consumers", "members", "messages", "positions"}
_STREAMED = {"id", "topic", "partition", "key", "headers", "body", "at"}
"""The tables of the embedded broker, and the columns of its messages: people take its file for the outbox."""


class Tables:
    """All tables with one prefix, in one database."""

    def __init__(self, path: str, prefix: str) -> None:
        self._path, self._prefix = path, prefix

    def version(self, db: sqlite3.Connection) -> int:
        """Look which version is there; 0 if there are no tables."""
        there = db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (f"{self._prefix}meta",)).fetchone()
        if there is None:
            return 0
        row = db.execute(f"SELECT value FROM {self._prefix}meta WHERE name = 'schema'").fetchone()
        return 0 if row is None else int(row[0])

    def status(self, db: sqlite3.Connection) -> SchemaStatus:
        """Look which version is there and which is needed, and what is missing of it."""
        version = self.version(db)
        if version == 0 and _is_stream(db):
            return SchemaStatus(version, NEEDED, instead=self._stream(), elsewhere=True)
        return SchemaStatus(version, NEEDED, tuple(self._missing(db)) if version == NEEDED else ())

    def _missing(self, db: sqlite3.Connection) -> Iterator[str]:
        there = _columns(db)
        for table, columns in _needed(self.sql()).items():
            if table not in there:
                yield f"the table {table}"
            else:
                yield from (f"the column {column} of {table}" for column in columns if column not in there[table])
        lanes = f"{self._prefix}lanes"
        if lanes in there and not db.execute(f"SELECT 1 FROM {lanes} WHERE lane = 0").fetchone():
            yield f"the row of {lanes}"

    def check(self, db: sqlite3.Connection) -> None:
        """Raise SchemaMismatch unless the tables are as needed."""
        status = self.status(db)
        version = status.version
        self._refuse_future(version)
        self._refuse_loss(status)
        self._refuse_stream(status)
        if version == 0:
            raise SchemaMismatch(f"there are no Pillarbox tables{self._of()} in {self._path}: {self._cure()}")
        if version < NEEDED:
            raise SchemaMismatch(
                f"the tables in {self._path} have version {version}, needed is {NEEDED}: {self._cure()}"
            )

    def _of(self) -> str:
        return "" if self._prefix == PREFIX else f" with the prefix {self._prefix!r}"

    def _cure(self) -> str:
        same = "" if self._prefix == PREFIX else f" --set outbox.prefix={self._prefix}"
        return cure(self._path, same)

    def up(self, db: sqlite3.Connection) -> Sequence[int]:
        """Apply what is missing; two processes that do it at once apply each version once."""
        self._refuse_stream(self.status(db))
        applied = []
        for version in range(1, NEEDED + 1):
            with writing(db):
                there = self.version(db)
                self._refuse_future(there)
                if there >= version:
                    continue
                for statement in self._statements(version):
                    db.execute(statement)
                applied.append(version)
        self._refuse_loss(self.status(db))
        return applied

    def _stream(self) -> str:
        return f"{self._path} is the file of the embedded broker, not an outbox: name the application's database"

    def _refuse_stream(self, status: SchemaStatus) -> None:
        if status.elsewhere:
            raise ConfigError(f"database: {status.instead}")

    def _refuse_loss(self, status: SchemaStatus) -> None:
        if status.missing:
            raise SchemaMismatch(f"{self._path}: {status.loss}")

    def sql(self) -> str:
        """Give the script for an empty database."""
        steps = ("".join(self._statements(version)) for version in range(1, NEEDED + 1))
        return "".join(f"BEGIN IMMEDIATE;\n{step}COMMIT;\n" for step in steps)

    def _refuse_future(self, version: int) -> None:
        if version > NEEDED:
            raise SchemaMismatch(
                f"the tables in {self._path} have version {version}, from the future: this release knows {NEEDED};"
                " upgrade pillarbox: pip install --upgrade pillarbox"
            )

    def _statements(self, version: int) -> Iterator[str]:
        yield from _split(_FILES[version - 1].read_text().replace("{prefix}", self._prefix))
        yield (
            f"INSERT INTO {self._prefix}meta (name, value) VALUES ('schema', '{version}')"
            " ON CONFLICT DO UPDATE SET value = excluded.value;\n"
        )


@lru_cache(maxsize=8)
def _needed(script: str) -> dict[str, list[str]]:
    """Give the columns of every table that a script makes."""
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(script)
        return _columns(new)


def _is_stream(db: sqlite3.Connection) -> bool:
    """Tell whether the embedded broker keeps its messages here."""
    there = _columns(db)
    return there.keys() >= _STREAM and set(there["messages"]) == _STREAMED


def _columns(db: sqlite3.Connection) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for table, column in db.execute(
        "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_xinfo(t.name) c"
        " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ):
        found.setdefault(table, []).append(column)
    return found


def _split(script: str) -> Iterator[str]:
    """Cut a script into statements, each with the comments before it; SQLite itself says where one ends."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
