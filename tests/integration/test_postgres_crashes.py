"""PostgreSQL crashes under the log: nothing is lost, nothing invented, although transaction ids come again."""

from collections.abc import Iterator
from typing import Any

import pytest

from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres
from tests.conftest import EVERY_POSTGRES, installed, skip_unless_ours
from tests.integration.postgres_world import (
    NOT_DURABLE,
    ONLY_IN_MEMORY,
    QUIET,
    Mutant,
    SlowRelay,
    add,
    burn,
    crash_in_place,
    logged,
    migrate,
    new_database,
    next_xid,
    remembered_snapshot,
    stop_flushing,
)

NEW = [f"new-{n}" for n in range(5)]


@pytest.fixture(scope="module", params=EVERY_POSTGRES)
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A PostgreSQL that these tests crash, one after the other."""
    skip_unless_ours()
    with installed(lambda: Postgres(request.param, settings=QUIET)) as server:
        yield server


@pytest.fixture(scope="module")
def pooler(server: Postgres) -> Iterator[PgBouncer]:
    with installed(lambda: PgBouncer(server.port)) as pooler:
        yield pooler


@pytest.fixture
async def shop(server: Postgres) -> str:
    name = new_database(server)
    await migrate(server.url(name))
    return name


async def carried_over_a_crash(
    server: Postgres, pooler: PgBouncer, shop: str, mutant: Mutant | None = None
) -> list[str]:
    """Let an idle relay behind a pooler live through a crash after which xids come again; give what it publishes."""
    url = server.url(shop)
    async with SlowRelay(pooler.url(shop)) as relay:
        await relay.store.take()
        if mutant is not None:
            mutant.install(url)
        stop_flushing(server)
        burn(url, 100)
        assert await relay.read() == []  # nothing is there, but its snapshot moves on
        burn(url, 100)
        crash_and_add(server, url)
        await relay.carry()
        return relay.wire


def crash_and_add(server: Postgres, url: str) -> None:
    reached = next_xid(url)
    crash_in_place(server)
    add(url, *NEW)
    assert next_xid(url) < reached, "no transaction id came again, so the test could not fail"


async def test_events_whose_xids_were_used_before_a_crash_are_published(
    server: Postgres, pooler: PgBouncer, shop: str
) -> None:
    assert await carried_over_a_crash(server, pooler, shop) == NEW


async def test_a_snapshot_only_in_memory_would_swallow_them(server: Postgres, pooler: PgBouncer, shop: str) -> None:
    assert await carried_over_a_crash(server, pooler, shop, ONLY_IN_MEMORY) == []


async def crashed_as_a_batch_begins(
    server: Postgres, pooler: PgBouncer, shop: str, *, in_two_statements: bool = False
) -> list[str]:
    """Let the server crash right before the statement that stores the next snapshot, and events be added there: what a
    statement before that one has seen is of no use any more. Give what is published."""
    url, remembered = server.url(shop), server.directory / "snapshot"
    async with SlowRelay(pooler.url(shop)) as relay:
        await relay.store.take()
        run_it, crashes = relay.store._reading.run, iter((False, True))

        async def crash_before(sql: str, *parameters: Any, **more: Any) -> Any:
            if "poll(" in sql:
                if in_two_statements:
                    [[seen]] = await run_it("SELECT pg_current_snapshot()::text")
                    remembered.write_text(seen)
                if next(crashes, False):
                    crash_and_add(server, url)
            return await run_it(sql, *parameters, **more)

        relay.store._reading.run = crash_before  # type: ignore[method-assign]
        if in_two_statements:
            remembered_snapshot(str(remembered)).install(url)
        stop_flushing(server)
        burn(url, 100)
        assert await relay.read() == []
        burn(url, 100)
        await relay.carry()
        assert next(crashes, None) is None, "no second batch began"
        return relay.wire


async def test_events_added_between_a_crash_and_the_next_batch_are_published(
    server: Postgres, pooler: PgBouncer, shop: str
) -> None:
    assert await crashed_as_a_batch_begins(server, pooler, shop) == NEW


async def test_a_snapshot_stored_by_a_second_statement_would_swallow_them(
    server: Postgres, pooler: PgBouncer, shop: str
) -> None:
    assert await crashed_as_a_batch_begins(server, pooler, shop, in_two_statements=True) == []


async def published_before_a_crash(server: Postgres, shop: str, mutant: Mutant | None = None) -> list[str]:
    """Publish what was committed asynchronously, crash; give what the relay published."""
    url = server.url(shop)
    async with SlowRelay(url) as relay:
        await relay.store.take()
        if mutant is not None:
            mutant.install(url)
        stop_flushing(server)
        add(url, *NEW, durably=False)
        relay.publish(await relay.read())
        crash_in_place(server)
        return relay.wire


async def test_what_is_published_is_on_disk_before_although_its_writer_did_not_wait(
    server: Postgres, shop: str
) -> None:
    assert await published_before_a_crash(server, shop) == NEW
    assert logged(server.url(shop)) == NEW


async def test_without_a_durable_tick_there_would_be_phantoms(server: Postgres, shop: str) -> None:
    assert await published_before_a_crash(server, shop, NOT_DURABLE) == NEW
    assert logged(server.url(shop)) == []
