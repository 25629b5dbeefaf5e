"""Settling on SQLite, beyond the contract."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.window import DETOURED
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.testing.contracts.store_bench import publish_all, read, settle
from tests.integration.sqlite_shop import Shop, statements


class FailingCommit(sqlite3.Connection):
    """Commits, or rolls back, and then answers with an error once there is a `code`."""

    code: int | None = None
    happens = True

    def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
        if sql != "COMMIT" or FailingCommit.code is None:
            return super().execute(sql, *more)
        super().execute("COMMIT" if FailingCommit.happens else "ROLLBACK")
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, FailingCommit.code = FailingCommit.code, None
        raise error


@pytest.fixture
async def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    plain = sqlite3.connect

    def connect(path: str, **more: Any) -> sqlite3.Connection:
        return plain(path, factory=FailingCommit, **more)

    monkeypatch.setattr(sqlite3, "connect", connect)
    shop = Shop(tmp_path / "shop.db")
    yield shop
    FailingCommit.code, FailingCommit.happens = None, True
    await shop.close()


@pytest.mark.parametrize("happens", [True, False])
async def test_after_a_commit_in_doubt_the_tables_are_believed(failing: Shop, happens: bool) -> None:
    store = await failing.holder()
    failing.add("First")
    entries = await read(store)
    store.hold(frozenset({"orders"}))
    FailingCommit.code, FailingCommit.happens = sqlite3.SQLITE_IOERR, happens
    with pytest.raises(LaneLost, match="disk I/O error"):
        await settle(store, entries, DETOURED)
    store.hold(frozenset())
    failing.add("Second")
    assert (await store.take()).lanes
    assert await publish_all(store) == ["First", "Second"]
    assert (await store.stats()).pending == 0


async def test_a_commit_that_finds_no_room_is_tried_again_and_nothing_is_published_twice(failing: Shop) -> None:
    store = await failing.holder()
    failing.add("First")
    entries = await read(store)
    FailingCommit.code, FailingCommit.happens = sqlite3.SQLITE_FULL, False
    with pytest.raises(StoreUnavailable, match="make room"):
        await settle(store, entries)
    await settle(store, entries)
    assert await publish_all(store) == []


async def test_settling_nothing_runs_no_statement(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    store = await shop.holder()
    shop.add("A")
    await read(store)
    assert await statements(store, lambda: store.settle([])) == []
    assert shop.sql("SELECT count(*) FROM pillarbox_ticks WHERE owner = 'a'") == [(0,)]
    await shop.close()
