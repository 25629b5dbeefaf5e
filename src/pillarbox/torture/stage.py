"""The stage: where a torture runs, and which faults can be made there."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from pillarbox.torture.clocks import can_set_clocks
from pillarbox.torture.faults import GROUPS, TOO_LARGE, UNROUTABLE, Strike, named


def _nothing(strike: Strike) -> None:
    """End what has ended by itself."""


class Deed(NamedTuple):
    """How a fault is made, and how one that lasts is ended, which both return soon; and whom it strikes."""

    strike: Callable[[Strike], None]
    heal: Callable[[Strike], None] = _nothing
    whom: Callable[[Strike], str] = lambda strike: ""


class Stage(Protocol):
    """Servers, and what can be done to them. Relays and consumers may have another way to them than everybody else."""

    database: str
    broker: str
    ledger: str
    """For the writers, the tap and the judge. The ledger is what consumers write."""
    way_to_database: str
    way_to_broker: str
    way_to_ledger: str
    """For relays and consumers: through whatever makes the network fail."""
    hint: str | None
    """A Redis for the consumers' hints."""
    poisons: Collection[str]
    """What the broker refuses for good: TOO_LARGE, UNROUTABLE."""
    deeds: Mapping[str, Deed]
    """The faults that can be made here, beside those of processes and operators."""

    def versions(self) -> Sequence[str]:
        """Say what it runs on."""


class GivenServers:
    """Servers of somebody else, or files: nothing is done to them but what relays, consumers and operators do."""

    hint: str | None = None
    poisons: Collection[str] = ()
    deeds: Mapping[str, Deed] = {}

    def __init__(self, database: str | None, broker: str | None, directory: Path) -> None:
        self.database = self.way_to_database = database or f"sqlite:///{directory / 'shop.db'}"
        self.broker = self.way_to_broker = broker or f"sqlite:///{directory / 'stream.db'}"
        # In SQLite's file of the shop consumers and writers would wait for one another.
        apart = self.database.startswith("sqlite:")
        self.ledger = self.way_to_ledger = f"sqlite:///{directory / 'billing.db'}" if apart else self.database

    def versions(self) -> Sequence[str]:
        return ()


ANYWHERE = named({"relay", "consumer", "admin"})
"""What can be done on anybody's servers: it is done to processes that the torture has started, or by commands."""
CLOCKS = named({"clock"})
NOT_OURS = "these servers are not ours, so only processes are struck, and commands typed"
NO_MEANS = "this stage has no means for it"


def offered(stage: Stage, groups: Collection[str]) -> frozenset[str]:
    """Give the names of those faults of these groups that can be made on a stage."""
    clocks = CLOCKS if can_set_clocks(stage.database, stage.broker) is None else frozenset()
    return named(groups) & (ANYWHERE | stage.deeds.keys() | clocks)


class LeftOut(NamedTuple):
    """Faults that were asked for and are not made: in a few words, by their names, and why."""

    what: str
    faults: Sequence[str]
    reason: str

    def __str__(self) -> str:
        return f"left out: {self.what}: {self.reason}"


def left_out(stage: Stage, groups: Collection[str]) -> list[LeftOut]:
    """Say which faults were asked for and are not made here, and why."""
    missing = {group: named({group}) - offered(stage, {group}) for group in GROUPS if group in groups}
    servers = [group for group, names in missing.items() if names == named({group}) and group != "clock"]
    alone = sorted(name for group, names in missing.items() if group not in (*servers, "clock") for name in names)
    poisons = sorted({TOO_LARGE, UNROUTABLE} - set(stage.poisons)) if "broker" in groups else []
    found = []
    if servers:
        names = sorted(name for group in servers for name in missing[group])
        found.append(LeftOut(f"faults of {', '.join(servers)}", [*names, *poisons], NOT_OURS))
    elif poisons:
        found.append(LeftOut(f"events that are {', '.join(poisons)}", poisons, NO_MEANS))
    if alone:
        found.append(LeftOut(", ".join(alone), alone, NO_MEANS))
    if missing.get("clock"):
        reason = can_set_clocks(stage.database, stage.broker)
        found.append(LeftOut("faults of clock", sorted(missing["clock"]), str(reason)))
    return found
