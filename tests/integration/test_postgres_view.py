"""The view of every event: readable in psql, right for late commits and long batches, fast on a long log."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from tests.integration.postgres_log import PostgresLog, opened


@pytest.fixture
async def log(database: str) -> AsyncIterator[PostgresLog]:
    async with opened(database) as log:
        yield log


def published(log: PostgresLog) -> dict[str, datetime | None]:
    return dict(log.sql("SELECT event_type, published_at FROM pillarbox_events"))


async def test_every_status_is_shown(log: PostgresLog) -> None:
    log.add("published")
    for state in ("retrying", "blocked", "dead", "delayed", "dropped"):
        log.park(log.add(state), state, line=None if state == "delayed" else "a line")
    log.tick()
    log.add("pending")
    assert all(type == status for type, status in log.statuses().items())
    assert len(log.statuses()) == 7


async def test_what_the_parking_lot_knows_is_shown(log: PostgresLog) -> None:
    head = log.add("Head")
    log.park(head, "retrying", line="a line", attempts=2, last_error="refused", due_at=log.now)
    log.park(log.add("Follower"), "blocked", line="a line")
    log.tick()
    seen = log.sql("SELECT event_type, attempts, last_error, next_try_at, blocked_by FROM pillarbox_events ORDER BY id")
    of_head = log.one("SELECT event_id FROM pillarbox_outbox WHERE id = %s", [head])
    assert seen == [("Head", 2, "refused", log.now, None), ("Follower", 0, None, None, of_head)]


async def test_the_brief_view_has_everything_but_what_is_inside(log: PostgresLog) -> None:
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
    whole = {name for (name,) in log.sql(columns, ["pillarbox_events"])}
    brief = {name for (name,) in log.sql(columns, ["pillarbox_events_brief"])}
    assert whole - brief == {"payload", "body", "headers", "lane", "parked_id", "original", "original_body"}
    assert brief < whole


async def test_an_event_is_published_when_the_first_tick_covers_it(log: PostgresLog) -> None:
    log.add("A")
    log.advance(10)
    log.tick()
    first = log.now
    log.add("B")
    for _ in range(5):
        log.advance(10)
        log.tick()
    assert published(log)["A"] == first
    assert published(log)["B"] == first.replace(second=20)


async def test_an_event_of_a_long_transaction_is_published_when_it_was(log: PostgresLog) -> None:
    late = log.begin()
    log.add("Late", within=late)
    for n in range(40):
        log.add(f"E{n}")
        log.advance(1)
        log.tick()
    late.commit()
    log.advance(1)
    log.tick()
    then = log.now
    for _ in range(20):
        log.advance(1)
        log.tick()
    assert published(log)["Late"] == then


async def test_inside_a_long_batch_an_event_is_published_when_its_part_was(log: PostgresLog) -> None:
    log.tick()
    ids = [log.add(f"E{n}") for n in range(10)]
    times = {}
    for n, id in enumerate(ids):
        log.advance(60)
        log.tick_up_to(id)
        times[f"E{n}"] = log.now
    log.advance(60)
    log.tick()
    assert published(log) == times


async def test_each_lane_has_its_own_time(log: PostgresLog) -> None:
    log.add("One", aggregate="1")  # lane 8
    log.add("Two", aggregate="2")
    log.advance(60)
    log.tick(lanes=1 << 8)
    one = log.now
    log.advance(60)
    log.tick(lanes=~(1 << 8))
    assert published(log) == {"One": one, "Two": log.now}


async def test_a_paused_topic_has_its_own_time_and_the_one_from_before_the_pause(log: PostgresLog) -> None:
    log.add("Before", topic="letters")
    log.advance(60)
    log.tick()
    before = log.now
    log.tick(topic="letters")
    log.add("Paused", topic="letters")
    log.advance(60)
    log.tick()
    assert published(log) == {"Before": before, "Paused": None}
    log.advance(60)
    log.tick(topic="letters", closed=True)
    log.tick()
    paused = log.now
    log.advance(60)
    log.tick()
    assert published(log) == {"Before": before, "Paused": paused}


async def test_an_archived_event_is_shown_with_what_the_archive_says(log: PostgresLog) -> None:
    position = log.add("A")
    log.tick()
    columns = "event_id, aggregate_type, aggregate_id, event_type, topic, payload, created_at, lane"
    log.sql(
        f"INSERT INTO pillarbox_archive (id, {columns}, status, attempts, last_error, published_at)"
        f" SELECT id, {columns}, 'published', 3, 'once refused', pillarbox_now() FROM pillarbox_outbox"
    )
    log.sql("DELETE FROM pillarbox_outbox")
    seen = log.sql("SELECT id, status, attempts, last_error, published_at FROM pillarbox_events")
    assert seen == [(position, "published", 3, "once refused", log.now)]


@pytest.mark.parametrize("analyzed", [True, False], ids=["with statistics", "with none"])
async def test_the_newest_the_oldest_one_and_an_aggregate_are_read_by_index(log: PostgresLog, analyzed: bool) -> None:
    log.sql("ALTER TABLE pillarbox_outbox SET (autovacuum_enabled = false)")
    log.sql(
        "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
        " SELECT 'order', (g % 100)::text, 'E', 't', '{}' FROM generate_series(1, 50000) g"
    )
    log.tick()
    if analyzed:
        log.sql("ANALYZE pillarbox_outbox")
    for asked in (
        "ORDER BY id DESC LIMIT 50",
        "ORDER BY id LIMIT 50",
        "WHERE id = 777",
        "WHERE aggregate_type = 'order' AND aggregate_id = '7' ORDER BY id DESC LIMIT 50",
    ):
        plan = [
            row[0]
            for row in log.sql(f"EXPLAIN (ANALYZE, COSTS off, TIMING off) SELECT * FROM pillarbox_events {asked}")
        ]
        outbox = [line for line in plan if " on pillarbox_outbox" in line]
        assert all("Index Scan" in line for line in outbox), f"{asked}: {outbox}"
        assert float(outbox[0].partition("rows=")[2].split()[0]) <= 50, f"{asked}: {outbox}"
