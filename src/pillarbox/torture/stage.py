"""The stage: where a torture runs, and which faults can be made there."""

from collections.abc import Collection, Sequence
from typing import Protocol

from pillarbox.torture.faults import Strike, named


class Stage(Protocol):
    """Servers, and what can be done to them. Relays and consumers may have another way to them than everybody else."""

    database: str
    broker: str
    """For the writers, the tap and the judge."""
    way_to_database: str
    way_to_broker: str
    """For relays and consumers: through whatever makes the network fail."""
    offers: Collection[str]
    """The names of the faults that can be made here, beside those of processes and operators."""

    def strike(self, strike: Strike) -> None:
        """Make a fault, and return soon; a long one is ended by `heal`."""

    def heal(self, strike: Strike) -> None:
        """End a fault that lasts."""

    def versions(self) -> Sequence[str]:
        """Say what it runs on."""


class GivenServers:
    """Servers of somebody else: nothing is done to them but what relays, consumers and operators do."""

    offers: Collection[str] = frozenset()

    def __init__(self, database: str, broker: str) -> None:
        self.database = self.way_to_database = database
        self.broker = self.way_to_broker = broker

    def strike(self, strike: Strike) -> None:
        raise NotImplementedError(f"{strike.name}: these servers are not ours")

    def heal(self, strike: Strike) -> None:
        raise NotImplementedError(f"{strike.name}: these servers are not ours")

    def versions(self) -> Sequence[str]:
        return ()


ANYWHERE = named({"relay", "consumer", "admin"})
"""What can be done on anybody's servers: it is done to processes that the torture has started, or by commands."""
