"""Relays in a simulated world: the real relay, between the memory store and a network that is not to be trusted."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from pillarbox.core.message import Message, identity
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout
from pillarbox.ports import Outcome
from pillarbox.relay.relay import Parts, Relay
from pillarbox.settings import RelaySettings, RetentionSettings, Settings
from pillarbox.telemetry.hooks import Hooks
from tests.simulation.edition import Edition
from tests.simulation.faults import LEASE, Life

if TYPE_CHECKING:
    from tests.simulation.world import World

SETTINGS = Settings(
    relay=RelaySettings(
        batch=8,
        lease=timedelta(seconds=LEASE),
        publish_timeout=timedelta(seconds=2),
        idle_longest=timedelta(milliseconds=400),
        retries=2,
        backoff_first=timedelta(seconds=0.5),
        backoff_longest=timedelta(seconds=1),
    )
)


def settings_of(world: "World") -> Settings:
    """Give what a world's relays are set to."""
    if world.edition < Edition.OPERATED:
        return SETTINGS
    return replace(SETTINGS, retention=RetentionSettings(published=timedelta(seconds=2), archive=world.archive))


class RelayLife(Life):
    """One life of a relay's process."""

    def __init__(self, world: "World", owner: str) -> None:
        super().__init__(world)
        self.store = world.parts.store(
            world.database, owner, lease=SETTINGS.relay.lease, hooks=Hooks(self.hear), strike=self.strike
        )
        self.publisher = SimulatedPublisher(self)
        self.daemon = Relay(
            lambda: Parts(self.store, self.publisher),
            settings_of(world),
            world.clock,
            Hooks(self.hear),
            world.random.random,
        )

    def die(self) -> None:
        super().die()
        self.store.crash()


class SimulatedPublisher:
    """A broker at the other end of a network that delays, loses answers and goes away."""

    def __init__(self, life: RelayLife) -> None:
        self._life, self._world = life, life.world
        self._answers: asyncio.Queue[Sequence[Outcome]] = asyncio.Queue()
        self._before: asyncio.Task[None] | None = None

    @property
    def prefix_safe(self) -> bool:
        return self._world.prefix_safe

    def send(self, messages: Sequence[Message]) -> None:
        if any(identity(message)[0] in self._world.deadly for message in messages):
            self._world.hits["crash", "deadly event"] += 1
            self._life.die()
        if not self._life.dead:
            # One connection: what was handed over first arrives first.
            self._before = asyncio.create_task(self._travel(messages, self._before))
            self._world.travelling.add(self._before)
            self._before.add_done_callback(self._world.travelling.discard)

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = [*await self._answers.get()]
        while not self._answers.empty():
            outcomes += self._answers.get_nowait()
        return outcomes

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def _travel(self, messages: Sequence[Message], before: asyncio.Task[None] | None) -> None:
        """Bring messages to the broker, perhaps long after the lease has run out, and the answer back."""
        world, life = self._world, self._life
        if before is not None:
            await before
        slow = life.chance("pause", "handed over", world.odds.pause)
        await asyncio.sleep(world.random.choice(world.naps) * LEASE if slow else world.random.random() * 0.02)
        if life.chance("crash", "handed over", world.odds.crash):
            life.die()
            if world.random.random() < 0.5:
                return  # it never left the machine
        if world.clock.elapsed < world.down_until:
            self._answer([Outcome(m.ticket, BrokerUnavailable("simulated: away")) for m in messages])
            return
        outcomes = self._store(messages)
        if life.chance("crash", "stored by broker", world.odds.crash):
            life.die()
        if life.chance("lost answer", "stored by broker", world.odds.lost_answer):
            lost: PublishError = world.random.choice((BrokerUnavailable("answer lost"), PublishTimeout("answer lost")))
            outcomes = [Outcome(ticket, error or lost) for ticket, error in outcomes]
        self._answer(outcomes)

    def _store(self, messages: Sequence[Message]) -> list[Outcome]:
        """Accept messages; of one key, nothing behind a refusal if we are prefix-safe."""
        outcomes, refused = [], set()
        cut = self._life.chance("broker", "cut", 0.03)
        last = self._world.random.randrange(len(messages)) if cut else len(messages)
        for index, message in enumerate(messages):
            key = (message.topic, message.key)
            behind = self.prefix_safe and message.key is not None and key in refused
            error = BrokerUnavailable("simulated: cut") if index >= last or behind else self._judge(message)
            if error is None:
                self._world.broker.store(message)
            else:
                refused.add(key)
            outcomes.append(Outcome(message.ticket, error))
        self._world.broker.wake()
        return outcomes

    def _judge(self, message: Message) -> PublishError | None:
        if (down := self._world.topic_failure(message.topic)) is not None:
            return down
        if identity(message)[0] in self._world.poison:
            return PublishRejected("simulated: too large")
        if self._life.chance("broker", "try again", 0.02):
            return PublishError("simulated: try again")
        return None

    def _answer(self, outcomes: Sequence[Outcome]) -> None:
        if not self._life.dead:
            self._answers.put_nowait(outcomes)
