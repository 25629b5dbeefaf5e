"""What the contract tests share: one database for all benches of doors on PostgreSQL."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from servers.postgres import RunningPostgres
from tests.integration.postgres_shop import made


@pytest.fixture(scope="session")
def doors(postgres: RunningPostgres) -> Iterator[str]:
    """The URL of a database with our tables, and `effects` for business writes."""
    name = f"doors_{uuid.uuid4().hex}"
    url = made(postgres.create_database(name))
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE effects (what text NOT NULL)")
    yield url
    postgres.drop_database(name)
