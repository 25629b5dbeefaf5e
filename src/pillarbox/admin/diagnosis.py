"""Diagnosis: why nothing happens, as values. Pure: what is known of an outbox in, findings with their cure out."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from pillarbox.admin.wording import at, command, counted, resume_command, sized
from pillarbox.core.canary import overdue_after
from pillarbox.core.routing import LANES
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import PillarboxError
from pillarbox.ports import Away, Pause, Record, RelaySeen, SchemaStatus, SlotSeen, Stats
from pillarbox.settings import Settings
from pillarbox.settings.durations import about, write_duration

Severity = Literal["fine", "note", "problem"]
Kind = Literal[
    "fine",
    "database",
    "tables",
    "no relay",
    "broker away",
    "topic held",
    "paused",
    "blocked",
    "retrying",
    "delayed",
    "dead",
    "inbox dead",
    "old",
    "log stopped",
    "parking lot full",
    "relays die",
    "slot",
    "canary",
]


JUST_NOW = timedelta(seconds=2)
_AWAY = "PostgreSQL is away: "
_HELD = re.compile(r"(?:^|; )topic (.+?) fails while others go: ")
"""How a relay tells of the topics that it holds."""
_ORDER: tuple[Severity, ...] = ("problem", "fine", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: how bad, one line for people, and the commands that mend it (either of them)."""

    severity: Severity
    kind: Kind
    line: str
    commands: tuple[str, ...] = ()


def diagnose(
    schema: SchemaStatus | PillarboxError, stats: Stats | None, now: datetime, settings: Settings
) -> Sequence[Finding]:
    """Say what keeps events from flowing, the most fundamental first; `stats` is None without tables."""
    if isinstance(schema, PillarboxError):
        return [Finding("problem", "database", _unreadable(str(schema)))]
    if stats is None or not schema.fits:
        return [_tables(schema, settings)]
    held = held_topics(stats.relays, now)
    # What fails with its topic is counted below, not told one by one.
    heads = [head for head in stats.heads if head.status != "retrying" or head.topic not in held]
    found = [
        *_stopped(stats, settings),
        *_relays(stats, now, settings),
        *([] if stats.slot is None else _slot(stats.slot, stats, settings)),
        *_broker(stats.relays, now),
        *(_hold(topic, away, now) for topic, away in held.items()),
        *(_pause(pause, stats, now, settings) for pause in stats.pauses),
        *(_head(head, now, settings) for head in heads),
        *_beyond_the_heads(stats, heads, settings),
        *_canary(stats, now, settings),
    ]
    if not any(finding.severity == "problem" for finding in found):
        relayed = all(finding.kind != "no relay" for finding in found)
        found += _old(stats, now, settings) or [_fine(stats, relayed)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def living(relays: Sequence[RelaySeen], now: datetime) -> Sequence[RelaySeen]:
    """Choose the relays whose lease runs."""
    return [relay for relay in relays if relay.lease_until >= now]


def told(relay: RelaySeen, now: datetime, slot: SlotSeen | None = None) -> str:
    """Say what a living relay is at."""
    if slot is not None:
        return f"relay {relay.owner} watches the replication slot {slot.name}; seen {about(now - relay.seen_at)} ago"
    has = f"holds {counted(relay.lanes, 'lane')}" if relay.lanes else "waits, and holds no lanes"
    return f"relay {relay.owner} {has}; seen {about(now - relay.seen_at)} ago"


def _unreadable(words: str) -> str:
    if words.startswith(_AWAY):
        return f"the database is away: {words.removeprefix(_AWAY)}"
    return f"the database cannot be read: {words}"


def _tables(schema: SchemaStatus, settings: Settings) -> Finding:
    where = without_secrets(settings.database or "")
    if schema.version > schema.needed:
        line = (
            f"the tables in {where} are version {schema.version}, but this release knows only {schema.needed}: "
            "a newer release made them, use that one"
        )
        return Finding("problem", "tables", line)
    if schema.missing:
        return Finding("problem", "tables", f"in {where}, {schema.loss}")
    if schema.instead is not None:
        cures = () if schema.elsewhere else (command("migrate up", settings),)
        return Finding("problem", "tables", schema.instead, cures)
    line = (
        f"the tables in {where} are version {schema.version}, and this release needs {schema.needed}"
        if schema.version
        else f"there are no Pillarbox tables in {where}"
    )
    return Finding("problem", "tables", line, (command("migrate up", settings),))


def _stopped(stats: Stats, settings: Settings) -> Iterator[Finding]:
    """Name what keeps even the best relay from reading the log."""
    if stats.stopped is not None:
        cure = (command("adopt", settings),) if "`pillarbox adopt`" in stats.stopped else ()
        yield Finding("problem", "log stopped", stats.stopped, cure)
    if stats.full is not None:
        head, behind = stats.full.head, stats.full.behind
        line = (
            f"the parking lot is full: {_count(stats.full.standing, 'event')} standing in lines, so the log is read no"
            f" further; the longest line is {_line_of(head)}, where {_count(behind, 'event')} waiting behind"
            f" {head.type} {head.event_id}, {head.status}: {head.last_error}"
        )
        yield Finding("problem", "parking lot full", line, _mend(head, settings))
    if stats.suspect_lanes:
        line = (
            f"relays died again and again with {stats.suspect_lanes} of {LANES} lanes: their events go one at a time"
            " until the one that kills is found and parked; keep starting relays, and look into their logs"
        )
        yield Finding("problem", "relays die", line)


def _mend(head: Record, settings: Settings) -> tuple[str, ...]:
    return tuple(command(f"dead {verb} {head.event_id}", settings) for verb in ("retry", "drop"))


def _line_of(head: Record) -> str:
    return f"{' '.join(head.aggregate)} in {head.topic}" if head.aggregate else f"topic {head.topic}"


def _relays(stats: Stats, now: datetime, settings: Settings) -> Iterator[Finding]:
    if stats.stopped is not None or living(stats.relays, now):
        return  # one that runs; or no relay could read the log
    seen = max((relay.seen_at for relay in stats.relays), default=None)
    waiting = stats.pending + stats.retrying + stats.overdue
    if stats.slot is not None:
        yield _unwatched(stats.slot, stats, now, settings)
        return
    if _only_receives(stats):
        return
    if seen is not None and now - seen < JUST_NOW:
        line = "no relay is running; one was here a moment ago"
    elif seen is not None:
        line = f"no relay has been seen for {about(now - seen)}"
    elif stats.last_published_at is not None:
        line = f"no relay is running; the last event was published {about(now - stats.last_published_at)} ago"
    else:
        line = "no relay has ever run on this outbox"
    cure = command("relay run", settings, broker=True)
    line += f"; {_waiting(waiting, stats)}" if waiting else ""
    yield Finding("problem" if waiting else "note", "no relay", line, (cure,))


def _waiting(count: int, stats: Stats) -> str:
    """Say how many wait for a relay, and which of them no list of pending ones has."""
    copies, delayed = stats.copies_overdue, stats.overdue - stats.copies_overdue
    if copies == count:
        return f"{_copies(copies)} waiting for a relay"
    line = f"{_events(count, stats.pending_exact)} waiting"
    for part, what in ((delayed, "delayed ones whose time has come"), (copies, "replayed copies")):
        line += f", {'all' if part == count else f'{part:,}'} of them {what}" if part else ""
    return line


def _only_receives(stats: Stats) -> bool:
    """Tell whether it is a consumer's database: nobody adds events there."""
    adds = stats.pending or stats.retrying or stats.delayed or stats.relays or stats.last_published_at is not None
    return stats.receives and not adds


def _canary(stats: Stats, now: datetime, settings: Settings) -> Iterator[Finding]:
    """Say that the canary is not on its way, where one is asked for and relays are to send it."""
    every, seen = settings.health.canary, stats.canary
    if every is None or stats.slot is not None or _only_receives(stats):
        return
    run = () if living(stats.relays, now) else (command("relay run", settings, broker=True),)
    if seen is None:
        line = f"no canary has been sent yet, and one is to be every {write_duration(every)}: a relay sends it"
        yield Finding("problem", "canary", line, run)
        return
    age, why = now - seen.added_at, "" if seen.error is None else f": {seen.error}"
    if seen.status == "dead":
        line = f"the canary was refused{why}; the relay tries it again by itself"
        yield Finding("problem", "canary", line)
    elif age > overdue_after(every, settings.health.oldest_pending):
        what = "the last canary was sent" if seen.status in ("published", "dropped") else "the canary is stuck, sent"
        line = f"{what} {about(age)} ago ({seen.status}), and one is to go every {write_duration(every)}{why}"
        yield Finding("problem", "canary", line, run)


def _unwatched(slot: SlotSeen, stats: Stats, now: datetime, settings: Settings) -> Finding:
    """Say that nobody keeps the books; the events may flow all the same."""
    line = f"nobody has watched the replication slot {slot.name} for {about(now - slot.watched_at)}"
    if stats.pending:
        line += f": {_events(stats.pending, stats.pending_exact)} pending, unless its reader has carried them since"
    return Finding("problem" if stats.pending else "note", "no relay", line, (command("relay watch", settings),))


def _slot(slot: SlotSeen, stats: Stats, settings: Settings) -> Iterator[Finding]:
    """Say how the slot stands whose reader carries the events."""
    if slot.trouble is not None:
        yield Finding("problem", "slot", _doubted(slot, stats), (command(f"source slot {slot.name}", settings),))
    elif slot.at_risk:
        line = (
            f"PostgreSQL is about to remove WAL that the replication slot {slot.name} needs ({sized(slot.kept)} are"
            " kept for it): let its reader catch up now, or raise max_slot_wal_keep_size"
        )
        yield Finding("problem", "slot", line)
    elif not slot.is_read:
        line = f"nobody reads the replication slot {slot.name}; {sized(slot.kept)} of WAL are kept for it"
        if stats.pending:
            line += f", and {_events(stats.pending, stats.pending_exact)} waiting"
        yield Finding("problem" if stats.pending else "note", "slot", f"{line}: look after the connector")
    else:
        line = f"the reader of the replication slot {slot.name} carries the events; it is {sized(slot.behind)} behind"
        yield Finding("note", "slot", line)


def _doubted(slot: SlotSeen, stats: Stats) -> str:
    line = (
        f"the replication slot {slot.name} {slot.trouble}: its reader may have passed events over, so nothing is"
        " settled or deleted by it"
    )
    if stats.pending:
        line += (
            f"; {_events(stats.pending, stats.pending_exact)} pending: let the connector read the table anew, or let a"
            " relay publish them (stop the connector, `pillarbox source log`, `pillarbox relay once`)"
        )
    return f"{line}; when nothing is missing any more, name the slot again"


def _broker(relays: Sequence[RelaySeen], now: datetime) -> Iterator[Finding]:
    away = [relay.away for relay in living(relays, now) if relay.away is not None and not _topics(relay.away)]
    if away:
        first = min(away, key=lambda one: one.since)
        why = first.error.rstrip(".")
        line = (
            f"the broker has been away since {at(first.since)} ({about(now - first.since)}): {why}; "
            "the relay goes on by itself once it is back"
        )
        yield Finding("problem", "broker away", line)


def held_topics(relays: Sequence[RelaySeen], now: datetime) -> dict[str, Away]:
    """Give the topics that living relays hold, since when and why; of several relays, the first one's words."""
    away = [relay.away for relay in living(relays, now) if relay.away is not None]
    return {
        topic: Away(one.since, error)
        for one in sorted(away, key=lambda one: one.since, reverse=True)
        for topic, error in _topics(one)
    }


def _topics(away: Away) -> list[tuple[str, str]]:
    """Read which topics a relay holds, with their errors; none if it is the broker that is away."""
    _, *told = _HELD.split(away.error) if _HELD.match(away.error) else ("",)
    return list(zip(told[::2], told[1::2], strict=True))


def _hold(topic: str, away: Away, now: datetime) -> Finding:
    line = (
        f"topic {topic} is held since {at(away.since)} ({about(now - away.since)}), because it fails while others go:"
        f" {away.error}; the relay tries it again by itself"
    )
    return Finding("problem", "topic held", line)


def _pause(pause: Pause, stats: Stats, now: datetime, settings: Settings) -> Finding:
    waiting = stats.pending_by_topic.get(pause.topic, 0) + stats.overdue_by_topic.get(pause.topic, 0)
    line = f"topic {pause.topic} was paused {about(now - pause.since)} ago by {pause.who}: {pause.why}"
    if waiting:
        line += f"; {_events(waiting, stats.pending_exact)} waiting"
    cure = resume_command(pause.topic, settings)
    return Finding("problem" if waiting else "note", "paused", line, (cure,))


def _head(head: Record, now: datetime, settings: Settings) -> Finding:
    event = f"{head.type} {head.event_id}"
    line_of = _line_of(head)
    if head.status == "dead":
        line = f"{line_of} is blocked by {event}, dead after {_tries(head.attempts)}: {head.last_error}"
        return Finding("problem", "blocked", line, _mend(head, settings))
    again = "now" if head.next_try_at is None or head.next_try_at <= now else f"in {about(head.next_try_at - now)}"
    times = "once" if head.attempts == 1 else f"{head.attempts} times"
    line = f"{event} for {line_of} failed {times} and is tried again {again}: {head.last_error}"
    return Finding("note", "retrying", line)


def _beyond_the_heads(stats: Stats, mentioned: Sequence[Record], settings: Settings) -> Iterator[Finding]:
    """Mention what holds nobody back: events outside every line, and those beyond the first heads."""
    heads = Counter(head.status for head in mentioned)
    if stats.retrying > heads["retrying"]:
        line = f"{_count(stats.retrying, 'event')} being retried in all"
        yield Finding("note", "retrying", line, (command("events list --status retrying", settings),))
    if delayed := stats.delayed - stats.copies:
        line = f"{_count(delayed, 'event')} delayed: each goes when its time has come"
        yield Finding("note", "delayed", line, (command("events list --status delayed", settings),))
    if later := stats.copies - stats.copies_overdue:  # the others wait for a relay, or are on their way
        yield Finding("note", "delayed", f"{_copies(later)} yet to go: each goes when its time has come")
    if stats.dead > heads["dead"]:
        line = f"{_count(stats.dead, 'event')} dead in all"
        yield Finding("note", "dead", line, (command("dead list", settings),))
    if stats.inbox_dead:
        line = f"{_count(stats.inbox_dead, 'received event')} dead; the list says why, and what waits behind"
        yield Finding("problem", "inbox dead", line, (command("dead list --inbox", settings),))


def _old(stats: Stats, now: datetime, settings: Settings) -> list[Finding]:
    if (oldest := stats.oldest_waiting_at) is None:
        return []
    age, limit = now - oldest, settings.health.oldest_pending
    if age <= limit:
        return []
    is_delayed = oldest == stats.oldest_due_at
    why = (
        "the relay is slower than the writers, or stuck"
        if stats.slot is None
        else "the connector is slower than the writers or stuck, or it confirms nothing while no events come:"
        " a heartbeat mends that (`pillarbox connector debezium --heartbeat 10`)"
    )
    copies = is_delayed and stats.overdue == stats.copies_overdue
    which = "replayed copy" if copies else "delayed event, whose time has come," if is_delayed else "pending event"
    line = f"the oldest {which} has waited {about(age)}, longer than {write_duration(limit)}: {why}"
    if copies:  # which no list has: their events stay published
        return [Finding("problem", "old", line)]
    cure = command(f"events list --status {'delayed' if is_delayed else 'pending'} --oldest-first", settings)
    return [Finding("problem", "old", line, (cure,))]


def _fine(stats: Stats, relayed: bool) -> Finding:
    if stats.inbox_waiting and not stats.pending:
        line = (
            f"{counted(stats.inbox_waiting, 'event')} received, and not handled yet: a consumer does that while it runs"
            " (`pillarbox consume MODULE:INBOX --topic TOPIC`)"
        )
        return Finding("fine", "fine", line)
    if going := stats.pending + stats.overdue:
        return Finding("fine", "fine", f"all is well: {_events(going, stats.pending_exact)} on the way")
    if stats.retrying:
        line = f"nothing else is waiting: {_count(stats.retrying, 'event')} tried again"
        return Finding("fine", "fine", line)
    # Of an outbox that nobody relays, not everything is well: the note below it says what to run.
    return Finding("fine", "fine", "all is well: nothing is waiting" if relayed else "nothing is waiting")


def _events(count: int, exact: bool) -> str:
    verb = "is" if exact and count == 1 else "are"
    return f"{'' if exact else 'more than '}{counted(count, 'event')} {verb}"


def _count(count: int, noun: str) -> str:
    return f"{counted(count, noun)} {'is' if count == 1 else 'are'}"


def _copies(count: int) -> str:
    return f"{count:,} replayed {'copy is' if count == 1 else 'copies are'}"


def _tries(attempts: int) -> str:
    return counted(attempts, "attempt")
