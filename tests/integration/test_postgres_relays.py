"""Relays on one PostgreSQL: who has lost its lanes changes nothing any more; an idle one hears the bell; none keeps a
transaction open while it publishes."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from pillarbox import Event, Settings
from pillarbox.core.message import Message
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.ports import Retention
from pillarbox.psycopg import Outbox
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay
from tests.conftest import EVERY_POSTGRES
from tests.integration.postgres_world import EPOCHS_UNCHECKED, PATIENCE, Mutant, SlowRelay, add, migrate, run, soon

pytestmark = pytest.mark.parametrize("database", EVERY_POSTGRES, indirect=True)

EVENTS = [f"event-{n}" for n in range(10)]


async def sent_again_after_two_of_one_name(database: str, mutant: Mutant | None = None) -> list[str]:
    """Let a second relay of the same name take over and finish while the first one publishes; give what a third one
    sends again after the first one has tried to settle."""
    await migrate(database)
    if mutant is not None:
        mutant.install(database)
    add(database, *EVENTS)
    async with SlowRelay(database, "twin") as first, SlowRelay(database, "twin") as second:
        await first.store.take()
        begun = await first.read(5)
        await second.store.take()
        await second.carry()
        assert second.wire == EVENTS
        with suppress(LaneLost):
            await first.settle(begun)
        await second.store.release()
    async with SlowRelay(database, "third") as third:
        await third.carry()
        return third.wire


async def test_of_two_relays_with_one_name_the_first_settles_nothing_any_more(database: str) -> None:
    assert await sent_again_after_two_of_one_name(database) == []


async def test_without_epochs_it_would_turn_the_position_back(database: str) -> None:
    assert await sent_again_after_two_of_one_name(database, EPOCHS_UNCHECKED) == EVENTS[5:]


async def test_two_relays_with_one_name_publish_everything_in_order(database: str) -> None:
    await migrate(database)
    async with SlowRelay(database, "twin") as first, SlowRelay(database, "twin") as second:
        for relay, names in ((first, EVENTS[:3]), (second, EVENTS[3:6]), (first, EVENTS[6:])):
            add(database, *names)
            await relay.carry()
    assert [*first.wire[:3], *second.wire, *first.wire[3:]] == EVENTS


async def test_a_relay_that_has_connected_anew_is_not_taken_for_dead(database: str) -> None:
    await migrate(database)
    async with SlowRelay(database, "first") as first, SlowRelay(database, "second") as second:
        await first.store.take()
        run(database, "SELECT pg_terminate_backend(pid, 5000) FROM pillarbox_relays")
        with pytest.raises(StoreUnavailable):
            await first.store.renew(None)
        await first.store.renew(None)
        assert (await second.store.take()).lanes == frozenset()


async def test_relays_that_start_at_the_same_time_take_no_lane_from_each_other(database: str) -> None:
    await migrate(database)
    for _ in range(60):  # without the lock in pillarbox_take, every twentieth time
        run(database, "UPDATE pillarbox_lanes SET owner = NULL")
        run(database, "DELETE FROM pillarbox_relays")
        async with SlowRelay(database, "first") as first, SlowRelay(database, "second") as second:
            await asyncio.gather(first.store.take(), second.store.take())
            await asyncio.gather(first.store.renew(None), second.store.renew(None))  # raises if a lane was lost
    assert run(database, "SELECT max(crashes) FROM pillarbox_lanes") == [(0,)]


async def test_running_once_carries_everything_although_relays_died_before(database: str) -> None:
    await migrate(database)
    many = [f"event-{n}" for n in range(60)]
    add(database, *many)
    run(database, "UPDATE pillarbox_lanes SET owner = 'dead', crashes = 5")
    published: list[str] = []

    async def publish(messages: Sequence[Message]) -> None:
        published.extend(message.headers["type"] for message in messages)

    assert await Relay(database=database, publish=publish).run_once() == 60
    assert published == many


class IdleRelay:
    """A relay that looks again after an hour, unless it is rung; and what it has read and published."""

    def __init__(self, database: str) -> None:
        hour = timedelta(hours=1)
        settings = replace(Settings(), relay=RelaySettings(idle_first=hour, idle_longest=hour))
        self.published: list[str] = []
        self.has_read = asyncio.Event()
        self.relay = Relay(settings, database=database, publish=self._publish, hooks=Hooks(self._note))
        self._database = database

    async def falls_idle(self) -> None:
        """Wait until it does not look any more: it begins to listen as its first nap begins."""
        listens = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
            " AND application_name = 'pillarbox doorbell' AND query LIKE 'LISTEN%'"
        )
        await soon(lambda: run(self._database, listens) != [], "the relay listens")

    def _publish(self, messages: list[Message]) -> None:
        self.published += [message.headers["type"] for message in messages]

    def _note(self, moment: Moment, facts: Facts) -> None:
        if moment is Moment.ENTRIES_READ:
            self.has_read.set()


def write(database: str, name: str, *, notify: bool) -> None:
    with psycopg.connect(database) as connection:
        Outbox(topic="orders", notify=notify).add(connection, Event(name, {}, aggregate=("order", "1")))


async def test_an_idle_relay_hears_a_writer_that_rings(database: str) -> None:
    await migrate(database)
    idle = IdleRelay(database)
    async with idle.relay:
        await idle.falls_idle()
        write(database, "Rung", notify=True)
        await soon(lambda: idle.published == ["Rung"], "it is published")


async def test_an_idle_relay_does_not_notice_a_writer_that_does_not_ring(database: str) -> None:
    await migrate(database)
    idle = IdleRelay(database)
    async with idle.relay:
        await idle.falls_idle()
        write(database, "Quiet", notify=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(idle.has_read.wait(), 1)
        write(database, "Rung", notify=True)
        await soon(lambda: idle.published == ["Quiet", "Rung"], "both are published")


async def test_no_transaction_is_open_during_a_publish(database: str) -> None:
    await migrate(database)
    add(database, *EVENTS)
    running: list[tuple[str, str]] = []
    left: list[list[tuple[str, str]]] = []

    def publish(messages: list[Message]) -> None:
        # The next batch is read meanwhile, by a statement that is a transaction of its own and ends by itself. One that
        # is kept open until this returns does not, however long this looks.
        deadline = time.monotonic() + PATIENCE / 10
        while (found := open_transactions(database)) and time.monotonic() < deadline:
            running.extend(found)
        left.append(found)

    settings = replace(Settings(), relay=RelaySettings(batch=2))
    await Relay(settings, database=database, publish=publish).run_once()
    assert len(left) >= 5
    assert not any(left)
    assert {state for _, state in running} <= {"active"}


def open_transactions(database: str) -> list[tuple[str, str]]:
    """Give name and state of our backends that are in a transaction."""
    found = run(
        database,
        "SELECT application_name, state FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'pillarbox%' AND xact_start IS NOT NULL",
    )
    return [(name, state) for name, state in found]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_two_relays_work_where_transactions_are_stricter_unless_said_otherwise(database: str, level: str) -> None:
    await migrate(database)
    name = database.rpartition("/")[2]
    run(database, f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    assert run(database, "SHOW transaction_isolation") == [(level,)]
    async with SlowRelay(database, "first") as first, SlowRelay(database, "second") as second:
        await first.store.take()
        add(database, *EVENTS[:5])
        await first.carry()
        await asyncio.gather(first.store.renew(None), second.store.renew(None), return_exceptions=True)
        await first.store.release()
        await second._take_again()
        add(database, *EVENTS[5:])
        await second.carry()
        assert [*first.wire, *second.wire] == EVENTS
        await second.store.release()
        assert await second.store.prune(Retention(timedelta(0), timedelta(0), timedelta(0))) >= len(EVENTS)
    assert run(database, "SELECT 1 FROM pillarbox_outbox") == []
