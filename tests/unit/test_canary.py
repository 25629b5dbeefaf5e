"""The canary: when a relay sends one, and who of several does."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox import Settings
from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.canary import CANARY
from pillarbox.core.event import Event
from pillarbox.errors import StoreError
from pillarbox.ports import CanarySeen, Stats
from pillarbox.relay.canary import next_of
from pillarbox.relay.relay import Parts, Relay
from pillarbox.settings import HealthSettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.telemetry.probes import AwaitedCanary
from pillarbox.testing.clock import ManualClock, simulate
from pillarbox.testing.memory import MemoryDatabase
from pillarbox.testing.memory_records import MemoryStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("status", "age", "then"),
    [
        ("published", 59, "wait"),
        ("published", 60, "add"),
        ("dropped", 60, "add"),
        ("pending", 6000, "wait"),
        ("retrying", 6000, "wait"),
        ("delayed", 6000, "wait"),
        ("dead", 59, "wait"),
        ("dead", 60, "retry"),
    ],
)
def test_the_next_canary_goes_when_the_last_one_is_out_and_its_time_has_come(status: str, age: int, then: str) -> None:
    seen = CanarySeen("id", NOW - timedelta(seconds=age), status)  # type: ignore[arg-type]
    assert next_of(seen, NOW, MINUTE) == then


def test_the_first_one_goes_at_once() -> None:
    assert next_of(None, NOW, MINUTE) == "add"


class Coop:
    """A database with relays that send canaries, on a manual clock."""

    def __init__(self, kind: type[MemoryStore] = MemoryStore) -> None:
        self.clock, self.broker, self._kind = ManualClock(), MemoryBroker(), kind
        self.database = MemoryDatabase(self.clock)
        self.refused: list[Facts] = []

    def relay(self, name: str) -> Relay:
        settings = Settings(health=HealthSettings(canary=MINUTE))
        hooks = Hooks(lambda moment, facts: self.refused.append(facts) if moment is Moment.CANARY_REFUSED else None)
        parts = Parts(self._kind(self.database, name, lease=settings.relay.lease), self.broker.publisher())
        return Relay(lambda: parts, settings, self.clock, hooks)

    @property
    def canaries(self) -> int:
        return sum(row.entry.event_type == CANARY for row in self.database.rows)


def test_several_relays_send_one_canary_an_interval_from_the_one_with_the_first_lane() -> None:
    first: list[bool] = []

    class Notes(MemoryStore):
        async def stats(self) -> Stats:  # nobody but the canary asks
            first.append(0 in self._memory.epochs)
            return await super().stats()

    coop = Coop(Notes)

    async def sing() -> None:
        async with coop.relay("a"), coop.relay("b"), coop.relay("c"):
            await asyncio.sleep(600)

    simulate(sing(), coop.clock)
    assert 9 <= coop.canaries <= 11
    assert all(first)


def test_relay_once_sends_none() -> None:
    coop = Coop()
    simulate(coop.relay("a").run_once(), coop.clock)
    assert coop.canaries == 0


def test_a_relay_that_may_not_add_events_says_so_once_and_goes_on() -> None:
    class Refuses(MemoryStore):
        async def add_canary(self, event: Event[object]) -> None:
            raise StoreError("permission denied for table pillarbox_outbox")

    coop = Coop(Refuses)

    async def sing() -> None:
        async with coop.relay("a"):
            await asyncio.sleep(600)

    simulate(sing(), coop.clock)
    assert [facts["error"] for facts in coop.refused] == ["permission denied for table pillarbox_outbox"]


async def test_a_consumer_misses_a_canary_that_does_not_come() -> None:
    now = 0.0
    awaited = AwaitedCanary(10, lambda: now)
    now = 10.0
    assert await awaited.problems() == []
    now = 10.1
    assert await awaited.problems() == ["canary"]
    awaited(Moment.COMMITTED, {"type": "OrderPlaced"})
    assert await awaited.problems() == ["canary"]
    awaited(Moment.COMMITTED, {"type": CANARY})
    assert await awaited.problems() == []
