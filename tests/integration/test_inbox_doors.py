"""Receiving through every door, on each of its databases: effects once, in order, whatever the handler does to its
transaction. What only PostgreSQL has is in test_inbox_postgres.py."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.errors import Reject, RetryLater
from pillarbox.telemetry.hooks import Moment
from tests.integration.inbox_bench import Bench, effect
from tests.integration.receiving_doors import CLOSE, PLACES, Act, Swallowed, where_of
from tests.unit.consumer_bench import TOPIC, id_of, message

TWICE = "INSERT INTO accounts VALUES (7), (7)"


@pytest.fixture(params=PLACES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    database, door = request.param
    bench = Bench(where_of(database, request, tmp_path), door)
    yield bench
    await bench.close()


async def test_effects_once_and_in_order(bench: Bench) -> None:
    bench.broker.receive(
        [message(n, str(n % 5)) for n in range(60)] + [message(n, str(n % 5)) for n in range(0, 60, 3)]
    )
    assert await bench.consume(bench.inbox(lambda event: [effect(event)])) == 60
    applied = bench.applied()
    assert sorted(applied) == list(range(60))
    for order in range(5):
        assert [n for n in applied if n % 5 == order] == list(range(order, 60, 5))
    assert await bench.consume(bench.inbox(lambda event: [effect(event)])) == 0


async def test_a_function_runs_once_for_a_message_through_every_door(bench: Bench) -> None:
    inbox, ran = bench.inbox(lambda event: []), list[bool]()

    def apply(*arguments: Any) -> Any:
        return bench.door.run(transactions[-1], "INSERT INTO effects (n) VALUES (99)")

    async def apply_async(*arguments: Any) -> None:
        await apply(*arguments)

    applied, transactions = inbox.once(apply_async if inbox.is_async else apply), list[Any]()

    def given(transaction: Any) -> tuple[Any, ...]:
        transactions.append(transaction)
        return ("m-1",) if bench.door.name == "django" else (transaction, "m-1")

    async def handle_async(transaction: Any, event: Event[Any]) -> None:
        ran.append(await applied(*given(transaction)))

    def handle(transaction: Any, event: Event[Any]) -> None:
        ran.append(applied(*given(transaction)))

    inbox.handler("Twice")(handle_async if inbox.is_async else handle)
    bench.broker.receive([message(1, type="Twice"), message(2, type="Twice")])
    assert await bench.consume(inbox) == 2
    assert (ran, bench.applied()) == ([True, False], [99])
    assert ("m-1",) in bench.rows("SELECT event_id FROM pillarbox_inbox")


async def test_messages_that_are_not_ours_are_recognised_by_their_own_id(bench: Bench) -> None:
    def theirs(n: int, key: str) -> Message:
        return Message(TOPIC, key, {"message-id": f"m-{n}"}, b'{"n": %d}' % n)

    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), Reject("no") if event.payload["n"] == 1 and bench.tries[1] < 2 else None]

    id, of = (lambda message: message.headers["message-id"]), (lambda message: ("order", message.key))
    inbox = bench.inbox(acts, topic=TOPIC, id=id, aggregate=of)
    bench.broker.receive([theirs(1, "7"), theirs(2, "7"), theirs(3, "8"), theirs(3, "8")])
    await bench.consume(inbox)
    assert bench.applied() == [3]
    assert [one[:2] for one in bench.parked()] == [("order-events/m-1", "dead"), ("order-events/m-2", "blocked")]
    bench.db.execute("UPDATE pillarbox_inbox_parked SET state = 'retrying', due_at = parked_at WHERE state = 'dead'")
    bench.clock.advance(timedelta(days=36500))
    await bench.consume(inbox)
    assert bench.applied() == [3, 1, 2]
    assert bench.rows("SELECT event_id FROM pillarbox_inbox ORDER BY 1") == [
        (f"order-events/m-{n}",) for n in (1, 2, 3)
    ]


async def test_the_number_of_an_ignored_type_counts(bench: Bench) -> None:
    inbox = bench.inbox(lambda event: [effect(event)])
    bench.broker.receive([message(n, number=str(n), type="Other" if n == 2 else "OrderPlaced") for n in (1, 2, 3, 5)])
    assert await bench.consume(inbox, unhandled="ignore") == 2
    assert bench.applied() == [1, 3]
    assert [one[:2] for one in bench.parked()] == [("5", "dead")]


async def test_a_type_without_a_handler_is_dead_and_its_row_is_undone(bench: Bench) -> None:
    bench.broker.receive([message(1, type="Other"), message(2), message(3, "8")])
    await bench.consume(bench.inbox(lambda event: [effect(event)]))
    assert bench.applied() == [3]
    assert [one[:2] for one in bench.parked()] == [("1", "dead"), ("2", "blocked")]
    assert bench.rows("SELECT event_id FROM pillarbox_inbox") == [(id_of(3),)]


async def test_one_that_fails_is_tried_again_and_its_followers_wait(bench: Bench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), RuntimeError("no") if event.payload["n"] == 1 and bench.tries[1] < 3 else None]

    inbox = bench.inbox(acts)
    bench.broker.receive([message(1), message(2), message(3), message(4, "8")])
    await bench.consume(inbox)
    assert bench.applied() == [4]
    assert [one[:3] for one in bench.parked()] == [("1", "retrying", 1), ("2", "blocked", 0), ("3", "blocked", 0)]
    assert await bench.consume(inbox, after=2) == 0
    assert await bench.consume(inbox, after=5) == 3
    assert bench.applied() == [4, 1, 2, 3]
    assert {state for _, state, *_ in bench.parked()} == {"handled"}


async def test_an_integrity_error_of_the_handler_is_a_failure_and_no_duplicate(bench: Bench) -> None:
    bench.db.execute("INSERT INTO accounts VALUES (7)")
    inbox = bench.inbox(lambda event: [effect(event), "INSERT INTO accounts VALUES (7)"])
    bench.broker.receive([message(1)])
    assert await bench.consume(inbox) == 0
    [(number, state, attempts, error)] = bench.parked()
    assert (number, state, attempts) == ("1", "retrying", 1)
    assert "accounts_pkey" in error or "accounts.id" in error
    assert bench.applied() == []
    assert bench.rows("SELECT 1 FROM pillarbox_inbox") == []


async def test_a_constraint_that_waits_for_the_commit_is_the_handlers_to_keep(bench: Bench) -> None:
    bench.broker.receive([message(1), message(2, "8")])

    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), "INSERT INTO invoices VALUES (99)" if event.payload["n"] == 1 else None]

    assert await bench.consume(bench.inbox(acts)) == 1
    [(number, state, _, error)] = bench.parked()
    assert (number, state) == ("1", "retrying")
    assert "refused at the commit" in error
    assert bench.applied() == [2]


async def test_one_that_rejects_is_dead_at_once(bench: Bench) -> None:
    bench.broker.receive([message(1), message(2)])
    acts = lambda event: [effect(event), Reject("never") if event.payload["n"] == 1 else None]  # noqa: E731
    await bench.consume(bench.inbox(acts))
    assert [one[:3] for one in bench.parked()] == [("1", "dead", 1), ("2", "blocked", 0)]


async def test_one_that_ends_the_transaction_by_itself_and_fails_is_not_tried_again(bench: Bench) -> None:
    bench.broker.receive([message(1), message(2)])
    acts = lambda event: [effect(event), "COMMIT" if event.payload["n"] == 1 else None, RuntimeError("late")]  # noqa: E731
    inbox = bench.inbox(acts)
    await bench.consume(inbox)
    await bench.consume(inbox, after=100)
    assert bench.applied().count(1) <= 1, "its effect was applied twice"
    assert bench.tries[1] == bench.applied().count(1) or bench.applied().count(1) == 0


async def test_one_that_closes_its_connection_is_told_so_and_no_outage(bench: Bench) -> None:
    bench.broker.receive([message(1)])
    await bench.consume_until_parked(bench.inbox(lambda event: [effect(event), CLOSE]))
    [(_, state, attempts, error)] = bench.parked()
    assert (state, attempts) == ("retrying", 1), error


async def test_two_consumers_that_get_the_same_events_apply_each_once(bench: Bench) -> None:
    messages = [message(n, str(n % 3)) for n in range(80)]
    brokers = [MemoryBroker(), MemoryBroker()]
    for broker in brokers:
        broker.receive(messages)
    consumers = [bench.consumer(bench.inbox(lambda event: [effect(event)]), broker) for broker in brokers]
    handled = await asyncio.gather(*(consumer.run_once(patience=0.1) for consumer in consumers))
    assert sum(handled) == 80
    applied = bench.applied()
    assert sorted(applied) == list(range(80))
    for order in range(3):
        assert [n for n in applied if n % 3 == order] == list(range(order, 80, 3))


async def test_events_that_share_a_transaction_are_applied_once_and_in_order(bench: Bench) -> None:
    inbox = bench.inbox(lambda event: [effect(event)], batch=True)
    bench.broker.receive([message(n, str(n % 5)) for n in range(60)] + [message(n, str(n % 5)) for n in range(9)])
    assert await bench.consume(inbox) == 60
    for order in range(5):
        assert [n for n in bench.applied() if n % 5 == order] == list(range(order, 60, 5))
    assert len(bench.applied()) == 60
    assert any("count" in facts for moment, facts in bench.moments if moment is Moment.COMMITTED), "none was shared"


async def test_one_that_fails_takes_nobody_along(bench: Bench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), TWICE if event.payload["n"] == 7 else None]

    bench.broker.receive([message(n, str(n % 3)) for n in range(12)])
    assert await bench.consume(bench.inbox(acts, batch=True)) == 10
    assert sorted(bench.applied()) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 11]
    assert [one[:3] for one in bench.parked()] == [("7", "retrying", 1), ("10", "blocked", 0)]


async def test_a_handler_cannot_commit_what_others_share(bench: Bench) -> None:
    """If it could, the rows of those behind it would stand, and a death before their handlers would lose them."""
    seen: list[tuple[int, int]] = []

    def acts(event: Event[Any]) -> list[Act]:
        n = event.payload["n"]
        rows = "SELECT count(*) FROM pillarbox_inbox"
        look: Act = (lambda: seen.append((n, bench.rows(rows)[0][0]))) if n == 3 else None
        return [effect(event), "COMMIT" if n == 3 else None, look]

    bench.broker.receive([message(n, str(n)) for n in range(8)])
    await bench.consume(bench.inbox(acts, batch=True))
    assert sorted(bench.applied()) == list(range(8))
    assert [one for one in seen if one[1] > 4] == [], "rows of events that were not handled stood there"
    if bench.on_postgres:
        assert bench.rows("SELECT * FROM pillarbox_inbox_shared") == []


async def test_copies_and_lines_that_are_blocked_share_a_transaction_with_others(bench: Bench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), Reject("no") if event.payload["n"] == 1 else None]

    inbox = bench.inbox(acts, batch=True)
    bench.broker.receive([message(1, "1"), message(2, "2")])
    await bench.consume(inbox)
    again = [message(1, "1"), message(2, "2"), message(11, "1"), message(3, "3"), message(3, "3"), message(12, "2")]
    bench.broker.receive(again)
    assert await bench.consume(inbox) == 2
    assert sorted(bench.applied()) == [2, 3, 12]
    assert [one[:2] for one in bench.parked()] == [("1", "dead"), ("11", "blocked")]
    assert sorted(n for (n,) in bench.rows("SELECT event_id FROM pillarbox_inbox")) == [id_of(n) for n in (2, 3, 12)]


async def test_of_those_that_share_a_transaction_each_number_is_counted(bench: Bench) -> None:
    inbox = bench.inbox(lambda event: [effect(event)], batch=True)
    bench.broker.receive([message(n, number=str(n)) for n in (1, 2, 4, 5)] + [message(11, "8", number="1")])
    await bench.consume(inbox)
    assert sorted(bench.applied()) == [1, 2, 11]
    assert [one[:2] for one in bench.parked()] == [("4", "dead"), ("5", "blocked")]
    assert bench.rows("SELECT aggregate_id, last FROM pillarbox_inbox_numbers ORDER BY 1") == [("7", 2), ("8", 1)]


async def test_what_was_stored_shares_a_transaction_and_leaves_the_parking_lot(bench: Bench) -> None:
    inbox = bench.inbox(lambda event: [effect(event)], batch=True)
    bench.broker.receive([message(n, str(n % 5)) for n in range(40)])
    assert await bench.consume(inbox, stores=True) == 40
    assert sorted(bench.applied()) == list(range(40))
    assert bench.parked() == []
    assert any("count" in facts for moment, facts in bench.moments if moment is Moment.COMMITTED), "none was shared"


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("at", [3, 7], ids=["in the middle", "at the end"])
async def test_one_that_ends_the_shared_transaction_loses_nothing_of_the_others(
    bench: Bench, ends: str, at: int
) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), Swallowed(ends) if event.payload["n"] == at else None]

    bench.broker.receive([message(n, str(n)) for n in range(8)])
    await bench.consume(bench.inbox(acts, batch=True))
    applied = bench.applied()
    assert sorted(set(applied) | {at}) == list(range(8))
    if "asyncpg" in bench.door.name and at == 3:
        return  # there, what a handler writes after an end of its own is in autocommit, which nobody can undo
    assert len(applied) == len(set(applied)), "an effect was applied twice"


async def test_what_a_handler_writes_after_its_own_commit_is_not_lost(bench: Bench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        ends = ["COMMIT", "INSERT INTO effects (n) VALUES (33)"] if event.payload["n"] == 3 else []
        return [effect(event), *ends]

    bench.broker.receive([message(n, str(n)) for n in range(8)])
    await bench.consume(bench.inbox(acts, batch=True))
    assert sorted(bench.applied()) == [*range(8), 33]


async def test_a_missing_number_stops_its_aggregate_until_it_comes(bench: Bench) -> None:
    inbox = bench.inbox(lambda event: [effect(event)])
    bench.broker.receive([message(n, number=str(n)) for n in (1, 2, 4, 5)] + [message(11, "8", number="1")])
    await bench.consume(inbox)
    assert sorted(bench.applied()) == [1, 2, 11]
    assert [one[:2] for one in bench.parked()] == [("4", "dead"), ("5", "blocked")]
    bench.broker.receive([message(3, number="3")])
    await bench.consume(inbox)
    await bench.consume(inbox)
    assert [n for n in bench.applied() if n != 11] == [1, 2, 3, 4, 5]
    assert bench.rows("SELECT last FROM pillarbox_inbox_numbers WHERE aggregate_id = '7'") == [(5,)]


async def test_a_counter_that_stepped_back_is_kept_as_a_conflict(bench: Bench) -> None:
    inbox = bench.inbox(lambda event: [effect(event)])
    bench.broker.receive([message(n, number=str(n)) for n in (1, 2, 3)])
    await bench.consume(inbox)
    bench.broker.receive([message(n, number=str(n - 100)) for n in (102, 103)])
    await bench.consume(inbox)
    assert bench.applied() == [1, 2, 3]
    assert [one[:2] for one in bench.parked()] == [("102", "dead"), ("103", "blocked")]


async def test_a_running_consumer_forgets_what_it_need_not_know_any_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.inbox.consumer.FORGET_FIRST", 0.0)
    bench.broker.receive([message(1), message(2)])
    inbox = bench.inbox(lambda event: [effect(event)])
    await bench.consume(inbox)
    days = "interval '31 days'" if bench.on_postgres else "31 * 86400000000"
    bench.db.execute(f"UPDATE pillarbox_inbox SET handled_at = handled_at - {days}")
    bench.broker.receive([message(3)])
    await bench.consume(inbox, remembers=timedelta(days=30))
    assert bench.rows("SELECT event_id FROM pillarbox_inbox") == [(id_of(3),)]


async def test_without_order_events_wait_for_those_before_them(bench: Bench) -> None:
    inbox = bench.inbox(lambda event: [effect(event)])
    bench.broker.receive([message(n, number=str(n)) for n in (3, 5, 2)])
    await bench.consume(inbox, unordered=True)
    assert bench.applied() == []
    bench.broker.receive([message(n, number=str(n)) for n in (1, 4)])
    await bench.consume(inbox, unordered=True)
    await bench.consume(inbox, unordered=True)
    assert bench.applied() == [1, 2, 3, 4, 5]


async def test_two_consumers_share_what_is_stored_in_order(bench: Bench) -> None:
    inboxes = [bench.inbox(lambda event: [effect(event)]) for _ in range(2)]
    bench.broker.receive([message(n, str(n % 7)) for n in range(140)])
    handled = await asyncio.gather(*(bench.consume(inbox, stores=True) for inbox in inboxes))
    assert sum(handled) == 140
    for order in range(7):
        assert [n for n in bench.applied() if n % 7 == order] == list(range(order, 140, 7))
    assert bench.parked() == []


async def test_what_is_stored_has_the_same_rules(bench: Bench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), Reject("no") if event.payload["n"] == 1 else None]

    inbox = bench.inbox(acts)
    bench.broker.receive([message(1), message(2), message(3, "8")])
    await bench.consume(inbox, stores=True)
    assert bench.applied() == [3]
    assert [one[:2] for one in bench.parked()] == [("1", "dead"), ("2", "blocked")]


async def test_one_that_asks_for_later_is_tried_then_and_not_before(bench: Bench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), RetryLater(60, "not yet") if event.payload["n"] == 1 and bench.tries[1] == 1 else None]

    inbox = bench.inbox(acts)
    bench.broker.receive([message(1), message(2), message(3, "8")])
    assert await bench.consume(inbox) == 1
    assert [one[:3] for one in bench.parked()] == [("1", "retrying", 1), ("2", "blocked", 0)]
    assert await bench.consume(inbox, after=50) == 0
    assert await bench.consume(inbox, after=15) == 2
    assert bench.applied() == [3, 1, 2]
    assert bench.tries[1] == 2


async def test_one_that_rolls_back_and_returns_is_told_so(bench: Bench) -> None:
    bench.broker.receive([message(1), message(2), message(3, "8")])
    acts = lambda event: [effect(event), "ROLLBACK" if event.payload["n"] == 1 else None]  # noqa: E731
    assert await bench.consume(bench.inbox(acts)) == 1
    assert [one[:3] for one in bench.parked()] == [("1", "retrying", 1), ("2", "blocked", 0)]
    assert "rolled back the transaction it was given" in bench.parked()[0][3]
    assert bench.applied() == [3]
    assert bench.rows("SELECT event_id FROM pillarbox_inbox") == [(id_of(3),)]


async def test_one_that_commits_and_returns_is_handled_once(bench: Bench) -> None:
    bench.broker.receive([message(1), message(2)])
    acts = lambda event: [effect(event), "COMMIT" if event.payload["n"] == 1 else None]  # noqa: E731
    assert await bench.consume(bench.inbox(acts)) == 2
    bench.broker.receive([message(1), message(2)])
    assert await bench.consume(bench.inbox(acts)) == 0
    assert (bench.applied(), bench.parked()) == ([1, 2], [])
    assert Moment.HANDLER_COMMITTED in [moment for moment, _ in bench.moments]
