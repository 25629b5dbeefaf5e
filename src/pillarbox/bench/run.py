"""A run: makes its place, measures what was asked for, one after the other, and removes the place, however it ends."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pillarbox.bench import drain, idle, latency, live, reading, textbook, writing
from pillarbox.bench.drain import Drained
from pillarbox.bench.load import LARGEST, SMALLEST
from pillarbox.bench.options import MEASUREMENTS, MOST_APPLIED, RATES, SHARE, Options
from pillarbox.bench.places import Place, place_for, remove_files
from pillarbox.bench.processes import SIGNALS, BenchFailed
from pillarbox.bench.rows import Row
from pillarbox.core.retry import words_of
from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.settings import Settings
from pillarbox.settings.urls import parse_url
from pillarbox.wiring import check_urls, open_admin, open_trial

CHUNK = 5_000
SLOW = 0.95
"""Writers who write less than this share of what was asked for are told of."""
Tell = Callable[[str, float], None]
"""Hears what is being done, and which part of the whole is behind us."""


class Bench:
    """One run. Making it checks everything and touches nothing; raises ConfigError for what cannot be measured."""

    def __init__(self, settings: Settings, options: Options, client: textbook.Client | None = None) -> None:
        """`client` is what the textbook loop publishes with, if not our own publisher."""
        check_urls(settings)
        _check(options)
        self.options, self._client = options, client
        self.place = place_for(settings)
        database, broker = (parse_url(name, getattr(settings, name)).scheme for name in ("database", "broker"))
        self.way = f"{database} → {broker}"
        self.embedded, self._embedded_broker = database == "sqlite", broker == "sqlite"
        if self.embedded and options.relays > 1:
            raise ConfigError("--relays: SQLite has one writer, so one relay works at a time: leave it out")
        self._applied = replace(self.place, topic=f"{self.place.topic}-applied")
        self.consumes = broker not in ("http", "https")
        self._trial = open_trial(self.place.settings)
        self._next = 0
        self._drained: Drained | None = None
        self._to_remove: list[tuple[str, Callable[[], None]]] = []
        self.notes: list[str] = []
        """What people should know about the rows."""

    @property
    def topics(self) -> Sequence[str]:
        return self.place.topic, self._applied.topic

    def go(self, tell: Tell) -> list[Row]:
        """Measure; nothing is left in the end, also if somebody interrupts."""
        parts: dict[str, Callable[[], list[Row]]] = {
            "read": self._read,
            "drain": self._drain,
            "sustained": self._sustained,
            "latency": self._latency,
            "idle": self._idle,
            "writer": self._writer,
        }
        asked = [name for name in parts if name in self.options.measurements or (name == "drain" and self._drains)]
        expected = _expected(self.options.seconds)
        whole, behind = sum(expected[name] for name in asked), 0.0
        rows: list[Row] = []
        with self._made(), self.place.failures():
            for name in asked:
                self._tell = partial(_tell, tell, behind / whole, expected[name] / whole)
                rows += parts[name]()
                behind += expected[name]
        return rows

    @property
    def _drains(self) -> bool:
        return self.options.drains

    @contextmanager
    def _made(self) -> Iterator[None]:
        with _interruptible():
            try:
                self._make()
                yield
            finally:
                with _uninterruptible():
                    self._remove()

    def _make(self) -> None:
        with self.place.failures():
            self._to_remove.append((self.place.title, self.place.drop))
            self.place.make()
            asyncio.run(_migrate(self.place.databases))
            with closing(self.place.connect()) as connection:
                self.place.make_tables(connection)
        if self._embedded_broker:
            self._to_remove.append(("the embedded broker's file", lambda: remove_files(self.place.settings.broker)))
        if self._trial is not None:
            self._to_remove.append((f"the topics {' and '.join(self.topics)}", self._remove_topics))
            asyncio.run(self._trial.make(self.topics, latency.CONSUMER))

    def _remove(self) -> None:
        """Remove all that was made, each by itself; say what is left."""
        left = []
        for what, remove in reversed(self._to_remove):
            try:
                with self.place.failures():
                    remove()
            except (PillarboxError, OSError) as error:
                left.append(f"{what} could not be removed: {words_of(error)}")
        if left:
            raise BenchFailed(f"{'; '.join(left)}; remove it by hand")

    def _remove_topics(self) -> None:
        assert self._trial is not None
        asyncio.run(self._trial.remove(self.topics, latency.CONSUMER))

    def _fill(self, place: Place, count: int) -> int:
        """Add events, some thousand a transaction; give the number of the first."""
        first, self._next = self._next, self._next + count
        with closing(place.connect()) as connection:
            for begin in range(first, first + count, CHUNK):
                place.fill(connection, self.options.load, begin, min(CHUNK, first + count - begin))
            place.settle_down(connection)
        return first

    def _read(self) -> list[Row]:
        count = self.options.events
        self._tell(f"filling the outbox with {count:,} events")
        self._fill(self.place, count)
        self._tell("reading and settling")
        ours, plain = reading.store(self.place, count), reading.select(self.place, count)
        return [Row("read", "read and settle, no relay", ours, "events/s", plain, "a plain SELECT of the same columns")]

    def _drain(self) -> list[Row]:
        options = self.options
        self._tell(f"draining {options.events:,} events")
        if options.relays > 1:
            found = drain.drain_together(
                self.place, options.relays, options.events, lambda: self._fill(self.place, options.events)
            )
        else:
            self._fill(self.place, options.events)
            found = drain.drain(self.place, options.events)
        self._drained = found
        if "drain" not in options.measurements:
            return []
        self._tell(f"draining {options.textbook:,} events by the textbook loop")
        book = textbook.measure(self.place, options.load, options.textbook, self._client)
        relays = "1 relay" if options.relays == 1 else f"{options.relays} relays"
        return [
            Row("drain", f"drain, {relays}", found.rate, "events/s", book.rate, "the textbook loop"),
            *self._costs(found, book),
        ]

    def _costs(self, found: Drained, book: Drained) -> Iterator[Row]:
        parts = (
            ("cpu_relay", "processor time of the relay", found.by_relays, book.by_relays, 1e6, "µs/event"),
            ("cpu_database", "processor time of the database", found.by_database, book.by_database, 1e6, "µs/event"),
            ("wal_relay", "WAL that relaying writes", found.written, book.written, 1, "bytes/event"),
        )
        for key, name, ours, theirs, scale, unit in parts:
            if ours is None:
                continue
            reference = None if theirs is None else scale * theirs / book.events
            yield Row(key, name, scale * ours / found.events, unit, reference, "the textbook loop")
        if found.by_database is None and not self.embedded:
            self.notes.append("the database does not run here, or cannot be seen: its processor time is not measured")
        if found.written is not None:
            self.notes.append("processor time and WAL of the database are those of the whole server, while it works")

    def _sustained(self) -> list[Row]:
        options = self.options
        self._tell("relaying while a writer adds as fast as it can")
        first, self._next = self._next, self._next + options.most
        found = live.sustained(self.place, options.load, first, options.most, options.seconds)
        beside = "what the writer added meanwhile"
        return [Row("sustained", "relay beside a busy writer", found.published, "events/s", found.added, beside)]

    def _latency(self) -> list[Row]:
        assert self._drained is not None
        rows = self._latencies(self.place, "broker", self._drained.rate)
        if not self.consumes:
            self.notes.append("a webhook's receiver is not ours: how soon it applies events is not measured")
            return rows
        self._tell("applying what the broker has")
        count = min(self.options.events, MOST_APPLIED)
        first = self._fill(self._applied, count)
        drain.drain(self._applied, count)
        rate = latency.apply_rate(self._applied, first, count)
        rows.append(Row("apply", "apply, one event a transaction, through the inbox", rate, "events/s"))
        return rows + self._latencies(self._applied, "applied", min(rate, self._drained.rate))

    def _latencies(self, place: Place, until: latency.Until, fastest: float) -> list[Row]:
        rows: list[Row] = []
        half = 0.5 * (until == "applied")
        for place_of, (key, rate) in enumerate(
            (*((str(rate), float(rate)) for rate in RATES), ("80_percent", SHARE * fastest))
        ):
            count = self.options.at(rate)
            self._tell(f"commit → {until} at {rate:,.0f} events/s", half + place_of / 6)
            first, self._next = self._next, self._next + latency.numbers(count, rate)
            found = latency.latencies(place, self.options.load, first, count, rate, until)
            told = "80 % of what was possible" if key == "80_percent" else f"{rate:,.0f}/s"
            if key == "80_percent":
                name = f"commit → {until} at {told}: what was written"
                rows.append(
                    Row(f"latency_{until}_{key}_rate", name, found.rate, "events/s", rate, "what was asked for")
                )
            elif found.rate < SLOW * rate:
                self.notes.append(f"at {told}, commit → {until}: the writers managed {found.rate:,.0f}/s only")
            rows += [
                Row(
                    f"latency_{until}_{key}_{name}", f"commit → {until} at {told}, {name}",
                    latency.percentile(found.taken, share), "ms",
                    latency.percentile(found.commits, share), "the commits themselves",
                )
                for name, share in (("p50", 0.5), ("p99", 0.99))
            ]  # fmt: skip
        return rows

    def _idle(self) -> list[Row]:
        self._tell("waiting with nothing to do")
        found = idle.idle(self.place, self.options.seconds)
        rows = []
        if found.statements is not None:
            rows.append(Row("idle_queries", "an idle relay: queries", found.statements, "1/s"))
        if found.core is not None:
            rows.append(Row("idle_cpu", "an idle relay: processor time", 100 * found.core, "% of a core"))
        return rows

    def _writer(self) -> list[Row]:
        options, place = self.options, self.place
        self._tell("writing tiny transactions, with an event and without")
        with (
            closing(place.connect()) as connection,
            writing.writers(place, options.load.plain, writing.tiny, place.writers) as writers,
        ):
            writers.rate(0.5, options.most // 4, with_event=True)  # caches, prepared statements
            place.settle_down(connection)
            begun = place.written(connection)
            without = writers.rate(options.seconds, options.most // 4, with_event=False)
            between = place.written(connection)
            having = writers.rate(options.seconds, options.most // 4, with_event=True)
            ended = place.written(connection)
        who = "1 writer" if place.writers == 1 else f"{place.writers} writers"
        name = f"tiny durable transactions with an event, {who}"
        rows = [Row("writer", name, having.rate, "transactions/s", without.rate, "without an event")]
        if begun is not None and between is not None and ended is not None:
            plain, more = (between - begun) / without.transactions, (ended - between) / having.transactions
            rows.append(Row("wal_event", "WAL that an event adds", max(0.0, more - plain), "bytes/event"))
        return rows


def _expected(seconds: float) -> dict[str, float]:
    """Say how long each part takes, roughly: for who waits."""
    return {
        "read": 8, "drain": 10, "sustained": seconds + 3, "latency": 6 * (seconds + 4), "idle": seconds + 10,
        "writer": 2 * seconds + 3,
    }  # fmt: skip


def _tell(tell: Tell, behind: float, part: float, what: str, within: float = 0.0) -> None:
    tell(what, behind + within * part)


async def _migrate(databases: Sequence[Settings]) -> None:
    for settings in databases:
        async with open_admin(settings) as admin:
            await admin.migrate()


def _check(options: Options) -> None:
    """Refuse what cannot be measured."""
    load = options.load
    if not SMALLEST <= load.payload <= LARGEST:
        raise ConfigError(f"--payload: {load.payload:,} bytes are not between {SMALLEST:,} and {LARGEST:,}")
    if unknown := [name for name in options.measurements if name not in MEASUREMENTS]:
        raise ConfigError(f"--only: {unknown[0]!r} is no measurement: they are {', '.join(MEASUREMENTS)}")
    if not options.measurements:
        raise ConfigError(f"--only: names no measurement: they are {', '.join(MEASUREMENTS)}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let whoever ends us find nothing left, by any signal that asks."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        _set(before)


@contextmanager
def _uninterruptible() -> Iterator[None]:
    """Go on whoever asks to end: it takes a moment."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        _set(before)


def _set(handlers: dict[Any, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
