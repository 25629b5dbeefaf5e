"""Breaks: whether an endpoint is away, or hangs up on whoever brings one certain event. Pure.

A first break says nothing: it is what a restart does to all that is in flight. An endpoint that has answered others
since then is there; if a connection breaks on the same event again, the event is taken to be at fault.
"""

MOST = 10_000
"""Events of which a break is remembered; of more than these the oldest are forgotten, and begin anew."""


class Breaks:
    """Which events connections broke on, and when. Times are seconds on any clock that only moves on."""

    def __init__(self) -> None:
        self._broke_at: dict[tuple[str, str], float] = {}
        self._answered_at = 0.0

    def answered(self, event: tuple[str, str], now: float) -> None:
        """Note that the endpoint took or refused an event."""
        self._answered_at = now
        self._broke_at.pop(event, None)

    def broke(self, event: tuple[str, str], now: float) -> bool:
        """Note that a connection broke; say whether that is the event's fault."""
        before = self._broke_at.pop(event, now)
        self._broke_at[event] = now
        if len(self._broke_at) > MOST:
            del self._broke_at[next(iter(self._broke_at))]
        return self._answered_at > before
