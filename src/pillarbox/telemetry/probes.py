"""Probes: whether a daemon lives, has started, and is ready, for whoever starts and stops it.

Liveness asks for nobody but the daemon itself: whoever kills it because its broker or its database is away makes an
outage longer. One that makes no turns, and waits for nobody, is stuck. Readiness ends when it drains. What `pillarbox
status` calls a problem is told, and is no reason to be taken out of service: a new relay would find the same backlog.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from pillarbox.core.canary import CANARY
from pillarbox.telemetry.hooks import Facts, Moment
from pillarbox.telemetry.http import Answer, Page

BEGUN = frozenset((Moment.LANES_TAKEN, Moment.LANES_AWAITED, Moment.SLOT_WATCHED, Moment.SLOT_DOUBTED))
"""From one of these on, a relay does what it is there for, be it to stand by."""

Problems = Callable[[], Awaitable[Sequence[str]]]


class Probes:
    """Listens to a daemon, and answers for it. `problems` looks which kinds of problem there are, if anybody can."""

    def __init__(
        self,
        stopping: Callable[[], bool],
        beats: Callable[[], bool],
        begun: Callable[[], bool] | None = None,
        problems: Problems | None = None,
    ) -> None:
        self._stopping, self._beats, self._begun, self._problems = stopping, beats, begun, problems
        self._has_begun = False

    def __call__(self, moment: Moment, facts: Facts) -> None:
        if moment in BEGUN:
            self._has_begun = True

    def pages(self) -> Mapping[str, Page]:
        """Give the pages, by path."""
        return {"/livez": self._live, "/readyz": self._ready, "/startupz": self._started}

    @property
    def _is_up(self) -> bool:
        return self._has_begun if self._begun is None else self._begun()

    async def _live(self) -> Answer:
        if self._beats() or self._stopping():
            return _answer(HTTPStatus.OK, "live")
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "stuck")

    async def _started(self) -> Answer:
        return _answer(HTTPStatus.OK, "started") if self._is_up else _answer(HTTPStatus.SERVICE_UNAVAILABLE, "starting")

    async def _ready(self) -> Answer:
        if self._stopping():
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "draining")
        if not self._is_up:
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "starting")
        problems = [] if self._problems is None else await self._problems()
        return _answer(HTTPStatus.OK, "degraded" if problems else "ready", problems)


class AwaitedCanary:
    """Listens to a consumer, and finds it a problem when no canary was handled for too long."""

    def __init__(self, patience: float, now: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._now = patience, now
        self._last = now()

    def __call__(self, moment: Moment, facts: Facts) -> None:
        if moment is Moment.COMMITTED and facts.get("type") == CANARY:
            self._last = self._now()

    async def problems(self) -> Sequence[str]:
        return ["canary"] if self._now() - self._last > self._patience else []


_OUTSIDE = {
    Moment.BROKER_AWAY: ("broker away", True),
    Moment.BROKER_BACK: ("broker away", False),
    Moment.STORE_AWAY: ("database", True),
    Moment.STORE_BACK: ("database", False),
}


class Outside:
    """Listens to a consumer, and finds it a problem while its broker or its database is away."""

    def __init__(self) -> None:
        self._away: dict[str, bool] = {}

    def __call__(self, moment: Moment, facts: Facts) -> None:
        if moment in _OUTSIDE:
            kind, away = _OUTSIDE[moment]
            self._away[kind] = away

    async def problems(self) -> Sequence[str]:
        return [kind for kind, away in self._away.items() if away]


def _answer(status: HTTPStatus, word: str, problems: Sequence[str] = ()) -> Answer:
    """Answer with a word; of problems only their kinds are told, for their texts are not for everybody."""
    body = json.dumps({"status": word, "problems": list(problems)})
    return Answer(status, f"{body}\n".encode(), "application/json")
