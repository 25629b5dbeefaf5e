"""What can be done on anybody's servers: to processes that the torture has started, and by commands."""

from collections.abc import Callable, Mapping, Sequence

from pillarbox.torture.cast import Cast, Member
from pillarbox.torture.clocks import Clocks
from pillarbox.torture.faults import Strike
from pillarbox.torture.processes import Process
from pillarbox.torture.stage import Deed
from pillarbox.torture.writer import TOPICS

REPEAT_NOTHING = frozenset(
    (
        *(f"{what} a {who}" for who in ("relay", "consumer") for what in ("kill", "stop")),  # deaths count themselves
        *("freeze a consumer", "replay", "prune", "pause a topic", "retry dead events", "flush the hint"),
        *("hold a write transaction", "hold a snapshot", "kill the ledger's database"),
        *("set a relay's clock forward", "set a relay's clock back"),
    )
)
"""Faults after which nothing is published again; what a replay repeats, it counts."""


class Operator:
    """Somebody who types commands one after the other. However they end, the tables are what is judged."""

    def __init__(self, start: Callable[..., Process]) -> None:
        self._start = start
        self._coming: list[Callable[[], Process]] = []
        self._running: Process | None = None

    def type(self, *words: str, ledger: bool = False) -> None:
        """Run a command after the ones before, and do not wait for it."""
        self._coming.append(lambda: self._start(*words, ledger=ledger))
        self.look()

    def look(self) -> None:
        """Run the next command, if the one before has ended."""
        if self._coming and (self._running is None or not self._running.lives):
            self._running = self._coming.pop(0)()

    @property
    def is_done(self) -> bool:
        """Nothing is left to type, and the last command has ended."""
        return not self._coming and (self._running is None or not self._running.lives)


class Deeds:
    """Does what a strike says to the cast, or lets the operator do it."""

    def __init__(self, cast: Cast, operator: Operator, clocks: Clocks | None) -> None:
        self._cast, self._operator, self._clocks = cast, operator, clocks

    def __call__(self) -> Mapping[str, Deed]:
        """Give every fault that can be made here."""
        deeds = {
            "replay": Deed(lambda one: self._type("replay", "--topic", _topic(one), "--since", "2 s", "--yes")),
            "prune": Deed(lambda one: self._type("prune", "--set", "retention.published=none", "--yes")),
            "retry dead events": Deed(self._retry),
            "pause a topic": Deed(
                lambda one: self._type("pause", _topic(one), "--why", "torture"),
                lambda one: self._type("resume", _topic(one)),
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
        inbox = strike.whom % 2 == 0
        self._operator.type("dead", "retry", "--all", "--yes", *(["--inbox"] if inbox else []), ledger=inbox)

    def _to(self, clocks: Clocks) -> Mapping[str, Deed]:
        def by(hours: int) -> Callable[[Strike], None]:
            return lambda strike: clocks.set(strike.whom % len(self._cast.relays), hours)

        return {"set a relay's clock forward": Deed(by(1), by(0)), "set a relay's clock back": Deed(by(-1), by(0))}


def _deeds_to(name: str, members: Sequence[Member]) -> Mapping[str, Deed]:
    def whom(strike: Strike) -> Member:
        return members[strike.whom % len(members)]

    return {
        f"kill a {name}": Deed(lambda strike: whom(strike).kill()),
        f"stop a {name}": Deed(lambda strike: whom(strike).stop()),
        f"freeze a {name}": Deed(lambda strike: whom(strike).freeze(), lambda strike: whom(strike).thaw()),
    }


def _topic(strike: Strike) -> str:
    return TOPICS[strike.whom % len(TOPICS)]
