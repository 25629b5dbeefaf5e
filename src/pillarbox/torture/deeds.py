"""What can be done on anybody's servers: to processes that the torture has started, and by commands."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pillarbox.torture.cast import Cast, Member
from pillarbox.torture.clocks import Clocks
from pillarbox.torture.faults import Strike
from pillarbox.torture.processes import Process
from pillarbox.torture.stage import Deed
from pillarbox.torture.writer import TOPICS

PAUSE, PRUNE = "pause a topic", "prune"
REPEAT_NOTHING = frozenset(
    (
        *(f"{what} a {who}" for who in ("relay", "consumer") for what in ("kill", "stop")),  # deaths count themselves
        *("freeze a consumer", "replay", PRUNE, PAUSE, "retry dead events", "flush the hint"),
        *("hold a write transaction", "hold a snapshot", "kill the ledger's database"),
        *("set a relay's clock forward", "set a relay's clock back"),
    )
)
"""Faults after which nothing is published again; what a replay repeats, it counts."""


DONE = (0, 4)
"""How a command ends that has done what it was to do, or has found it done."""


class Typed(NamedTuple):
    """A command that is typed, or will be."""

    words: Sequence[str]
    ledger: bool
    insisting: bool


class Command(NamedTuple):
    """A command that has ended: when it ran, how it ended (None if it never did), and what it said."""

    words: tuple[str, ...]
    began_at: float
    ended_at: float
    code: int | None
    process: str
    log: Path


class Operator:
    """Somebody who types commands one after the other. However they end, the tables are what is judged."""

    def __init__(self, start: Callable[..., Process]) -> None:
        self._start = start
        self._coming: list[Typed] = []
        self._running: tuple[Typed, Process, float] | None = None
        self._ended: list[Command] = []

    @property
    def commands(self) -> list[Command]:
        """What was typed, in order; what still runs ends now."""
        running = [] if self._running is None else [self._told(*self._running)]
        return [*self._ended, *running]

    def type(self, *words: str, ledger: bool = False, insisting: bool = False) -> None:
        """Run a command after the ones before, and do not wait for it; `insisting`, until it has done what it says."""
        self._coming.append(Typed(words, ledger, insisting))
        self.look()

    def look(self) -> None:
        """Run the next command, if the one before has ended."""
        if self._running is not None:
            typed, process, _ = self._running
            if process.lives:
                return
            self._ended.append(self._told(*self._running))
            self._running = None
            if typed.insisting and process.code not in DONE:
                self._coming.insert(0, typed)
        if self._coming:
            typed = self._coming.pop(0)
            self._running = typed, self._start(*typed.words, ledger=typed.ledger), time.time()

    def _told(self, typed: Typed, process: Process, began: float) -> Command:
        return Command(tuple(typed.words), began, time.time(), process.code, process.name, process.log)

    @property
    def ended_at(self) -> float:
        """When the last command that has ended did; 0 if none has."""
        return max((one.ended_at for one in self._ended), default=0.0)

    @property
    def is_done(self) -> bool:
        """Nothing is left to type, and the last command has ended."""
        self.look()
        return self._running is None


class Deeds:
    """Does what a strike says to the cast, or lets the operator do it."""

    def __init__(self, cast: Cast, operator: Operator, clocks: Clocks | None) -> None:
        self._cast, self._operator, self._clocks = cast, operator, clocks

    def __call__(self) -> Mapping[str, Deed]:
        """Give every fault that can be made here."""
        deeds = {
            "replay": Deed(
                lambda one: self._type("replay", "--topic", _topic(one), "--since", "2 s", "--yes"), whom=_topic
            ),
            PRUNE: Deed(
                lambda one: self._type("prune", "--set", "retention.published=none", "--yes"),
                whom=lambda one: "the outbox",
            ),
            "retry dead events": Deed(self._retry, whom=lambda one: "the inbox" if _of_inbox(one) else "the outbox"),
            PAUSE: Deed(
                lambda one: self._type("pause", _topic(one), "--why", "torture"),
                lambda one: self._type("resume", _topic(one)),
                whom=_topic,
            ),
        }
        for name, members in (("relay", self._cast.relays), ("consumer", self._cast.consumers)):
            deeds |= _deeds_to(name, members)
        if self._clocks is not None:
            deeds |= self._to(self._clocks)
        return deeds

    def _type(self, *words: str) -> None:
        self._operator.type(*words)

    def _retry(self, strike: Strike) -> None:
        inbox = _of_inbox(strike)
        self._operator.type("dead", "retry", "--all", "--yes", *(["--inbox"] if inbox else []), ledger=inbox)

    def _to(self, clocks: Clocks) -> Mapping[str, Deed]:
        def by(hours: int) -> Callable[[Strike], None]:
            return lambda strike: clocks.set(strike.whom % len(self._cast.relays), hours)

        def whom(strike: Strike) -> str:
            return self._cast.relays[strike.whom % len(self._cast.relays)].process.name

        return {
            "set a relay's clock forward": Deed(by(1), by(0), whom),
            "set a relay's clock back": Deed(by(-1), by(0), whom),
        }


def _deeds_to(name: str, members: Sequence[Member]) -> Mapping[str, Deed]:
    def whom(strike: Strike) -> Member:
        return members[strike.whom % len(members)]

    def called(strike: Strike) -> str:
        return whom(strike).process.name

    return {
        f"kill a {name}": Deed(lambda strike: whom(strike).kill(), whom=called),
        f"stop a {name}": Deed(lambda strike: whom(strike).stop(), whom=called),
        f"freeze a {name}": Deed(lambda strike: whom(strike).freeze(), lambda strike: whom(strike).thaw(), called),
    }


def _of_inbox(strike: Strike) -> bool:
    return strike.whom % 2 == 0


def _topic(strike: Strike) -> str:
    return TOPICS[strike.whom % len(TOPICS)]
