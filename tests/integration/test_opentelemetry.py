"""Traces: from the request that adds an event, over its publishing, to its handler; with the real SDK."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from pillarbox import Consumer, Event, InvalidEvent, PublishRejected, Reject, Relay, RetryLater
from pillarbox.brokers.function import FunctionPublisher
from pillarbox.core.message import Message
from pillarbox.core.routing import Topic
from pillarbox.psycopg import AsyncInbox, AsyncOutbox
from pillarbox.telemetry.opentelemetry import open_traces
from tests.integration.traced_shop import TOPIC, Spans, TracedShop, linked, placed, traceparent

UNSAMPLED = f"00-{'1' * 32}-{'2' * 16}-00"
SAMPLED = f"00-{'1' * 32}-{'2' * 16}-01"
Provide = Callable[..., Spans]


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch) -> Provide:
    """Sets the provider of this process, which OpenTelemetry lets nobody do twice."""

    def provide(sampler: Sampler | None = None) -> Spans:
        spans = Spans(sampler)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
        return spans

    return provide


@pytest.fixture
def spans(provide: Provide) -> Spans:
    return provide()


@pytest.fixture
def shop(tmp_path: Path) -> TracedShop:
    return TracedShop(tmp_path)


async def test_a_trace_leads_from_the_request_to_the_handler(shop: TracedShop, spans: Spans) -> None:
    @shop.inbox.handler("OrderPlaced")
    def bill(connection: Any, event: Event[Any]) -> None:
        with spans.tracer.start_as_current_span("the handler's own"):
            pass
        shop.outbox.add(connection, Event("Billed", {}, aggregate=("bill", 7)))

    event = placed()
    with spans.tracer.start_as_current_span("request"):
        shop.add(event)
    await shop.relay().run_once()
    assert await shop.consume() == 1

    request, publish, process = (spans.only(name) for name in ("request", f"publish {TOPIC}", f"process {TOPIC}"))
    assert (publish.kind, publish.parent, linked(publish)) == (SpanKind.PRODUCER, None, [traceparent(request)])
    assert publish.status.status_code is StatusCode.UNSET
    assert publish.attributes == {
        "messaging.system": "sqlite",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.message.id": str(event.id),
        "messaging.message.body.size": 7,
    }
    assert (process.kind, process.parent and process.parent.span_id) == (SpanKind.CONSUMER, publish.context.span_id)
    assert process.parent is not None
    assert process.parent.is_remote
    assert process.attributes == {
        "messaging.system": "sqlite",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": TOPIC,
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": str(event.id),
        "pillarbox.event.type": "OrderPlaced",
        "pillarbox.attempt": 1,
        "pillarbox.redelivered": False,
    }
    inner = spans.only("the handler's own").parent
    assert inner is not None
    assert inner.span_id == process.context.span_id
    # What the handler added goes on from it.
    await shop.relay().run_once()
    assert linked(spans.only("publish bill-events")) == [traceparent(process)]


async def test_async_handlers_on_postgresql_have_a_current_span_too(
    shop: TracedShop, spans: Spans, migrated: str
) -> None:
    seen: list[trace.SpanContext] = []
    inbox = AsyncInbox("billing", lambda: psycopg.AsyncConnection.connect(migrated))

    @inbox.handler("OrderPlaced")
    async def bill(connection: Any, event: Event[Any]) -> None:
        await connection.execute("SELECT 1")
        seen.append(trace.get_current_span().get_span_context())

    @inbox.handler("OrderPaid", batch=True)
    async def note(connection: Any, events: list[Event[Any]]) -> None:
        seen.append(trace.get_current_span().get_span_context())

    async with await psycopg.AsyncConnection.connect(migrated) as connection:
        with spans.tracer.start_as_current_span("request"):
            await AsyncOutbox().add(connection, placed())
        await AsyncOutbox().add(connection, *(Event("OrderPaid", {}, topic="payments") for _ in range(2)))
    settings = replace(shop.settings, database=migrated)
    with spans.tracer.start_as_current_span("what the daemons were started in"):
        await Relay(settings).run_once()
        for topic in (TOPIC, "payments"):
            await Consumer(inbox, topics=[topic], settings=settings).run_once(patience=0.01)
    request, publish, process = (spans.only(name) for name in ("request", f"publish {TOPIC}", f"process {TOPIC}"))
    assert linked(publish) == [traceparent(request)]
    assert (publish.parent, process.parent and process.parent.span_id) == (None, publish.context.span_id)
    together = spans.only("process payments")
    assert (together.parent, seen) == (None, [process.context, together.context])


def test_what_is_no_event_is_refused_in_words_in_a_span_too(shop: TracedShop, spans: Spans) -> None:
    with (
        spans.tracer.start_as_current_span("request"),
        pytest.raises(InvalidEvent, match="expected an Event, found str"),
    ):
        shop.add("OrderPlaced")  # type: ignore[arg-type]


async def test_the_wire_has_the_context_of_the_publishing(shop: TracedShop, spans: Spans) -> None:
    own = {"traceparent": SAMPLED, "tracestate": "shop=blue", "tenant": "a"}
    shop.add(placed(1, headers=own), placed(2))
    await shop.relay(broker=shop.broker).run_once()
    publish = spans.only(f"publish {TOPIC}")
    assert publish.links[0].context.trace_state.to_header() == "shop=blue"
    assert publish.attributes is not None
    assert publish.attributes["messaging.system"] == "MemoryBroker"
    carried = {message.key: dict(message.headers) for message in shop.broker.messages()}
    assert carried["1"] | {"id": "", "traceparent": traceparent(publish)} == carried["1"] | {"id": ""}
    assert (carried["1"]["tenant"], "tracestate" in carried["1"]) == ("a", False)
    assert not carried["2"].keys() & {"traceparent", "tracestate"}


@pytest.mark.parametrize("format", ["cloudevents", "cloudevents-structured"])
async def test_every_format_carries_it_under_the_same_name(shop: TracedShop, spans: Spans, format: str) -> None:
    shop.settings = replace(shop.settings, topics={TOPIC: Topic(format=format)})  # type: ignore[arg-type]
    event = placed(headers={"traceparent": SAMPLED})
    shop.add(event)
    await shop.relay(broker=shop.broker).run_once()
    (message,) = shop.broker.messages()
    publish = spans.only(f"publish {TOPIC}")
    assert message.headers["traceparent"] == traceparent(publish)
    assert publish.attributes is not None
    assert publish.attributes.get("messaging.message.id") == (str(event.id) if format == "cloudevents" else None)


async def test_what_was_not_sampled_is_not_traced_and_its_context_goes_on(shop: TracedShop, spans: Spans) -> None:
    seen = []

    @shop.inbox.handler("OrderPlaced")
    def bill(connection: Any, event: Event[Any]) -> None:
        seen.append((event.headers["traceparent"], trace.get_current_span().is_recording()))

    shop.add(placed(headers={"traceparent": UNSAMPLED}))
    await shop.relay().run_once()
    assert await shop.consume() == 1
    assert (spans.names(), seen) == ([], [(UNSAMPLED, False)])


class RecordOnly(Sampler):
    """Records, and exports nothing."""

    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_ONLY)

    def get_description(self) -> str:
        return "RecordOnly"


@pytest.mark.parametrize("sampler", [ParentBased(ALWAYS_OFF), RecordOnly()])
async def test_a_relay_that_samples_nothing_leaves_the_message_as_it_is(
    shop: TracedShop, provide: Provide, sampler: Sampler
) -> None:
    spans = provide(sampler)
    shop.add(placed(headers={"traceparent": SAMPLED, "tracestate": "shop=blue"}))
    await shop.relay(broker=shop.broker).run_once()
    (message,) = shop.broker.messages()
    assert (message.headers["traceparent"], message.headers["tracestate"]) == (SAMPLED, "shop=blue")
    assert spans.names() == []


@pytest.mark.parametrize("malformed", ["", "00-1-2-01", "hello", f"00-{'0' * 32}-{'2' * 16}-01"])
async def test_a_malformed_context_is_carried_and_nothing_more(shop: TracedShop, spans: Spans, malformed: str) -> None:
    @shop.inbox.handler("OrderPlaced")
    def bill(connection: Any, event: Event[Any]) -> None:
        assert event.headers["traceparent"] == malformed

    shop.add(placed(headers={"traceparent": malformed}))
    await shop.relay().run_once()
    assert await shop.consume() == 1
    assert spans.names() == [f"process {TOPIC}"]
    assert spans.only(f"process {TOPIC}").parent is None


async def test_each_try_to_publish_is_a_span_with_the_brokers_answer(shop: TracedShop, spans: Spans) -> None:
    refused = [PublishRejected("no such topic")]

    async def publish(messages: list[Message]) -> None:
        if refused:
            raise refused.pop()

    shop.add(placed(1, headers={"traceparent": SAMPLED}))
    await shop.relay(publish=publish).run_once()
    shop.add(placed(2, headers={"traceparent": SAMPLED}))
    await shop.relay(publish=publish).run_once()
    failed, fine = spans.named(f"publish {TOPIC}")
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "no such topic")
    assert failed.attributes is not None
    assert (failed.attributes["error.type"], failed.attributes["messaging.system"]) == ("PublishRejected", "function")
    assert fine.status.status_code is StatusCode.UNSET


async def test_what_is_not_answered_ends_with_the_publisher(spans: Spans) -> None:
    async def never(messages: list[Message]) -> None:
        await asyncio.Event().wait()

    traces = open_traces("function")
    assert traces is not None
    publisher = traces.publisher(FunctionPublisher(never, publish_timeout=timedelta(seconds=60)))
    publisher.send([Message(TOPIC, None, {"id": "7", "traceparent": SAMPLED}, b"")])
    await publisher.close()
    span = spans.only(f"publish {TOPIC}")
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        "the relay stopped before the broker answered",
    )


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_each_try_of_a_handler_is_a_span_and_only_failures_are_errors(shop: TracedShop, spans: Spans) -> None:
    left: list[Exception] = [RetryLater(0, "not yet"), Reject("no such order")]

    @shop.inbox.handler("OrderPlaced")
    def bill(connection: Any, event: Event[Any]) -> None:
        raise left.pop(0)

    @shop.inbox.handler("OrderPaid")
    def pay(connection: Any, event: Event[Any]) -> None:
        raise Wordless

    shop.add(placed(), Event("OrderPaid", {}, aggregate=("order", 2)))
    await shop.relay().run_once()
    while left:
        await shop.consume()
    seen = {}
    for span in spans.named(f"process {TOPIC}"):
        assert span.attributes is not None
        key = (span.attributes["pillarbox.event.type"], span.attributes["pillarbox.attempt"])
        (said,) = span.events
        seen[key] = (span.status.status_code, span.status.description, span.attributes.get("error.type"), said.name)
    assert seen == {
        ("OrderPlaced", 1): (StatusCode.UNSET, None, None, "retry later"),
        ("OrderPlaced", 2): (StatusCode.ERROR, "no such order", "Reject", "exception"),
        ("OrderPaid", 1): (StatusCode.ERROR, "Wordless", "Wordless", "exception"),
    }


async def test_no_words_of_an_exception_get_into_a_span(shop: TracedShop, spans: Spans) -> None:
    async def publish(messages: list[Message]) -> None:
        raise PublishRejected("400: card 4111-secret refused", brief="the gateway answered 400")

    async def publish_badly(messages: list[Message]) -> None:
        raise ValueError("card 4111-secret")

    @shop.inbox.handler("OrderPlaced")
    def bill(connection: Any, event: Event[Any]) -> None:
        try:
            raise KeyError("4111-secret")
        except KeyError as error:
            raise ValueError(f"card {error}") from error

    for n, way in enumerate((publish, publish_badly)):
        shop.add(placed(n, headers={"traceparent": SAMPLED}))
        await shop.relay(publish=way).run_once()
    shop.add(placed(3, headers={"traceparent": SAMPLED}))
    await shop.relay().run_once()
    await shop.consume()
    refused, failed = (span.status.description or "" for span in spans.named(f"publish {TOPIC}")[:2])
    assert refused == "the gateway answered 400"
    assert "publish_badly raised ValueError at test_opentelemetry.py, line " in failed
    process = spans.only(f"process {TOPIC}")
    assert process.status.description == "ValueError"
    assert "in bill" in str(process.events[0].attributes)
    assert "4111" not in "".join(span.to_json() for span in (*spans.named(f"publish {TOPIC}"), process))


async def test_a_list_of_events_is_one_span_linked_to_each(shop: TracedShop, spans: Spans) -> None:
    lists = []

    @shop.inbox.handler("OrderPlaced", batch=True)
    def bill(connection: Any, events: list[Event[Any]]) -> None:
        lists.append((len(events), trace.get_current_span().get_span_context()))

    shop.add(*(placed(n, headers={"traceparent": SAMPLED}) for n in range(2)), placed(3))
    await shop.relay().run_once()
    assert await shop.consume() == 3
    process = spans.only(f"process {TOPIC}")
    assert lists == [(3, process.context)]
    assert sorted(linked(process)) == sorted(map(traceparent, spans.named(f"publish {TOPIC}")))
    assert process.parent is None
    assert process.attributes is not None
    assert process.attributes["messaging.batch.message_count"] == 3


async def test_without_a_provider_nothing_is_wrapped(shop: TracedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert open_traces("sqlite") is None
    shop.add(placed(headers={"traceparent": SAMPLED}))
    await shop.relay(broker=shop.broker).run_once()
    assert [message.headers["traceparent"] for message in shop.broker.messages()] == [SAMPLED]


def test_a_provider_that_is_switched_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(shutdown_on_exit=False))
    assert open_traces("sqlite") is None


def test_a_provider_that_is_set_after_the_daemons_are_made_counts(tmp_path: Path, provide: Provide) -> None:
    async def trip() -> None:
        shop = TracedShop(tmp_path)
        shop.inbox.handler("OrderPlaced")(lambda connection, event: None)
        relay = shop.relay()
        consumer = Consumer(shop.inbox, topics=[TOPIC], settings=shop.settings)
        spans = provide()
        shop.add(placed(headers={"traceparent": SAMPLED}))
        await relay.run_once()
        await consumer.run_once(patience=0.01)
        assert spans.names() == [f"publish {TOPIC}", f"process {TOPIC}"]

    asyncio.run(trip())


WITHOUT = """
import asyncio, sqlite3, sys
if {blocked}:
    sys.modules["opentelemetry"] = None
from pillarbox import Consumer, Event, Relay, Settings
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.wiring import open_admin

settings = Settings(database="sqlite:///shop.db", broker="sqlite:///stream.db")
inbox, seen = Inbox("billing", lambda: sqlite3.connect("shop.db")), []
inbox.handler("Ping")(lambda connection, event: seen.append(dict(event.headers)))

async def trip():
    async with open_admin(settings) as admin:
        await admin.migrate()
    with sqlite3.connect("shop.db") as connection:
        connection.execute("BEGIN IMMEDIATE")
        Outbox().add(connection, Event("Ping", {{}}), Event("Ping", {{}}, headers={{"traceparent": "mine"}}))
    connection.close()
    await Relay(settings).run_once()
    await Consumer(inbox, topics=["events"], settings=settings).run_once(patience=0.01)

asyncio.run(trip())
assert sorted(map(str, seen)) == ["{{'traceparent': 'mine'}}", "{{}}"], seen
print(*(name for name in sys.modules if "opentelemetry" in name or name == "pillarbox.telemetry.opentelemetry"))
"""


@pytest.mark.parametrize(("blocked", "imported"), [(True, "opentelemetry"), (False, "")])
def test_where_it_is_not_installed_or_not_imported_nothing_of_it_is_touched(
    tmp_path: Path, blocked: bool, imported: str
) -> None:
    code = WITHOUT.format(blocked=blocked)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (imported, "")
