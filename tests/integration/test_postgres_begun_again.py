"""Ids that begin again on PostgreSQL, as after TRUNCATE … RESTART IDENTITY: noticed, and mended without a loss."""

import re

import psycopg
import pytest

from pillarbox.errors import LaneLost, StoreError
from tests.conftest import EVERY_POSTGRES
from tests.integration.postgres_world import SlowRelay, add, run

pytestmark = pytest.mark.parametrize("migrated", EVERY_POSTGRES, indirect=True)
OLD = [f"old-{n}" for n in range(5)]


def begin_again(url: str) -> None:
    run(url, "TRUNCATE pillarbox_outbox RESTART IDENTITY")


def cure(url: str, message: str) -> None:
    """Run the SQL that a message gives."""
    found = re.search("BEGIN;.*COMMIT;", message)
    assert found
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(found[0].encode())


async def read_on(relay: SlowRelay) -> None:
    """Poll until something happens: a lane that finds nothing stores a tick every two seconds."""
    while True:
        assert await relay.read() == []


@pytest.mark.parametrize("new", [3, 5, 12], ids=["fewer ids than before", "as many", "more"])
async def test_a_relay_that_starts_refuses_and_the_named_sql_loses_nothing(migrated: str, new: int) -> None:
    async with SlowRelay(migrated) as relay:
        await relay.store.take()
        add(migrated, *OLD)
        await relay.carry()
        await relay.store.release()
        begin_again(migrated)
        names = [f"new-{n}" for n in range(new)]
        add(migrated, *names[:2])
        add(migrated, *names[2:])
        with pytest.raises(
            StoreError, match=f"begun again.*had reached 5, and its sequence stands at {new}"
        ) as stopped:
            await relay.store.take()
        assert (await relay.store.stats()).stopped == str(stopped.value)
        cure(migrated, str(stopped.value))
        assert (await relay.store.stats()).stopped is None
        await relay.store.take()
        await relay.carry()
        add(migrated, "next")
        await relay.carry()
    assert relay.wire == [*OLD, *names, "next"]


async def test_a_relay_that_runs_refuses_to_go_on(migrated: str) -> None:
    async with SlowRelay(migrated) as relay:
        await relay.store.take()
        add(migrated, *OLD)
        await relay.carry()
        begin_again(migrated)
        add(migrated, "new")
        with pytest.raises(LaneLost, match="begun again"):
            await read_on(relay)
        await relay.store.release()
        with pytest.raises(StoreError, match="begun again") as stopped:
            await relay.store.take()
        cure(migrated, str(stopped.value))
        await relay.store.take()
        await relay.carry()
    assert relay.wire == [*OLD, "new"]


async def test_a_log_that_was_emptied_alone_is_gone_on_with(migrated: str) -> None:
    async with SlowRelay(migrated) as relay:
        await relay.store.take()
        add(migrated, *OLD)
        await relay.carry()
        await relay.store.release()
        run(migrated, "TRUNCATE pillarbox_outbox")
        assert (await relay.store.stats()).stopped is None
        await relay.store.take()
        add(migrated, "new")
        await relay.carry()
    assert relay.wire == [*OLD, "new"]
