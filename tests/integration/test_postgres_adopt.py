"""Adopt: a log that was copied from another cluster goes on here; nothing is lost, nothing old is sent again.

Another cluster is played by the name that the ticks bear, and by transaction ids that are moved far away.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from pillarbox.errors import StoreError
from pillarbox.ports import Query, Retention
from pillarbox.stores.postgres.adopt import adopt
from tests.integration.postgres_log import PLACE, PostgresLog, opened

FAR = 1_000_000_000


@pytest.fixture
async def log(database: str) -> AsyncIterator[PostgresLog]:
    async with opened(database) as log:
        yield log


def copy_from_another_cluster(log: PostgresLog) -> None:
    """Move every transaction id up by FAR, as if another cluster had given them out; what is new gets low ones."""
    move = "(({})::text::bigint + {})::text::xid8".format
    log.sql(f"UPDATE pillarbox_outbox SET xid = {move('xid', FAR)}")
    snapshot = (
        "(SELECT concat_ws(':', p[1]::bigint + {far}, p[2]::bigint + {far},"
        " coalesce((SELECT string_agg((x::bigint + {far})::text, ',')"
        " FROM unnest(string_to_array(p[3], ',')) x), '')) FROM regexp_split_to_array({s}::text, ':') p)"
        "::pg_snapshot"
    )
    log.sql(
        f"UPDATE pillarbox_ticks SET cluster = 'another', s1 = {snapshot.format(s='s1', far=FAR)},"
        f" s2 = {snapshot.format(s='s2', far=FAR)}, x1 = {move('x1', FAR)}, x2 = {move('x2', FAR)}"
    )


async def pending(log: PostgresLog) -> list[str]:
    """List what is pending, by the view and by the index."""
    found = await log.finder.find(log.connection, Query(status=("pending",), newest_first=False))
    assert (await log.overview.stats(log.connection)).pending == len(found)
    return [one.type for one in found]


async def test_the_backlog_and_what_came_after_the_copy_are_pending_and_nothing_else(log: PostgresLog) -> None:
    late = log.begin()
    log.add("Late", within=late)
    log.add("Settled")
    log.tick()
    late.commit()
    log.add("Backlog")
    copy_from_another_cluster(log)
    log.add("New")
    assert await pending(log) == ["Late", "Backlog", "New"], "told truly before it is adopted, too"
    assert await adopt(log.connection, PLACE) == 3
    assert await pending(log) == ["Late", "Backlog", "New"]
    assert (await log.overview.stats(log.connection)).stopped is None
    log.add("Newer")
    log.tick_up_to(0)
    assert await pending(log) == ["Late", "Backlog", "New", "Newer"]


async def test_inside_a_batch_only_what_was_not_settled_is_pending(log: PostgresLog) -> None:
    log.add("Before")
    log.tick()
    reached = log.add("A", "B")
    log.add("C")
    log.tick_up_to(reached)
    copy_from_another_cluster(log)
    assert await pending(log) == ["C"]
    assert await adopt(log.connection, PLACE) == 1
    assert await pending(log) == ["C"]


async def test_what_was_settled_stays_so_when_the_counter_passes_the_old_ids(log: PostgresLog) -> None:
    """The old cluster's ids were low: a snapshot of this cluster shows them, whatever was settled there."""
    late = log.begin()
    log.add("Late", within=late)
    log.add("Settled")
    log.tick()
    late.commit()
    log.sql("UPDATE pillarbox_ticks SET cluster = 'another'")
    assert await pending(log) == ["Late"]
    assert await adopt(log.connection, PLACE) == 1
    for _ in range(3):
        log.tick_up_to(0)
        assert await pending(log) == ["Late"]


async def test_a_paused_topic_keeps_its_backlog_and_its_detour(log: PostgresLog) -> None:
    log.tick(lanes=0xFF, topic="letters")
    log.tick(lanes=~0xFF, topic="letters")
    log.tick(topic="postcards", closed=True)
    log.add("Letter", topic="letters")
    log.add("Order")
    log.add("Postcard", topic="postcards")
    log.tick()
    copy_from_another_cluster(log)
    assert await adopt(log.connection, PLACE) == 1
    assert await pending(log) == ["Letter"]
    log.tick()
    assert await pending(log) == ["Letter"], "it still has a place of its own"
    assert log.sql(
        "SELECT topic, closed FROM pillarbox_positions(-1) WHERE topic IS NOT NULL GROUP BY 1, 2 ORDER BY 1"
    ) == [
        ("letters", False),
        ("postcards", True),
    ]
    assert (await log.overview.stats(log.connection)).stopped is None


async def test_a_global_topic_keeps_its_place(log: PostgresLog) -> None:
    log.tick(lanes=1, topic="ledger", whole=True)
    log.add("Entry", topic="ledger")
    log.tick()
    copy_from_another_cluster(log)
    assert await adopt(log.connection, PLACE) == 1
    log.tick()
    assert await pending(log) == ["Entry"]
    assert log.sql("SELECT lanes, whole FROM pillarbox_positions(-1) WHERE topic = 'ledger'") == [(1, True)]


async def test_what_stands_in_the_parking_lot_stays_there(log: PostgresLog) -> None:
    log.add("Published")
    log.park(log.add("Dead"), "dead", line="a line")
    log.park(log.add("Blocked"), "blocked", line="a line")
    log.tick()
    log.add("Pending")
    copy_from_another_cluster(log)
    await adopt(log.connection, PLACE)
    assert log.statuses() == {"Published": "published", "Dead": "dead", "Blocked": "blocked", "Pending": "pending"}
    assert await log.mending.retry(log.connection, Query(status=("dead",))) == 1


async def test_a_log_without_a_backlog_is_adopted_too(log: PostgresLog) -> None:
    log.add("A")
    log.tick()
    copy_from_another_cluster(log)
    assert await adopt(log.connection, PLACE) == 0
    assert await pending(log) == []
    log.add("New")
    assert await pending(log) == ["New"]


async def test_an_empty_log_is_adopted_too(log: PostgresLog) -> None:
    copy_from_another_cluster(log)
    assert await adopt(log.connection, PLACE) == 0


async def test_a_second_copy_is_adopted_like_the_first(log: PostgresLog) -> None:
    log.add("A", "B")
    log.tick_up_to(1)
    copy_from_another_cluster(log)
    assert await adopt(log.connection, PLACE) == 1
    log.add("C")
    log.sql("UPDATE pillarbox_ticks SET cluster = cluster || ' again'")
    assert await adopt(log.connection, PLACE) == 2
    assert await pending(log) == ["B", "C"]


async def test_the_backlog_is_not_taken_for_settled_when_others_end_meanwhile(log: PostgresLog) -> None:
    """A transaction's own id stands in none of its snapshots: once a later one has ended, it looks ended too."""
    log.add("Backlog")
    copy_from_another_cluster(log)
    holder = log.begin()
    holder.execute("SELECT 1 FROM pillarbox_lanes WHERE lane = 63 FOR UPDATE")
    adopting = asyncio.create_task(adopt(log.connection, PLACE))
    await log.somebody_waits()
    log.one("SELECT pg_current_xact_id()::text")  # a later transaction begins and ends
    holder.commit()
    assert await adopting == 1
    assert await pending(log) == ["Backlog"]


async def test_what_a_writer_commits_right_after_is_pending(log: PostgresLog) -> None:
    copy_from_another_cluster(log)
    writer = log.begin()
    writer.execute("SELECT pg_current_xact_id()")
    await adopt(log.connection, PLACE)
    log.add("After", within=writer)
    writer.commit()
    assert await pending(log) == ["After"]


async def test_lanes_are_free_afterwards_under_new_epochs(log: PostgresLog) -> None:
    log.sql("UPDATE pillarbox_lanes SET owner = 'old', crashes = 2, suspect = 7")
    copy_from_another_cluster(log)
    await adopt(log.connection, PLACE)
    lanes = log.sql("SELECT owner, crashes, suspect, epoch <> 0 FROM pillarbox_lanes GROUP BY 1, 2, 3, 4")
    assert lanes == [(None, 0, None, True)]


async def test_adopting_leaves_a_line_in_the_audit(log: PostgresLog) -> None:
    log.add("A")
    copy_from_another_cluster(log)
    await adopt(log.connection, PLACE)
    assert log.sql("SELECT what, count FROM pillarbox_audit") == [("adopt", 1)]


async def test_retention_does_not_take_the_old_ticks_for_its_own(log: PostgresLog) -> None:
    """The adopted backlog bears an id that an old snapshot would show: it is not old for that."""
    late = log.begin()
    log.add("Backlog", within=late)
    log.add("Settled")
    log.tick()
    late.commit()
    copy_from_another_cluster(log)
    log.advance(timedelta(days=30))
    await adopt(log.connection, PLACE)
    log.tick()
    keep = Retention(published=timedelta(days=7))
    while await log.pruner.prune(log.connection, keep):
        pass
    assert log.in_log() == ["Backlog", "Settled"]
    [seen] = await log.finder.find(log.connection, Query(type="Backlog"))
    assert (seen.status, seen.published_at) == ("published", log.now)
    log.advance(timedelta(days=7))
    while await log.pruner.prune(log.connection, keep):
        pass
    assert log.in_log() == []


async def test_what_was_settled_before_shows_its_old_time_or_none(log: PostgresLog) -> None:
    log.add("Below")
    log.tick()
    below = log.now
    log.advance(60)
    late = log.begin()
    log.add("Late", within=late)
    log.add("Above")
    log.tick()
    late.commit()
    copy_from_another_cluster(log)
    log.advance(60)
    await adopt(log.connection, PLACE)
    seen = {one.type: (one.status, one.published_at) for one in await log.finder.find(log.connection, Query())}
    assert seen == {"Below": ("published", below), "Late": ("pending", None), "Above": ("published", None)}


async def test_it_is_refused_where_there_is_nothing_to_adopt(log: PostgresLog) -> None:
    with pytest.raises(StoreError, match="belongs to this cluster already"):
        await adopt(log.connection, PLACE)


@pytest.mark.parametrize("behind", ["the log", "the ticks"])
async def test_it_is_refused_if_ids_would_be_given_twice(log: PostgresLog, behind: str) -> None:
    log.add("A", "B", "C")
    log.tick()
    copy_from_another_cluster(log)
    if behind == "the ticks":
        log.sql("DELETE FROM pillarbox_outbox")
    log.sql("SELECT setval('pillarbox_outbox_id_seq', 2)")
    with pytest.raises(
        StoreError, match=r"stands at 2, but .* have reached 3.*setval\('public.pillarbox_outbox_id_seq', 3\)"
    ):
        await adopt(log.connection, PLACE)
    log.sql("SELECT setval('pillarbox_outbox_id_seq', 3)")
    await adopt(log.connection, PLACE)


async def test_it_is_refused_while_relays_are_alive(log: PostgresLog) -> None:
    copy_from_another_cluster(log)
    log.sql("INSERT INTO pillarbox_relays (name, seen_at, expires_at) VALUES ('r1', %s, %s)",
            [log.now, log.now + timedelta(seconds=15)])  # fmt: skip
    with pytest.raises(StoreError, match=r"alive \(r1\): stop them"):
        await adopt(log.connection, PLACE)
    assert log.one("SELECT count(*) FROM pillarbox_ticks WHERE owner = 'adopt'") == 0
    log.advance(16)
    await adopt(log.connection, PLACE)


async def test_it_is_refused_if_a_lane_has_no_tick(log: PostgresLog) -> None:
    copy_from_another_cluster(log)
    log.sql(f"UPDATE pillarbox_ticks SET lanes = ~{1 << 5}")
    with pytest.raises(StoreError, match="lanes 5 have no tick"):
        await adopt(log.connection, PLACE)
