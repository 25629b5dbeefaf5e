"""Numbers: the id decides whether an event is new, its number only tells whether one is missing."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pillarbox.core.event import Event
from pillarbox.core.insert import Rows, Statement
from pillarbox.core.message import Message
from pillarbox.core.routing import Topics
from pillarbox.errors import Reject
from pillarbox.inbox import lot
from pillarbox.inbox.steps import drive
from pillarbox.telemetry.hooks import Moment
from tests.unit.consumer_bench import SKIP, ConsumerBench, id_of, message

KEPT = timedelta(days=30)


class NumberBench(ConsumerBench):
    """A bench whose events are numbered: event `n` is number `n` of its order."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.failing: dict[int, BaseException] = {}

        @self.inbox.handler("OrderPlaced")
        def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
            connection.execute("INSERT INTO effects VALUES (?)", [event.number])
            if event.number in self.failing:
                raise self.failing[event.number]

    async def receive(self, *numbers: int | Message, **more: Any) -> int:
        self.publish(*(numbered(one) if isinstance(one, int) else one for one in numbers))
        return await self.consume(remembers=KEPT, **more)

    async def reordered(self, *numbers: int | Message) -> int:
        return await self.receive(*numbers, unordered=True)

    def last(self, order: str = "7") -> int | None:
        sql = "SELECT last FROM pillarbox_inbox_numbers WHERE consumer = 'billing' AND aggregate_id = ?"
        row = self.db.execute(sql, [order]).fetchone()
        return None if row is None else row[0]

    def retry(self, number: int) -> None:
        """Do what `pillarbox dead retry --inbox` does."""
        self.db.execute(
            "UPDATE pillarbox_inbox_parked SET state = 'retrying', due_at = 0, attempts = 0,"
            " numbering = CASE WHEN numbering IS NOT NULL THEN 'accepted' END WHERE event_id = ?",
            [id_of(number)],
        )

    def drop(self, number: int) -> None:
        self.db.execute("UPDATE pillarbox_inbox_parked SET state = 'dropped' WHERE event_id = ?", [id_of(number)])


class Killed(BaseException):
    """Stands for the end of the process."""


def die() -> None:
    raise Killed


def numbered(number: int, order: str = "7", id: str | None = None) -> Message:
    own = message(number, order, number=str(number))
    return own if id is None else own._replace(headers={**own.headers, "id": id})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[NumberBench]:
    bench = NumberBench(tmp_path)
    yield bench
    bench.close()


async def test_the_next_number_applies_and_is_remembered(bench: NumberBench) -> None:
    assert await bench.receive(1, 2, 3) == 3
    assert (bench.applied(), bench.last()) == ([1, 2, 3], 3)
    assert await bench.receive(numbered(8, "8"), 4) == 2
    assert (bench.last(), bench.last("8")) == (4, 8)


async def test_an_aggregate_begins_where_the_consumer_first_sees_it(bench: NumberBench) -> None:
    assert await bench.receive(41, 42) == 2
    assert bench.last() == 42


async def test_a_missing_number_stops_its_aggregate_and_nothing_later_is_applied(bench: NumberBench) -> None:
    await bench.receive(1, 2, 4, 5, numbered(1, "8", id_of(81)))
    assert sorted(bench.applied()) == [1, 1, 2]
    assert bench.parked() == [("4", "dead", 0), ("5", "blocked", 0)]
    assert "number 3 of order 7 did not come before number 4" in bench.column("last_error", 4)
    [facts] = bench.told(Moment.NUMBER_MISSING)
    assert (facts["aggregate"], facts["number"], facts["topic"]) == (("order", "7"), 4, "order-events")
    assert bench.unacknowledged() == 0


async def test_it_goes_on_by_itself_when_the_missing_one_is_sent(bench: NumberBench) -> None:
    await bench.receive(1, 4, 5)
    await bench.receive(6, 2)
    assert bench.applied() == [1, 2]
    await bench.receive(3)
    await bench.consume()
    assert bench.applied() == [1, 2, 3, 4, 5, 6]
    assert bench.last() == 6
    assert await bench.receive(7) == 1


@pytest.mark.parametrize("unordered", [False, True])
async def test_the_missing_one_may_fail_first(bench: NumberBench, unordered: bool) -> None:
    bench.failing[2] = ValueError("not yet")
    await bench.receive(1, 3, unordered=unordered)
    await bench.receive(2, unordered=unordered)
    bench.failing.clear()
    await bench.later(2, unordered=unordered)
    assert (bench.applied(), bench.last()) == ([1, 2, 3], 3)


async def test_the_missing_one_may_be_dead_and_retried(bench: NumberBench) -> None:
    bench.failing[2] = Reject("not yet")
    await bench.receive(1, 3)
    await bench.receive(2)
    bench.failing.clear()
    bench.retry(2)
    await bench.consume()
    assert (bench.applied(), bench.last()) == ([1, 2, 3], 3)


async def test_a_process_may_die_with_the_missing_one(bench: NumberBench) -> None:
    await bench.receive(1, 3)
    bench.publish(numbered(2))
    bench.on = lambda moment, facts: die() if moment is Moment.MARKED else None
    with pytest.raises(Killed):
        await bench.consume()
    bench.on = lambda moment, facts: None
    await bench.later(2)
    assert (bench.applied(), bench.last()) == ([1, 2, 3], 3)


async def test_many_gaps_are_one_question(bench: NumberBench) -> None:
    def questions() -> int:
        asked: list[str] = []

        def ask(statement: Statement) -> Rows:
            asked.append(statement.sql)
            return bench.db.execute(statement.sql, statement.parameters).fetchall()

        assert drive(lot.claim(bench.inbox.texts, bench.clock.now(), 200, {}), ask) == []
        return len(asked)

    async def lose_one_of(order: int) -> None:
        await bench.receive(numbered(100 * order + 1, str(order)), numbered(100 * order + 3, str(order)))

    await lose_one_of(0)
    of_one = questions()
    for order in range(1, 20):
        await lose_one_of(order)
    assert len(bench.parked()) == 20
    assert questions() == of_one


async def test_if_both_are_retried_the_missing_one_goes_first(bench: NumberBench) -> None:
    bench.failing[2] = Reject("not yet")
    await bench.receive(1, 3)
    await bench.receive(2)
    bench.failing.clear()
    bench.retry(2)
    bench.retry(3)
    await bench.consume()
    assert (bench.applied(), bench.last()) == ([1, 2, 3], 3)


async def test_one_that_was_accepted_stays_so_when_it_fails(bench: NumberBench) -> None:
    bench.failing[3] = ValueError("not yet")
    await bench.receive(1, 3)
    bench.retry(3)
    await bench.consume()
    assert bench.parked() == [("3", "retrying", 1)]
    bench.failing.clear()
    await bench.later(2)
    assert (bench.applied(), bench.last()) == ([1, 3], 3)


async def test_a_dead_one_that_was_passed_over_can_be_retried(bench: NumberBench) -> None:
    bench.topics = Topics(SKIP)
    bench.failing[2] = Reject("not yet")
    await bench.receive(1, 2, 3)
    bench.failing.clear()
    bench.retry(2)
    await bench.receive(4)
    assert (bench.applied(), bench.last()) == ([1, 3, 2, 4], 4)


async def test_a_dead_one_that_is_retried_before_the_next_comes_is_not_missing(bench: NumberBench) -> None:
    bench.topics = Topics(SKIP)
    bench.failing[2] = Reject("not yet")
    await bench.receive(1, 2)
    bench.failing.clear()
    bench.retry(2)
    await bench.consume()
    await bench.receive(3)
    assert (bench.applied(), bench.last()) == ([1, 2, 3], 3)


async def test_what_was_dropped_before_a_counter_stepped_back_hides_no_gap(bench: NumberBench) -> None:
    bench.failing[3] = Reject("no")
    await bench.receive(1, 2, 3)
    bench.drop(3)
    bench.failing.clear()
    await bench.receive(4)
    await bench.receive(numbered(2, id=id_of(102)))
    bench.retry(102)
    await bench.consume()
    await bench.receive(numbered(4, id=id_of(104)))
    assert bench.applied() == [1, 2, 4, 2]
    assert len(bench.told(Moment.NUMBER_MISSING)) == 1


async def test_whoever_retries_it_goes_on_without_the_missing_one(bench: NumberBench) -> None:
    await bench.receive(1, 4, 5)
    bench.retry(4)
    await bench.consume()
    assert (bench.applied(), bench.last()) == ([1, 4, 5], 5)


async def test_a_number_that_was_dropped_is_not_missing(bench: NumberBench) -> None:
    bench.failing[2] = Reject("no")
    await bench.receive(1, 2, 3)
    assert bench.parked() == [("2", "dead", 1), ("3", "blocked", 0)]
    bench.drop(2)
    await bench.consume()
    assert (bench.applied(), bench.last()) == ([1, 3], 3)


async def test_a_missing_one_that_comes_and_is_dropped_is_not_missing(bench: NumberBench) -> None:
    bench.failing[2] = Reject("no")
    await bench.receive(1, 3)
    await bench.receive(2)
    assert bench.parked() == [("3", "dead", 0), ("2", "dead", 1)]
    bench.drop(2)
    await bench.consume()
    assert (bench.applied(), bench.last()) == ([1, 3], 3)


async def test_a_dead_one_that_is_passed_over_is_not_missing(bench: NumberBench) -> None:
    bench.topics = Topics(SKIP)
    bench.failing[2] = Reject("no")
    await bench.receive(1, 2, 3)
    await bench.consume()
    assert (bench.applied(), bench.last()) == ([1, 3], 3)


async def test_a_gap_stops_its_aggregate_even_where_dead_ones_are_passed_over(bench: NumberBench) -> None:
    bench.topics = Topics(SKIP)
    await bench.receive(1, 3, 4)
    assert bench.applied() == [1]


async def test_one_that_failed_keeps_its_number_until_it_succeeds(bench: NumberBench) -> None:
    bench.failing[2] = ValueError("not yet")
    await bench.receive(1, 2, 3)
    assert (bench.applied(), bench.last()) == ([1], 1)
    bench.failing.clear()
    await bench.later(2)
    assert (bench.applied(), bench.last()) == ([1, 2, 3], 3)


async def test_a_copy_is_a_copy_whatever_its_number(bench: NumberBench) -> None:
    await bench.receive(1, 2, 3, 1, 2, 3)
    assert bench.applied() == [1, 2, 3]
    assert bench.parked() == []


async def test_a_counter_that_stepped_back_is_a_conflict_that_is_kept(bench: NumberBench) -> None:
    await bench.receive(1, 2, 3)
    again = [numbered(number, id=id_of(100 + number)) for number in (2, 3, 4)]
    await bench.receive(*again)
    assert bench.applied() == [1, 2, 3]
    assert bench.parked() == [("102", "dead", 0), ("103", "blocked", 0), ("104", "blocked", 0)]
    assert "number 2 of order 7 was taken by another event, and the last one was 3" in bench.column("last_error", 102)
    [facts] = bench.told(Moment.NUMBER_CONFLICT)
    assert (facts["aggregate"], facts["number"]) == (("order", "7"), 2)
    assert await bench.consume() == 0


async def test_whoever_retries_a_conflict_goes_on_from_its_number(bench: NumberBench) -> None:
    await bench.receive(1, 2, 3)
    await bench.receive(*(numbered(number, id=id_of(100 + number)) for number in (2, 3, 4)))
    bench.retry(102)
    await bench.consume()
    assert (bench.applied(), bench.last()) == ([1, 2, 3, 2, 3, 4], 4)


async def test_one_that_comes_late_is_told_apart_and_sets_nobody_back(bench: NumberBench) -> None:
    await bench.receive(2, 3)
    await bench.receive(1)
    assert bench.parked() == [("1", "dead", 0)]
    assert "number 1 of order 7 comes late: this consumer began with number 2" in bench.column("last_error", 1)
    bench.retry(1)
    await bench.receive(4)
    assert (bench.applied(), bench.last()) == ([2, 3, 1, 4], 4)


async def test_one_that_somebody_went_on_without_comes_late(bench: NumberBench) -> None:
    await bench.receive(1, 3, 4)
    bench.retry(3)
    await bench.consume()
    await bench.receive(2)
    assert "comes late" in bench.column("last_error", 2)
    bench.retry(2)
    await bench.receive(5)
    assert (bench.applied(), bench.last()) == ([1, 3, 4, 2, 5], 5)


def made_at(bench: NumberBench, days_ago: float, number: int) -> str:
    """Give an id of version 7 that was made so many days ago."""
    at = int((bench.clock.now() - timedelta(days=days_ago)).timestamp() * 1000)
    return str(UUID(int=at << 80 | 7 << 76 | 2 << 62 | number))


async def test_a_late_copy_long_after_its_id_was_pruned_is_recognised(bench: NumberBench) -> None:
    ids = {number: made_at(bench, 0, number) for number in (1, 2, 3)}
    await bench.receive(*(numbered(number, id=id) for number, id in ids.items()))
    bench.db.execute("DELETE FROM pillarbox_inbox")
    bench.clock.advance(timedelta(days=31))
    await bench.receive(numbered(2, id=ids[2]), numbered(4, id=made_at(bench, 0, 4)))
    assert bench.applied() == [1, 2, 3, 4]
    assert bench.parked() == []


@pytest.mark.parametrize(("days", "number"), [(1, 2), (40, 1)], ids=["it would be remembered", "from before the first"])
async def test_an_unknown_id_is_no_copy_unless_it_can_be_one(bench: NumberBench, days: float, number: int) -> None:
    await bench.receive(2, 3)
    await bench.receive(numbered(number, id=made_at(bench, days, 9)))
    assert [state for _, state, _ in bench.parked()] == ["dead"]
    assert len(bench.told(Moment.NUMBER_CONFLICT)) == 1


async def test_without_order_events_wait_until_those_before_them_are_there(bench: NumberBench) -> None:
    await bench.reordered(3, 2, 5)
    assert bench.applied() == []
    assert {state for _, state, _ in bench.parked()} == {"blocked"}
    assert not bench.told(Moment.NUMBER_MISSING)
    assert bench.unacknowledged() == 0
    await bench.reordered(1, 4, 6)
    await bench.reordered()
    assert (bench.applied(), bench.last()) == ([1, 2, 3, 4, 5, 6], 6)


async def test_without_order_somebody_is_told_when_it_takes_too_long_and_it_still_goes_on(bench: NumberBench) -> None:
    await bench.reordered(1, 3)
    bench.clock.advance(lot.PATIENCE)
    await bench.reordered()
    assert bench.parked() == [("3", "dead", 0)]
    [facts] = bench.told(Moment.NUMBER_MISSING)
    assert (facts["aggregate"], facts["number"], facts["waiting"]) == (("order", "7"), 3, 1)
    told = [facts[name] for name in ("type", "event_id", "topic", "attempt")]
    assert told == ["OrderPlaced", id_of(3), "order-events", 1]
    await bench.reordered()
    assert len(bench.told(Moment.NUMBER_MISSING)) == 1
    await bench.reordered(2)
    await bench.reordered()
    assert bench.applied() == [1, 2, 3]


async def test_without_order_somebody_is_told_when_too_many_wait_for_a_number_and_what_comes_is_still_kept(
    bench: NumberBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lot, "BUFFER", 3)
    await bench.reordered(1, 3, 4, 5)
    await bench.reordered()
    assert not bench.told(Moment.NUMBER_MISSING)
    await bench.reordered(6)
    await bench.reordered()
    assert len(bench.told(Moment.NUMBER_MISSING)) == 1
    await bench.reordered(7, numbered(1, "8", id_of(81)))
    assert [state for _, state, _ in bench.parked()] == ["dead", "blocked", "blocked", "blocked", "blocked"]
    await bench.reordered(2)
    await bench.reordered()
    assert bench.applied() == [1, 1, 2, 3, 4, 5, 6, 7]


async def test_events_without_an_aggregate_or_an_order_have_no_number(bench: NumberBench) -> None:
    bench.publish(message(1, None, number="5"), message(2, None, number="9"))
    await bench.consume()
    assert sorted(bench.applied()) == [5, 9]
    assert bench.db.execute("SELECT * FROM pillarbox_inbox_numbers").fetchall() == []


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "99999999999999999999"])
async def test_a_malformed_number_is_a_dead_letter(bench: NumberBench, number: str) -> None:
    bench.publish(message(1, number=number))
    await bench.consume()
    [(_, state, _)] = bench.parked()
    assert state == "dead"
