"""Serving: what a daemon serves over HTTP while it runs, put around it by the wiring. Nothing, unless it is set."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pillarbox.admin.admin import Admin, Report
from pillarbox.core.canary import overdue_after
from pillarbox.daemon import Daemon
from pillarbox.errors import MissingExtra
from pillarbox.inbox.consumer import Consumer
from pillarbox.ports import Clock, Publisher, Store
from pillarbox.settings import Settings
from pillarbox.settings.tables import split_place
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.telemetry.http import Answer, HttpServer, Page, said
from pillarbox.telemetry.probes import AwaitedCanary, Outside, Probes

if TYPE_CHECKING:
    from pillarbox.telemetry.prometheus import RelayMetrics

STATUS: Mapping[Moment, str] = {
    Moment.LANES_TAKEN: "relays",
    Moment.LANES_AWAITED: "stands by: another relay is at work",
    Moment.SLOT_WATCHED: "watches the slot",
    Moment.SLOT_DOUBTED: "does not trust the slot: `pillarbox status` says why",
    Moment.BROKER_AWAY: "the broker is away; nothing is lost",
    Moment.BROKER_BACK: "the broker is back",
    Moment.STORE_AWAY: "the database is away; nothing is lost",
    Moment.STORE_BACK: "the database is back",
}
"""What systemd shows; the words of errors are for the log alone."""
S = TypeVar("S", bound=Store)
PATIENCE = 3.0
"""Seconds that the database has for a look, below what a page has: its counts must not be lost with the figures."""
FRESH = 1.0
"""Seconds for which one look at the outbox answers everybody: scrapes and probes cost the database nothing more."""


class Serving(NamedTuple):
    """What serves while a daemon runs, the hooks that it is to tell, and what counts around its ports, if anything."""

    server: AbstractAsyncContextManager[Any]
    hooks: Hooks
    metrics: "RelayMetrics | None" = None

    def store(self, store: S) -> S:
        """Count what goes through a store."""
        return store if self.metrics is None else self.metrics.store(store)

    def publisher(self, publisher: Publisher) -> Publisher:
        """Count what goes through a publisher."""
        return publisher if self.metrics is None else self.metrics.publisher(publisher)


def _hooks_with_status(daemon: Daemon, hooks: Hooks) -> Hooks:
    if "NOTIFY_SOCKET" not in os.environ:
        return hooks

    def say(moment: Moment, facts: Facts) -> None:
        if moment in STATUS:
            daemon.say(STATUS[moment])

    return hooks.also(say)


def serve_relay(
    relay: Daemon, settings: Settings, clock: Clock, hooks: Hooks, open_admin: Callable[[Settings], Admin]
) -> Serving:
    """Serve probes, and metrics with the figures of the outbox, for a relay or one that watches a slot."""
    hooks = _hooks_with_status(relay, hooks)
    if settings.health.listen is None:
        return Serving(nullcontext(), hooks)
    look = Look(settings, open_admin)
    probes = Probes(lambda: relay.stopping, lambda: relay.pulse.beats, problems=look.problems)
    try:
        from pillarbox.telemetry.prometheus import CONTENT_TYPE, RelayMetrics
    except MissingExtra as error:
        return Serving(_server(settings, probes, _missing(error)), hooks.also(probes))
    metrics = RelayMetrics(clock)

    async def page() -> Answer:
        report = await look()
        text = metrics.page(report and report.stats, up=not relay.stopping)
        return Answer(HTTPStatus.OK, text, CONTENT_TYPE)

    return Serving(_server(settings, probes, page), hooks.also(probes, metrics), metrics)


def serve_consumer(consumer: Consumer, settings: Settings, hooks: Hooks, topics: Sequence[str]) -> Serving:
    """Serve probes and metrics for a consumer; it asks no database, for its inbox has one of its own."""
    hooks = _hooks_with_status(consumer, hooks)
    health = settings.health
    if health.listen is None:
        return Serving(nullcontext(), hooks)
    listeners: list[Outside | AwaitedCanary] = [Outside()]
    if health.canary is not None and health.canary_topic in topics:
        listeners.append(AwaitedCanary(overdue_after(health.canary, health.oldest_pending).total_seconds()))
    hooks = hooks.also(*listeners)

    async def problems() -> Sequence[str]:
        told = [kind for listener in listeners for kind in await listener.problems()]
        return ["handler slow", *told] if consumer.is_slow else told

    probes = Probes(
        lambda: consumer.stopping, lambda: consumer.pulse.beats, begun=lambda: consumer.started, problems=problems
    )
    try:
        from pillarbox.telemetry.prometheus import CONTENT_TYPE, ConsumerMetrics
    except MissingExtra as error:
        return Serving(_server(settings, probes, _missing(error)), hooks.also(probes))
    metrics = ConsumerMetrics(lambda: consumer.receptions)

    async def page() -> Answer:
        return Answer(HTTPStatus.OK, metrics.page(), CONTENT_TYPE)

    return Serving(_server(settings, probes, page), hooks.also(probes, metrics))


class Look:
    """Looks at the outbox as `pillarbox status` does, so that the two never disagree."""

    def __init__(self, settings: Settings, open_admin: Callable[[Settings], Admin]) -> None:
        self._settings, self._open_admin = settings, open_admin
        self._one = asyncio.Lock()
        self._seen: tuple[float, Report] | None = None

    async def __call__(self) -> Report | None:
        """Give a report that is at most a moment old; None if the database takes too long to answer."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._report()
        except TimeoutError:
            return None

    async def _report(self) -> Report:
        now = asyncio.get_running_loop().time
        async with self._one:
            if self._seen is None or now() >= self._seen[0] + FRESH:
                report = await self._open_admin(self._settings).look(self._settings)
                self._seen = now(), report
            return self._seen[1]

    async def problems(self) -> list[str]:
        """Give the kinds of problem that there are."""
        report = await self()
        if report is None:
            return ["database"]
        return list(dict.fromkeys(finding.kind for finding in report.findings if finding.severity == "problem"))


def _server(settings: Settings, probes: Probes, metrics: Page) -> HttpServer:
    assert settings.health.listen is not None
    return HttpServer(*split_place(settings.health.listen), {**probes.pages(), "/metrics": metrics})


def _missing(error: MissingExtra) -> Page:
    async def page() -> Answer:
        return said(HTTPStatus.NOT_IMPLEMENTED, str(error))

    return page
