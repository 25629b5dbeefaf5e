"""Events that share a transaction, because their handlers allow it: faster, and with the same promises."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.errors import Reject
from pillarbox.telemetry.hooks import Moment
from tests.unit.consumer_bench import SKIP, ConsumerBench, id_of, message


class BatchBench(ConsumerBench):
    """A bench whose handler shares its transactions; `act` is what it does beside its effect."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.act: Callable[[sqlite3.Connection, int], None] = lambda connection, n: None
        self.tries: Counter[int] = Counter()

        self.calls: list[list[int]] = []

        def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
            n = event.payload["n"]
            self.tries[n] += 1
            connection.execute("INSERT INTO effects VALUES (?)", [n])
            self.act(connection, n)

        def bill_all(connection: sqlite3.Connection, events: list[Event[Any]]) -> None:
            self.calls.append([event.payload["n"] for event in events])
            for event in events:
                bill(connection, event)

        self.inbox.handler("OrderPlaced", batch=True)(bill_all)
        self.inbox.handler("OrderShipped", batch=True)(bill_all)
        self.inbox.handler("OrderPaid")(bill)

    def shared(self) -> list[int]:
        """Give how many events each shared transaction had."""
        return [facts["count"] for facts in self.told(Moment.COMMITTED) if "count" in facts]  # type: ignore[misc]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[BatchBench]:
    bench = BatchBench(tmp_path)
    yield bench
    bench.close()


async def test_events_of_many_lines_share_a_transaction_and_keep_their_order(bench: BatchBench) -> None:
    bench.publish(*(message(n, str(n % 7)) for n in range(250)))
    assert await bench.consume() == 250
    assert sorted(bench.applied()) == list(range(250))
    for order in range(7):
        assert [n for n in bench.applied() if n % 7 == order] == list(range(order, 250, 7))
    assert sum(bench.shared()) == 250
    assert max(bench.shared()) == 100
    assert bench.unacknowledged() == 0


async def test_if_one_fails_the_others_are_done_and_its_line_waits_behind_it(bench: BatchBench) -> None:
    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 4 and bench.tries[4] < 4:
            raise RuntimeError("no")

    bench.act = act
    bench.publish(*(message(n, str(n % 3)) for n in range(9)))
    await bench.consume()
    assert sorted(bench.applied()) == [0, 1, 2, 3, 5, 6, 8]
    assert bench.parked() == [("4", "retrying", 1), ("7", "blocked", 0)]
    await bench.later(1)
    assert await bench.later(2) == 2
    assert bench.applied()[-2:] == [4, 7]
    assert sorted(bench.applied()) == list(range(9))


async def test_behind_one_that_failed_alone_nothing_of_its_line_shares_a_transaction(bench: BatchBench) -> None:
    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 1:
            raise Reject("no")

    bench.act = act
    paid = message(1, "7", type="OrderPaid")
    bench.publish(message(0, "7"), paid, message(2, "7"), message(3, "7"), message(4, "8"))
    await bench.consume()
    assert sorted(bench.applied()) == [0, 4]
    assert bench.parked() == [("1", "dead", 1), ("2", "blocked", 0), ("3", "blocked", 0)]


async def test_behind_a_dead_one_that_is_skipped_its_line_goes_on(bench: BatchBench) -> None:
    bench.topics = type(bench.topics)(SKIP)

    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 1:
            raise Reject("no")

    bench.act = act
    bench.publish(*(message(n) for n in range(4)))
    await bench.consume()
    assert bench.applied() == [0, 2, 3]


async def test_copies_within_one_transaction_are_recognised(bench: BatchBench) -> None:
    bench.publish(message(1), message(2), message(1), message(2), message(1, "7"))
    assert await bench.consume() == 2
    assert bench.applied() == [1, 2]
    assert bench.tries == {1: 1, 2: 1}


async def test_one_that_commits_by_itself_and_fails_is_dead_and_nothing_else_is_lost(bench: BatchBench) -> None:
    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 2:
            connection.commit()
            raise RuntimeError("after its commit")

    bench.act = act
    bench.publish(*(message(n, str(n)) for n in range(1, 6)))
    await bench.consume()
    assert sorted(bench.applied()) == [1, 2, 3, 4, 5]
    [(number, state, _)] = bench.parked()
    assert (number, state) == ("2", "dead")
    assert "committed by itself" in bench.column("last_error", 2)


async def test_behind_one_that_commits_by_itself_nothing_goes_on_in_a_transaction_that_is_over(
    bench: BatchBench,
) -> None:
    """If the row of the next one were written outside a transaction, a death before its handler would lose it."""
    outside: list[int] = []
    bench.inbox._opener = lambda: sqlite3.connect(bench.path, isolation_level=None)

    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 2:
            connection.commit()
        rows = bench.db.execute("SELECT count(*) FROM pillarbox_inbox WHERE event_id = ?", [id_of(n)]).fetchone()
        if n != 2 and rows != (0,):
            outside.append(n)

    bench.act = act
    bench.publish(*(message(n, str(n)) for n in range(1, 6)))
    await bench.consume()
    assert sorted(bench.applied()) == [1, 2, 3, 4, 5]
    assert outside == []


async def test_what_a_handler_writes_after_its_own_commit_is_not_lost(bench: BatchBench) -> None:
    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 2:
            connection.commit()
            connection.execute("INSERT INTO effects VALUES (22)")

    bench.act = act
    bench.publish(*(message(n, str(n)) for n in range(1, 6)))
    assert await bench.consume() == 5
    assert sorted(bench.applied()) == [1, 2, 3, 4, 5, 22]
    assert len(bench.told(Moment.HANDLER_COMMITTED)) == 1
    assert bench.parked() == []


async def test_one_that_rolls_back_takes_nobody_along(bench: BatchBench) -> None:
    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 2:
            connection.rollback()

    bench.act = act
    bench.publish(*(message(n, str(n)) for n in range(1, 6)))
    await bench.consume()
    assert sorted(bench.applied()) == [1, 3, 4, 5]
    assert bench.parked() == [("2", "retrying", 1)]


async def test_an_event_that_may_kill_its_process_shares_with_nobody(bench: BatchBench) -> None:
    bench.broker.receive([message(n, str(n)) for n in range(5)])
    first = bench.broker.subscriber("billing", ["order-events"])
    assert len(await first.deliveries(100, 0)) == 5
    first.crash()
    assert await bench.consume() == 5
    assert bench.shared() == []


async def test_other_handlers_have_their_transaction_to_themselves(bench: BatchBench) -> None:
    kinds = ["OrderPlaced", "OrderPlaced", "OrderPaid", "OrderPlaced", "OrderPlaced", "OrderPlaced"]
    bench.publish(*(message(n, type=kind) for n, kind in enumerate(kinds)))
    assert await bench.consume() == 6
    assert bench.applied() == [0, 1, 2, 3, 4, 5]
    assert bench.shared() == [2, 3]


async def test_a_handler_takes_its_events_in_one_call_each_behind_those_before_it(bench: BatchBench) -> None:
    """Of the aggregate 7: placed, shipped, placed. The others need not wait for that."""
    kinds = [("OrderPlaced", "7"), ("OrderPlaced", "8"), ("OrderShipped", "7"), ("OrderPlaced", "9")]
    kinds += [("OrderPlaced", "7"), ("OrderShipped", "8"), ("OrderPlaced", "10")]
    bench.publish(*(message(n, of, type=kind) for n, (kind, of) in enumerate(kinds)))
    assert await bench.consume() == 7
    assert bench.shared() == [7]
    assert sorted(bench.calls) == [[0, 1, 3, 6], [2, 5], [4]]
    assert [n for n in bench.applied() if n in (0, 2, 4)] == [0, 2, 4]
    assert [n for n in bench.applied() if n in (1, 5)] == [1, 5]


async def test_one_event_comes_as_a_list_of_one(bench: BatchBench) -> None:
    bench.publish(message(1))
    assert await bench.consume() == 1
    assert bench.calls == [[1]]


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK", "END"])
async def test_a_handler_cannot_end_what_others_share(bench: BatchBench, ends: str) -> None:
    refused: list[str] = []

    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 2 and bench.tries[2] == 1:
            try:
                connection.execute(ends)
            except sqlite3.DatabaseError as error:
                refused.append(str(error))

    bench.act = act
    bench.publish(*(message(n, str(n)) for n in range(1, 6)))
    assert await bench.consume() == 5
    assert bench.applied() == [1, 2, 3, 4, 5]
    assert refused == ["not authorized"]
    assert bench.shared() == [5]


async def test_what_a_handler_does_with_savepoints_is_its_own_affair(bench: BatchBench) -> None:
    def act(connection: sqlite3.Connection, n: int) -> None:
        connection.execute("SAVEPOINT mine")
        connection.execute("INSERT INTO effects VALUES (99)")
        connection.execute("ROLLBACK TO mine")
        connection.execute("RELEASE mine")

    bench.act = act
    bench.publish(*(message(n, str(n)) for n in range(1, 6)))
    assert await bench.consume() == 5
    assert bench.applied() == [1, 2, 3, 4, 5]
    assert bench.shared() == [5]


async def test_what_was_dropped_when_it_was_out_is_not_handled_with_the_others(bench: BatchBench) -> None:
    drop = "UPDATE pillarbox_inbox_parked SET state = 'dropped', settled_at = 0, due_at = NULL WHERE event_id = ?"

    def act(connection: sqlite3.Connection, n: int) -> None:
        if n == 1:
            connection.execute(drop, [id_of(3)])

    bench.act = act
    bench.publish(message(1, "1", "OrderPaid"), *(message(n, str(n)) for n in range(2, 6)))
    assert await bench.consume(stores=True, concurrency=1) == 4
    assert bench.applied() == [1, 2, 4, 5]
    assert bench.parked() == [("3", "dropped", 0)]
    assert bench.calls == [[2], [4, 5]]
