"""The view of every event on SQLite: what `events list` says, by plain SQL, and by index."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from pillarbox.core.insert import EPOCH
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt
from pillarbox.core.window import BLOCKED, Delayed, Settled
from pillarbox.ports import Query, Retention
from pillarbox.testing.contracts.store_bench import publish_all, read, settle, settle_each
from tests.integration.sqlite_shop import Shop
from tests.integration.sqlite_view import in_view, told


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


def statuses(shop: Shop) -> dict[str, str]:
    return dict(shop.sql("SELECT event_type, status FROM pillarbox_events ORDER BY id"))


async def fill(shop: Shop) -> None:
    """Add an event of every status, some of them in the archive."""
    store = await shop.holder()
    for name in ("archived", "dropped"):
        shop.add(name, aggregate=name)
    await settle_each(store, await read(store), dropped=Dead("never"), archived=PUBLISHED)
    assert await store.drop(Query(status=("dead",))) == 1
    shop.clock.advance(timedelta(days=1))
    assert await store.prune(Retention(published=timedelta(0), archive=timedelta(days=9)))
    shop.add("retrying", "blocked", aggregate="1")
    shop.add("dead", aggregate="2")
    shop.add("published", aggregate="3")
    shop.sql(
        "INSERT INTO pillarbox_outbox (event_type, topic, payload, available_at)"
        f" VALUES ('delayed', 'orders', '{{}}', {2**52})"
    )
    verdicts: dict[str, Settled] = {
        "retrying": RetryAt(shop.clock.now() + timedelta(hours=1), "not now"),
        "blocked": BLOCKED,
        "dead": Dead("refused"),
        "published": PUBLISHED,
        "delayed": Delayed(shop.clock.now() + timedelta(hours=1)),
    }
    await settle_each(store, await read(store), **verdicts)
    shop.add("pending")


async def test_every_status_is_shown_as_the_commands_show_it(shop: Shop) -> None:
    await fill(shop)
    found = await (await shop.store("looks")).find(Query(limit=1000))
    assert {record.status for record in found} == {
        *("pending", "retrying", "blocked", "dead", "delayed", "published", "dropped")
    }
    assert in_view(shop.path, [record.position for record in found]) == [told(record) for record in found]
    assert all(type in (status, "archived") for type, status in statuses(shop).items())
    assert len(statuses(shop)) == len(found)


async def test_a_paused_topics_events_are_pending_while_others_go(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("Before", topic="letters")
    await publish_all(store)
    before = shop.clock.now()
    shop.clock.advance(timedelta(minutes=1))
    await store.pause("letters", "ada", "why not")
    shop.add("Paused", topic="letters")
    shop.add("Goes")
    await publish_all(store)
    assert statuses(shop) == {"Before": "published", "Paused": "pending", "Goes": "published"}
    [[published]] = shop.sql("SELECT published_at FROM pillarbox_events WHERE event_type = 'Before'")
    assert published == (before - EPOCH) // timedelta(microseconds=1)
    await store.resume("letters")
    await publish_all(store)
    assert set(statuses(shop).values()) == {"published"}


async def test_what_was_edited_is_shown_with_its_original(shop: Shop) -> None:
    store = await shop.holder()
    shop.add("A", payload='{"n": 1}')
    await settle(store, await read(store), Dead("refused"))
    [dead] = await store.find(Query())
    assert await store.edit(dead.event_id, '{"n": 2}') == 1
    assert shop.sql("SELECT payload, original FROM pillarbox_events") == [('{"n": 2}', '{"n": 1}')]


async def test_it_has_the_columns_that_it_has_on_postgresql(shop: Shop, migrated: str) -> None:
    await shop.store()
    with closing(sqlite3.connect(shop.path)) as here, psycopg.connect(migrated) as there:
        columns = [column for column, *_ in here.execute("SELECT * FROM pillarbox_events").description]
        others = [column.name for column in there.execute("SELECT * FROM pillarbox_events").description or ()]
    assert columns == [name for name in others if name != "lane"]


async def test_tables_with_another_prefix_have_it_too(shop: Shop) -> None:
    store = shop.closed_store(prefix="acme_")
    await store.open()
    await store.up()
    shop.sql("INSERT INTO acme_outbox (event_type, topic, payload) VALUES ('A', 't', '{}')")
    assert shop.sql("SELECT event_type, status FROM acme_events") == [("A", "pending")]


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ("ORDER BY id DESC LIMIT 50", 50),
        ("ORDER BY id LIMIT 50", 50),
        ("WHERE id = 777", 1),
        ("WHERE event_id = 'no such'", 0),
        ("WHERE topic = 'no such' ORDER BY id DESC LIMIT 50", 0),
        ("WHERE topic = 't1' ORDER BY id DESC LIMIT 50", 50),
        ("WHERE aggregate_type = 'order' AND aggregate_id = '7' ORDER BY id DESC LIMIT 50", 50),
    ],
)
async def test_few_events_are_read_by_index(shop: Shop, asked: str, most: int) -> None:
    await shop.store()
    for table, count, more, values in (
        ("outbox", 20_000, "", ""),
        (
            "archive",
            50,
            ", id, status, created_at, archived_at, event_id",
            ", 100000 + n, 'published', 5, 5, 'archived ' || n",
        ),
    ):
        numbers = f"WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {count})"
        shop.sql(
            f"{numbers} INSERT INTO pillarbox_{table} (event_type, topic, payload, aggregate_type, aggregate_id{more})"
            f" SELECT 'E', 't' || n % 3, '{{}}', 'order', n % 100{values} FROM g"
        )
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(shop.path)) as connection:
        connection.set_progress_handler(step, 100)
        rows = connection.execute(f"SELECT * FROM pillarbox_events {asked}").fetchall()
    assert len(rows) <= most
    assert steps < 400, "at least three instructions an event: of 20,000 it would be 600 of these"
