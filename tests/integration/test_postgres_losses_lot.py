"""The parking lot of the PostgreSQL store: nobody passes one that stands there, whoever looks at it and when.

mutant                        the rule that it takes out
----------------------------  ------------------------------------------------------------------------------------
an answer for fewer lanes     what a look found is thrown away if lanes were taken meanwhile
a look beside the settling    looks and settlements go over one connection, one after the other
parked by the settings        what was read on the way of a whole topic is parked on its lane
left on lane 0                when a topic ends to be one line, what is parked moves to its own lanes
not told                      a change by people is noticed at the next read
heads are believed            one that was settled since the last look does not come out again
an answer is believed         nor does one that was settled while the answer was on its way
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.core.retry import Dead, RetryAt
from pillarbox.core.routing import Topic
from pillarbox.core.window import BLOCKED
from pillarbox.ports import Query
from pillarbox.psycopg import Outbox
from pillarbox.stores.postgres import PostgresStore
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.lines import LONGEST
from pillarbox.stores.postgres.log import Log
from pillarbox.stores.postgres.parking import ParkingLot
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

MUTANTS: dict[str, Mutant] = {
    "an answer for fewer lanes": InSource(ParkingLot, "look", {"if asked == list(self._lanes.epochs)": "if True"}),
    "a look beside the settling": InSource(Log, "load", {"look(self._connection)": "look(connection)"}),
    "parked by the settings": InSource(
        ParkingLot, "parked", {"0 if way.whole else None": "0 if entry.topic in self._topics.whole else None"}
    ),
    "left on lane 0": InSql("settle", {"SET lane = o.lane": "SET lane = k.lane"}),
    "not told": InPython(ParkingLot, "note", lambda self, version: None),
    "heads are believed": InSource(ParkingLot, "due", {"AND {is_due} ": ""}),
    "an answer is believed": InSource(ParkingLot, "due", {"if row.id not in self._landed": ""}),
}  # fmt: skip
CASES = Cases(MUTANTS)
LETTERS = {"letters": Topic(order="global")}
LOOK = "DISTINCT ON (line)"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


class SlowAnswer:
    """Lets the next answer to a look, or to another question, wait on its way over one connection."""

    def __init__(self, connection: Connection, question: str = LOOK) -> None:
        self._run, self.asked, self.arrives = connection.run, asyncio.Event(), asyncio.Event()
        self._question = question
        connection.run = self._late  # type: ignore[method-assign]

    async def _late(self, sql: str, *parameters: Any, **more: Any) -> Any:
        rows = await self._run(sql, *parameters, **more)
        if self._question in sql and not self.asked.is_set():
            self.asked.set()
            await self.arrives.wait()
        return rows


async def _two_halves(bench: Bench) -> tuple[PostgresStore, PostgresStore]:
    """Give two relays that have half of the lanes each: one those up to 31, one the others."""
    low = await bench.holder("low")
    await low.release(range(32, 64))
    high = await bench.holder("high")
    return low, high


def _aggregate(bench: Bench, *, high: bool) -> str:
    """Give an aggregate whose lane is among the first 32, or among the others."""
    return next(str(n) for n in range(1000) if (bench.lane(str(n)) >= 32) == high)


@CASES.notices("heads are believed")
async def what_is_settled_does_not_come_out_again_before_the_lot_is_looked_at(bench: Bench) -> None:
    store = await bench.holder("relay")
    bench.add("Retried")
    await settle(store, await store.entries(10), RetryAt(LONG_AGO, "no"))
    [out] = await store.entries(10)
    late = SlowAnswer(store._reading)
    settling = asyncio.create_task(settle(store, [out]))
    await late.asked.wait()
    reading = asyncio.create_task(store.entries(10))
    await asyncio.wait({reading}, timeout=0.2)  # it has looked into the lot by now, and waits for the tick
    late.arrives.set()
    await settling
    assert names(await reading) == []


@CASES.notices("an answer is believed")
async def what_is_settled_while_the_lot_is_read_does_not_come_out_again(bench: Bench) -> None:
    store = await bench.holder("relay", topics={"orders": Topic(order="none")})
    bench.add("Retried")
    await settle(store, await store.entries(10), RetryAt(LONG_AGO, "no"))
    [out] = await store.entries(10)
    late = SlowAnswer(store._reading, "line IS NULL AND state IN")
    reading = asyncio.create_task(store.entries(10))
    await late.asked.wait()
    await settle(store, [out])
    late.arrives.set()
    assert names(await reading) == []


@CASES.notices("an answer for fewer lanes")
async def an_answer_from_before_a_takeover_does_not_free_the_lines_of_the_lanes_taken(bench: Bench) -> None:
    low, high = await _two_halves(bench)
    theirs = _aggregate(bench, high=True)
    bench.add("Bad", of=theirs)
    await settle(high, await high.entries(10), Dead("no"))
    bench.add("Also bad", of=_aggregate(bench, high=False))
    late = SlowAnswer(low._reading)
    reading = asyncio.create_task(_settle_next(low))
    await late.asked.wait()
    await bench.crash(high)
    await low.take()
    late.arrives.set()
    await reading
    assert ("orders", "order", theirs) in low.blocked


@CASES.notices("a look beside the settling")
async def an_answer_on_its_way_during_a_takeover_does_not_free_what_was_parked_since(bench: Bench) -> None:
    low, high = await _two_halves(bench)
    ours = _aggregate(bench, high=False)
    bench.add("Bad", of=ours)
    entries = await low.entries(10)
    await bench.crash(high)
    late = SlowAnswer(low._chores)
    taking = asyncio.create_task(low.take())
    await asyncio.wait({taking, asyncio.create_task(late.asked.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await settle(low, entries, Dead("no"))
    late.arrives.set()
    await taking
    assert ("orders", "order", ours) in low.blocked


async def _settle_next(store: PostgresStore) -> None:
    await settle(store, await store.entries(10), Dead("no"))


@CASES.notices("parked by the settings")
async def what_fails_in_a_topic_that_was_one_line_holds_back_its_followers(bench: Bench) -> None:
    await (await bench.holder("before", topics=LETTERS)).release()
    low, _ = await _two_halves(bench)
    far = _aggregate(bench, high=True)
    bench.add("Bad", of=far, topic="letters")
    entries = await low.entries(10)
    assert names(entries) == ["Bad"], "who holds lane 0 reads the topic"
    await settle(low, entries, Dead("no"))
    assert ("letters", "order", far) in low.blocked


@CASES.notices("left on lane 0")
async def what_is_parked_moves_to_its_own_lane_when_its_topic_is_one_line_no_more(bench: Bench) -> None:
    await (await bench.holder("before", topics=LETTERS)).release()
    low, high = await _two_halves(bench)
    far = _aggregate(bench, high=True)
    bench.add("Bad", of=far, topic="letters")
    await _settle_next(low)
    assert bench.sql("SELECT lane FROM pillarbox_parked") == [(0,)]
    await bench.crash(high)
    await low.take()
    bench.add("Other", of=far)
    await publish(low)
    assert bench.sql("SELECT closed FROM pillarbox_ticks WHERE topic = 'letters' ORDER BY n DESC LIMIT 1") == [(True,)]
    assert bench.sql("SELECT lane FROM pillarbox_parked") == [(bench.lane(far),)]


@CASES.notices("not told")
async def a_retry_by_hand_is_noticed_at_the_next_read(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("Bad")
    await settle(store, await store.entries(10), Dead("no"))
    assert await store.entries(10) == []
    assert await store.retry(Query(status=("dead",))) == 1
    assert names(await store.entries(10)) == ["Bad"]


@VERSIONS
@pytest.mark.parametrize("order", ["aggregate", "global"])
async def test_names_too_long_for_an_index_are_parked_and_hold_back_their_followers(bench: Bench, order: Any) -> None:
    long = "\N{POSTBOX}" * 255
    assert len(long.encode()) > LONGEST
    store = await bench.holder(topics={long: Topic(order=order)})
    with bench.begin() as transaction:
        Outbox().add(transaction, *(Event(long, {}, aggregate=(long, long), topic=long) for _ in range(2)))
    first, second = await store.entries(10)
    await settle(store, [first], Dead("no"))
    assert store.blocked == {(long, long, long) if order == "aggregate" else (long, "", "")}
    await settle(store, [second], BLOCKED)
    await store.retry(Query(status=("dead",)))
    assert len(await publish(store)) == 2


@VERSIONS
def test_a_topic_that_no_index_could_hold_is_refused_when_it_is_written(bench: Bench) -> None:
    with pytest.raises(Exception, match="outbox_type_and_topic"):
        bench.sql(
            "INSERT INTO pillarbox_outbox (event_type, topic, payload) VALUES ('A', repeat('x', 256), '{}')",
        )


test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere = CASES.tests()
