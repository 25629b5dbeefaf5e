"""Prometheus: what a relay or a consumer does, as metrics. The daemons know nothing of it.

Counts come from the moments, from a store and a publisher that are wrapped, and, at every scrape, from the figures of
the outbox. Base units, and no label without a bound: never a topic, a key or an id.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any, TypeVar, cast

from pillarbox.core.canary import CANARY
from pillarbox.core.entry import Entry
from pillarbox.core.message import Message
from pillarbox.core.retry import Published
from pillarbox.core.window import Settlement
from pillarbox.errors import BrokerUnavailable, MissingExtra, PublishError, PublishRejected, PublishTimeout
from pillarbox.ports import Away, Clock, Holding, Outcome, Publisher, Stats, Store
from pillarbox.telemetry.hooks import Facts, Moment

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtra("prometheus", "/metrics") from error

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Seconds: an idle relay needs milliseconds, one that catches up after an outage may need an hour."""
REASONS: Mapping[type[PublishError], str] = {
    BrokerUnavailable: "away",
    PublishTimeout: "timeout",
    PublishRejected: "rejected",
}
OTHER = "other"
RUNNING = 10_000
"""At most so many handlers are timed at once; more than run."""
S = TypeVar("S", bound=Store)


class _Page:
    """A registry of our own, so that an application's metrics and ours do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Info("pillarbox_build", "The release that runs.", registry=self.registry).info(
            {"version": version("pillarbox")}
        )

    def _counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, registry=self.registry)

    def _text(self) -> bytes:
        return generate_latest(_Plain(self.registry))


class _Plain(Collector):
    """A registry without the time at which each counter was made: in this format it would be a metric of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class RelayMetrics(_Page):
    """The metrics of one relay: a listener, and what wraps its store and its publisher."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._published = self._counter("pillarbox_published_total", "Events published and recorded as such.")
        self._failures = self._counter(
            "pillarbox_publish_failures_total", "Messages that the broker did not accept, by why not.", ["reason"]
        )
        for reason in (*REASONS.values(), OTHER):
            self._failures.labels(reason)  # there from the beginning, so that the first one is an increase
        self._dead = self._counter("pillarbox_dead_total", "Events that died while they were published.")
        self._fenced = self._counter("pillarbox_fenced_total", "How often this relay lost its lanes and began anew.")
        self._pruned = self._counter("pillarbox_pruned_total", "Rows deleted because they were settled long ago.")
        self._pruned_at = self._gauge(
            "pillarbox_last_prune_timestamp_seconds", "When this relay last looked for rows to delete; 0: not yet."
        )
        self._lanes = self._gauge("pillarbox_lanes_held", "Lanes that this relay holds, of 64.")
        self._up = self._gauge("pillarbox_relay_up", "1 while this relay runs, 0 while it drains.")
        self._loop = self._gauge(
            "pillarbox_relay_last_loop_timestamp_seconds",
            "When this relay last had an answer from its database; before the first one, when it was made.",
        )
        self._looped()
        self._latency = _Latency()
        self._seen = _Seen()
        self.registry.register(self._latency)
        self.registry.register(self._seen)

    def __call__(self, moment: Moment, facts: Facts) -> None:
        match moment:
            case Moment.LANES_TAKEN | Moment.LANES_SHARED | Moment.LEASE_RENEWED:
                self._lanes.set(cast(int, facts["lanes"]))
            case Moment.LANES_RELEASED:
                self._lanes.set(0)
            case Moment.LANES_LOST:
                self._lanes.set(0)
                self._fenced.inc()
            case Moment.PRUNED:
                self._pruned.inc(cast(int, facts["count"]))
                self._pruned_at.set(self._clock.now().timestamp())
            case Moment.EVENT_DEAD:
                self._dead.inc()
            case Moment.SLOT_PASSED:
                self._published.inc(cast(int, facts["count"]))

    def page(self, stats: Stats | None, *, up: bool) -> bytes:
        """Write the metrics; without figures, because the database is away, those that come from them are left out."""
        self._up.set(up)
        self._seen.stats, self._seen.now = stats, self._clock.now()
        return self._text()

    def store(self, store: S) -> S:
        """Wrap a store: what is settled is counted, and that it answers."""
        return cast(S, _MeteredStore(store, self._settled, self._looped))

    def publisher(self, publisher: Publisher) -> Publisher:
        """Wrap a publisher: what is not accepted is counted."""
        return _MeteredPublisher(publisher, self._failed)

    def _settled(self, settlements: Sequence[Settlement[Entry]]) -> None:
        published = [entry for entry, verdict in settlements if verdict.__class__ is Published]
        self._published.inc(len(published))
        self._latency.observe(published, self._clock.now())

    def _failed(self, error: PublishError) -> None:
        self._failures.labels(REASONS.get(type(error), OTHER)).inc()

    def _looped(self) -> None:
        self._loop.set(self._clock.now().timestamp())


class ConsumerMetrics(_Page):
    """The metrics of one consumer: a listener; `receptions` are the consumer's own counts, by result."""

    def __init__(self, receptions: Callable[[], Mapping[str, int]]) -> None:
        super().__init__()
        self._duration = Histogram(
            "pillarbox_inbox_duration_seconds",
            "How long handlers took that did not fail.",
            registry=self.registry,
            buckets=LATENCY,
        )
        self._canary_at = self._gauge(
            "pillarbox_canary_received_timestamp_seconds", "When this consumer last handled a canary; 0: not yet."
        )
        self._running: dict[object, float] = {}
        self._results = _Results(receptions)
        self.registry.register(self._results)

    def __call__(self, moment: Moment, facts: Facts) -> None:
        match moment:
            case Moment.MARKED:
                if len(self._running) >= RUNNING:
                    self._running.clear()
                self._running[facts["event_id"]] = time.monotonic()
            case Moment.HANDLED:
                since = self._running.pop(facts["event_id"], None)
                if since is not None:
                    self._duration.observe(time.monotonic() - since)
            case Moment.COMMITTED:
                if facts.get("type") == CANARY:
                    self._canary_at.set_to_current_time()
            case Moment.EVENT_RETRYING:
                self._running.pop(facts.get("event_id"), None)
                self._results.failed["retried"] += 1
            case Moment.EVENT_DEAD | Moment.NUMBER_MISSING | Moment.NUMBER_CONFLICT:
                self._running.pop(facts.get("event_id"), None)
                self._results.failed["dead"] += 1

    def page(self) -> bytes:
        """Write the metrics."""
        return self._text()


class _Results(Collector):
    """What deliveries became."""

    def __init__(self, receptions: Callable[[], Mapping[str, int]]) -> None:
        self._receptions = receptions
        self.failed = {"retried": 0, "dead": 0}

    def collect(self) -> Iterator[Metric]:
        found = CounterMetricFamily("pillarbox_inbox_total", "What deliveries became.", labels=["result"])
        for result, count in (*self._receptions().items(), *self.failed.items()):
            found.add_metric([result], count)
        yield found


class _Latency(Collector):
    """From the commit, as far as it is known, to the broker's answer being recorded: a histogram, a batch at a time.

    What was parked outside the order is left out: delayed and replayed events have a time of their own.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY) + 1)
        self._sum = 0.0

    def observe(self, entries: Sequence[Entry], now: datetime) -> None:
        for entry in entries:
            if entry.ordered:
                seconds = max((now - entry.created_at).total_seconds(), 0.0)
                self._counts[bisect_left(LATENCY, seconds)] += 1
                self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        total, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        help = "From when an event was added until it was published."
        yield HistogramMetricFamily("pillarbox_delivery_latency_seconds", help, buckets=buckets, sum_value=self._sum)


class _Seen(Collector):
    """The figures of the outbox, as of this scrape; nothing while they cannot be read."""

    stats: Stats | None = None
    now: datetime | None = None

    def collect(self) -> Iterator[Metric]:
        stats, now = self.stats, self.now
        if stats is None or now is None:
            return
        oldest = stats.oldest_waiting_at
        age = 0.0 if oldest is None else max((now - oldest).total_seconds(), 0.0)
        pending = stats.pending if stats.pending_about is None else stats.pending_about
        yield GaugeMetricFamily("pillarbox_oldest_pending_age_seconds", "How long the oldest has waited.", age)
        help = "Events to be published now, with the delayed ones whose time has come; beyond 10,000 about."
        yield GaugeMetricFamily("pillarbox_pending_events", help, pending + stats.overdue)
        yield GaugeMetricFamily("pillarbox_dead_events", "Dead events, up to 10,000.", stats.dead)
        sizes = GaugeMetricFamily("pillarbox_table_bytes", "What a table takes with its indexes.", labels=["table"])
        for table, size in stats.table_bytes.items():
            sizes.add_metric([table], size)
        yield sizes
        if stats.canary is not None:
            age = max((now - stats.canary.added_at).total_seconds(), 0.0)
            yield GaugeMetricFamily("pillarbox_canary_age_seconds", "How long ago the newest canary was sent.", age)
        if stats.slot is not None:
            help = "WAL kept for the slot whose reader carries the events."
            yield GaugeMetricFamily("pillarbox_slot_retained_bytes", help, stats.slot.kept)


class _MeteredStore:
    """A store whose settling is counted; everything else is the store's own."""

    def __init__(
        self, store: Store, settled: Callable[[Sequence[Settlement[Entry]]], None], looped: Callable[[], None]
    ) -> None:
        self._store, self._settled, self._looped = store, settled, looped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def take(self) -> Holding:
        holding = await self._store.take()
        self._looped()
        return holding

    async def renew(self, away: Away | None) -> Holding:
        holding = await self._store.renew(away)
        self._looped()
        return holding

    async def entries(self, room: int) -> Sequence[Entry]:
        entries = await self._store.entries(room)
        self._looped()
        return entries

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await self._store.settle(settlements)
        self._settled(settlements)


class _MeteredPublisher:
    """A publisher whose failures are counted."""

    def __init__(self, publisher: Publisher, failed: Callable[[PublishError], None]) -> None:
        self._publisher, self._failed = publisher, failed
        self.send: Callable[[Sequence[Message]], None] = publisher.send

    @property
    def prefix_safe(self) -> bool:
        return self._publisher.prefix_safe

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await self._publisher.outcomes()
        for _, error in outcomes:
            if error is not None:
                self._failed(error)
        return outcomes

    async def close(self) -> None:
        await self._publisher.close()
