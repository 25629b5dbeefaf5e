"""What the commands print: data to stdout, talk to stderr; tables for people, JSON for programs."""

import base64
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import IntEnum
from io import TextIOWrapper
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pillarbox.admin.wording import counted
from pillarbox.core.payload import check_json, is_json
from pillarbox.core.secrets import quiet
from pillarbox.errors import EncodeError
from pillarbox.ports import Record, RelaySeen, Stats

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_WIDE = 100_000  # off a terminal nobody folds lines, so nothing is cut off
_HIDDEN = "(hidden from this role)"
_DEEP = 500  # nested further than this, Python may be able to read a payload and not to write it


GIVEN = frozenset(
    (
        *("id", "event_id", "example", "aggregate", "topic", "type", "key", "idempotency_key"),
        *("headers", "payload", "payload before it was edited", "body_base64", "body (base64)", "original"),
    )
)
"""What an event is found by and what it carries, as JSON and tables call it: shown as it is, to be copied."""


class ExitCode(IntEnum):
    """What a command's exit code means."""

    FINE = 0
    ERROR = 1
    USAGE = 2
    UNHEALTHY = 3
    NOTHING_MATCHED = 4
    INTERRUPTED = 130


class _Plain(Console):
    """A console on which what somebody wrote into an event cannot move the cursor or rename the window, and an error
    tells no secret."""

    def print(self, *objects: Any, **more: Any) -> None:
        super().print(*(visible(quiet(each)) if isinstance(each, str) else each for each in objects), **more)


def visible(text: str) -> str:
    """Write control characters with backslashes, but for those that end or indent a line.

    >>> visible("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def console(*, stderr: bool = False) -> Console:
    """Give the terminal (or the pipe): no colour off a terminal or with NO_COLOR, no line cut off in a pipe,
    and what its encoding lacks is written with backslashes."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return _Plain(
        file=stream,
        width=None if stream.isatty() else _WIDE,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def say(text: str, style: str | None = None) -> None:
    """Talk to the person, on stderr."""
    console(stderr=True).print(text, style=style)


def print_line(text: str, style: str | None = None) -> None:
    """Print one line of data."""
    console().print(text, style=style)


def print_json(value: object, *, as_it_is: bool = False) -> None:
    """Print a JSON document on one line, without secrets but for what an event carries or is found by; what was asked
    for, a script or a configuration, `as_it_is`."""
    value = value if as_it_is else _quietly(value)
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        text = json.dumps(value, default=_plain)
    print(text, flush=True)


def _quietly(value: object) -> object:
    if isinstance(value, str):
        return quiet(value)
    if isinstance(value, dict):
        return {name: each if name in GIVEN else _quietly(each) for name, each in value.items()}
    return [_quietly(each) for each in value] if isinstance(value, list | tuple) else value


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_done(done: str, count: int, json: bool) -> None:
    """Say what a turn of a daemon has done to how many events."""
    if json:
        print_json({done: count})
    else:
        say(f"{done} {counted(count, 'event')}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table without frames, so that it can be cut and grepped."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        names = columns if any(columns) else ("", str(row[0]))  # without headings, the first cell says what it is
        table.add_row(*(Text(visible(cell(value, name))) for name, value in zip(names, row, strict=True)))
    console().print(table, soft_wrap=False)


def cell(value: object, name: str = "") -> str:
    """Write a value for a table, under a name; without secrets, but for what an event carries or is found by."""
    text = _written(value)
    return text if name.lower() in GIVEN or name.startswith("header ") else quiet(text)


def _written(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)


def nothing_matched(what: str, document: Mapping[str, object] | None = None) -> typer.Exit:
    """Say that nothing matched, for programs in a document too, and give the exit that says so."""
    if document is not None:
        print_json(document)
    say(f"no {what}")
    return typer.Exit(ExitCode.NOTHING_MATCHED)


def whole_ids(ids: Iterable[str]) -> str:
    """Say how ids are given, if one of them looks like a shortened one."""
    short = any(len(id) < len("00000000-0000-0000-0000-000000000000") for id in ids)
    return "; an id must be given in full, as `events list` and `dead list` show it" if short else ""


def print_record(record: Record) -> None:
    """Print everything of one record, one line a field, then what it carries."""
    document = record_json(record) | {"aggregate": aggregate_of(record)}
    payload, body, headers = document.pop("payload"), document.pop("body_base64"), document.pop("headers")
    original = document.pop("original")
    rows = [(name.replace("_", " "), value) for name, value in document.items() if value is not None]
    if record.hidden:
        rows += [("headers", _HIDDEN), ("payload", _HIDDEN)]
    else:
        rows += [(f"header {name}", value) for name, value in headers.items()]
        rows.append(("payload", json.dumps(payload, ensure_ascii=False)) if body is None else ("body (base64)", body))
        if original is not None:
            rows.append(("payload before it was edited", json.dumps(original, ensure_ascii=False)))
    print_table(("", ""), rows)


def aggregate_of(record: Record) -> str | None:
    """Write an event's aggregate for people."""
    return " ".join(record.aggregate) if record.aggregate else None


def record_json(record: Record) -> dict[str, Any]:
    """Write a record with stable keys: what it carries is its payload, or in base64 if it is neither JSON nor text.
    What is hidden from this user is null."""
    document = {name: getattr(record, name) for name in Record.__slots__ if name not in ("data", "hidden")}
    document |= {"original": _original(record)}
    if record.hidden:
        return document | {"headers": None, "payload": None, "body_base64": None}
    data = _text(record)
    if isinstance(data, bytes):
        return document | {"payload": None, "body_base64": base64.b64encode(data).decode()}
    return document | {"payload": _parsed(data) if is_json(record.content_type) else data, "body_base64": None}


def _original(record: Record) -> object:
    """Write what an edited event carried before: as its payload is written, or in base64."""
    if record.original is None:
        return None
    before = record_json(replace(record, data=record.original, original=None))
    return before["payload"] if before["body_base64"] is None else before["body_base64"]


def _text(record: Record) -> str | bytes:
    """Read what was received as JSON; bytes that are no text stay what they are."""
    if isinstance(record.data, str) or not is_json(record.content_type):
        return record.data
    try:
        return record.data.decode()
    except UnicodeDecodeError:
        return record.data


def _parsed(text: str) -> object:
    try:
        value = json.loads(check_json(text))
    except EncodeError:  # a plain INSERT or a stranger's message may hold anything; it is shown as it stands
        return text
    return text if _is_deep(value) else value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEP):
        level = [below for one in level for below in _below(one)]
        if not level:
            return False
    return True


def _below(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def stats_json(stats: Stats, living: Sequence[RelaySeen]) -> dict[str, Any]:
    """Write the figures with stable keys."""
    return {
        "pending": stats.pending,
        "pending_exact": stats.pending_exact,
        "pending_by_topic": stats.pending_by_topic,
        "oldest_pending_at": stats.oldest_waiting_at,
        "retrying": stats.retrying,
        "blocked": stats.blocked,
        "delayed": stats.delayed,
        "overdue": stats.overdue,
        "copies": stats.copies,
        "dead": stats.dead,
        "inbox_dead": stats.inbox_dead,
        "inbox_waiting": stats.inbox_waiting,
        "last_published_at": stats.last_published_at,
        "pauses": [{"topic": p.topic, "since": p.since, "who": p.who, "why": p.why} for p in stats.pauses],
        "relays": [
            {
                "owner": r.owner,
                "alive": r in living,
                "seen_at": r.seen_at,
                "lease_until": r.lease_until,
                "lanes": r.lanes,
                "away_since": r.away and r.away.since,
                "away_error": r.away and r.away.error,
            }
            for r in stats.relays
        ],
        "slot": stats.slot
        and {
            "name": stats.slot.name,
            "trouble": stats.slot.trouble,
            "is_read": stats.slot.is_read,
            "behind_bytes": stats.slot.behind,
            "kept_bytes": stats.slot.kept,
            "at_risk": stats.slot.at_risk,
            "watched_at": stats.slot.watched_at,
        },
    }


def confirmed(what: str, *, yes: bool, dry_run: bool) -> bool:
    """Say what is about to happen and ask; False if it was only a rehearsal. Saying no ends the command."""
    say(what)
    if dry_run:
        return False
    if not yes:
        print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline() if sys.stdin is not None else ""
        if not answer:
            say("nobody is there to answer: --yes does not ask")
        if answer.strip().lower() not in ("y", "yes"):
            raise typer.Abort
    return True
