"""OpenTelemetry: producer spans around a publisher, consumer spans around handlers. The daemons know nothing of it.

An event carries the trace context that was current when it was added (`pillarbox.tracing`). Publishing it is a span
linked to that context, whose own context goes over the wire; handling it is a child of whatever came over the wire.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.core.retry import brief_of, sayable
from pillarbox.errors import HandlerSignal, PublishError, RetryLater
from pillarbox.ports import Outcome, Publisher

HEADERS = ("traceparent", "tracestate")
_w3c = TraceContextTextMapPropagator()


class Traces:
    """What one daemon traces with; `system` is what its broker is called."""

    def __init__(self, tracer: trace.Tracer, system: str) -> None:
        self._tracer, self._system = tracer, system

    def publisher(self, publisher: Publisher) -> Publisher:
        """Wrap a publisher: of each message that carries a sampled trace, there is a producer span."""
        return _TracedPublisher(publisher, self._tracer, self._system)

    def handler(self, function: Callable[..., Any], consumer: str, *, is_async: bool) -> Callable[..., Any]:
        """Wrap a handler: each call is a consumer span, current meanwhile."""
        return partial(_call_async if is_async else _call, partial(self._process, consumer), function)

    def _process(self, consumer: str, given: Event[Any] | Sequence[Event[Any]]) -> "_Current":
        events = [given] if isinstance(given, Event) else given
        first, topics = events[0], {event.topic for event in events}
        attributes: dict[str, Any] = {
            "messaging.system": self._system,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": consumer,
            "pillarbox.event.type": first.type,
        }
        name = "process"
        if len(topics) == 1:
            attributes["messaging.destination.name"] = first.topic
            name = f"process {first.topic}"
        if len(events) > 1:
            attributes["messaging.batch.message_count"] = len(events)
            linked = [_context_of(event.headers) for event in events]
            parent, links = Context(), [trace.Link(context) for context in linked if context is not None]
        else:
            attributes |= _of_one(first)
            parent, links = _w3c.extract(first.headers), []
        return _Current(self._tracer.start_span(name, parent, trace.SpanKind.CONSUMER, attributes, links))


def open_traces(system: str) -> Traces | None:
    """Trace with the provider that this process has now; None if it has none, or it is switched off."""
    tracer = trace.get_tracer("pillarbox", version("pillarbox"))
    return None if isinstance(tracer, trace.ProxyTracer | trace.NoOpTracer) else Traces(tracer, system)


def _context_of(headers: Mapping[str, str]) -> trace.SpanContext | None:
    context = trace.get_current_span(_w3c.extract(headers)).get_span_context()
    return context if context.is_valid else None


def _of_one(event: Event[Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"messaging.message.id": str(event.id)}
    if event.delivery is not None:
        attributes["pillarbox.attempt"] = event.delivery.attempt
        attributes["pillarbox.redelivered"] = event.delivery.redelivered
        if event.delivery.replay is not None:
            attributes["pillarbox.replay"] = event.delivery.replay
    return attributes


def _failed(span: trace.Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(trace.Status(trace.StatusCode.ERROR, _told(error)))


def _told(error: BaseException) -> str:
    """Give what a span may say of an error, as a log line does: what was written to be told, and of any other exception
    its class, for its words may have what the event carries."""
    return brief_of(error) if isinstance(error, HandlerSignal | PublishError) else type(error).__qualname__


class _TracedPublisher:
    """A publisher whose messages have a span each, from when they are sent until the broker has answered."""

    def __init__(self, publisher: Publisher, tracer: trace.Tracer, system: str) -> None:
        self._publisher, self._tracer, self._system = publisher, tracer, system
        self._spans: dict[int, trace.Span] = {}

    @property
    def prefix_safe(self) -> bool:
        return self._publisher.prefix_safe

    def send(self, messages: Sequence[Message]) -> None:
        self._publisher.send([self._begin(one) if "traceparent" in one.headers else one for one in messages])

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await self._publisher.outcomes()
        for ticket, error in outcomes if self._spans else ():
            if (span := self._spans.pop(ticket, None)) is not None:
                if error is not None:
                    _failed(span, error)
                span.end()
        return outcomes

    async def close(self) -> None:
        try:
            await self._publisher.close()
        finally:
            for span in self._spans.values():
                span.set_status(trace.Status(trace.StatusCode.ERROR, "the relay stopped before the broker answered"))
                span.end()
            self._spans.clear()

    def _begin(self, message: Message) -> Message:
        """Begin the span of a message; give the message with the span's context, if that is to be recorded."""
        added = _context_of(message.headers)
        if added is None or not added.trace_flags.sampled:
            return message  # a link to what nobody recorded leads nowhere
        attributes: dict[str, Any] = {
            "messaging.system": self._system,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": message.topic,
            "messaging.message.body.size": len(message.body),
        }
        id = message.headers.get("id") or message.headers.get("ce_id")
        if id is not None:  # a structured CloudEvent has it in its body
            attributes["messaging.message.id"] = id
        span = self._tracer.start_span(
            f"publish {message.topic}", Context(), trace.SpanKind.PRODUCER, attributes, [trace.Link(added)]
        )
        if span.is_recording():
            self._spans[message.ticket] = span
        if not span.get_span_context().trace_flags.sampled:
            return message
        headers = {name: value for name, value in message.headers.items() if name not in HEADERS}
        _w3c.inject(headers, trace.set_span_in_context(span, Context()))
        return message._replace(headers=headers)


class _Current:
    """A span that is current while a handler runs, and ends with it."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        self._token = contexts.attach(trace.set_span_in_context(self._span))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        contexts.detach(self._token)
        if isinstance(error, RetryLater):  # what it asked for, and no failure
            self._span.add_event("retry later", {"reason": _told(error), "seconds": error.delay.total_seconds()})
        elif error is not None:
            # Not with record_exception, which writes down all of its words, and those of what it came from.
            said = {"exception.type": type(error).__qualname__, "exception.message": _told(error)}
            text = sayable("".join([*traceback.format_tb(error.__traceback__), _told(error)]))
            self._span.add_event("exception", {**said, "exception.stacktrace": text})
            _failed(self._span, error)
        self._span.end()


Process = Callable[[Any], _Current]


def _call(process: Process, function: Callable[..., Any], transaction: object, given: Any) -> object:
    with process(given):
        return function(transaction, given)


async def _call_async(process: Process, function: Callable[..., Any], transaction: object, given: Any) -> object:
    with process(given):
        return await function(transaction, given)
