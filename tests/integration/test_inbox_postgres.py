"""Receiving on PostgreSQL, through every door: what other databases do not have. The rest is in test_inbox_doors.py."""

import asyncio
import random
import string
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import psycopg
import pytest

from pillarbox.core.event import Event
from pillarbox.errors import Reject
from pillarbox.telemetry.hooks import Moment
from tests.integration.inbox_bench import Bench, effect
from tests.integration.postgres_world import soon
from tests.integration.receiving_doors import DOORS, Act, Swallowed
from tests.unit.consumer_bench import id_of, message

CONFLICT = "DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END $$"


@pytest.fixture(params=DOORS, ids=lambda door: door.name)
async def bench(request: pytest.FixtureRequest, migrated: str) -> AsyncIterator[Bench]:
    bench = Bench(migrated, request.param)
    yield bench
    await bench.close()


async def test_one_that_swallows_an_error_of_the_database_is_told_so(bench: Bench) -> None:
    bench.broker.receive([message(1)])
    await bench.consume(bench.inbox(lambda event: [effect(event), Swallowed("SELECT 1 / 0")]))
    [(_, state, attempts, error)] = bench.parked()
    assert (state, attempts) == ("retrying", 1)
    assert "swallowed" in error or "aborted" in error or "atomic" in error
    assert bench.applied() == []


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


@pytest.mark.parametrize("then", ["goes on", "returns", "returns after it has awaited", "says so in its own words"])
async def test_one_that_idles_until_the_server_ends_its_session_is_told_so_and_no_outage(
    bench: Bench, then: str
) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        if event.payload["n"] != 1:
            return [effect(event)]
        # While it awaits, the loop hears of the end of the session before the handler has returned.
        wait = asyncio.sleep if inbox.is_async and then.endswith("awaited") else time.sleep
        idle: list[Act] = ["SET LOCAL idle_in_transaction_session_timeout = '10ms'", lambda: wait(0.1)]
        its_own = [RuntimeError("it did not work")] if then.startswith("says") else []
        return [*idle, effect(event)] if then == "goes on" else [effect(event), *idle, *its_own]

    inbox = bench.inbox(acts)
    bench.broker.receive([message(1), message(2, "other")])
    await bench.consume_until_parked(inbox)
    assert bench.applied() == [2]
    [(number, state, attempts, error)] = bench.parked()
    assert (number, state, attempts) == ("1", "retrying", 1)
    assert "idle_in_transaction_session_timeout" in error
    assert bench.tries[1] > 1, "once or twice it is bad luck"


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
