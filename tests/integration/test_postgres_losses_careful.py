"""Careful mode of the PostgreSQL store: what becomes of an event that kills the relay, and of those that do not.

mutant                        the rule that it takes out
----------------------------  ------------------------------------------------------------------------------------
a suspect forgotten           the event that is about to be sent is written down before
no careful mode               after three dead holders in a row events go one at a time
acquitted on arrival          what a lane counts begins anew only when what may have killed its holders has passed
acquitted as it moves         and not when its position has moved a little
acquitted at rest alone       it has passed when all that was there at the takeover is settled, whatever came since
progress now and then         progress is stored before there is more of it than a batch
stored of one way, of all     a tick of the main way stores nothing of a topic that has a position of its own
progress without what comes   that counts what is being settled
careful on the main way only  also a topic with a way of its own goes one at a time
acquitted beside the lot      not while something out of the parking lot is due or in flight
read before it is suspected   an event is written down before its contents are read
polled before it is suspected so is the first one of a batch
a lane by its hash alone      it is written down on a lane that we hold, whatever the event's own is
suspected although it left    a relay that lives to release its lanes was not killed
published and not stored      what was published in careful mode does not come again, so it is not suspected twice
convicted in its turn         what is found guilty is parked at once, also while others are in flight
suspected although heard      what was answered with "away" killed nobody, and goes back to wait for its topic
suspected although judged     what failed killed nobody: its verdict ends the suspicion, in one transaction
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.retry import RetryAt
from pillarbox.core.routing import Topic
from pillarbox.core.window import BLOCKED, DETOURED
from pillarbox.errors import LaneLost, StoreError
from pillarbox.ports import Query
from pillarbox.stores.postgres import PostgresStore
from pillarbox.stores.postgres.careful import Careful
from pillarbox.stores.postgres.lanes import LaneTable
from pillarbox.stores.postgres.memory import Memory
from pillarbox.stores.postgres.positions import Positions
from pillarbox.stores.postgres.reading import Reading
from pillarbox.stores.postgres.settling import Settling
from tests.integration.postgres_bench import (
    VERSIONS,
    Bench,
    Cases,
    InPython,
    InSource,
    InSql,
    Mutant,
    names,
    opened,
    publish,
    settle,
)


async def _suspects_nobody(self: Careful, connection: Any, entry: Entry, lane: int) -> None:
    self.flying.add(entry.position)


async def _acquits_nobody(self: Careful, connection: Any, entries: Any) -> None:
    pass


def _takes_nothing_amiss(self: Careful, taken: Any) -> dict[int, int]:
    return {}


MUTANTS: dict[str, Mutant] = {
    "a suspect forgotten": InPython(Careful, "suspect", _suspects_nobody),
    "no careful mode": InPython(Careful, "take", _takes_nothing_amiss),
    "acquitted on arrival": InSource(Careful, "_has_passed", {"self._reach": "0"}),
    "acquitted as it moves": InSource(Careful, "_has_passed", {"self._reach": "1"}),
    "acquitted at rest alone": InSource(
        Careful,
        "_has_passed",
        {"way.has_new_beginning or": "way.first_mark and way.settled == way.stored and way.finished or"},
    ),
    "progress now and then": InSource(Settling, "_is_due", {"enough or": ""}),
    "stored of one way, of all": InSource(
        Reading, "_poll", {"self._memory.stored()": "[setattr(way, 'unstored', 0) for way in self._memory.route.ways]"}
    ),
    "progress without what comes": InSource(
        Settling,
        "record",
        {
            "if self._all_published(": "if (due := self._is_due()) in (True, False) and self._all_published(",
            "if self._is_due():": "if due:",
        },
    ),
    "careful on the main way only": InSource(Positions, "_way", {"max(": "0 if topic else max("}),
    "acquitted beside the lot": InSource(Reading, "entries", {"not found and not self._lot.is_out": "True"}),
    "read before it is suspected": InSource(Reading, "_more", {"{_listed(way)}": "*"}),
    "polled before it is suspected": InSource(Reading, "_polling", {"{_listed(leader)}": "*"}),
    "a lane by its hash alone": InSource(
        Reading, "_from_log_carefully", {"lane if lane in way.lanes else min(way.lanes)": "lane"}
    ),
    "published and not stored": InSource(Settling, "record", {"self._careful.flying or": ""}),
    "convicted in its turn": InPython(Memory, "put_first", lambda self, position: None),
    "suspected although heard": InPython(Careful, "acquit", _acquits_nobody),
    "suspected although judged": InSql("settle", {"IF parks THEN": "IF false THEN"}),
    "suspected although it left": InSource(
        LaneTable, "release", {"suspect = NULL, suspected = 0 WHERE owner = %s)": "crashes = crashes WHERE owner = %s)"}
    ),
}
CASES = Cases(MUTANTS)
CRASHES = 6
LETTERS = {"letters": Topic(order="global")}


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


@CASES.notices("no careful mode", "a suspect forgotten", "acquitted on arrival")
async def an_event_that_kills_every_relay_is_parked_and_the_others_flow(bench: Bench) -> None:
    bench.add("Before", of="1")
    bench.add("Killer", of="2")
    bench.add("After", of="1")
    published = await _with_a_killer(bench, "Killer")
    assert list(dict.fromkeys(published)) == ["Before", "After"]
    [[error]] = bench.sql("SELECT last_error FROM pillarbox_parked WHERE event_type = 'Killer' AND state = 'dead'")
    assert error.startswith("crashed the relay")
    assert bench.dead == ["Killer"]


@CASES.notices("no careful mode", "acquitted on arrival")
async def an_event_that_kills_every_relay_is_found_behind_others_of_its_line(bench: Bench) -> None:
    for index in range(5):
        bench.add(f"E{index}", of="1")
    bench.add("Killer", "Follower", of="1")
    published = await _with_a_killer(bench, "Killer")
    assert list(dict.fromkeys(published)) == [f"E{index}" for index in range(5)]
    rows = bench.sql("SELECT event_type, state FROM pillarbox_parked ORDER BY id")
    assert rows == [("Killer", "dead"), ("Follower", "blocked")]


@CASES.notices("acquitted as it moves", "progress now and then")
async def an_event_that_kills_every_relay_is_found_deep_in_a_backlog(bench: Bench) -> None:
    for index in range(45):
        bench.add(f"E{index}", of=str(index))
    bench.add("Killer")
    published = await _with_a_killer(bench, "Killer", room=1, window=20, progress=timedelta(hours=1))
    assert list(dict.fromkeys(published)) == [f"E{index}" for index in range(45)]


@CASES.notices("progress now and then", "progress without what comes")
async def of_what_is_settled_no_more_than_a_batch_is_not_stored(bench: Bench) -> None:
    batch = 10
    for index in range(6 * batch):
        bench.add(f"E{index}", of=str(index))
    first = await bench.holder("first", window=2 * batch, progress=timedelta(hours=1))
    settled: list[str] = []
    for count in (batch, batch - 1, 1, batch - 1, batch):
        entries = await first.entries(count)
        await settle(first, entries)
        settled += names(entries)
    second = await bench.takeover(first, "second")
    again = set(names(await second.entries(6 * batch)))
    assert len(again.intersection(settled)) <= batch, "a crash repeats more than a window and a chunk"


@CASES.notices("progress now and then", "stored of one way, of all")
async def of_a_topic_that_is_one_line_no_more_than_a_batch_is_not_stored_while_others_flow(bench: Bench) -> None:
    first = await bench.holder("first", window=4, progress=timedelta(hours=1), topics=LETTERS)
    for index in range(12):  # each begins a batch, whose tick says where the main way is
        bench.add(f"Letter{index}", topic="letters")
        bench.add(f"E{index}")
        assert set(await publish(first)) == {f"Letter{index}", f"E{index}"}
    second = await bench.takeover(first, "second", topics=LETTERS)
    assert len(await publish(second)) <= 2


@CASES.notices("no careful mode", "careful on the main way only")
async def an_event_that_kills_every_relay_is_found_in_a_topic_that_is_one_line(bench: Bench) -> None:
    bench.add("Before", "Killer", topic="prices")
    bench.add("Other")
    published = await _with_a_killer(bench, "Killer", topics={"prices": Topic(order="global")})
    assert set(published) == {"Before", "Other"}


@CASES.notices("no careful mode", "careful on the main way only")
async def an_event_that_kills_every_relay_is_found_in_a_topic_that_was_paused(bench: Bench) -> None:
    store = await bench.holder("relay")
    await store.pause("orders", "me", "why not")
    bench.add("Before", "Killer")
    bench.add("Other", topic="others")
    assert await publish(store) == ["Other"]
    await store.resume("orders")
    await bench.crash(store)
    assert set(await _with_a_killer(bench, "Killer")) == {"Before"}


async def _with_a_killer(bench: Bench, killer: str, *, room: int = 10, **more: Any) -> list[str]:
    """Run relays, one after the other; each dies as it sends the killer. Give what was published."""
    published: list[str] = []
    for crash in range(CRASHES):
        store = await bench.holder(f"relay-{crash}", **more)
        published += await _publish_until(store, killer, room)
        await bench.crash(store)
        if bench.sql("SELECT 1 FROM pillarbox_parked WHERE event_type = %s", [killer]):
            store = await bench.holder("last", **more)
            return published + await _publish_until(store, "nothing", room)
    raise AssertionError(f"{CRASHES} relays died of {killer}, and it is not parked")


async def _publish_until(store: PostgresStore, killer: str, room: int) -> list[str]:
    """Publish one after the other, blocked ones excepted, until it is the killer's turn."""
    published: list[str] = []
    for _ in range(200):
        entries = await store.entries(room)
        if not entries:
            break
        for entry in entries:
            if entry.event_type == killer:
                return published
            if (entry.topic, entry.aggregate_type, entry.aggregate_id) in store.blocked:
                await settle(store, [entry], BLOCKED)
            else:
                await settle(store, [entry])
                published.append(entry.event_type)
    return published


@VERSIONS
async def test_ten_random_kills_park_nothing(bench: Bench) -> None:
    for index in range(40):
        bench.add(f"E{index}", of=str(index % 5))
    published: list[str] = []
    for kill in range(10):
        store = await bench.holder(f"relay-{kill}")
        entries = await store.entries(10)
        if kill % 3:
            await settle(store, entries[: kill // 2])
            published += names(entries[: kill // 2])
        await bench.crash(store)
    store = await bench.holder("last")
    published += await publish(store)
    assert list(dict.fromkeys(published)) == [f"E{index}" for index in range(40)]
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []


@CASES.notices("acquitted at rest alone")
async def relays_that_die_under_steady_traffic_make_nobody_suspect(bench: Bench) -> None:
    """Something is always in flight, and never is all that is settled stored; what was there at the takeover is."""
    store = await bench.holder("relay-0", progress=timedelta(hours=1))
    for crash in range(1, 5):
        store = await bench.takeover(store, f"relay-{crash}", progress=timedelta(hours=1))
        bench.add("First")
        flying = await store.entries(10)
        for index in range(3):
            bench.add(f"Next{index}", of=str(index))
            following = await store.entries(10)  # another batch, whose tick stores how far the one before is settled
            await settle(store, flying)
            flying = following
        assert bench.sql("SELECT max(crashes) FROM pillarbox_lanes") == [(0,)]


@CASES.notices("published and not stored")
async def an_event_that_was_published_is_not_taken_for_a_killer(bench: Bench) -> None:
    bench.add("First", "Second")
    store = await bench.holder("relay-0", progress=timedelta(hours=1))
    for crash in range(1, 4):
        await store.entries(10)
        store = await bench.takeover(store, f"relay-{crash}", progress=timedelta(hours=1))
    await settle(store, await store.entries(10))
    store = await bench.takeover(store, "one that is killed as it is about to send")
    await store.entries(10)
    store = await bench.takeover(store, "last")
    assert "First" not in await publish(store)
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []


@CASES.notices("suspected although heard")
async def an_event_whose_topic_is_away_is_not_taken_for_a_killer(bench: Bench) -> None:
    bench.add("First")
    bench.sql("UPDATE pillarbox_lanes SET crashes = 3")
    store = await bench.holder("relay-0")
    for kill in range(1, 5):  # each sends it, hears that nobody is there, and is killed some time after
        entries = await store.entries(10)
        assert names(entries) == ["First"]
        store.hold(frozenset({"orders"}))
        await settle(store, entries, DETOURED)
        store = await bench.takeover(store, f"relay-{kill}")
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []


@CASES.notices("suspected although judged")
async def an_event_that_fails_again_and_again_is_not_taken_for_a_killer(bench: Bench) -> None:
    bench.add("Failing")
    store = await bench.holder("relay-0")
    for crash in range(1, 4):  # before anything is settled: careful from now on
        await store.entries(10)
        store = await bench.takeover(store, f"relay-{crash}")
    for _ in range(3):  # it is sent, refused, and tried again, by one and the same relay
        [entry] = await store.entries(10)
        await settle(store, [entry], RetryAt(bench.clock.now() + timedelta(seconds=1), "no"))
        bench.clock.advance(2)
        await store.renew(None)
    store = await bench.takeover(store, "last")  # one random kill
    assert await publish(store) == ["Failing"]


@VERSIONS
async def test_an_event_found_guilty_is_sent_again_when_it_is_retried(bench: Bench) -> None:
    bench.add("Killer")
    await _with_a_killer(bench, "Killer")
    store = bench.stores[-1]
    assert await store.retry(Query(status=("dead",))) == 1
    assert await publish(store) == ["Killer"]


@CASES.notices("suspected although judged")
async def an_event_found_guilty_is_sent_again_though_its_judge_died_at_once(bench: Bench) -> None:
    bench.add("Killer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Careful, "landed", _dies)
        for crash in range(CRASHES):
            store = await bench.holder(f"relay-{crash}")
            with suppress(SystemExit):
                assert names(await store.entries(10)) == ["Killer"]
            await bench.crash(store)
    store = await bench.holder("last")
    assert await store.retry(Query(status=("dead",))) == 1
    assert await publish(store) == ["Killer"]


def _dies(self: Careful, entries: Any) -> None:
    raise SystemExit


@CASES.notices("acquitted at rest alone")
async def lanes_beside_others_are_not_searched_for_ever(bench: Bench) -> None:
    bench.sql("UPDATE pillarbox_lanes SET crashes = 3 WHERE lane < 32")
    store = await bench.holder("relay", progress=timedelta(hours=1))
    for index in range(10):  # each of them begins a batch, sooner than progress would be stored
        bench.add(f"E{index}", of=str(index))
        assert await publish(store) == [f"E{index}"]
    assert bench.sql("SELECT count(*) FROM pillarbox_lanes WHERE crashes > 0") == [(0,)]


@CASES.notices("acquitted beside the lot")
async def an_event_out_of_the_parking_lot_that_kills_slowly_is_found(bench: Bench) -> None:
    store = await bench.holder("first")
    bench.add("Killer")
    await settle(store, await store.entries(10), RetryAt(bench.clock.now(), "no"))
    bench.add("Other", of="2")
    assert await publish_others(store) == ["Other"]
    for crash in range(CRASHES):
        store = await bench.takeover(store, f"relay-{crash}")
        for _ in range(3):  # while it is in flight, the relay reads on
            await store.entries(10)
    assert bench.sql("SELECT state FROM pillarbox_parked WHERE event_type = 'Killer'") == [("dead",)]


async def publish_others(store: PostgresStore) -> list[str]:
    """Publish everything but the killer, which stays in flight."""
    entries = [entry for entry in await store.entries(10) if entry.event_type != "Killer"]
    await settle(store, entries)
    return names(entries)


@CASES.notices("read before it is suspected", "polled before it is suspected")
async def an_event_is_suspected_before_its_contents_are_read(bench: Bench) -> None:
    bench.sql(
        "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
        " SELECT 'order', '1', 'Large', 'orders', to_json(repeat('x', 100000)) FROM generate_series(1, 2)"
    )
    store = await bench.holder("first")
    for crash in range(3):
        store = await bench.takeover(store, f"relay-{crash}")
    suspected: list[bool] = []
    run = store._reading.run

    async def watch(*statement: Any, **more: Any) -> Any:
        rows = await run(*statement, **more)
        if any(isinstance(value, str) and len(value) > 100_000 for row in rows for value in row):
            suspected.append(bool(bench.sql("SELECT 1 FROM pillarbox_lanes WHERE suspect IS NOT NULL")))
        return rows

    store._reading.run = watch  # type: ignore[method-assign]
    assert await publish(store) == ["Large", "Large"]
    assert suspected == [True, True]


@CASES.notices("a lane by its hash alone")
async def a_topic_that_was_one_line_is_searched_by_who_holds_its_only_position(bench: Bench) -> None:
    await (await bench.holder("before", topics=LETTERS)).release()
    store = await bench.holder("first")
    lane = next(lane for lane in range(1, 64) if lane != bench.lane("1"))
    await store.release([one for one in range(64) if one not in (0, lane)])
    bench.sql("UPDATE pillarbox_lanes SET crashes = 5 WHERE lane = 0")
    store = await bench.takeover(store, "second")
    await store.release([bench.lane("1")])
    bench.add("Letter", of="1", topic="letters")
    try:
        assert await publish(store) == ["Letter"]
    except LaneLost:
        pytest.fail("it is not ours to write down")


@CASES.notices("convicted in its turn")
async def an_event_that_kills_every_relay_is_parked_while_others_are_in_flight(bench: Bench) -> None:
    searched = [bench.lane("1")]
    bench.add("Killer", of="1")
    store = await bench.holder("first")
    await store.release(searched)
    bench.add("Before", of="2")
    assert await publish(store) == ["Before"]
    await bench.crash(store)
    killer = bench.one("SELECT id FROM pillarbox_outbox WHERE event_type = 'Killer'")
    bench.sql(
        "UPDATE pillarbox_lanes SET crashes = 5, suspect = %s, suspected = 2 WHERE lane = ANY (%s)", [killer, searched]
    )
    store = await bench.holder("second")
    bench.add("Beside", of="2")
    given: list[Entry] = []
    try:
        for _ in range(5):  # nothing of it is settled before the killer's turn has come
            given += await store.entries(10)
    except StoreError as error:
        pytest.fail(f"it ends the relay: {error}")
    assert names(given) == ["Beside"]
    assert bench.sql("SELECT event_type, state FROM pillarbox_parked ORDER BY id") == [("Killer", "dead")]
    await settle(store, given)
    assert await publish(store) == []


@CASES.notices("suspected although it left")
async def an_event_that_was_about_to_be_sent_when_relays_were_stopped_is_innocent(bench: Bench) -> None:
    bench.add("First")
    store = await bench.holder("relay-0")
    for crash in range(1, 4):
        await store.entries(10)
        store = await bench.takeover(store, f"relay-{crash}")
    for stop in range(3):  # the broker is away, so it stays where it is
        assert names(await store.entries(10)) == ["First"]
        await store.release()
        store = await bench.holder(f"stopped-{stop}")
    assert await publish(store) == ["First"]


test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere = CASES.tests()
