"""Faults: which can strike where, how likely, and the process that they strike."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout, StoreUnavailable
from pillarbox.telemetry.hooks import Facts, Moment
from pillarbox.testing.memory_careful import CRASHES
from tests.simulation.edition import Edition

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE = 3.0
STORE_CALLS = {
    "take": "taken",
    "renew": "renewed",
    "release": "released",
    "entries": "entries read",
    "settle": "settled",
    "prune": "pruned",
    "replay": "replayed",
}
INBOX_CALLS = {"inbox begins": "inbox committed"}
RELAY_MOMENTS = (
    Moment.LANES_TAKEN, Moment.ENTRIES_READ, Moment.BEFORE_SEND, Moment.SENT, Moment.ANSWERED, Moment.SETTLING,
    Moment.SETTLED, Moment.LEASE_RENEWED, Moment.LANES_RELEASED, Moment.TOPIC_AWAY, Moment.TOPIC_BACK, Moment.PRUNED,
)  # fmt: skip
SINCE = dict.fromkeys(("prune", "pruned", "replay", "replayed", Moment.PRUNED), Edition.OPERATED)
"""Points that older worlds do not have."""
RARE = (Moment.PRUNED, Moment.TOPIC_BACK, Moment.LANES_RELEASED, Moment.STORED, Moment.PARKED)
"""Moments that come seldom: there a crash is likelier."""
LIKELIER: dict[str, float] = dict.fromkeys(RARE, 5)
LIKELIER_IN_SHORT_WORLDS = LIKELIER | {
    Moment.LEASE_RENEWED: 5, Moment.LANES_TAKEN: 3, Moment.TOPIC_AWAY: 15, Moment.TOPIC_BACK: 25, Moment.PARKED: 25,
}  # fmt: skip
TOPIC_FAILURES: dict[str, Callable[[str], PublishError]] = {
    "does not answer": BrokerUnavailable,
    "answers too late": PublishTimeout,
    "refuses": PublishRejected,
    "asks to try again": PublishError,
}
"""How one topic may be down while others are not."""
WHILE_HELD = ("crash", "pause", "lost lease", "store error", "lost answer", "broker", "operator")
"""What else must have struck while a relay held a topic."""
WHILE_PAUSED = ("crash", "pause", "lost lease", "store error", "lost answer", "broker")
"""What must have struck while a topic was paused, and a detour kept its place; and while relays went carefully."""
CONSUMER_MOMENTS = (
    Moment.DELIVERED,
    Moment.STORED, Moment.MARKED, Moment.HANDLED, Moment.COMMITTED, Moment.PARKED, Moment.ACKNOWLEDGED,
)  # fmt: skip
STRUCK = frozenset((*RELAY_MOMENTS, *CONSUMER_MOMENTS))
OPERATOR = ("pause", "resume", "retry", "drop", "replay", "replay again", "stop relay", "stop consumer")


@dataclass(frozen=True)
class Odds:
    """How often each fault strikes, per point."""

    crash: float = 0.01
    pause: float = 0.01
    store_error: float = 0.02
    lost_answer: float = 0.02
    lost_lease: float = 0.01


def expected() -> list[tuple[str, str]]:
    """List every fault at every point; each must strike at least once in a whole suite."""
    begins = [*STORE_CALLS, *INBOX_CALLS]
    ends = [*STORE_CALLS.values(), *INBOX_CALLS.values()]
    found = [("crash", point) for point in (*begins, *ends, *RELAY_MOMENTS, *CONSUMER_MOMENTS)]
    found += [("crash", "deadly event"), ("careful mode", "convicts")]
    found += [("crash", "handed over"), ("crash", "stored by broker"), ("pause", "handed over")]
    found += [(fault, point) for point in (*begins, *ends) for fault in ("pause", "lost lease")]
    found += [("store error", point) for point in begins]
    found += [("lost answer", point) for point in (*ends, "stored by broker")]
    found += [("broker", what) for what in ("outage", "cut", "try again")]
    found += [("operator", what) for what in OPERATOR]
    found += [("topic", how) for how in TOPIC_FAILURES]
    found += [("while a topic is held", fault) for fault in WHILE_HELD]
    found += [(when, fault) for when in ("while a topic is paused", "in careful mode") for fault in WHILE_PAUSED]
    return [*found, ("handler", "raises")]


class Life:
    """One life of a process: faults strike it until it is dead, and nothing that it does then has an effect."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.death = asyncio.Event()
        self.held: set[str] = set()
        """The topics that it reads around because they fail."""
        self._frozen_until = 0.0

    @property
    def dead(self) -> bool:
        return self.death.is_set()

    def die(self) -> None:
        self.death.set()

    def chance(self, fault: str, point: str, odds: float) -> bool:
        """Decide whether a fault strikes here, and count it."""
        if self.world.quiet or self.dead or self.world.random.random() >= odds:
            return False
        self.world.hits[fault, str(point)] += 1
        if self.held:
            self.world.hits["while a topic is held", fault] += 1
        if self.world.database.pauses:
            self.world.hits["while a topic is paused", fault] += 1
        if any(lane.crashes >= CRASHES for lane in self.world.database.lanes):
            self.world.hits["in careful mode", fault] += 1
        return True

    def hear(self, moment: Moment, facts: Facts) -> None:
        """A named moment: the process may die in it."""
        if moment is Moment.TOPIC_AWAY:
            self.held.add(str(facts["topic"]))
        elif moment is Moment.TOPIC_BACK:
            self.held.discard(str(facts["topic"]))
        likelier = LIKELIER_IN_SHORT_WORLDS if self.world.edition >= Edition.OPERATED else LIKELIER
        odds = self.world.odds.crash * likelier.get(moment, 1)
        if moment in STRUCK and self._exists(moment) and self.chance("crash", moment, odds):
            self.die()

    def _exists(self, point: str) -> bool:
        return self.world.edition >= SINCE.get(point, Edition.FIRST)

    async def strike(self, point: str) -> None:
        """A call of the database begins or ends."""
        if not self._exists(point):
            return
        odds, world = self.world.odds, self.world
        if self.chance("crash", point, odds.crash):
            self.die()
        if self.chance("pause", point, odds.pause):
            self._frozen_until = world.clock.elapsed + world.random.choice(world.naps) * LEASE
        if self.chance("lost lease", point, odds.lost_lease):
            for member in world.database.members.values():
                member.lease_until = world.clock.now()
        if (wait := self._frozen_until - world.clock.elapsed) > 0:
            await asyncio.sleep(wait)
        if self.dead:
            raise asyncio.CancelledError("this process is dead")
        if point in STORE_CALLS or point in INBOX_CALLS:
            if self.chance("store error", point, odds.store_error):
                raise StoreUnavailable("simulated: the database does not answer")
        elif self.chance("lost answer", point, odds.lost_answer):
            raise StoreUnavailable("simulated: done, but the answer was lost")
