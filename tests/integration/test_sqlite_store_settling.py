"""Settling on SQLite, beyond the contract."""

from pathlib import Path

from pillarbox.testing.contracts.store_bench import read
from tests.integration.sqlite_shop import Shop, statements


async def test_settling_nothing_runs_no_statement(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    store = await shop.holder()
    shop.add("A")
    await read(store)
    assert await statements(store, lambda: store.settle([])) == []
    assert shop.sql("SELECT count(*) FROM pillarbox_ticks WHERE owner = 'a'") == [(0,)]
    await shop.close()
