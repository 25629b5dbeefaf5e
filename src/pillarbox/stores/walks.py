"""When a look that took long and found little may be repeated. Used by the parking lots."""

LONG = 0.1
"""Seconds after which a look took long."""
SHARE = 20


class Walks:
    """Keeps looks that walk over much for little from taking more than a small share of the time.

    A hundred thousand replayed copies may stand behind dead ones, for days; each look would pass over them all.
    """

    def __init__(self) -> None:
        self._not_before = float("-inf")

    def may_go(self, now: float) -> bool:
        """Say whether it may be looked again."""
        return now >= self._not_before

    def went(self, began: float, ended: float, *, enough: bool) -> None:
        """Note how long a look took, and whether it found as much as was asked for."""
        took = ended - began
        self._not_before = ended + SHARE * took if took > LONG and not enough else float("-inf")

    def forget(self) -> None:
        """Note that something has changed: it may be looked at once."""
        self._not_before = float("-inf")
