"""Which parked rows may come out together, where copies of replayed events keep the order of their aggregate. Used by
the parking lots."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol, TypeVar

from pillarbox.core.entry import Entry
from pillarbox.core.routing import Line


class Parked(Protocol):
    """A row of a parking lot."""

    @property
    def entry(self) -> Entry: ...


R = TypeVar("R", bound=Parked)


def in_turn(
    rows: Iterable[R], line_of: Callable[[Entry], Line | None], given: Collection[int], out: Collection[Line]
) -> Iterator[R]:
    """Leave out second copies of one event, for an entry is known by its position; and copies that could overtake an
    earlier one of their aggregate, which is out and may fail, or was left out here."""
    positions, waiting = set(given), set[Line | None](out)
    for row in rows:
        copies = line_of(row.entry)
        if row.entry.position in positions or (copies is not None and copies in waiting):
            waiting.add(copies)
            continue
        positions.add(row.entry.position)
        yield row
