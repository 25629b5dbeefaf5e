"""The audit on SQLite: whatever an operator does leaves a line with when, who, what and how many."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.insert import microseconds
from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.errors import StoreError
from pillarbox.ports import Query
from pillarbox.testing.contracts.store_bench import read, record, replayed, settle
from tests.integration.sqlite_shop import Shop

GRACE = f"grace@{socket.gethostname()}"


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    monkeypatch.setenv("LOGNAME", "grace")
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


def written(shop: Shop) -> list[Any]:
    """List the audit: when, who, what, how many."""
    return shop.sql("SELECT at, who, what, count FROM pillarbox_audit ORDER BY n")


async def test_every_deed_is_written_down(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("P", "D", aggregate="1")
    shop.add("D", aggregate="2")
    await settle(store, await read(store), PUBLISHED, Dead("refused"))
    at = microseconds(shop.clock.now())
    await store.retry(Query(status=("dead",)))
    id = (await store.find(Query(type="D")))[0].event_id
    await store.drop(Query(ids=(id,)))
    await replayed(store, Query(type="P", topic="orders"))
    await store.pause("orders", "ada", "why not")
    await store.resume("orders")
    assert written(shop) == [
        (at, GRACE, "retry status=dead", 2),
        (at, GRACE, f"drop ids={id}", 1),
        (at, GRACE, "replay replay-1 type=P topic=orders", 1),
        (at, "ada", "pause topic=orders", 1),
        (at, GRACE, "resume topic=orders", 1),
    ]


async def test_a_deed_that_met_nothing_is_written_down_too(shop: Shop) -> None:
    store = await shop.store()
    await store.retry(Query(type="X"))
    await store.drop(Query(type="X"))
    await replayed(store, Query(status=("dead",)))
    await store.resume("orders")
    assert [(what, count) for _, _, what, count in written(shop)] == [
        ("retry type=X", 0),
        ("drop type=X", 0),
        ("replay replay-1 status=dead", 0),
        ("resume topic=orders", 0),
    ]


async def test_nothing_is_done_that_cannot_be_written_down(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    await settle(store, await read(store), Dead("refused"))
    shop.sql("CREATE TRIGGER full BEFORE INSERT ON pillarbox_audit BEGIN SELECT RAISE(ABORT, 'full'); END")
    for deed in (
        store.retry(Query()),
        store.drop(Query()),
        store.begin_replay("replay-1", Query()),
        store.write_down("prune"),
        store.pause("orders", "ada", "why not"),
    ):
        with pytest.raises(StoreError, match="full"):
            await deed
    assert (await record(store, "A")).status == "dead"
    assert list((await store.stats()).pauses) == []


async def test_looking_and_relaying_are_no_deeds(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A")
    await settle(store, await read(store))
    await store.stats()
    await store.find(Query())
    assert written(shop) == []
