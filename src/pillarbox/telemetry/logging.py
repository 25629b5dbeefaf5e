"""Logging: the noteworthy moments as log lines on the logger `pillarbox`, for people or as JSON, one object a line.

A line says who writes it and, if it is about an event, which one and at which attempt. It never has what an event
carries, and no control character: nobody can write a line of ours into an event. So of an error that may have words of
others, whoever tells a moment gives the brief alone (`pillarbox.core.retry.told`).
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TextIO

from pillarbox.core.entry import Entry
from pillarbox.core.routing import LANES
from pillarbox.core.secrets import quiet
from pillarbox.telemetry.hooks import Facts, Moment

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Quiet(logging.Filter):
    """Hides secrets in what is logged, wherever the application sends it: words, facts and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = quiet(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = quiet(logging.Formatter().formatException(record.exc_info))
        facts: Facts = getattr(record, "facts", {})
        if isinstance(error := facts.get("error"), str):
            record.facts = {**facts, "error": quiet(error)}
        return True


logger = logging.getLogger("pillarbox")
logger.addFilter(Quiet())
PAYLOAD = "(payload)"
SHORTEST = 3
"""A payload below that is everywhere, and says nothing."""


class By(NamedTuple):
    """Who writes a line: a relay by the name that `status` shows, a consumer by its own."""

    kind: Literal["relay", "consumer"]
    name: str


def _event(facts: Facts) -> str:
    entry = facts.get("entry")
    if isinstance(entry, Entry):
        of = f" for {entry.aggregate_type} {entry.aggregate_id}" if entry.aggregate_id else ""
        return f"{entry.event_type} {entry.event_id}{of} in {entry.topic}"
    where = f" in {facts['topic']}" if "topic" in facts else ""
    return f"{facts.get('type', 'event')} {facts.get('event_id', '')}".rstrip() + where


def _error(facts: Facts) -> str:
    """Give the words of an error, without the whole of what the event carries: a publisher of somebody's own may repeat
    it where it should have given a brief."""
    entry, error = facts.get("entry"), str(facts.get("error"))
    data = entry.data if isinstance(entry, Entry) else ""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    if len(text) >= SHORTEST:
        return error.replace(text, PAYLOAD).replace(json.dumps(text)[1:-1], PAYLOAD)
    return error


def _tried(facts: Facts) -> str:
    attempt = attempt_of(facts)
    return "" if attempt is None else f" (attempt {attempt})"


def attempt_of(facts: Facts) -> int | None:
    """Give which try this was, from 1 on, if it was one."""
    entry, attempt = facts.get("entry"), facts.get("attempt")
    if isinstance(entry, Entry):
        return entry.attempts + 1
    return attempt if isinstance(attempt, int) else None


def _shown(facts: Facts) -> str:
    """Name the command that shows what is not told here."""
    return f" (`{facts['show']}`)" if "show" in facts else ""


def _its(facts: Facts) -> str:
    """Name an event where its topic is named already."""
    return f"{facts.get('type', 'event')} {facts.get('event_id', '')}".rstrip() + _tried(facts)


def _aggregate(facts: Facts) -> str:
    of = facts.get("aggregate")
    name = " ".join(map(str, of)) if isinstance(of, tuple) else of
    return f"{name} in {facts.get('topic')}"


def _due(facts: Facts) -> str:
    at = facts.get("at")
    return f" at {at:%H:%M:%S} UTC" if isinstance(at, datetime) else ""


def _seconds(value: object) -> str:
    return f"{value.total_seconds():.1f} s" if isinstance(value, timedelta) else f"{value} s"


Sentence = Callable[[Facts], str]
_SENTENCES: Mapping[Moment, tuple[int, Sentence]] = {
    Moment.LANES_TAKEN: (logging.INFO, lambda f: f"holds {f.get('lanes')} lanes and relays"),
    Moment.LANES_RELEASED: (logging.INFO, lambda f: "gave its lanes back"),
    Moment.LANES_AWAITED: (logging.INFO, lambda f: "another relay is at work; stands by to take over"),
    Moment.LANES_SHARED: (logging.INFO, lambda f: f"holds {f.get('lanes')} of {LANES} lanes now"),
    Moment.LANES_SUSPECT: (
        logging.WARNING,
        lambda f: (
            f"relays died with {f.get('lanes')} lanes: their events go one at a time until the guilty one is found"
        ),
    ),
    Moment.LANES_LOST: (logging.WARNING, lambda f: f"lost its lanes and starts over: {f.get('error')}"),
    Moment.BROKER_AWAY: (logging.WARNING, lambda f: f"the broker is away; nothing is lost: {f.get('error')}"),
    Moment.BROKER_BACK: (logging.INFO, lambda f: f"the broker is back after {_seconds(f.get('away', 0))}"),
    Moment.TOPIC_AWAY: (
        logging.WARNING,
        lambda f: f"topic {f.get('topic')} fails while others go; it is held and tried again: {f.get('error')}",
    ),
    Moment.TOPIC_BACK: (logging.INFO, lambda f: f"topic {f.get('topic')} is back"),
    Moment.STORE_AWAY: (logging.WARNING, lambda f: f"the database is away: {f.get('error')}"),
    Moment.STORE_BACK: (logging.INFO, lambda f: "the database is back"),
    Moment.HINT_AWAY: (
        logging.WARNING,
        lambda f: f"the Redis hint is away; copies are looked up in the database meanwhile: {f.get('error')}",
    ),
    Moment.HINT_BACK: (logging.INFO, lambda f: f"the Redis hint is back after {_seconds(f.get('away', 0))}"),
    Moment.HINT_DROPPED: (
        logging.WARNING,
        lambda f: (
            f"the database went back: its transactions count up to {f.get('found')}, and {f.get('seen')} was seen"
            " before. What the Redis hint knew of it is dropped"
        ),
    ),
    Moment.CANARY_REFUSED: (logging.WARNING, lambda f: f"the canary cannot be added: {f.get('error')}"),
    Moment.SLOT_WATCHED: (logging.INFO, lambda f: f"watches the replication slot {f.get('slot')}"),
    Moment.SLOT_DOUBTED: (
        logging.ERROR,
        lambda f: (
            f"the replication slot {f.get('slot')} {f.get('doubt')}: events may have been passed over, so nothing is"
            " settled by it any more; `pillarbox status` says what to do"
        ),
    ),
    Moment.EVENT_RETRYING: (
        logging.WARNING,
        lambda f: f"{_event(f)} failed{_tried(f)} and is tried again{_due(f)}: {_error(f)}{_shown(f)}",
    ),
    Moment.EVENT_DEAD: (logging.ERROR, lambda f: f"{_event(f)} is dead{_tried(f)}: {_error(f)}{_shown(f)}"),
    Moment.NUMBER_MISSING: (
        logging.ERROR,
        lambda f: (
            f"{_aggregate(f)} stands still at {_its(f)}: its number is {f.get('number')}, and one before it has not"
            " come. Have it sent again (pillarbox replay), or retry the dead letter to go on without it"
        ),
    ),
    Moment.NUMBER_CONFLICT: (
        logging.ERROR,
        lambda f: f"{_aggregate(f)} stands still at {_its(f)}: {f.get('error')}{_shown(f)}",
    ),
    Moment.HANDLER_SLOW: (
        logging.WARNING,
        lambda f: f"the handler has been at {_event(f)}{_tried(f)} for {f.get('seconds')} s",
    ),
    Moment.HANDLER_AWAITED: (
        logging.WARNING,
        lambda f: (
            f"stops when the handler is done with {_event(f)}{_tried(f)}, after {f.get('seconds')} s so far;"
            " a second signal stops at once: that try counts as one in which the process died, and it is tried again"
        ),
    ),
    Moment.HANDLER_RETURNED: (
        logging.WARNING,
        lambda f: (
            f"{f.get('handler')} returned a value of type {f.get('value')} for {_event(f)}{_tried(f)}, which nobody"
            " uses; raise Reject or RetryLater to refuse"
        ),
    ),
    Moment.TYPE_PASSED_OVER: (
        logging.INFO,
        lambda f: f"passes over {f.get('type')!r} in {f.get('topic')}: no handler is registered for it",
    ),
    Moment.HANDLER_COMMITTED: (
        logging.WARNING,
        lambda f: (
            f"{f.get('handler')} committed by itself at {_event(f)}{_tried(f)}: if it fails after that, what it did up"
            " to there stands and it is not tried again; remove the commit: the inbox commits"
        ),
    ),
}


class LogMoments:
    """A listener that logs what is noteworthy; a database that stays away is mentioned once. `by` is who speaks."""

    def __init__(self, to: logging.Logger = logger, by: By | None = None) -> None:
        self._logger, self._by, self._store_away = to, by, False

    def __call__(self, moment: Moment, facts: Facts) -> None:
        if moment not in _SENTENCES or self._said(moment):
            return
        level, sentence = _SENTENCES[moment]
        if self._logger.isEnabledFor(level):
            self._logger.log(level, sentence(facts), extra={"moment": moment.value, "facts": facts, "by": self._by})

    def _said(self, moment: Moment) -> bool:
        was_away = self._store_away
        if moment is Moment.STORE_AWAY:
            self._store_away = True
            return was_away
        if moment in (Moment.STORE_BACK, Moment.LANES_TAKEN):
            self._store_away = False
        return False


class PlainLines(logging.Formatter):
    """`12:00:05 web-4711-9f3c2a1b WARNING the broker is away; nothing is lost: …`"""

    def __init__(self, by: By | None = None) -> None:
        name = "" if by is None else f" {_escaped(by.name).replace('%', '%%')}"
        super().__init__(f"%(asctime)s{name} %(levelname)s %(message)s", "%H:%M:%S")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return _escaped(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object a line, always with the same keys: who, which event at which attempt, and the moment's facts."""

    def __init__(self, by: By | None = None) -> None:
        super().__init__()
        self._by = by

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "moment": getattr(record, "moment", None),
            "text": record.getMessage(),
        }
        told: Facts = getattr(record, "facts", {})
        line |= _who(getattr(record, "by", None) or self._by) | _which(told)
        facts = {name: _error(told) if name == "error" else _plain(value) for name, value in told.items()}
        if record.exc_info:
            facts["traceback"] = record.exc_text or self.formatException(record.exc_info)
        text = json.dumps(line | {"facts": facts}, ensure_ascii=False)
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _who(by: By | None) -> dict[str, object]:
    return {kind: by.name if by is not None and by.kind == kind else None for kind in ("relay", "consumer")}


def _which(facts: Facts) -> dict[str, object]:
    entry = facts.get("entry")
    if isinstance(entry, Entry):
        id, topic = entry.event_id, entry.topic
    else:
        id, topic = (facts.get(name) for name in ("event_id", "topic"))  # type: ignore[assignment]
    return {"event_id": id, "topic": topic, "attempt": attempt_of(facts)}


def _plain(value: object) -> object:
    if isinstance(value, Entry):
        return {
            "event_id": value.event_id,
            "type": value.event_type,
            "topic": value.topic,
            "aggregate": [value.aggregate_type, value.aggregate_id] if value.aggregate_id else None,
            "attempts": value.attempts,
        }
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def log_to(
    stream: TextIO | None = None, *, as_json: bool = False, level: int = logging.INFO, by: By | None = None
) -> None:
    """Send the log lines to a stream (stderr by default); an application decides for itself where they go."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(Quiet())  # that of the logger does not see what brokers' own loggers say
    handler.setFormatter(JsonLines(by) if as_json else PlainLines(by))
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
