"""A shop with real spans: the SDK of OpenTelemetry, and what it would have exported."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from pillarbox import Consumer, Event, Relay, Settings
from pillarbox.brokers.memory import MemoryBroker
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.stores.sqlite.schema import Tables

TOPIC = "order-events"


class Spans:
    """A provider, and the spans that have ended, in the order in which they did."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("shop")

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


def traceparent(span: ReadableSpan) -> str:
    """Write a span's context as it goes over the wire."""
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[str]:
    """Write the contexts that a span is linked to."""
    return [
        f"00-{to.context.trace_id:032x}-{to.context.span_id:016x}-{to.context.trace_flags:02x}" for to in span.links
    ]


class TracedShop:
    """An outbox and an inbox in one SQLite file, and a broker: the embedded one, or one in memory to look into."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "shop.db")
        self.settings = Settings(database=f"sqlite:///{self.path}", broker=f"sqlite:///{folder / 'stream.db'}")
        self.broker = MemoryBroker()
        self.inbox, self.outbox = Inbox("billing", self.connect), Outbox()
        with closing(self.connect()) as connection:
            Tables(self.path, "pillarbox_").up(connection)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def add(self, *events: Event[Any]) -> None:
        with closing(self.connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            self.outbox.add(connection, *events)

    def relay(self, **how: Any) -> Relay:
        return Relay(self.settings, **how)

    async def consume(self, **how: Any) -> int:
        return await Consumer(self.inbox, topics=[TOPIC], settings=self.settings, **how).run_once(patience=0.01)


def placed(number: int = 1, **more: Any) -> Event[Any]:
    return Event("OrderPlaced", {"n": number}, aggregate=("order", number), **more)
