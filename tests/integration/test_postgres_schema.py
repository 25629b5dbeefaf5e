"""Making the tables: in a schema that is missing, with few rights, beside others; and what a release does not know."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pillarbox.core.event import Event
from pillarbox.core.routing import lane_of
from pillarbox.errors import SchemaMismatch, StoreError, StoreUnavailable
from pillarbox.psycopg import Outbox
from pillarbox.stores.postgres import schema
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.schema import NEEDED, Tables
from servers.postgres import RunningPostgres
from tests.conftest import skip_unless_ours
from tests.integration.postgres_world import soon


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = Connection(url, "test")
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


def run(url: str, script: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())


@pytest.fixture
def anne(postgres: RunningPostgres, database: str) -> Iterator[str]:
    """The URL of the database for a user without any rights of her own."""
    skip_unless_ours()
    name = f"anne_{uuid.uuid4().hex}"
    run(database, f"CREATE ROLE {name} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    yield make_conninfo(database, user=name)
    run(database, f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def user_of(url: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(url)["user"])


async def test_a_missing_schema_is_made(database: str) -> None:
    async with connected(database) as connection:
        tables = Tables("acme", "pb_")
        assert await tables.up(connection) == list(range(1, NEEDED + 1))
        assert await tables.up(connection) == []
        await tables.check(connection)


async def test_the_tables_are_the_same_where_a_backslash_escapes_in_every_string(database: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    run(database, f'ALTER DATABASE "{name}" SET standard_conforming_strings = off')
    async with connected(database) as connection:
        await Tables("public", "pillarbox_").up(connection)
    add = "SELECT pillarbox_add('order', $$a\\b$$, 'Placed', '{}', content_type => 'application/vnd.shop+json')"
    with psycopg.connect(database, autocommit=True) as writer:
        writer.execute(add)
        found = writer.execute("SELECT aggregate_id, lane FROM pillarbox_outbox").fetchall()
    assert found == [("a\\b", lane_of("order", "a\\b", ""))]


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("DROP TABLE acme.pb_parked CASCADE", "the table acme.pb_parked"),
        ("ALTER TABLE acme.pb_relays DROP COLUMN seen_at CASCADE", "the column seen_at of acme.pb_relays"),
        ("DELETE FROM acme.pb_lanes WHERE lane > 61", "2 of the 64 rows of acme.pb_lanes"),
    ],
)
async def test_what_somebody_has_removed_is_named(database: str, statement: str, missing: str) -> None:
    async with connected(database) as connection:
        tables = Tables("acme", "pb_")
        await tables.up(connection)
        run(database, statement)
        assert (await tables.status(connection)).missing == (missing,)
        for work in (tables.check, tables.up):
            with pytest.raises(SchemaMismatch, match=f"{missing} is missing.*restore it from a backup"):
                await work(connection)


def test_the_script_makes_a_missing_schema(database: str) -> None:
    run(database, Tables("acme", "pb_").sql())
    run(database, "SELECT acme.pb_add('order', '1', 'Placed', '{}')")


async def test_a_schema_that_is_there_asks_for_no_right_to_make_one(database: str, anne: str) -> None:
    run(database, f"CREATE SCHEMA acme AUTHORIZATION {user_of(anne)}")
    async with connected(anne) as connection:
        assert await Tables("acme", "pb_").up(connection)


def test_nor_does_the_script(database: str, anne: str) -> None:
    run(database, f"CREATE SCHEMA acme AUTHORIZATION {user_of(anne)}")
    run(anne, Tables("acme", "pb_").sql())


async def test_who_may_not_make_tables_is_told_what_grants_it(database: str, anne: str) -> None:
    async with connected(anne) as connection:
        with pytest.raises(StoreError) as refused:
            await Tables("public", "pillarbox_").up(connection)
        words = str(refused.value)
        assert words.startswith("PostgreSQL refuses: permission denied for schema public; run it as the owner")
        assert "--roles" not in words
        run(database, words.split("`")[1])
        assert await Tables("public", "pillarbox_").up(connection)


async def test_who_may_not_make_the_schema_is_told_what_makes_it(database: str, anne: str) -> None:
    async with connected(anne) as connection:
        with pytest.raises(StoreError) as refused:
            await Tables("acme", "pb_").up(connection)
        run(database, str(refused.value).split("`")[1])
        assert await Tables("acme", "pb_").up(connection)


def test_the_command_makes_tables_in_a_schema_of_another_name(database: str) -> None:
    made = type_migrate(f"up --database {database} --set outbox.schema=acme")
    assert (made.returncode, made.stdout) == (0, f"the tables are at version {NEEDED} now\n"), made.stderr


def type_migrate(words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pillarbox", "migrate", *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_says_which_version_is_there(database: str) -> None:
    before = type_migrate(f"status --database {database}")
    assert before.returncode == 0
    assert before.stdout == (
        f"there are no Pillarbox tables; this release needs {NEEDED}: run pillarbox migrate up --database {database}\n"
    )
    run(database, Tables("public", "pillarbox_").sql())
    after = type_migrate(f"status --database {database}")
    assert (after.returncode, after.stdout) == (0, f"the tables are at version {NEEDED}; this release needs {NEEDED}\n")


def test_tables_from_the_future_are_refused(database: str) -> None:
    run(database, Tables("public", "pillarbox_").sql())
    run(database, f"UPDATE pillarbox_meta SET value = '{NEEDED + 1}' WHERE name = 'schema'")
    refused = type_migrate(f"up --database {database}")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"pillarbox: the tables have version {NEEDED + 1}, from the future: this release knows {NEEDED};"
        " upgrade pillarbox: pip install --upgrade pillarbox\n",
    )
    looked = type_migrate(f"status --database {database}")
    assert looked.stdout == f"the tables are at version {NEEDED + 1}; this release needs {NEEDED}\n"


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """A release that needs one version more, which changes the log."""
    file = tmp_path / "next.sql"
    file.write_text("ALTER TABLE {p}outbox ADD COLUMN more text;\n")
    monkeypatch.setattr(schema, "_VERSIONS", [*schema._VERSIONS, [file]])
    monkeypatch.setattr(schema, "NEEDED", NEEDED + 1)
    monkeypatch.setattr(schema, "LOCK_TIMEOUT", "200ms")
    return NEEDED + 1


async def test_a_migration_that_meets_a_writer_makes_no_other_wait_for_long(migrated: str, next_version: int) -> None:
    tables = Tables("public", "pillarbox_")
    async with connected(migrated) as connection:
        with psycopg.connect(migrated) as writer:
            add(writer, "First")
            with pytest.raises(
                StoreUnavailable, match="somebody holds a lock on the tables: PostgreSQL waited for 200ms"
            ):
                async with asyncio.timeout(20):
                    await tables.up(connection)
            with psycopg.connect(migrated, options="-c lock_timeout=5s") as other:
                add(other, "Second")  # does not queue behind a migration that waits
        assert await tables.up(connection) == [next_version]


def test_the_script_that_meets_a_writer_gives_up_soon_too(migrated: str, next_version: int) -> None:
    script = Tables("public", "pillarbox_").sql()
    newest = script[script.rindex("BEGIN;\nSET") :]
    with psycopg.connect(migrated) as writer, psycopg.connect(migrated, autocommit=True) as connection:
        add(writer, "First")
        connection.execute("SET statement_timeout = '20s'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(newest.encode())


def add(connection: psycopg.Connection[Any], type: str) -> None:
    Outbox().add(connection, Event(type, {}, aggregate=("order", 1)))


@contextmanager
def another_migration(url: str) -> Iterator[None]:
    """Hold what a migration holds as it works."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('public.pillarbox_migrate', 0))")
        yield


def waiting(url: str) -> int:
    """Count who waits for that."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE d.datname = current_database() AND locktype = 'advisory' AND NOT granted"
        )
        [[count]] = found.fetchall()
    return int(count)


async def test_two_that_migrate_at_once_both_end_well(database: str) -> None:
    tables = Tables("public", "pillarbox_")
    async with connected(database) as first, connected(database) as second:
        with another_migration(database):
            both = asyncio.gather(tables.up(first), tables.up(second))
            await soon(lambda: waiting(database) == 2, "both wait")
        await both
        await tables.check(first)


async def test_a_migration_that_meets_a_lock_gives_up_soon_and_says_so(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_TIMEOUT", "200ms")
    tables = Tables("public", "pillarbox_")
    async with connected(database) as connection:
        with another_migration(database), pytest.raises(StoreUnavailable) as refused:
            async with asyncio.timeout(20):
                await tables.up(connection)
        assert str(refused.value) == (
            "another migration is at work, or somebody holds a lock on the tables: PostgreSQL waited for 200ms;"
            " nothing was changed, run it again"
        )
        assert await tables.up(connection) == list(range(1, NEEDED + 1))
