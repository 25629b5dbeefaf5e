"""Several relays on one PostgreSQL: who has lost its lanes changes nothing any more."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from pillarbox.core.message import Message
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.wiring import Relay
from tests.integration.postgres_world import EPOCHS_UNCHECKED, Mutant, SlowRelay, add, migrate, run

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
