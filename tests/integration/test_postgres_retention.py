"""Retention on PostgreSQL: only what is settled, by when it was settled, whatever commits late; every table in turn."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from pillarbox.ports import Query, Retention
from pillarbox.stores.postgres.retention import ARCHIVED
from tests.integration.postgres_log import PostgresLog, Transaction, opened

AT_ONCE = Retention(published=timedelta(0))
WEEK = timedelta(days=7)
LOOKED_AT = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'pillarbox_parked'"
EVERY = "SELECT id FROM pillarbox_outbox WHERE true"


@pytest.fixture
async def log(database: str) -> AsyncIterator[PostgresLog]:
    async with opened(database) as log:
        yield log


async def prune(log: PostgresLog, retention: Retention) -> None:
    while await log.pruner.prune(log.connection, retention):
        pass


async def test_a_late_commit_below_a_settled_id_is_kept(log: PostgresLog) -> None:
    late = log.begin()
    log.add("Late", within=late)
    log.add("Early")
    log.tick()
    late.commit()
    await prune(log, AT_ONCE)
    assert log.in_log() == ["Late"]


async def test_a_late_commit_inside_a_batch_is_kept(log: PostgresLog) -> None:
    log.tick()
    late = log.begin()
    log.add("Late", within=late)
    log.tick_up_to(log.add("A", "B"))
    late.commit()
    await prune(log, AT_ONCE)
    assert log.in_log() == ["Late"]


async def test_what_a_long_transaction_does_elsewhere_keeps_nothing(log: PostgresLog) -> None:
    long = log.begin()
    long.execute("CREATE TABLE elsewhere ()")
    log.add("A", "B")
    log.tick()
    await prune(log, AT_ONCE)
    assert log.in_log() == []


async def test_an_old_event_that_was_just_published_is_kept(log: PostgresLog) -> None:
    late = log.begin()
    log.add("Late", within=late)
    log.add("Early")
    log.tick()
    log.advance(WEEK * 2)
    late.commit()
    log.tick()
    await prune(log, Retention(published=WEEK))
    assert log.in_log() == ["Late"]
    log.advance(WEEK)
    await prune(log, Retention(published=WEEK))
    assert log.in_log() == []


async def test_a_paused_topic_holds_its_own_events_and_nobody_elses(log: PostgresLog) -> None:
    log.tick(topic="letters")
    log.add("Letter", topic="letters")
    log.add("Order")
    log.tick()
    await prune(log, AT_ONCE)
    assert log.in_log() == ["Letter"]


async def test_a_topic_that_was_paused_then_keeps_what_it_published_since(log: PostgresLog) -> None:
    log.tick(topic="letters")
    log.add("Letter", topic="letters")
    log.add("Order")
    log.tick()
    log.advance(WEEK)
    log.tick(topic="letters", closed=True)
    log.tick()
    await prune(log, Retention(published=WEEK))
    assert log.in_log() == ["Letter"]


@pytest.mark.parametrize("state", ["retrying", "blocked", "dead", "delayed"])
async def test_what_stands_in_the_parking_lot_is_kept(log: PostgresLog, state: str) -> None:
    log.park(log.add("Parked"), state)
    log.add("Other")
    log.tick()
    await prune(log, AT_ONCE)
    assert log.in_log() == ["Parked"]


async def test_what_was_settled_in_the_lot_goes_after_its_time_with_its_copy(log: PostgresLog) -> None:
    parked = log.park(log.add("Parked"), "retrying")
    log.tick()
    log.advance(WEEK)
    log.sql("UPDATE pillarbox_parked SET state = 'published', settled_at = pillarbox_now() WHERE id = %s", [parked])
    log.advance(WEEK - timedelta(seconds=1))
    await prune(log, Retention(published=WEEK))
    assert log.in_log() == ["Parked"]
    log.advance(1)
    await prune(log, Retention(published=WEEK))
    assert log.in_log() == []
    assert log.sql("SELECT * FROM pillarbox_parked") == []


async def test_archiving_looks_at_few_rows_of_a_full_parking_lot(log: PostgresLog) -> None:
    log.add(*("Parked",) * 2 * ARCHIVED)
    same = "event_id, aggregate_type, aggregate_id, event_type, topic, payload, created_at, lane"
    log.sql(
        f"INSERT INTO pillarbox_parked ({same}, position, state, settled_at)"
        f" SELECT {same}, id, 'published', pillarbox_now() FROM pillarbox_outbox"
    )
    log.tick()
    log.advance(WEEK)
    before = int(log.sql(LOOKED_AT)[0][0])
    await log.pruner.prune(log.connection, Retention(published=timedelta(0), archive=None))
    assert log.sql("SELECT count(*) FROM pillarbox_archive") == [(ARCHIVED,)]
    await log.connection.run("SELECT pg_stat_force_next_flush()", ())
    assert int(log.sql(LOOKED_AT)[0][0]) - before < 20 * ARCHIVED


async def test_what_is_archived_is_shown_as_before_and_can_be_searched(log: PostgresLog) -> None:
    log.park(log.add("Parked"), "published", attempts=2, last_error="refused", settled_at=log.now)
    log.add("Plain", aggregate="2")
    log.advance(60)
    log.tick()
    before = await log.finder.find(log.connection, Query())
    log.advance(60)
    await prune(log, Retention(published=timedelta(0), archive=WEEK))
    assert log.in_log() == []
    assert await log.finder.find(log.connection, Query()) == before
    assert [one.type for one in await log.finder.find(log.connection, Query(aggregate=("order", "2")))] == ["Plain"]
    [found] = await log.finder.find(log.connection, Query(ids=(before[0].event_id,)))
    assert found == before[0]


async def test_a_batch_is_bounded_and_the_next_goes_on_from_there(log: PostgresLog) -> None:
    log.add(*(f"E{n}" for n in range(10)))
    log.tick()
    call = "SELECT * FROM pillarbox_prune('0', '0', NULL, 4, 100)"
    assert log.sql(call) == [(4, True)]
    assert log.in_log() == [f"E{n}" for n in range(4, 10)]
    assert log.one("SELECT value FROM pillarbox_meta WHERE name = 'pruned'") == "4"
    assert log.sql(call) == [(4, True)]
    assert log.sql(call) == [(2, False)]
    assert log.one("SELECT value FROM pillarbox_meta WHERE name = 'pruned'") == "0", "the next one begins anew"


async def test_rows_that_must_stay_are_walked_over_a_bounded_number_at_a_time(log: PostgresLog) -> None:
    log.tick(topic="letters")
    log.add(*("Letter" for _ in range(10)), topic="letters")
    log.add("Order")
    log.tick()
    call = "SELECT * FROM pillarbox_prune('0', '0', NULL, 4, 5)"
    assert [log.sql(call) for _ in range(3)] == [[(0, True)], [(0, True)], [(1, False)]]
    assert log.in_log() == ["Letter"] * 10


async def test_a_backlog_is_not_walked_over(log: PostgresLog) -> None:
    log.add("Settled")
    log.tick()
    log.sql(
        "INSERT INTO pillarbox_outbox (event_type, topic, payload) SELECT 'E', 't', '{}' FROM generate_series(1, 5000)"
    )
    with log.begin() as transaction:
        transaction.execute("SELECT pillarbox_prune('0', '0', NULL, 5000, 100000)")
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'pillarbox_outbox'"
        assert (transaction.execute(read).fetchone() or [0])[0] < 20
    assert len(log.in_log()) == 5000


async def test_only_one_prunes_at_a_time(log: PostgresLog) -> None:
    log.add("A")
    log.tick()
    first = log.begin()
    first.execute("SELECT pillarbox_prune('1 day', '0', NULL, 10, 10)")
    assert await log.pruner.prune(log.connection, AT_ONCE) == 0
    assert log.in_log() == ["A"]
    first.rollback()
    assert await log.pruner.prune(log.connection, AT_ONCE) == 1


async def test_ticks_are_thinned_to_one_a_second_with_the_counts_of_all(log: PostgresLog) -> None:
    for n in range(10):
        log.add(f"E{n}")
        log.tick()
        log.advance(0.25)
    log.advance(120)
    await prune(log, Retention(published=None))
    rows = log.sql("SELECT m1, published FROM pillarbox_ticks WHERE owner = 'hand' ORDER BY n")
    assert rows == [(4, 4), (8, 4), (10, 2)]
    assert log.statuses() == {f"E{n}": "published" for n in range(10)}


async def test_thinning_keeps_apart_what_stands_apart(log: PostgresLog) -> None:
    for _ in range(3):
        log.tick(lanes=1)
        log.tick(lanes=~1)
        log.tick(topic="letters")
    log.tick()
    log.tick(topic="letters")
    log.advance(120)
    await prune(log, Retention(published=None))
    rows = log.sql(
        "SELECT lanes, topic, count(*) FROM pillarbox_ticks WHERE owner = 'hand' GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert rows == [(-2, None, 1), (-1, "letters", 1), (-1, None, 1), (1, None, 1)]


async def test_thinning_keeps_the_tick_that_a_relay_in_mid_batch_hangs_on(log: PostgresLog) -> None:
    log.add("A", "B")
    log.sql(
        "INSERT INTO pillarbox_ticks (token, owner, lanes, s1, x1, m1, s2, x2, m2, cluster, s3, m3, x3)"
        " SELECT gen_random_uuid(), 'hand', -1, s1, x1, m1, s2, x2, m2, cluster, pg_current_snapshot(), 2,"
        " pg_current_xact_id() FROM pillarbox_ticks"
    )
    log.sql(
        "INSERT INTO pillarbox_ticks (token, owner, lanes, s1, x1, m1, s2, x2, m2, cluster, last_id)"
        " SELECT gen_random_uuid(), 'hand', -1, s1, x1, m1, s3, x3, m3, cluster, g FROM pillarbox_ticks,"
        " generate_series(0, 1) g WHERE s3 IS NOT NULL ORDER BY g"
    )
    log.advance(3600)
    await prune(log, AT_ONCE)
    assert log.sql("SELECT s3 IS NOT NULL, last_id FROM pillarbox_ticks ORDER BY n") == [(True, 0), (False, 1)]


async def test_ticks_go_with_the_log_and_the_newest_of_each_lane_and_topic_stays(log: PostgresLog) -> None:
    log.tick(topic="letters", closed=True)
    for n in range(5):
        log.add(f"E{n}")
        log.tick(lanes=1 if n == 2 else -1)
        log.advance(3600)
    await prune(log, AT_ONCE)
    rows = log.sql("SELECT topic, m1 FROM pillarbox_ticks ORDER BY n")
    assert rows == [("letters", 0), (None, 5)]


async def test_the_newest_tick_stays_although_the_clock_stepped_back(log: PostgresLog) -> None:
    log.advance(600)
    log.add("A")
    log.tick()
    log.advance(-10)
    log.add("B")
    log.tick()
    log.advance(3600)
    await prune(log, Retention(published=timedelta(minutes=1)))
    log.sql("INSERT INTO pillarbox_outbox (event_type, topic, payload) VALUES ('C', 't', '{}')")
    assert "pending" not in {status for type, status in log.statuses().items() if type != "C"}
    assert log.one("SELECT max(m1) FROM pillarbox_ticks") == 2


async def test_a_tick_of_the_last_minutes_is_never_deleted(log: PostgresLog) -> None:
    for _ in range(3):
        log.advance(10)
        log.tick()
    log.advance(240)
    await prune(log, AT_ONCE)
    assert log.one("SELECT count(*) FROM pillarbox_ticks") == 4
    log.advance(60)
    await prune(log, AT_ONCE)
    assert log.one("SELECT count(*) FROM pillarbox_ticks") == 1


async def test_the_ticks_that_tell_what_was_settled_then_are_kept(log: PostgresLog) -> None:
    keep = Retention(published=WEEK)
    for n in range(20):
        log.add(f"E{n}")
        log.tick()
        log.advance(timedelta(days=1))
        await prune(log, keep)
    assert log.in_log() == [f"E{n}" for n in range(14, 20)]
    assert log.one("SELECT count(*) FROM pillarbox_ticks") == 7


async def test_the_other_tables_are_pruned_too(log: PostgresLog) -> None:
    old, new = log.now - timedelta(days=60), log.now - timedelta(hours=1)
    for name, at in (("old", old), ("new", new)):
        log.sql("INSERT INTO pillarbox_inbox (consumer, event_id, handled_at) VALUES ('b', %s, %s)", [name, at])
        log.sql("INSERT INTO pillarbox_keys (key, event_id, created_at) VALUES (%s, gen_random_uuid(), %s)", [name, at])
        log.sql("INSERT INTO pillarbox_relays (name, seen_at, expires_at) VALUES (%s, %s, %s)", [name, at, at])
        log.sql(
            "INSERT INTO pillarbox_inbox_parked (consumer, event_id, state, settled_at, topic, headers, body,"
            " aggregate_type, aggregate_id, event_type) VALUES ('b', %s, 'handled', %s, 't', '{}', '', '', '', 'E')",
            [name, at],
        )
    await prune(log, Retention())
    for table, column in (("inbox", "event_id"), ("keys", "key"), ("relays", "name"), ("inbox_parked", "event_id")):
        assert log.sql(f"SELECT {column} FROM pillarbox_{table}") == [("new",)], table


async def test_pruning_does_not_wait_long_for_a_lock(log: PostgresLog) -> None:
    log.add("A")
    log.tick()
    blocker = log.begin()
    blocker.execute("LOCK TABLE pillarbox_keys IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(Exception, match="lock timeout"):
        await asyncio.wait_for(log.pruner.prune(log.connection, AT_ONCE), 10)
    assert log.in_log() == ["A"]
    assert log.connection.direct_backend is not None


@dataclass
class Truth:
    """What is really settled, told by the same statement that wrote the tick."""

    log: PostgresLog
    chance: random.Random
    settled: dict[int, datetime] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    pruned: set[int] = field(default_factory=set)
    open: list[Transaction] = field(default_factory=list)
    detour: bool = False
    batch_at: int | None = None
    """The last id of a batch that is not finished."""

    def begin(self) -> None:
        if len(self.open) < 4:
            self.open.append(self.log.begin())
            self.open[-1].execute("SELECT pg_current_xact_id()")

    def add(self) -> None:
        within = self.chance.choice([None, *self.open])
        for _ in range(self.chance.randrange(1, 4)):
            topic, aggregate = self.chance.choice(["orders", "letters"]), str(self.chance.randrange(8))
            self.log.add("E", topic=topic, aggregate=aggregate, within=within)

    def end(self) -> None:
        if self.open:
            transaction = self.open.pop(self.chance.randrange(len(self.open)))
            transaction.rollback() if self.chance.random() < 0.2 else transaction.commit()

    def main_tick(self) -> None:
        lanes = -1 if self.batch_at is not None else self.chance.choice([-1, 0x5555555555555555, 0x00000000FFFFFFFF])
        self._settle(lanes, "topic <> 'letters'" if self.detour else "true", lambda: self.log.tick(lanes))
        self.batch_at = None

    def batch_tick(self) -> None:
        """Settle a part of what is visible, beginning at a tick of all lanes."""
        [[lanes]] = self.log.sql("SELECT lanes FROM pillarbox_ticks WHERE topic IS NULL ORDER BY n DESC LIMIT 1")
        if lanes == -1:
            last = max(
                self.batch_at or 0,
                self.chance.randrange(self.log.one("SELECT coalesce(max(id), 0) + 1 FROM pillarbox_outbox")),
            )
            rule = f"id <= {last}" + (" AND topic <> 'letters'" if self.detour else "")
            self._settle(-1, rule, lambda: self.log.tick_up_to(last))
            self.batch_at = last

    def turn(self) -> None:
        """Open or close the detour of a topic, or let it move on."""
        if self.detour and self.chance.random() < 0.5:
            self._settle(-1, "topic = 'letters'", lambda: self.log.tick(topic="letters"))
            return
        self._settle(-1, "topic = 'letters'", lambda: self.log.tick(topic="letters", closed=self.detour))
        self.detour = not self.detour
        if not self.detour:
            self._settle(-1, "true", self.log.tick)
            self.batch_at = None

    def _settle(self, lanes: int, rule: str, tick: Any) -> None:
        # Nobody writes in between: the transactions are ours, and this is one thread.
        ids = self.log.sql(f"{EVERY} AND (%s >> lane) & 1 = 1 AND {rule}", [lanes])
        tick()
        for (id,) in ids:
            self.settled.setdefault(id, self.log.now)

    def park(self) -> None:
        there = {id for (id,) in self.log.sql(EVERY)} & self.settled.keys() - self.parked
        if there:
            id = self.chance.choice(sorted(there))
            self.log.park(id, self.chance.choice(["retrying", "blocked", "dead", "delayed"]))
            self.parked.add(id)

    async def prune(self) -> None:
        keep = self.chance.choice([timedelta(0), timedelta(seconds=30), timedelta(minutes=20)])
        archive = self.chance.choice([timedelta(0), WEEK])
        before = {id for (id,) in self.log.sql(EVERY)}
        for _ in range(self.chance.randrange(1, 6)):
            self.log.sql(
                "SELECT pillarbox_prune(%s, %s, NULL, %s, %s)", [keep, archive, 7, self.chance.choice([5, 50])]
            )
        gone = before - {id for (id,) in self.log.sql(EVERY)}
        self.pruned |= gone
        assert gone <= self.settled.keys(), "what is not settled is kept"
        assert not gone & self.parked, "what is parked is kept"
        assert all(self.settled[id] <= self.log.now - keep for id in gone), "what was settled lately is kept"

    def pass_time(self) -> None:
        self.log.advance(self.chance.choice([0.3, 5, 40, 600]))


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_is_pruned_that_is_not_settled_whatever_commits_late(log: PostgresLog, seed: int) -> None:
    truth = Truth(log, random.Random(seed))
    steps = [truth.begin, truth.add, truth.add, truth.add, truth.end, truth.main_tick, truth.batch_tick, truth.turn,
             truth.park, truth.pass_time]  # fmt: skip
    for _ in range(150):
        truth.chance.choice(steps)()
        if truth.chance.random() < 0.15:
            await truth.prune()
        statuses = dict(log.sql("SELECT id, status FROM pillarbox_events"))
        assert {id for id, status in statuses.items() if status == "pending"} == {
            id for id in statuses if id not in truth.settled
        }
        counted = {row[0] for row in log.sql("SELECT id FROM pillarbox_pending(10001, 100000)")}
        assert counted == {id for id, status in statuses.items() if status == "pending"}
    assert len(truth.pruned) > 10
    while truth.open:
        truth.end()
    log.tick(topic="letters", closed=True)
    log.tick()
    await prune(log, AT_ONCE)
    assert {id for (id,) in log.sql(EVERY)} == truth.parked - truth.pruned, "and nothing else is left in the end"
