"""Making the tables: in a schema that is missing, and with few rights."""

import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pillarbox.errors import StoreError
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.schema import NEEDED, Tables
from servers.postgres import RunningPostgres
from tests.conftest import skip_unless_ours


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
    words = f"-m pillarbox migrate up --database {database} --set outbox.schema=acme"
    made = subprocess.run([sys.executable, *words.split()], capture_output=True, text=True, timeout=60)
    assert (made.returncode, made.stdout) == (0, f"the tables are at version {NEEDED} now\n"), made.stderr
