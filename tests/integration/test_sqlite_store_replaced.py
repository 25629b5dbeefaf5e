"""What people do to a database beside the relay: rebuild the table, replace the file, give it a second name."""

import os
import re
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.routing import Topics
from pillarbox.errors import LaneLost, StoreError, StoreUnavailable
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.store_bench import names, read, record, settle
from tests.integration.sqlite_shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


def begin_again(shop: Shop) -> None:
    """Empty the outbox together with its sequence, as test suites and Django's flush do."""
    shop.sql("DELETE FROM pillarbox_outbox WHERE event_type <> 'Dead'")
    shop.sql("DELETE FROM sqlite_sequence WHERE name = 'pillarbox_outbox'")


def cure(shop: Shop, message: str) -> None:
    """Run the SQL that a message gives."""
    found = re.search("BEGIN IMMEDIATE;.*COMMIT;", message)
    assert found
    connection = sqlite3.connect(shop.path, isolation_level=None)
    connection.executescript(found[0])
    connection.close()


async def test_ids_that_begin_again_are_noticed_and_the_named_sql_loses_nothing(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B", "C", "D")
    await settle(store, await read(store))
    begin_again(shop)
    shop.add("E", "F", "G")
    with pytest.raises(StoreError, match=r"begun again.*newest is 3.*up to 4 is settled.*3 rows below") as stopped:
        await read(store)
    await store.release()
    with pytest.raises(StoreError, match="begun again"):
        await store.take()
    assert (await store.stats()).stopped == str(stopped.value)
    cure(shop, str(stopped.value))
    await store.take()
    entries = await read(store)
    assert names(entries) == ["E", "F", "G"]
    await settle(store, entries, PUBLISHED)
    shop.add("H")
    assert names(await read(store)) == ["H"]
    assert (await store.stats()).stopped is None


async def test_ids_that_will_begin_again_are_noticed_before_the_first_insert(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B")
    await settle(store, await read(store))
    begin_again(shop)
    with pytest.raises(StoreError, match="0 rows below") as stopped:
        await read(store)
    cure(shop, str(stopped.value))
    shop.add("C")
    assert names(await read(store)) == ["C"]


@pytest.mark.parametrize(("rows", "words"), [(10_000, " 10000 rows below"), (10_500, " more than 10,000 rows below")])
async def test_many_rows_whose_ids_have_begun_again_are_not_all_counted(shop: Shop, rows: int, words: str) -> None:
    store = await shop.holder()
    shop.add("A")
    await settle(store, await read(store))
    shop.sql("UPDATE pillarbox_ticks SET last_id = 20000")
    await store.release()
    begin_again(shop)
    shop.sql(
        f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
        " INSERT INTO pillarbox_outbox (event_type, topic, payload)"
        " SELECT 'B', 'orders', '{}' FROM n"
    )
    with pytest.raises(StoreError, match=f"newest is {rows}.*up to 20000 is settled, so{words}"):
        await store.take()


async def test_the_cure_leaves_what_is_parked_where_it_is(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("Dead", aggregate="7")
    shop.add("A", "B", "C")
    first, *others = await read(store)
    await settle(store, [first], Dead("refused"))
    await settle(store, others)
    begin_again(shop)
    shop.add("D")
    with pytest.raises(StoreError, match="1 row below") as stopped:
        await read(store)
    cure(shop, str(stopped.value))
    assert names(await read(store)) == ["D"]
    assert ((await record(store, "Dead")).status, (await record(store, "Dead")).position) == ("dead", 1)


async def test_a_log_that_retention_has_emptied_has_not_begun_again(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", "B")
    await settle(store, await read(store))
    shop.sql("DELETE FROM pillarbox_outbox")
    assert await read(store) == []
    assert (await store.stats()).stopped is None


def replace_file(shop: Shop, backup: Path) -> None:
    for left in ("-wal", "-shm"):
        Path(shop.path + left).unlink(missing_ok=True)
    os.replace(backup, shop.path)


def back_up(shop: Shop, backup: Path) -> None:
    source, target = sqlite3.connect(shop.path), sqlite3.connect(backup)
    source.backup(target)
    source.close()
    target.close()


async def test_a_database_that_was_replaced_is_read_from_its_own_position(shop: Shop, tmp_path: Path) -> None:
    store = await shop.holder()
    shop.add("A")
    await settle(store, await read(store))
    back_up(shop, tmp_path / "backup.db")
    shop.add("B")
    await settle(store, await read(store))
    replace_file(shop, tmp_path / "backup.db")
    shop.add("C")
    with pytest.raises(LaneLost, match=r"shop\.db was replaced.*opened anew"):
        await read(store)
    await store.release()
    assert (await store.take()).lanes
    entries = await read(store)
    assert names(entries) == ["C"]
    await settle(store, entries)
    assert shop.sql("SELECT max(last_id) FROM pillarbox_ticks") == [(2,)]


async def test_a_database_that_was_replaced_ends_the_wait(shop: Shop, tmp_path: Path) -> None:
    store = await shop.holder()
    await read(store)
    heard = store._connection.bell()
    back_up(shop, tmp_path / "backup.db")
    replace_file(shop, tmp_path / "backup.db")
    assert store._connection.bell() != heard


async def test_an_operator_sees_the_database_that_is_there_now(shop: Shop, tmp_path: Path) -> None:
    store = await shop.store()
    back_up(shop, tmp_path / "backup.db")
    shop.add("A")
    assert (await store.stats()).pending == 1
    replace_file(shop, tmp_path / "backup.db")
    assert (await store.stats()).pending == 0


async def test_a_database_that_was_deleted_is_missed_until_it_is_back(shop: Shop, tmp_path: Path) -> None:
    store = await shop.holder()
    os.rename(shop.path, tmp_path / "aside.db")
    with pytest.raises(StoreUnavailable, match=r"shop\.db is gone.*put it back"):
        await read(store)
    os.rename(tmp_path / "aside.db", shop.path)
    with pytest.raises(LaneLost, match="was replaced"):
        await read(store)
    assert (await store.take()).lanes


def named(shop: Shop, path: str, prefix: str = "pillarbox_") -> SqliteStore:
    lease = timedelta(seconds=15)
    return SqliteStore(
        path, owner=f"{path} {prefix}", prefix=prefix, lease=lease, topics=Topics(), clock=shop.clock, hooks=Hooks()
    )


@pytest.mark.parametrize("name", ["link.db", "below/../shop.db"])
async def test_two_names_of_one_database_have_one_holder(shop: Shop, tmp_path: Path, name: str) -> None:
    store = await shop.holder()
    (tmp_path / "below").mkdir()
    (tmp_path / "link.db").symlink_to(shop.path)
    other = named(shop, str(tmp_path / name))
    await other.open()
    assert not (await other.take()).lanes
    assert (await store.take()).lanes
    await other.close()


async def test_a_relative_name_stays_the_same_file(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.holder()
    monkeypatch.chdir(tmp_path)
    other = named(shop, "shop.db")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    await other.open()
    assert not (await other.take()).lanes
    await other.close()


async def test_two_prefixes_in_one_database_have_a_lock_each(shop: Shop) -> None:
    await shop.holder()
    other = named(shop, shop.path, prefix="b_")
    await other.open()
    await other.up()
    assert (await other.take()).lanes
    assert shop.sql("SELECT locked FROM b_relays") == [(1,)]
    await other.close()
