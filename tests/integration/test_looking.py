"""Every filter of `events list` on a long log, with no event that matches: no walk over the log."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pillarbox import Settings
from pillarbox.admin import looking
from pillarbox.admin.looking import Looked
from pillarbox.ports import Query
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.wiring import open_admin
from tests.integration.sqlite_shop import on_connection

EVENTS, STRETCH = 30_000, 1_000
NOW = datetime.now(UTC)
UNMATCHED = {
    "type": Query(type="no such"),
    "topic": Query(topic="no such"),
    "type, the oldest first": Query(type="no such", newest_first=False),
    "aggregate": Query(aggregate=("order", "no such")),
    "since": Query(since=NOW + timedelta(days=1)),
    "until": Query(until=NOW - timedelta(days=9)),
    "until and type": Query(type="no such", until=NOW + timedelta(days=1)),
    "since, the oldest first": Query(topic="no such", since=NOW - timedelta(days=9), newest_first=False),
    "error": Query(error="no such"),
    **{
        status: Query(status=(status,)) for status in ("retrying", "blocked", "dead", "delayed", "dropped", "published")
    },
    "pending of no topic": Query(status=("pending",), topic="no such"),
    "pending of no topic, the oldest first": Query(status=("pending",), topic="no such", newest_first=False),
    "pending or dead": Query(status=("pending", "dead"), topic="no such"),
}
"""Nothing is published in this log, so all of it is pending."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "STRETCH", STRETCH)


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("long") / "shop.db"

    async def migrate() -> None:
        async with open_admin(Settings(database=f"sqlite:///{path}")) as admin:
            await admin.migrate()

    asyncio.run(migrate())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {EVENTS})"
            " INSERT INTO pillarbox_outbox (event_type, topic, payload, aggregate_type, aggregate_id)"
            " SELECT 'E', 'orders', '{}', 'order', n % 100 FROM g"
        )
    return str(path)


@pytest.mark.parametrize("name", UNMATCHED)
async def test_no_filter_walks_over_the_log_on_sqlite(long_file: str, name: str) -> None:
    hundreds = 0

    def step() -> int:
        nonlocal hundreds
        hundreds += 1
        return 0

    async with open_admin(Settings(database=f"sqlite:///{long_file}")) as admin:
        assert isinstance(admin._store, SqliteStore)
        await on_connection(admin._store, lambda db: db.set_progress_handler(step, 100))
        looked = await admin.look_for(UNMATCHED[name])
    assert looked.records == []
    assert hundreds < EVENTS * 3 // 100, "a walk takes at least three instructions an event"


@pytest.fixture
def long_log(migrated: str) -> str:
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute("ALTER TABLE pillarbox_outbox SET (autovacuum_enabled = false)")
        connection.execute(
            "INSERT INTO pillarbox_outbox (event_type, topic, payload, aggregate_type, aggregate_id)"
            f" SELECT 'E', 'orders', '{{}}', 'order', (n % 100)::text FROM generate_series(1, {EVENTS}) n"
        )
    return migrated


@pytest.mark.parametrize("analyzed", [True, False], ids=["with statistics", "with none"])
async def test_no_filter_walks_over_the_log_on_postgresql(long_log: str, analyzed: bool) -> None:
    if analyzed:
        with psycopg.connect(long_log, autocommit=True) as connection:
            connection.execute("ANALYZE pillarbox_outbox")
    for name, query in UNMATCHED.items():
        before = read_so_far(long_log)
        async with open_admin(Settings(database=long_log)) as admin:
            looked: Looked = await admin.look_for(query)
        scans, rows = (now - then for now, then in zip(read_so_far(long_log), before, strict=True))
        assert looked.records == [], name
        assert scans == 0, f"{name}: {scans} sequential scans"
        assert rows <= 3 * STRETCH, f"{name}: {rows} rows"


def read_so_far(url: str) -> tuple[int, int]:
    """Give how often the log was read from end to end, and how many of its rows were read in all."""
    with psycopg.connect(url, autocommit=True) as connection:

        def one(sql: str) -> tuple[int, ...]:
            row: tuple[int, ...] | None = connection.execute(sql.encode()).fetchone()
            assert row is not None
            return row

        # A session tells what it has read when it ends.
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        until(lambda: one(f"{others} AND backend_type = 'client backend'") == (0,))
        scans, rows = one(
            "SELECT seq_scan, seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'pillarbox_outbox'"
        )
        return scans, rows


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
