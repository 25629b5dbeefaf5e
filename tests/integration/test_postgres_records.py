"""What an operator sees and does on PostgreSQL, where the contract does not reach: late commits, ids, bounds, races."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from pillarbox.ids import new_id
from pillarbox.ports import Pause, Query
from tests.integration.postgres_log import PostgresLog, opened

LANE_OF_ORDER_1 = 8


@pytest.fixture
async def log(database: str) -> AsyncIterator[PostgresLog]:
    async with opened(database) as log:
        yield log


async def pending(log: PostgresLog) -> list[str]:
    """List what is pending, and see that the counts agree."""
    found = [one.type for one in await log.finder.find(log.connection, Query(status=("pending",), newest_first=False))]
    assert (await log.overview.stats(log.connection)).pending == len(found)
    return found


async def test_a_late_commit_is_pending_although_its_id_is_settled(log: PostgresLog) -> None:
    late = log.begin()
    log.add("Late", within=late)
    log.add("Early")
    log.tick()
    late.commit()
    assert await pending(log) == ["Late"]
    log.tick()
    assert await pending(log) == []


async def test_a_transaction_above_the_newest_ended_one_is_pending(log: PostgresLog) -> None:
    """It stands in no list of the snapshot: xmax is the latest *ended* transaction plus one."""
    first, second = log.begin(), log.begin()
    first.execute("SELECT pg_current_xact_id()")
    log.add("Second", within=second)
    log.add("First", within=first)
    first.commit()
    log.tick()
    [[snapshot]] = log.sql("SELECT s1::text FROM pillarbox_ticks ORDER BY n DESC LIMIT 1")
    assert snapshot.endswith(":"), "nobody is in progress"
    second.commit()
    assert await pending(log) == ["Second"]


async def test_inside_a_batch_what_is_above_its_last_id_is_pending(log: PostgresLog) -> None:
    log.add("Before")
    log.tick()
    late = log.begin()
    log.add("Late", within=late)
    reached = log.add("A", "B")
    log.add("C")
    log.tick_up_to(reached)
    log.add("New")
    assert await pending(log) == ["C", "New"]
    late.commit()
    assert await pending(log) == ["Late", "C", "New"]


async def test_what_was_rolled_back_is_not_pending(log: PostgresLog) -> None:
    gone = log.begin()
    log.add("Gone", within=gone)
    log.tick()
    gone.rollback()
    assert await pending(log) == []


async def test_a_topic_with_a_place_of_its_own_is_pending_from_there(log: PostgresLog) -> None:
    log.add("A")
    log.tick()
    log.tick(topic="letters")
    log.add("Letter", topic="letters")
    log.add("Order")
    log.tick()
    assert await pending(log) == ["Letter"]
    log.tick(topic="letters", closed=True)
    log.tick()
    assert await pending(log) == []
    log.add("Later", topic="letters")
    assert await pending(log) == ["Later"]
    log.tick()
    assert await pending(log) == [], "its own place is over"


async def test_a_detour_counts_only_on_its_own_lanes(log: PostgresLog) -> None:
    log.tick(lanes=1 << LANE_OF_ORDER_1, topic="letters")
    log.add("Here", topic="letters", aggregate="1")
    log.add("Elsewhere", topic="letters", aggregate="2")
    log.tick()
    assert await pending(log) == ["Here"]


async def test_lane_63_is_a_lane_like_any_other(log: PostgresLog) -> None:
    lanes = {aggregate: log.one("SELECT lane FROM pillarbox_outbox WHERE id = %s", [log.add("E", aggregate=aggregate)])
             for aggregate in map(str, range(500))}  # fmt: skip
    last = next(aggregate for aggregate, lane in lanes.items() if lane == 63)
    log.tick()
    log.tick(lanes=-(1 << 63))
    log.add("Last", aggregate=last)
    assert await pending(log) == ["Last"]
    log.tick(lanes=-(1 << 63))
    assert await pending(log) == []


async def test_a_global_topic_has_one_place_for_all_lanes(log: PostgresLog) -> None:
    log.tick(lanes=1, topic="ledger", whole=True)
    for aggregate in "1234":
        log.add(f"L{aggregate}", topic="ledger", aggregate=aggregate)
    log.tick()
    assert await pending(log) == ["L1", "L2", "L3", "L4"]
    log.tick(lanes=1, topic="ledger", whole=True)
    assert await pending(log) == []


async def test_pending_is_exact_up_to_10_000(log: PostgresLog) -> None:
    def add(count: int) -> None:
        log.sql(
            "INSERT INTO pillarbox_outbox (event_type, topic, payload)"
            f" SELECT 'E', CASE g % 2 WHEN 0 THEN 'even' ELSE 'odd' END, '{{}}' FROM generate_series(1, {count}) g"
        )

    add(10_000)
    stats = await log.overview.stats(log.connection)
    assert (stats.pending, stats.pending_exact) == (10_000, True)
    assert stats.pending_by_topic == {"even": 5_000, "odd": 5_000}
    add(1)
    stats = await log.overview.stats(log.connection)
    assert (stats.pending, stats.pending_exact) == (10_000, False)
    assert sum(stats.pending_by_topic.values()) == 10_000


async def test_behind_an_old_place_only_so_many_rows_are_looked_at_and_that_is_said(log: PostgresLog) -> None:
    log.tick(topic="letters")
    log.add("Letter", topic="letters")
    log.add(*"ABCDEFGH")
    log.add("Letter", topic="letters")
    log.tick()
    count = "SELECT count(id), bool_or(id IS NULL) FROM pillarbox_pending(10, %s)"
    assert log.sql(count, [5]) == [(1, True)]
    assert log.sql(count, [10]) == [(2, False)]


async def test_counting_what_is_pending_does_not_walk_over_what_is_settled(log: PostgresLog) -> None:
    log.sql(
        "INSERT INTO pillarbox_outbox (event_type, topic, payload) SELECT 'E', 't', '{}' FROM generate_series(1, 20000)"
    )
    log.tick()
    log.add("New")

    def rows_read() -> int:
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'pillarbox_outbox'"
        with log.begin() as transaction:
            transaction.execute("SELECT * FROM pillarbox_pending(10001, 100000)")
            transaction.execute("SELECT pillarbox_pending_above()")
            return int((transaction.execute(read).fetchone() or [0])[0])

    assert rows_read() < 20


async def test_dead_events_are_grouped_while_nobody_may_read_the_log(log: PostgresLog) -> None:
    log.sql(
        "INSERT INTO pillarbox_parked (position, lane, state, last_error, event_id, aggregate_type, aggregate_id,"
        " event_type, topic, payload, created_at)"
        " SELECT g, 0, 'dead', 'no', gen_random_uuid(), '', '', 'E', 't', '{}', now() FROM generate_series(1, 3) g"
    )
    with log.begin() as locked:
        locked.execute("LOCK TABLE pillarbox_outbox, pillarbox_archive IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(10):
            [group] = await log.finder.group_dead(log.connection, Query(type="E"))
    assert (group.error, group.events) == ("no", 3)


@pytest.mark.parametrize("consumer", ["billing", "letters"])
async def test_dead_letters_are_grouped_for_each_consumer(log: PostgresLog, consumer: str) -> None:
    log.sql(
        "INSERT INTO pillarbox_inbox_parked (consumer, event_id, state, last_error, topic, headers, body,"
        " aggregate_type, aggregate_id, event_type)"
        " SELECT c, 'e' || g, 'dead', E'KeyError\\nline ' || g, 't', '{}', '',"
        " '', '', 'E' FROM generate_series(1, 2) g, unnest(ARRAY['billing', 'letters']) c ORDER BY g"
    )
    [group] = await log.finder.group_dead(log.connection, Query(side="inbox", consumer=consumer))
    assert (group.error, group.events, group.example) == ("KeyError", 2, "e2")
    assert await log.mending.drop(log.connection, Query(side="inbox", consumer=consumer, error="line 2")) == 1
    [group] = await log.finder.group_dead(log.connection, Query(side="inbox", consumer=consumer))
    assert (group.events, group.example) == (1, "e1")


async def test_an_event_is_found_by_the_time_in_its_id(log: PostgresLog) -> None:
    log.sql(
        "INSERT INTO pillarbox_outbox (event_type, topic, payload, created_at)"
        " SELECT 'Old', 't', '{}', '2020-01-01'::timestamptz + g * interval '1 minute' FROM generate_series(1, 50000) g"
    )
    log.sql("VACUUM ANALYZE pillarbox_outbox")
    id = new_id()
    log.add("New", event_id=id)
    query = Query(ids=(str(id),))
    assert [one.type for one in await log.finder.find(log.connection, query)] == ["New"]
    sql, parameters = log.finder.chosen("id", query, None)
    plan = "\n".join(row[0] for row in log.sql(f"EXPLAIN (ANALYZE, COSTS off) {sql}", parameters))
    assert "Bitmap Index Scan on pillarbox_outbox_created" in plan
    assert "(never executed)" in next(line for line in plan.splitlines() if "Seq Scan on pillarbox_outbox" in line)
    assert "Rows Removed by Index Recheck: 50000" not in plan


@pytest.mark.parametrize("id", [uuid4(), UUID("00000000-0000-7000-8000-000000000000"), UUID(int=(1 << 128) - 1)])
async def test_an_event_whose_id_says_nothing_of_its_time_is_found_too(log: PostgresLog, id: UUID) -> None:
    log.add("A", event_id=id)
    log.add("B", event_id=new_id())
    assert [one.type for one in await log.finder.find(log.connection, Query(ids=(str(id),)))] == ["A"]


async def test_of_several_ids_each_is_found(log: PostgresLog) -> None:
    ids = (new_id(), uuid4(), new_id())
    for type, id in zip("ABC", ids, strict=True):
        log.add(type, event_id=id)
    query = Query(ids=[str(id) for id in (*ids, uuid4())], newest_first=False)
    assert [one.type for one in await log.finder.find(log.connection, query)] == ["A", "B", "C"]


async def test_what_is_no_uuid_is_no_events_id(log: PostgresLog) -> None:
    log.add("A")
    assert list(await log.finder.find(log.connection, Query(ids=("order-7",)))) == []


async def test_headers_that_are_no_object_are_shown_as_they_stand(log: PostgresLog) -> None:
    log.sql("INSERT INTO pillarbox_outbox (event_type, topic, payload, headers) VALUES ('A', 't', '{}', '[1]')")
    [record] = await log.finder.find(log.connection, Query())
    assert record.headers == {"(no JSON object)": "[1]"}


async def test_of_a_relay_whose_backend_is_gone_the_lease_has_ended(log: PostgresLog) -> None:
    living = log.begin()
    pid, start = living.execute(
        "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    ).fetchone() or (0, None)
    later = log.now + timedelta(seconds=15)
    for name, backend in (("living", pid), ("dead", 1), ("unknown", None)):
        log.sql(
            "INSERT INTO pillarbox_relays (name, seen_at, expires_at, pid, backend_start) VALUES (%s, %s, %s, %s, %s)",
            [name, log.now, later, backend, start],
        )
    log.sql("UPDATE pillarbox_lanes SET owner = 'living' WHERE lane < 40")
    relays = {one.owner: one for one in (await log.overview.stats(log.connection)).relays}
    assert {name: one.lease_until for name, one in relays.items()} == {
        "living": later, "dead": log.now, "unknown": later
    }  # fmt: skip
    assert (relays["living"].lanes, relays["dead"].lanes, relays["living"].away) == (40, 0, None)


async def test_a_log_from_another_cluster_stands_still_and_says_what_to_do(log: PostgresLog) -> None:
    assert (await log.overview.stats(log.connection)).stopped is None
    log.sql("UPDATE pillarbox_ticks SET cluster = 'another'")
    stopped = (await log.overview.stats(log.connection)).stopped
    assert stopped is not None
    assert "pillarbox adopt" in stopped


async def test_a_lane_without_a_tick_stands_still_and_is_named(log: PostgresLog) -> None:
    log.sql(f"UPDATE pillarbox_ticks SET lanes = ~{1 << 7 | 1 << 9}")
    stopped = (await log.overview.stats(log.connection)).stopped
    assert stopped is not None
    assert "lanes 7, 9;" in stopped


async def test_a_full_parking_lot_is_seen_with_the_head_of_its_longest_line(log: PostgresLog) -> None:
    head = log.park(log.add("Head"), "dead", line="one")
    log.park(log.add("Other"), "dead", line="two")
    event = "lane, event_id, aggregate_type, aggregate_id, event_type, topic, created_at"
    fill = (
        f"INSERT INTO pillarbox_parked (position, state, line, {event}) SELECT position, 'blocked', line, {event}"
        f" FROM pillarbox_parked, generate_series(1, %s) WHERE id = {head}"
    )
    log.tick()
    log.sql(fill, [9_997])
    assert (await log.overview.stats(log.connection)).full is None
    log.sql(fill, [1])
    full = (await log.overview.stats(log.connection)).full
    assert full is not None
    assert (full.standing, full.head.type, full.behind) == (10_000, "Head", 9_998)


async def test_what_a_relay_settles_meanwhile_is_not_retried(log: PostgresLog) -> None:
    parked = log.park(log.add("A"), "retrying", due_at=log.now)
    log.tick()
    relay = log.begin()
    relay.execute(
        "UPDATE pillarbox_parked SET state = 'published', settled_at = pillarbox_now() WHERE id = %s", [parked]
    )
    retried = asyncio.create_task(log.mending.retry(log.connection, Query()))
    await log.somebody_waits()
    relay.commit()
    assert await retried == 0
    assert log.statuses() == {"A": "published"}


async def test_every_action_leaves_a_line_in_the_audit(log: PostgresLog) -> None:
    log.add("Published")
    log.park(log.add("Dead"), "dead", attempts=6)
    log.tick()
    mend, on = log.mending, log.connection
    assert await mend.retry(on, Query(type="Dead", status=("dead",))) == 1
    assert await mend.drop(on, Query(type="Dead")) == 0
    await log.replaying.begin(on, "replay-1", Query(type="Published"), again=False, to=None, rate=None)
    done = await log.replaying.go_on(on, "replay-1")
    assert done is not None
    assert (done.events, done.finished_at) == (1, log.now)
    assert await mend.pause(on, "orders", "ada", "the shop moves") is None
    assert await mend.resume(on, "orders")
    assert log.sql("SELECT what, count FROM pillarbox_audit ORDER BY n") == [
        ("retry status=dead type=Dead", 1),
        ("drop type=Dead", 0),
        ("replay replay-1 type=Published", 1),
        ("pause topic=orders", 1),
        ("resume topic=orders", 1),
    ]
    assert log.sql("SELECT who, at FROM pillarbox_audit WHERE what LIKE 'pause%'") == [("ada", log.now)]


async def test_of_two_pauses_at_once_the_second_gives_the_first(log: PostgresLog) -> None:
    first = log.begin()
    first.execute("INSERT INTO pillarbox_pauses (topic, who, why) VALUES ('orders', 'ada', 'the shop moves')")
    second = asyncio.create_task(log.mending.pause(log.connection, "orders", "bob", "for fun"))
    await log.somebody_waits()
    first.commit()
    assert await second == Pause("orders", log.now, "ada", "the shop moves")


async def test_what_an_inbox_keeps_aside_is_found_retried_and_dropped(log: PostgresLog) -> None:
    for event_id, state in (("one", "suspect"), ("two", "dead"), ("three", "blocked")):
        log.sql(
            "INSERT INTO pillarbox_inbox_parked (consumer, event_id, state, line, topic, headers, body,"
            " aggregate_type, aggregate_id, event_type, number)"
            " VALUES ('billing', %s, %s, 'line', 'orders', '{}', 'x', 'order', '1', 'Placed', length(%s))",
            [event_id, state, event_id],
        )
    query = Query(side="inbox", consumer="billing", newest_first=False)
    found = await log.finder.find(log.connection, query)
    seen = [(one.event_id, one.status, one.blocked_by, one.number) for one in found]
    assert seen == [("one", "retrying", None, 3), ("two", "dead", None, 3), ("three", "blocked", "two", 5)]
    assert (await log.overview.stats(log.connection)).inbox_dead == 1
    assert await log.mending.retry(log.connection, Query(side="inbox", status=("retrying",))) == 1
    assert await log.mending.drop(log.connection, Query(side="inbox", ids=("two",))) == 1
    states = log.sql("SELECT state, due_at FROM pillarbox_inbox_parked ORDER BY id")
    assert states == [("retrying", log.now), ("dropped", None), ("blocked", None)]


async def test_instants_are_in_utc_whatever_the_database_prefers(log: PostgresLog, database: str) -> None:
    log.sql(f"ALTER DATABASE {database.rpartition('/')[2]} SET timezone = 'Asia/Tokyo'")
    log.add("A")
    await log.connection.close()
    [record] = await log.finder.find(log.connection, Query())
    assert record.created_at.tzinfo is UTC
    assert abs(datetime.now(UTC) - record.created_at) < timedelta(minutes=5)
