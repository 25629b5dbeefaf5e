"""A place on PostgreSQL: a schema of its own in the user's database."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pillarbox.bench.load import AGGREGATE, IDS, TYPE, Load
from pillarbox.bench.places import ACCOUNTS, Lane
from pillarbox.bench.usage import postmaster_of, used_by_family
from pillarbox.errors import MissingExtra
from pillarbox.settings import Settings
from pillarbox.settings.urls import parse_url

try:
    import psycopg
    from psycopg import AsyncConnection
except ImportError as error:
    raise MissingExtra("postgres", "a postgresql:// database") from error

from pillarbox.psycopg import Inbox, Outbox
from pillarbox.stores.postgres.connection import conninfo, failures
from pillarbox.stores.postgres.rows import COLUMNS

__all__ = ["AsyncConnection", "PostgresPlace"]

OWN = re.compile(r"pillarbox_bench_[0-9a-f]{12}")
"""What we call our schemas. Nothing else is ever dropped."""
TABLES = (
    "CREATE TABLE {p}accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE {p}history (account bigint NOT NULL, delta bigint NOT NULL, at timestamptz NOT NULL)",
    "CREATE TABLE {p}applied (n bigint NOT NULL)",
    "INSERT INTO {p}accounts SELECT n, 0 FROM generate_series(0, %s - 1) n",
)
TEXTBOOK = (
    "CREATE TABLE {p}textbook (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL,"
    " aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL,"
    " created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz)",
    "CREATE INDEX textbook_pending ON {p}textbook (id) WHERE published_at IS NULL",
)
NEXT = (
    "SELECT id, event_id::text, aggregate_type, aggregate_id, event_type, payload::text FROM {p}textbook"
    " WHERE published_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
)
MARK = "UPDATE {p}textbook SET published_at = now() WHERE id = %s"
FILL = """
    INSERT INTO {p}pillarbox_outbox
        (event_id, aggregate_type, aggregate_id, event_type, topic, payload, content_type)
    SELECT (%s::text || lpad(to_hex(n), 12, '0'))::uuid, %s, (n %% %s)::text, %s, %s,
           ('{{"n":' || n || ',"note":"' || %s::text || '"}}')::json, 'application/json'
    FROM generate_series(%s::bigint, %s::bigint) n
"""
FILL_TEXTBOOK = """
    INSERT INTO {p}textbook (event_id, aggregate_type, aggregate_id, event_type, payload)
    SELECT gen_random_uuid(), %s, (n %% %s)::text, %s, jsonb_build_object('n', n, 'note', %s::text)
    FROM generate_series(1, %s) n
"""
LEFT_AT_WORK = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
PATIENCE = 15


@dataclass(frozen=True)
class PostgresPlace:
    """A schema of our own."""

    settings: Settings
    topic: str
    writers = 8

    @property
    def schema(self) -> str:
        return self.settings.outbox.schema

    @property
    def title(self) -> str:
        return f"the schema {self.schema}"

    @property
    def databases(self) -> Sequence[Settings]:
        return (self.settings,)

    def make(self) -> None:
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}".encode())

    def make_tables(self, connection: Any) -> None:
        """Make what is no part of Pillarbox: the business of writers and consumers, and the textbook's outbox."""
        for statement in (*TABLES, *TEXTBOOK):
            self.run(connection, statement, *([ACCOUNTS] if "%s" in statement else []))

    def drop(self) -> None:
        if not OWN.fullmatch(self.schema):
            raise ValueError(f"{self.schema} is no schema of a bench, and is not dropped")
        with self.connect(name="pillarbox bench removes") as connection:
            connection.execute(LEFT_AT_WORK, [self.schema])
            connection.execute(f"SET lock_timeout = '{PATIENCE} s'".encode())
            connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE".encode())

    def failures(self) -> AbstractContextManager[None]:
        return failures()

    def connect(self, *, name: str | None = None) -> Any:
        url = f"postgresql:{parse_url('database', self.settings.database or '').rest}"
        connection = psycopg.connect(conninfo(url, name or self.schema), autocommit=True)
        [[backend]] = connection.execute("SELECT pg_backend_pid()").fetchall()
        if backend != connection.info.backend_pid:  # through a pooler nothing can be prepared
            connection.prepare_threshold = None
        return connection

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN")

    def run(self, connection: Any, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = connection.execute(sql.format(p=f"{self.schema}."), parameters or None, binary=True)
        return cursor.fetchall() if cursor.description else []

    def outbox(self) -> Outbox:
        return Outbox(schema=self.schema, topic=self.topic)

    def inbox(self, consumer: str) -> Inbox:
        return Inbox(consumer, self.connect, schema=self.schema)

    def fill(self, connection: Any, load: Load, first: int, count: int) -> None:
        last = first + count - 1
        self.run(connection, FILL, IDS, AGGREGATE, load.aggregates, TYPE, self.topic, load.note, first, last)

    def fill_textbook(self, connection: Any, load: Load, count: int) -> None:
        """Give the textbook as much to do."""
        self.run(connection, FILL_TEXTBOOK, AGGREGATE, load.aggregates, TYPE, load.note, count)

    def settle_down(self, connection: Any) -> None:
        tables = self.run(connection, "SELECT tablename FROM pg_tables WHERE schemaname = %s", self.schema)
        for (table,) in tables:
            connection.execute(f'VACUUM ANALYZE {self.schema}."{table}"'.encode())

    def written(self, connection: Any) -> int:
        [[place]] = self.run(connection, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        return int(place)

    def used(self, connection: Any) -> float | None:
        postmaster = postmaster_of(connection.info.backend_pid)
        return None if postmaster is None else used_by_family(postmaster)

    def lanes(self, connection: Any) -> Sequence[Lane]:
        return [Lane(*row) for row in self.run(connection, "SELECT owner, epoch FROM {p}pillarbox_lanes ORDER BY lane")]

    @property
    def columns(self) -> str:
        return COLUMNS

    @property
    def textbook(self) -> Sequence[str]:
        return NEXT, MARK
