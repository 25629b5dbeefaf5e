"""Topics that have a place of their own: detours of paused topics, and topics that are one line as a whole.

mutant                        the rule that it takes out
----------------------------  ------------------------------------------------------------------------------------
no late transactions          a detour asks for late transactions too, from its own snapshot
around forgotten              the main way reads around what has a place of its own
an end that comes late        the end of a detour counts only if the lanes are still ours
places of the main way alone  while a topic was paused, it had a place of its own: what is pending counts from there
begun anyway                  a topic becomes one line only when nothing of it is pending
ticks of a way wound back     what was given out on a way that was wound back reaches nothing: it comes out again
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.routing import Topic
from pillarbox.core.snapshot import Position
from pillarbox.core.window import DETOURED, Settled, Settlement
from pillarbox.errors import ConfigError
from pillarbox.ports import Query
from pillarbox.stores.postgres.reading import Reading
from pillarbox.stores.postgres.settling import Settling
from tests.integration.postgres_bench import (
    VERSIONS,
    Bench,
    Cases,
    InPython,
    InSql,
    Mutant,
    names,
    opened,
    publish,
    settle,
    until_waiting,
)

MUTANTS: dict[str, Mutant] = {
    "no late transactions": InPython(Position, "late", property(lambda self: [])),
    "around forgotten": InSql("more", {"AND o.topic <> ALL (_around)": ""}),
    "an end that comes late": InSql(
        "settle",
        {
            "parks OR EXISTS (SELECT 1 FROM json_to_recordset(_ticks) AS t(closed boolean) WHERE t.closed)": "parks",
        },
    ),
    "places of the main way alone": InSql("begin_whole", {"(t.topic IS NULL OR t.topic = o.topic)": "t.topic IS NULL"}),
    "ticks of a way wound back": InPython(Settling, "_on_the_route", lambda self, accepted: accepted),
    "begun anyway": InSql("begin_whole", {"WHERE o.topic = _topic AND o.id > p.floor_id": "WHERE false"}),
}
CASES = Cases(MUTANTS)
WHOLE = {"letters": Topic(order="global")}


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


@CASES.notices("no late transactions", "around forgotten")
async def a_late_commit_into_a_detours_past_comes_out_once_and_in_order(bench: Bench) -> None:
    store = await bench.holder()
    late = bench.begin()
    bench.add("L1", of="late", topic="letters", within=late)
    bench.add("O1", of="late", topic="orders", within=late)
    bench.add("A", of="a")
    assert await publish(store) == ["A"]
    await store.pause("letters", "ada", "why not")
    bench.add("L2", of="b", topic="letters")
    bench.add("B", of="b")
    assert await publish(store) == ["B"]
    late.commit()
    bench.add("L3", of="late", topic="letters")
    assert await publish(store) == ["O1"]
    await store.resume("letters")
    published = await publish(store)
    assert sorted(published) == ["L1", "L2", "L3"]
    assert [name for name in published if name != "L2"] == ["L1", "L3"]  # one aggregate
    bench.add("L4", of="b", topic="letters")
    assert await publish(store) == ["L4"]
    assert bench.sql("SELECT closed FROM pillarbox_ticks WHERE topic = 'letters' ORDER BY n DESC LIMIT 1") == [(True,)]


@CASES.notices("no late transactions")
async def a_transaction_open_since_before_a_pause_comes_out_after_it_is_over(bench: Bench) -> None:
    store = await bench.holder()
    late = bench.begin()
    bench.add("L1", of="late", topic="letters", within=late)
    bench.add("A")
    assert await publish(store) == ["A"]
    await store.pause("letters", "ada", "why not")
    assert await publish(store) == []
    await store.resume("letters")
    assert await publish(store) == []
    bench.add("B")
    assert await publish(store) == ["B"]
    late.commit()
    assert await publish(store) == ["L1"]


@CASES.notices("ticks of a way wound back")
async def a_topic_that_fails_again_on_its_detour_loses_nothing_whatever_is_settled_afterwards(bench: Bench) -> None:
    rest: list[list[Settled]] = [
        [PUBLISHED] * 5,
        [DETOURED] * 5,
        [PUBLISHED, DETOURED, PUBLISHED, PUBLISHED, DETOURED],
        [PUBLISHED, DETOURED],
        [Dead("no")] * 5,
    ]
    for turn, verdicts in enumerate(rest):
        store = await bench.holder(f"first {turn}")
        await store.pause("letters", "ada", "why not")
        assert await publish(store) == []
        letters = [f"{turn}.L{index}" for index in range(6)]
        for index, letter in enumerate(letters):
            bench.add(letter, of=str(index), topic="letters")
        bench.add(f"{turn}.O")
        assert await publish(store) == [f"{turn}.O"]  # the main way is ahead now: the letters come on their own
        await store.resume("letters")
        entries: list[Entry] = []
        while not entries:
            entries += await store.entries(10)
        assert names(entries) == letters
        store.hold(frozenset({"letters"}))
        await store.settle([Settlement(entries[0], DETOURED)])
        await store.settle([Settlement(entry, verdict) for entry, verdict in zip(entries[1:], verdicts, strict=False)])
        store = await bench.takeover(store, f"second {turn}")
        assert await publish(store) == letters
        await store.release()


@VERSIONS
async def test_what_was_being_read_when_its_detour_was_wound_back_is_not_given_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, read = asyncio.Event(), Reading._read

    async def noted(self: Reading, sql: str, parameters: Sequence[Any]) -> Any:
        under_way.set()
        return await read(self, sql, parameters)

    store = await bench.holder()
    await store.pause("letters", "ada", "why not")
    assert await publish(store) == []
    for index in range(6):
        bench.add(f"L{index}", of="one", topic="letters")
    bench.add("O")
    assert await publish(store) == ["O"]
    await store.resume("letters")
    first: list[Entry] = []
    while not first:
        first += await store.entries(3)
    monkeypatch.setattr(Reading, "_read", noted)
    reading = asyncio.create_task(store.entries(3))
    await under_way.wait()
    store.hold(frozenset({"letters"}))
    await store.settle([Settlement(first[0], DETOURED)])
    assert await reading == []
    await store.settle([Settlement(entry, DETOURED) for entry in first[1:]])
    store.hold(frozenset())
    assert await publish(store) == [f"L{index}" for index in range(6)]


@CASES.notices("around forgotten")
async def a_takeover_in_the_middle_of_a_detour_loses_and_repeats_nothing(bench: Bench) -> None:
    store = await bench.holder("first")
    await store.pause("letters", "ada", "why not")
    assert await publish(store) == []
    late = bench.begin()
    bench.add("Late", of="late", topic="letters", within=late)
    for index in range(6):
        bench.add(f"L{index}", of=str(index % 2), topic="letters")
        bench.add(f"O{index}", of=str(index % 2))
    assert await publish(store) == [f"O{index}" for index in range(6)]
    await store.resume("letters")
    entries = await store.entries(2)
    await settle(store, entries)
    assert names(entries) == ["L0", "L1"]
    store = await bench.takeover(store, "second")
    late.commit()
    entries = await store.entries(2)
    await settle(store, entries)
    assert names(entries) == ["L2", "L3"]
    await store.pause("letters", "ada", "again")
    store = await bench.takeover(store, "third")
    bench.add("O6")
    assert await publish(store) == ["O6"]
    await store.resume("letters")
    assert await publish(store) == ["L4", "L5", "Late"]
    assert await publish(store) == []


@CASES.notices("around forgotten")
async def lanes_that_change_hands_take_their_part_of_a_detour_along(bench: Bench) -> None:
    first = await bench.holder("first")
    await first.pause("letters", "ada", "why not")
    assert await publish(first) == []
    for index in range(20):
        bench.add(f"L{index}", of=str(index), topic="letters")
        bench.add(f"O{index}", of=str(index))
    assert len(await publish(first)) == 20
    second = await bench.store("second")
    await second.take()
    lanes = sorted((await first.renew(None)).lanes)
    await first.release(lanes[32:])
    assert len((await second.take()).lanes) == 32
    await first.resume("letters")
    published = await publish(first) + await publish(second)
    assert sorted(published) == sorted(f"L{index}" for index in range(20))


@CASES.notices("an end that comes late")
async def the_end_of_a_detour_does_not_count_once_the_lanes_are_anothers(bench: Bench) -> None:
    first = await bench.holder("first")
    bench.add("A")
    assert await publish(first) == ["A"]
    await first.pause("letters", "ada", "why not")
    assert await publish(first) == []
    await first.resume("letters")
    bench.sql(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN new; END $$"
    )
    bench.sql(
        "CREATE TRIGGER wait BEFORE INSERT ON pillarbox_ticks FOR EACH ROW WHEN (new.closed) EXECUTE FUNCTION wait()"
    )
    held = bench.begin()
    held.execute("SELECT pg_advisory_xact_lock(7)")
    closing = asyncio.create_task(first.entries(10))
    await until_waiting(bench, "pillarbox_settle")  # it has looked whether the lanes are its own
    second = await bench.store("second")
    bench.clock.advance(20)
    await second.pause("letters", "ada", "again")
    taken = (await second.take()).lanes  # none, as long as the first one is about to write
    held.rollback()
    await asyncio.gather(closing, return_exceptions=True)
    if not taken:
        await second.take()
    assert await publish(second) == []
    bench.add("Letter", topic="letters")
    bench.add("B")
    assert await publish(second) == ["B"]
    third = await bench.takeover(second, "third")
    await third.resume("letters")
    assert await publish(third) == ["Letter"]


@CASES.notices("places of the main way alone")
async def a_topic_becomes_one_line_only_when_what_was_paused_is_published(bench: Bench) -> None:
    store = await bench.holder("first")
    await store.pause("letters", "ada", "why not")
    assert await publish(store) == []
    bench.add("Letter", topic="letters")
    bench.add("A")
    assert await publish(store) == ["A"]
    await store.resume("letters")
    await store.release()
    with pytest.raises(ConfigError, match="cannot become 'global'"):
        await bench.holder("second", topics=WHOLE)
    await bench.crash(bench.stores[-1])  # as it ends
    store = await bench.holder("third")
    assert await publish(store) == ["Letter"]
    await store.release()
    store = await bench.holder("fourth", topics=WHOLE)
    bench.add("Letter 2", topic="letters")
    assert await publish(store) == ["Letter 2"]


@CASES.notices("begun anyway")
async def a_topic_becomes_one_line_only_when_nothing_of_it_is_pending(bench: Bench) -> None:
    first = await bench.holder("first")
    second = await bench.store("second")
    await second.take()
    lanes = sorted((await first.renew(None)).lanes)
    await first.release([lane for lane in lanes if lane % 2])
    assert len((await second.take()).lanes) == 32
    odd, even = (next(str(i) for i in range(99) if bench.lane(str(i)) % 2 == side) for side in (1, 0))
    bench.add("Odd", of=odd, topic="letters")
    bench.add("Even", of=even, topic="letters")
    assert await publish(first) == ["Even"]  # so the lanes are at different places
    await first.release()
    await second.release()
    with pytest.raises(ConfigError, match="cannot become 'global'"):
        await bench.holder("third", topics=WHOLE)
    await bench.crash(bench.stores[-1])  # as it ends
    store = await bench.holder("fourth")
    assert await publish(store) == ["Odd"]


@CASES.notices("no late transactions")
async def a_topic_that_is_one_line_misses_no_late_commit(bench: Bench) -> None:
    store = await bench.holder("first", topics=WHOLE)
    late = bench.begin()
    bench.add("Late", of="late", topic="letters", within=late)
    bench.add("L1", of="1", topic="letters")
    bench.add("O1", of="1")
    assert sorted(await publish(store)) == ["L1", "O1"]
    late.commit()
    assert await publish(store) == ["Late"]
    store = await bench.takeover(store, "second", topics=WHOLE)
    bench.add("L2", of="2", topic="letters")
    assert await publish(store) == ["L2"]


@VERSIONS
async def test_a_topic_that_is_one_line_comes_in_one_order_over_all_lanes(bench: Bench) -> None:
    first = await bench.holder("first", topics=WHOLE)
    second = await bench.store("second", topics=WHOLE)
    await second.take()
    await first.release(sorted((await first.renew(None)).lanes)[32:])
    assert len((await second.take()).lanes) == 32
    for index in range(30):
        bench.add(f"L{index}", of=str(index), topic="letters")
    published = await publish(second, 4) + await publish(first, 4)
    assert published == [f"L{index}" for index in range(30)]


@VERSIONS
async def test_a_topic_that_was_one_line_goes_back_to_its_aggregates(bench: Bench) -> None:
    store = await bench.holder("first", topics=WHOLE)
    bench.add("L1", "L2", of="1", topic="letters")
    assert await publish(store) == ["L1", "L2"]
    bench.add("L3", of="1", topic="letters")
    bench.add("L4", of="2", topic="letters")
    [entry] = await store.entries(1)
    await settle(store, [entry])
    store = await bench.takeover(store, "second")  # with the old order
    bench.add("L5", of="1", topic="letters")
    assert [entry.event_type, *await publish(store)] == ["L3", "L4", "L5"]
    bench.add("L6", of="1", topic="letters")
    bench.add("O1")
    assert sorted(await publish(store)) == ["L6", "O1"]
    assert store._log._memory.route.ways[0].around == frozenset()
    store = await bench.takeover(store, "third", topics=WHOLE)  # and once more the other way
    bench.add("L7", of="3", topic="letters")
    assert await publish(store) == ["L7"]


@VERSIONS
async def test_what_is_parked_of_a_paused_topic_waits_and_keeps_its_line(bench: Bench) -> None:
    store = await bench.holder("first")
    bench.add("L1", "L2", of="1", topic="letters")
    entries = await store.entries(10)
    await settle(store, entries[:1], Dead("no"))
    await store.pause("letters", "ada", "why not")
    await store.retry(Query(status=("dead",)))
    store = await bench.takeover(store, "second")
    bench.add("L3", of="1", topic="letters")
    assert await publish(store) == []
    await store.resume("letters")
    entries = await store.entries(10)
    assert (names(entries)[0], entries[0].parked) == ("L1", True)
    await settle(store, entries[:1])
    await settle(store, entries[1:])
    assert [*names(entries[1:]), *await publish(store)] == ["L2", "L3"]


test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere = CASES.tests()
