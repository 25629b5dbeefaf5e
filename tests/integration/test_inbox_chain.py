"""From inbox to outbox, through every door: a handler's event, its effect and the inbox's note are one transaction.

Events are numbered, so that one which was undone and counted all the same would leave a gap.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.errors import Reject
from pillarbox.inbox.consumer import Consumer
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock
from tests.integration.inbox_bench import looking_on
from tests.integration.receiving_doors import PLACES, Act, Acts, Door, forget, receiving, where_of
from tests.unit.consumer_bench import TOPIC, message, number_of

ADDED = "SELECT CAST(payload AS text), aggregate_id, number FROM pillarbox_outbox ORDER BY id"


class Chain:
    """A consumer whose handler writes an effect and adds an event, on PostgreSQL or on SQLite; `db` looks on."""

    def __init__(self, where: str, door: Door, db: Any) -> None:
        self.where, self.door, self.db = where, door, db
        self.clock, self.broker = ManualClock(), MemoryBroker()
        self.tries: Counter[int] = Counter()
        self.shared: list[object] = []
        """How many events each shared transaction had."""
        db.execute("CREATE TABLE effects (n int)")

    def inbox(self, then: Acts, **options: Any) -> Any:
        """Make an inbox whose handler bills, says so, and does what `then` says."""

        def acts(event: Event[Any]) -> Sequence[Act]:
            n = event.payload["n"]
            self.tries[n] += 1
            billed: Event[Any] = Event("Billed", {"n": n}, aggregate=event.aggregate, numbered=True)
            return [f"INSERT INTO effects VALUES ({n})", billed, *then(event)]

        return receiving(self.door, self.where, acts, **options)

    async def consume(self, then: Acts, *, after: float = 0, **options: Any) -> int:
        inbox = self.inbox(then, **options)
        self.clock.advance(timedelta(seconds=after))
        consumer = Consumer(
            inbox,
            lambda: self.broker.subscriber("billing", [TOPIC]),
            RetryPolicy(retries=2, jitter=0),
            8,
            Topics(),
            self.clock,
            Hooks(self._hear),
        )
        try:
            return await consumer.run_once(patience=0.02)
        finally:
            await forget(inbox)

    def _hear(self, moment: Moment, facts: Facts) -> None:
        if moment is Moment.COMMITTED and "count" in facts:
            self.shared.append(facts["count"])

    def check(self, *numbers: int) -> None:
        """Check that exactly these were handled: of each an effect, an event and a note, and no number is missing."""
        effects = sorted(n for (n,) in self.db.execute("SELECT n FROM effects"))
        notes = sorted(int(number_of(str(id))) for (id,) in self.db.execute("SELECT event_id FROM pillarbox_inbox"))
        added = self.db.execute(ADDED).fetchall()
        assert effects == list(numbers)
        assert notes == list(numbers)
        assert sorted(json.loads(payload)["n"] for payload, _, _ in added) == list(numbers)
        for order in {order for _, order, _ in added}:
            counted = [number for _, one, number in added if one == order]
            assert counted == list(range(1, len(counted) + 1))


@pytest.fixture(params=PLACES)
async def chain(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Chain]:
    database, door = request.param
    where = where_of(database, request, tmp_path)
    with closing(looking_on(where)) as db:
        yield Chain(where, door, db)


def nothing_more(event: Event[Any]) -> Sequence[Act]:
    return []


async def test_effect_event_and_note_are_committed_together_and_a_copy_adds_nothing(chain: Chain) -> None:
    messages = [message(n, str(n % 3)) for n in range(9)]
    chain.broker.receive(messages + messages)
    assert await chain.consume(nothing_more) == 9
    chain.broker.receive(messages)
    assert await chain.consume(nothing_more) == 0
    chain.check(*range(9))


async def test_a_handler_that_fails_after_it_added_leaves_nothing_and_adds_once_when_it_succeeds(chain: Chain) -> None:
    def fails_once(event: Event[Any]) -> Sequence[Act]:
        return [RuntimeError("no") if event.payload["n"] == 1 and chain.tries[1] == 1 else None]

    chain.broker.receive([message(1), message(2), message(3, "8")])
    assert await chain.consume(fails_once) == 1
    chain.check(3)
    assert await chain.consume(fails_once, after=2) == 2
    assert chain.tries[1] == 2
    chain.check(1, 2, 3)


async def test_a_handler_that_rejects_after_it_added_leaves_no_event(chain: Chain) -> None:
    def rejects(event: Event[Any]) -> Sequence[Act]:
        return [Reject("no") if event.payload["n"] == 1 else None]

    chain.broker.receive([message(1), message(2, "8")])
    assert await chain.consume(rejects) == 1
    chain.check(2)


async def test_events_that_share_a_transaction_add_theirs_in_it(chain: Chain) -> None:
    messages = [message(n, str(n % 3)) for n in range(30)]
    chain.broker.receive(messages + messages)
    assert await chain.consume(nothing_more, batch=True) == 30
    assert chain.shared
    chain.check(*range(30))


async def test_one_that_fails_in_a_shared_transaction_leaves_no_event_and_the_others_one_each(chain: Chain) -> None:
    def fails(event: Event[Any]) -> Sequence[Act]:
        return [RuntimeError("no") if event.payload["n"] == 7 else None]

    chain.broker.receive([message(n, str(n % 3)) for n in range(12)])
    assert await chain.consume(fails, batch=True) == 10
    assert chain.tries[7] == 2, "it failed with others, and then alone"
    chain.check(0, 1, 2, 3, 4, 5, 6, 8, 9, 11)
    assert await chain.consume(nothing_more, after=2, batch=True) == 2
    chain.check(*range(12))
