"""Receiving on PostgreSQL, through every door: effects once, in order, whatever the handler does to its transaction."""

import asyncio
import random
import string
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.errors import Reject
from pillarbox.inbox.consumer import Consumer
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock
from tests.integration.postgres_world import soon
from tests.integration.receiving_doors import CLOSE, DOORS, Act, Acts, Door, Swallowed, forget, receiving
from tests.unit.consumer_bench import TOPIC, id_of, message, number_of

EFFECTS = (
    "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, n int NOT NULL);"
    "CREATE TABLE accounts (id int PRIMARY KEY);"
    "CREATE TABLE invoices (account int REFERENCES accounts DEFERRABLE INITIALLY DEFERRED);"
)
CONFLICT = "DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END $$"


def effect(event: Event[Any]) -> str:
    return f"INSERT INTO effects (n) VALUES ({event.payload['n']})"


class Bench:
    """A consumer on a PostgreSQL, behind one door."""

    def __init__(self, url: str, door: Door) -> None:
        self.url, self.door = url, door
        self.clock, self.broker = ManualClock(), MemoryBroker()
        self.moments: list[tuple[Moment, Facts]] = []
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute(EFFECTS.encode())
        self.tries: Counter[int] = Counter()
        self._inboxes: list[Any] = []

    def inbox(self, acts: Acts, **options: Any) -> Any:
        def counted(event: Event[Any]) -> Any:
            self.tries[event.payload["n"]] += 1
            return acts(event)

        self._inboxes.append(receiving(self.door, self.url, counted, **options))
        return self._inboxes[-1]

    def consumer(self, inbox: Any, broker: MemoryBroker | None = None, **more: Any) -> Consumer:
        subscriber = (broker or self.broker).subscriber
        return Consumer(
            inbox,
            lambda: subscriber("billing", [TOPIC]),
            RetryPolicy(retries=2, jitter=0),
            8,
            Topics(),
            self.clock,
            Hooks(lambda moment, facts: self.moments.append((moment, facts))),
            **more,
        )

    async def consume(self, inbox: Any, after: float = 0, **more: Any) -> int:
        self.clock.advance(timedelta(seconds=after))
        return await self.consumer(inbox, **more).run_once(patience=0.02)

    def rows(self, sql: str) -> list[Any]:
        return self.db.execute(sql.encode()).fetchall()

    def applied(self) -> list[int]:
        return [n for (n,) in self.rows("SELECT n FROM effects ORDER BY id")]

    def has_applied(self, n: int) -> bool:
        return n in self.applied()

    def parked(self) -> list[tuple[str, str, int, str]]:
        sql = "SELECT event_id, state, attempts, coalesce(last_error, '') FROM pillarbox_inbox_parked ORDER BY id"
        return [(number_of(id), state, attempts, error) for id, state, attempts, error in self.rows(sql)]

    async def close(self) -> None:
        for inbox in self._inboxes:
            await forget(inbox)
        self.db.close()


@pytest.fixture(params=DOORS, ids=lambda door: door.name)
async def bench(request: pytest.FixtureRequest, migrated: str) -> AsyncIterator[Bench]:
    bench = Bench(migrated, request.param)
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
    bench.db.execute("UPDATE pillarbox_inbox_parked SET state = 'retrying', due_at = now() WHERE state = 'dead'")
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
    assert "accounts_pkey" in error
    assert bench.applied() == []
    assert bench.rows("SELECT 1 FROM pillarbox_inbox") == []


async def test_one_that_swallows_an_error_of_the_database_is_told_so(bench: Bench) -> None:
    bench.broker.receive([message(1)])
    await bench.consume(bench.inbox(lambda event: [effect(event), Swallowed("SELECT 1 / 0")]))
    [(_, state, attempts, error)] = bench.parked()
    assert (state, attempts) == ("retrying", 1)
    assert "swallowed" in error or "aborted" in error or "atomic" in error
    assert bench.applied() == []


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


async def test_a_conflict_is_tried_again_and_counts_nothing(bench: Bench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), CONFLICT if bench.tries[event.payload["n"]] < 8 else None]

    bench.broker.receive([message(1), message(2)])
    assert await bench.consume(bench.inbox(acts)) == 2
    assert bench.applied() == [1, 2]
    assert bench.parked() == []
    assert Moment.STORE_AWAY not in [moment for moment, _ in bench.moments]


class Rival:
    """Holds account 2 and then wants account 1, in a transaction of its own; it waits for long before it looks whether
    that can ever be."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._db = psycopg.connect(url)
        self._db.execute("SET deadlock_timeout = '1 min'")
        self._db.execute("SELECT 1 FROM accounts WHERE id = 2 FOR UPDATE")
        self._waiting = threading.Thread(target=self._want)

    def _want(self) -> None:
        with self._db:  # and it commits
            self._db.execute("SELECT 1 FROM accounts WHERE id = 1 FOR UPDATE")

    def waits(self) -> None:
        """Let it want the other account; come back when it waits for it."""
        self._waiting.start()
        deadline = time.monotonic() + 20
        waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        with psycopg.connect(self._url, autocommit=True) as looking:
            while not looking.execute(waits, [self._db.info.backend_pid]).fetchall():
                assert time.monotonic() < deadline
                time.sleep(0.005)

    def join(self) -> None:
        self._waiting.join(20)
        assert not self._waiting.is_alive()


async def test_a_deadlock_is_tried_again_and_counts_nothing(bench: Bench) -> None:
    bench.db.execute("INSERT INTO accounts VALUES (1), (2)")
    rival = Rival(bench.url)

    def acts(event: Event[Any]) -> list[Act]:
        first = bench.tries[1] == 1
        lock = "SELECT 1 FROM accounts WHERE id = {} FOR UPDATE"
        timeout = "SET LOCAL deadlock_timeout = '10 ms'"
        return [effect(event), timeout, lock.format(1), rival.waits if first else None, lock.format(2)]

    bench.broker.receive([message(1)])
    assert await bench.consume(bench.inbox(acts)) == 1
    rival.join()
    assert (bench.tries[1], bench.applied(), bench.parked()) == (2, [1], [])
    assert Moment.STORE_AWAY not in [moment for moment, _ in bench.moments]


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
    inbox = bench.inbox(lambda event: [effect(event), CLOSE])
    async with asyncio.timeout(20):
        await bench.consume(inbox)
    [(_, state, attempts, error)] = bench.parked()
    assert (state, attempts) == ("retrying", 1), error


@pytest.mark.parametrize("then", ["goes on", "returns", "says so in its own words"])
async def test_one_that_idles_until_the_server_ends_its_session_is_told_so_and_no_outage(
    bench: Bench, then: str
) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        if event.payload["n"] != 1:
            return [effect(event)]
        idle: list[Act] = ["SET LOCAL idle_in_transaction_session_timeout = '10ms'", lambda: time.sleep(0.05)]
        its_own = [RuntimeError("it did not work")] if then.startswith("says") else []
        return [*idle, effect(event)] if then == "goes on" else [effect(event), *idle, *its_own]

    bench.broker.receive([message(1), message(2, "other")])
    consuming = asyncio.create_task(bench.consumer(bench.inbox(acts)).run())
    try:
        async with asyncio.timeout(30):
            while not bench.parked():  # noqa: ASYNC110 - another program writes it
                await asyncio.sleep(0.02)
    finally:
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    assert bench.applied() == [2]
    [(number, state, attempts, error)] = bench.parked()
    assert (number, state, attempts) == ("1", "retrying", 1)
    assert "idle_in_transaction_session_timeout" in error
    assert bench.tries[1] > 1, "once or twice it is bad luck"


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


async def test_what_is_being_handled_is_not_parked(bench: Bench) -> None:
    """One consumer's handler has failed, another one has the same event at work: it waits, and parks nothing."""
    inbox = bench.inbox(lambda event: [RuntimeError("no")])
    bench.broker.receive([message(1)])
    with psycopg.connect(bench.url) as other:
        other.execute("SELECT pillarbox_receive('billing', %s, NULL, 'order', '7', NULL, false)", [id_of(1)])
        consuming = asyncio.create_task(bench.consume(inbox))
        done, _ = await asyncio.wait({consuming}, timeout=0.3)
        assert not done, "it did not wait for the one that is at work"
        other.execute("INSERT INTO effects (n) VALUES (1)")
        other.commit()
    async with asyncio.timeout(20):
        assert await consuming == 0
    assert bench.parked() == []
    assert bench.applied() == [1]


async def test_what_is_being_parked_is_not_handled(bench: Bench) -> None:
    """A copy arrives while another consumer parks the event: it waits, and finds it parked."""
    inbox = bench.inbox(lambda event: [effect(event)])
    bench.broker.receive([message(1), message(2)])
    with psycopg.connect(bench.url) as other:
        other.execute(
            "SELECT pillarbox_park_received('billing', %s, 'dead', '[\"order-events\",\"order\",\"7\"]', NULL, 1, 'no',"
            " NULL, now(), 'order-events', '7', '{}', '', 'order', '7', 'OrderPlaced', NULL, NULL)",
            [id_of(1)],
        )
        consuming = asyncio.create_task(bench.consume(inbox))
        done, _ = await asyncio.wait({consuming}, timeout=0.3)
        assert not done, "it did not wait for the one that parks it"
        other.commit()
    async with asyncio.timeout(20):
        assert await consuming == 0
    assert [one[:2] for one in bench.parked()] == [("1", "dead"), ("2", "blocked")]
    assert bench.applied() == []


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
        return [effect(event), "SELECT 1 / 0" if event.payload["n"] == 7 else None]

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


async def test_what_a_trigger_refuses_at_the_commit_is_the_handlers_failure(bench: Bench) -> None:
    bench.db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'out of stock'; END $$;"
        "CREATE CONSTRAINT TRIGGER stock AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        " WHEN (NEW.n = 1) EXECUTE FUNCTION refuse()"
    )
    bench.broker.receive([message(1), message(2, "8")])
    assert await bench.consume(bench.inbox(lambda event: [effect(event)])) == 1
    [(number, state, _, error)] = bench.parked()
    assert (number, state) == ("1", "retrying")
    assert "refused at the commit" in error
    assert "out of stock" in error
    assert bench.applied() == [2]


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
    bench.db.execute("UPDATE pillarbox_inbox SET handled_at = handled_at - interval '31 days'")
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


LONG = "".join(random.Random(1).choices(string.ascii_letters, k=9000))
ODD: dict[str, dict[str, str]] = {
    **{f"NUL in {name}": {name: "a\0b"} for name in ("id", "type", "aggregate_id", "aggregate_type")},
    **{f"long {name}": {name: LONG} for name in ("id", "type", "aggregate_id", "aggregate_type")},
    "long aggregate with a number": {"aggregate_id": LONG, "number": "1"},
    "NUL in replay": {"pillarbox-replay": "a\0b"},
    "long replay": {"pillarbox-replay": LONG},
}


@pytest.mark.parametrize("bench", [DOORS[0]], ids=lambda door: door.name, indirect=True)
@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_an_odd_message_is_a_dead_letter_and_nobody_else_pays(
    bench: Bench, odd: dict[str, str], stores: bool
) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        return [effect(event), RuntimeError("no") if event.payload["n"] == 1 else None]

    inbox = bench.inbox(acts, replays=True)
    own = message(1)
    bench.broker.receive([own._replace(headers={**own.headers, **odd}), message(3, "9")])
    await bench.consume(inbox, stores=stores)
    assert bench.applied() == [3]
    assert [state for _, state, *_ in bench.parked()] == ["dead"]


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


MEETS = """
    CREATE SEQUENCE meetings;
    CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('meetings') = 1 THEN RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER meet BEFORE INSERT ON pillarbox_inbox_parked FOR EACH ROW EXECUTE FUNCTION meet();
"""


async def test_a_conflict_of_the_books_is_no_outage(bench: Bench) -> None:
    bench.db.execute(MEETS)
    bench.broker.receive([message(1), message(2, "8")])
    await bench.consume(bench.inbox(lambda event: [effect(event), Reject("no") if event.payload["n"] == 1 else None]))
    assert [row[:3] for row in bench.parked()] == [("1", "dead", 1)]
    assert bench.applied() == [2]
    assert bench.rows("SELECT last_value FROM meetings") > [(1,)], "nobody met"
    assert Moment.STORE_AWAY not in [moment for moment, _ in bench.moments]


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
async def test_what_was_dropped_when_it_was_out_is_not_handled(bench: Bench, batch: bool) -> None:
    """The first of an order drops the second, which its consumer has out of the parking lot with it."""
    sql = "UPDATE pillarbox_inbox_parked SET state = 'dropped', settled_at = now() WHERE event_id = %s"

    def acts(event: Event[Any]) -> list[Act]:
        drop = (lambda: bench.db.execute(sql, [id_of(2)])) if event.payload["n"] == 1 else None
        return [effect(event), drop]

    inbox = bench.inbox(acts)
    inbox.handler("OrderShipped", batch=batch)(inbox.handlers["OrderPlaced"].function)
    bench.broker.receive([message(1), *(message(n, type="OrderShipped") for n in (2, 3))])
    await bench.consume(inbox, stores=True)
    assert bench.applied() == [1, 3]
    assert [row[:2] for row in bench.parked()] == [("2", "dropped")]


async def test_a_slow_handler_keeps_nobody_else_waiting_where_events_are_stored(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.inbox.consumer.HOLD_EVERY", 0.01)
    bench, begun, go_on = Bench(migrated, DOORS[0]), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(30)

    inbox = bench.inbox(lambda event: [effect(event), wait if event.payload["n"] == 1 else None])
    bench.broker.receive([message(1, "1")])
    async with asyncio.timeout(25), bench.consumer(inbox, stores=True):
        try:
            await asyncio.to_thread(begun.wait)
            for n in range(2, 12):
                bench.broker.receive([message(n, str(n))])
                await soon(partial(bench.has_applied, n), f"event {n} is handled")
            assert 1 not in bench.applied()
        finally:
            go_on.set()
    assert sorted(bench.applied()) == list(range(1, 12))
    await bench.close()
