"""The load: what the events of a bench look like, and how an event says which one it is."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pillarbox import Event

TYPE, AGGREGATE = "Benched", "bench"
IDS = "0bec4000-0000-7000-8000-"
"""What the ids begin with; the number of the event follows."""
SMALLEST, LARGEST = 40, 200_000
"""Bytes of a payload. Below, there is no room for the number; above, an outbox may refuse it."""
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Load:
    """What the events look like: bytes of the payload, and how many aggregates they are of, in turns."""

    payload: int = 310
    aggregates: int = 1000

    @property
    def note(self) -> str:
        """What fills the payload up."""
        return "." * (self.payload - len('{"n":,"note":""}') - _DIGITS)

    def event(self, n: int) -> Event[Any]:
        """Give the n-th event, by whose id it is known again."""
        return Event(TYPE, self._says(n), aggregate=(AGGREGATE, n % self.aggregates), id=id_of(n))

    def plain(self, n: int) -> Event[Any]:
        """Give an event as an application would write it."""
        return Event(TYPE, self._says(n), aggregate=(AGGREGATE, n % self.aggregates))

    def _says(self, n: int) -> dict[str, Any]:
        return {"n": n, "note": self.note}


def id_of(n: int) -> UUID:
    """Give the id of the n-th event."""
    return UUID(f"{IDS}{n:012x}")


def number_of(id: str) -> int | None:
    """Say which event has this id; None if it is none of ours."""
    return int(id[len(IDS) :], 16) if id.startswith(IDS) else None
