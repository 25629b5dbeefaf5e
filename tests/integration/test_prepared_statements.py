"""Behind PgBouncer in transaction mode a driver that prepares statements fails, and the error names the setting."""

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pillarbox.asyncpg import Outbox as AsyncpgOutbox
from pillarbox.core.event import Event
from pillarbox.errors import StoreError
from pillarbox.psycopg import Outbox
from servers.pgbouncer import PgBouncer
from tests.integration.postgres_shop import read

PING: Event[dict[str, str]] = Event("Ping", {})


def pooled(pgbouncer: PgBouncer, database: str) -> str:
    """Give the URL of the same database through the pooler."""
    return pgbouncer.url(str(conninfo_to_dict(database)["dbname"]))


def test_psycopg_is_told_of_its_threshold(migrated: str, pgbouncer: PgBouncer) -> None:
    url = pooled(pgbouncer, migrated)
    with psycopg.connect(url, prepare_threshold=0) as first, psycopg.connect(url, prepare_threshold=0) as second:
        Outbox().add(first, PING)
        first.commit()
        with pytest.raises(StoreError, match="prepare_threshold=None with psycopg"):
            Outbox().add(second, PING)
        second.rollback()
        second.prepare_threshold = None
        Outbox().add(second, PING)
    assert len(read(migrated, "id")) == 2


async def test_asyncpg_is_told_of_its_cache(migrated: str, pgbouncer: PgBouncer) -> None:
    url = pooled(pgbouncer, migrated)
    first, second = await asyncpg.connect(url, statement_cache_size=0), await asyncpg.connect(url)
    try:
        async with second.transaction():
            await AsyncpgOutbox().add(second, PING)
        holder = first.transaction()  # on the backend that has prepared it, so the next one gets another
        await holder.start()
        with pytest.raises(StoreError, match="statement_cache_size=0 with asyncpg"):
            async with second.transaction():
                await AsyncpgOutbox().add(second, PING)
        await holder.rollback()
        async with first.transaction():
            await AsyncpgOutbox().add(first, PING)
    finally:
        await first.close()
        await second.close()
