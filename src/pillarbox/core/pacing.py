"""Pacing: how long until the next poll. Busy: at once. Just quiet: a few milliseconds. Idle: doubles up to a bound."""

from datetime import timedelta

SHORTEST = 0.001
"""Nothing doubles from zero: a first wait of 0 would poll without end."""


class Pacing:
    """Gives the next wait in seconds; doubles while nothing happens, starts over as soon as something does."""

    def __init__(self, first: timedelta, longest: timedelta) -> None:
        self._first = max(first.total_seconds(), SHORTEST)
        self._longest = max(longest.total_seconds(), self._first)
        self._next = self._first

    def busy(self) -> None:
        """Something happened: the next wait is the first one again."""
        self._next = self._first

    def quiet(self) -> float:
        """Nothing happened: give the wait, and double the one after it."""
        wait, self._next = self._next, min(self._next * 2, self._longest)
        return wait
