"""The trace that is current while an event is added, which goes along with it. The doors ask here.

Nothing is imported: whoever has a current span has imported OpenTelemetry.
"""

import sys
from collections.abc import Sequence
from typing import Any

from pillarbox.core.event import Event, carrying


def with_trace(events: Sequence[Event[Any]]) -> Sequence[Event[Any]]:
    """Give events the current trace context, as W3C writes it in headers; those that carry one keep it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "get_current_span"):  # another thread may be importing it
        return events
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return events
    headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    if context.trace_state:
        headers["tracestate"] = context.trace_state.to_header()
    given: Sequence[Any] = events  # what is no event is refused later, in words
    return [
        carrying(one, headers) if isinstance(one, Event) and "traceparent" not in one.headers else one for one in given
    ]
