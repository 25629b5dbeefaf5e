"""Outage: something outside is away. Said once, waited out with growing patience, and said again when it is back."""

import asyncio
from datetime import timedelta

from pillarbox.core.pacing import Pacing
from pillarbox.core.retry import words_of
from pillarbox.errors import PillarboxError
from pillarbox.telemetry.hooks import Hooks, Moment


class Outage:
    """The state of one thing outside; by the event loop's time."""

    def __init__(self, hooks: Hooks, away: Moment, back: Moment) -> None:
        self._hooks, self._away, self._back = hooks, away, back
        self._pacing = Pacing(timedelta(milliseconds=100), timedelta(seconds=5))
        self._since = self._resume_at = 0.0
        self.error: PillarboxError | None = None
        """Its last words; None while all is well."""
        self.times = 0
        """How often it was away."""

    def struck(self, error: PillarboxError) -> None:
        """It did not answer: leave it alone for a while."""
        now = asyncio.get_running_loop().time()
        if self.error is None:
            self._since = now
            self.times += 1
            self._hooks.reach(self._away, error=words_of(error))
        self.error = error
        if now >= self._resume_at:  # several failures at once are one
            self._resume_at = now + self._pacing.quiet()

    def over(self) -> None:
        """It answered."""
        if self.error is None:
            return
        self.error = None
        self._pacing.busy()
        self._resume_at = 0.0
        self._hooks.reach(self._back, away=timedelta(seconds=asyncio.get_running_loop().time() - self._since))

    @property
    def pause(self) -> float:
        """How many seconds to leave it alone yet."""
        return max(0.0, self._resume_at - asyncio.get_running_loop().time()) if self.error else 0.0
