"""The tables: numbered files, each version applied in one transaction; which one is there stands in the meta table."""

import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby

from pillarbox.core.postgres_facts import migrate_up
from pillarbox.core.routing import LANES
from pillarbox.errors import SchemaMismatch, StoreError, StoreUnavailable
from pillarbox.ports import SchemaStatus
from pillarbox.stores.postgres.connection import Connection

_FILES = sorted(
    (file for file in files("pillarbox.stores.postgres").joinpath("schema").iterdir() if file.name.endswith(".sql")),
    key=lambda file: file.name,
)
_VERSIONS = [list(group) for _, group in groupby(_FILES, key=lambda file: file.name[:4])]
NEEDED = len(_VERSIONS)
TABLE = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?\w+\.(\w+) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
COLUMN = re.compile(r"^    ([a-z]\w*) ", re.MULTILINE)
NO_RIGHT = "42501"
LOCKED = "55P03"
LOCK_TIMEOUT = "5s"
"""A migration that waited for a lock would make every writer behind it wait too."""


# Not IF NOT EXISTS: that asks for the right to make schemas even where this one is there.
_MAKE_SCHEMA = """
DO $schema$ BEGIN
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END $schema$;
"""


class Tables:
    """All tables with one prefix, in one schema."""

    def __init__(self, schema: str, prefix: str) -> None:
        self.schema, self._prefix = schema, prefix
        self.place = f"{schema}.{prefix}"
        self._cure = f"run pillarbox {migrate_up('…', schema, prefix)}"

    async def status(self, connection: Connection) -> SchemaStatus:
        """Look which version is there (0: none) and which is needed."""
        [[there]] = await connection.run("SELECT to_regclass(%s) IS NOT NULL", [f"{self.place}meta"])
        if not there:
            return SchemaStatus(0, NEEDED)
        rows = await connection.run(f"SELECT value FROM {self.place}meta WHERE name = 'schema'")
        version = int(rows[0][0]) if rows else 0
        return SchemaStatus(version, NEEDED, tuple(await self._missing(connection)) if version == NEEDED else ())

    async def _missing(self, connection: Connection) -> list[str]:
        there: dict[str, list[str]] = dict(
            await connection.run(
                "SELECT c.relname, array_agg(a.attname::text) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
                " WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'p') AND a.attnum > 0"
                " AND NOT a.attisdropped GROUP BY c.relname",
                [self.schema],
            )
        )
        missing = []
        for table, body in TABLE.findall(self.sql()):
            if table not in there:
                missing.append(f"the table {self.schema}.{table}")
            else:
                columns = (column for column in COLUMN.findall(body) if column not in there[table])
                missing += [f"the column {column} of {self.schema}.{table}" for column in columns]
        if f"{self._prefix}lanes" in there and await self._may_read(connection, "lanes"):
            [[lanes]] = await connection.run(f"SELECT count(*) FROM {self.place}lanes")
            missing += [f"{LANES - lanes} of the {LANES} rows of {self.place}lanes"] if lanes < LANES else []
        return missing

    async def _may_read(self, connection: Connection, table: str) -> bool:
        [[may]] = await connection.run("SELECT has_table_privilege(%s, 'SELECT')", [f"{self.place}{table}"])
        return bool(may)

    async def check(self, connection: Connection) -> None:
        """Raise SchemaMismatch unless the tables are as needed."""
        status = await self.status(connection)
        version = status.version
        self._refuse_future(version)
        self._refuse_loss(status)
        if version == 0:
            raise SchemaMismatch(f"there are no Pillarbox tables in the schema {self.schema}: {self._cure}")
        if version < NEEDED:
            raise SchemaMismatch(f"the tables have version {version}, needed is {NEEDED}: {self._cure}")

    async def up(self, connection: Connection) -> Sequence[int]:
        """Apply what is missing; two processes that do it at once apply each version once."""
        status = await self.status(connection)
        self._refuse_future(status.version)
        self._refuse_loss(status)
        applied = []
        for version in range(status.version + 1, NEEDED + 1):
            try:
                await connection.run_script(self._guarded(version), timeout=300)
            except StoreError as error:
                await self._explain(error, connection)
                raise
            applied.append(version)
        return applied

    async def _explain(self, error: StoreError, connection: Connection) -> None:
        """Say what stood in the way: a lock, or a right that was missing, as none of our roles may make tables."""
        refusal = error.__cause__
        if getattr(refusal, "sqlstate", None) == LOCKED:
            raise StoreUnavailable(
                "another migration is at work, or somebody holds a lock on the tables: PostgreSQL waited for"
                f" {LOCK_TIMEOUT}; nothing was changed, run it again"
            ) from refusal
        if getattr(refusal, "sqlstate", None) != NO_RIGHT:
            return
        [[user, database, there]] = await connection.run(
            "SELECT quote_ident(current_user), quote_ident(current_database()), to_regnamespace(%s) IS NOT NULL",
            [self.schema],
        )
        grant = (
            f"GRANT CREATE, USAGE ON SCHEMA {self.schema} TO {user}"
            if there
            else f"CREATE SCHEMA {self.schema} AUTHORIZATION {user}"
        )
        raise StoreError(
            f"PostgreSQL refuses: {str(refusal).splitlines()[0]}; run it as the owner of the tables or of the database"
            f" {database}, or let one of them run `{grant}` first"
        ) from refusal

    def sql(self) -> str:
        """Give the script for an empty database."""
        begin = f"BEGIN;\nSET LOCAL lock_timeout = '{LOCK_TIMEOUT}';\n"
        return "".join(f"{begin}{self._script(version)}COMMIT;\n" for version in range(1, NEEDED + 1))

    def _guarded(self, version: int) -> str:
        """Write one version as a transaction that waits for another migration, and does nothing if that one did it."""
        # The lock's number is that of the place's name, so outboxes in other schemas do not wait.
        return f"""
            BEGIN;
            SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';
            SELECT pg_advisory_xact_lock(hashtextextended('{self.place}migrate', 0));
            DO $pillarbox$ DECLARE there int := 0; BEGIN
                IF to_regclass('{self.place}meta') IS NOT NULL THEN
                    EXECUTE $text$SELECT value::int FROM {self.place}meta WHERE name = 'schema'$text$ INTO there;
                END IF;
                IF coalesce(there, 0) < {version} THEN
                    EXECUTE $pillarbox_body${self._script(version)}$pillarbox_body$;
                END IF;
            END $pillarbox$;
            COMMIT;
        """

    def _refuse_future(self, version: int) -> None:
        if version > NEEDED:
            raise SchemaMismatch(
                f"the tables have version {version}, from the future: this release knows {NEEDED};"
                " upgrade pillarbox: pip install --upgrade pillarbox"
            )

    def _refuse_loss(self, status: SchemaStatus) -> None:
        if status.missing:
            raise SchemaMismatch(status.loss)

    def roles(self) -> str:
        """Give the script that makes the four roles."""
        return self._in_place(files("pillarbox.stores.postgres").joinpath("roles.sql").read_text())

    def _in_place(self, text: str) -> str:
        """Put the names of this outbox into a script."""
        for name, value in (
            ("{sequence}", f"{self.place}outbox_id_seq"),
            ("{p}", self.place),
            ("{prefix}", self._prefix),
            ("{schema}", self.schema),
        ):
            text = text.replace(name, value)
        return text

    def _script(self, version: int) -> str:
        made = _MAKE_SCHEMA if version == 1 else ""
        return self._in_place(made + "".join(file.read_text() for file in _VERSIONS[version - 1])) + (
            f"INSERT INTO {self.place}meta (name, value) VALUES ('schema', '{version}')"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n"
        )
