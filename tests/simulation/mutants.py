"""Ways to break the promise. The simulation must find each of them, or it proves nothing."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from unittest import mock
from weakref import WeakSet

from pillarbox.core.message import Delivery
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.routing import Line
from pillarbox.core.window import Settlement, Window
from pillarbox.ports import Replay
from pillarbox.relay.chores import Lease
from pillarbox.relay.pump import Pump
from pillarbox.testing.memory import Row
from pillarbox.testing.memory_careful import MemoryCareful
from pillarbox.testing.memory_records import MemoryStore
from pillarbox.testing.memory_source import MemorySource
from tests.simulation.consumers import SimulatedSubscriber

Mutant = Callable[[], Any]


@contextmanager
def drop_the_fence() -> Iterator[None]:
    """A relay goes on with lanes that another has taken."""
    with (
        mock.patch.object(MemorySource, "_fence", return_value=None),
        mock.patch.object(MemorySource, "_notice", return_value=None),
        mock.patch.object(Lease, "check", return_value=None),
    ):
        yield


@contextmanager
def settle_before_the_acknowledgement() -> Iterator[None]:
    """What was handed over counts as published."""
    send = Pump._send

    def send_and_settle(self: Pump) -> None:
        ready = self._window.ready

        def remember(blocked: Container[Line], gate: Any = None) -> Sequence[tuple[int, Any]]:
            going = ready(blocked, gate)
            self._encoding.unsendable += [(ticket, PUBLISHED) for ticket, _ in going]
            return going

        with mock.patch.object(self._window, "ready", remember):
            send(self)

    with mock.patch.object(Pump, "_send", send_and_settle):
        yield


@contextmanager
def advance_past_an_unacknowledged_entry() -> Iterator[None]:
    """The position moves over what is still in flight."""
    prefix = Window._prefix

    def careless(self: Any, blocked: Container[Line]) -> list[Settlement[Any]]:
        if self._log and self._log[0].flying:
            self._land(self._log[0], PUBLISHED)
        return prefix(self, blocked)

    with mock.patch.object(Window, "_prefix", careless):
        yield


@contextmanager
def acknowledge_before_the_commit() -> Iterator[None]:
    """What was delivered counts as handled."""
    deliveries = SimulatedSubscriber.deliveries

    async def eager(self: SimulatedSubscriber, room: int, patience: float) -> Sequence[Delivery]:
        found = await deliveries(self, room, patience)
        await self._subscriber.acknowledge(found)
        return found

    with mock.patch.object(SimulatedSubscriber, "deliveries", eager):
        yield


@contextmanager
def try_what_is_refused_for_ever() -> Iterator[None]:
    """What was tried and refused goes back uncounted, to be tried again."""
    recall = Window.recall

    def all_of_them(self: Window[Any], which: Callable[[Any], bool], tried: int = 0) -> list[Any]:
        return recall(self, which)

    with mock.patch.object(Window, "recall", all_of_them):
        yield


@contextmanager
def prune_by_age_alone() -> Iterator[None]:
    """What is old is pruned, settled or not."""

    def is_old(self: MemoryStore, row: Row, before: datetime) -> bool:
        return row.entry.created_at <= before

    with mock.patch.object(MemoryStore, "_settled_before", is_old):
        yield


@contextmanager
def take_replays_for_copies() -> Iterator[None]:
    """The id of a replay is no part of what the inbox remembers."""
    with mock.patch.object(Delivery, "replay", None):
        yield


@contextmanager
def forget_how_far_a_replay_is() -> Iterator[None]:
    """A replay that somebody else goes on with begins anew."""
    replay, heard_of = MemoryStore.replay, WeakSet[MemoryStore]()

    async def anew(self: MemoryStore, id: str) -> Replay | None:
        if self not in heard_of:
            heard_of.add(self)
            row = self.database.replays[id]
            row.replay = replace(row.replay, place=row.replay.first)
        return await replay(self, id)

    with mock.patch.object(MemoryStore, "replay", anew):
        yield


@contextmanager
def never_be_careful() -> Iterator[None]:
    """An event that kills every relay is never found."""
    with mock.patch.object(MemoryCareful, "lanes", frozenset()):
        yield


MUTANTS: list[Mutant] = [
    drop_the_fence,
    settle_before_the_acknowledgement,
    advance_past_an_unacknowledged_entry,
    acknowledge_before_the_commit,
    try_what_is_refused_for_ever,
    prune_by_age_alone,
    take_replays_for_copies,
    forget_how_far_a_replay_is,
    never_be_careful,
]
