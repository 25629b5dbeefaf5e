"""Diagnosis while somebody else carries the events: how the slot stands, and what to do."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.admin.diagnosis import Finding, diagnose, told
from pillarbox.admin.wording import sized
from pillarbox.ports import RelaySeen, SchemaStatus, SlotSeen, Stats
from pillarbox.settings import Settings

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
WATCH = RelaySeen("host-1-ab", NOW - timedelta(seconds=2), NOW + timedelta(seconds=13), lanes=0)
SLOT = SlotSeen("shop", None, is_read=True, behind=2_000, kept=3_000_000, at_risk=False, watched_at=NOW)
CARRIED = Stats(
    pending=0,
    pending_exact=True,
    oldest_pending_at=None,
    retrying=0,
    blocked=0,
    delayed=0,
    dead=0,
    last_published_at=None,
    relays=(WATCH,),
    slot=SLOT,
)


def found(stats: Stats) -> list[Finding]:
    settings = Settings(database="postgresql:///shop")
    return list(diagnose(SchemaStatus(1, 1), stats, NOW, settings))


def test_a_slot_that_is_read_is_mentioned_with_what_it_is_behind() -> None:
    assert [(finding.severity, finding.line) for finding in found(CARRIED)] == [
        ("fine", "all is well: nothing is waiting"),
        ("note", "the reader of the replication slot shop carries the events; it is 2.0 kB behind"),
    ]


def test_a_slot_that_nobody_reads_is_a_problem_when_events_wait() -> None:
    idle = replace(CARRIED, slot=replace(SLOT, is_read=False))
    assert [finding.severity for finding in found(idle)] == ["fine", "note"]
    [problem] = found(replace(idle, pending=2))
    assert (problem.severity, problem.line) == (
        "problem",
        "nobody reads the replication slot shop; 3.0 MB of WAL are kept for it, and 2 events are waiting: look after"
        " the connector",
    )


def test_a_slot_about_to_be_lost_says_so_although_it_is_read() -> None:
    [problem] = found(replace(CARRIED, slot=replace(SLOT, at_risk=True)))
    assert problem.severity == "problem"
    assert problem.line.startswith("PostgreSQL is about to remove WAL that the replication slot shop needs (3.0 MB are")


def test_a_doubted_slot_says_what_to_do_before_it_is_named_again() -> None:
    doubted = replace(CARRIED, slot=replace(SLOT, trouble="may have been made anew, seen at noon"))
    [problem] = found(doubted)
    assert problem.line == (
        "the replication slot shop may have been made anew, seen at noon: its reader may have passed events over, so"
        " nothing is settled or deleted by it; when nothing is missing any more, name the slot again"
    )
    assert problem.commands == ("pillarbox source slot shop --database postgresql:///shop",)
    [problem] = found(replace(doubted, pending=7))
    assert "7 events are pending: let the connector read the table anew, or let a relay publish them" in problem.line


def test_where_nobody_watches_the_watch_is_named_and_no_relay() -> None:
    unwatched = replace(CARRIED, relays=(), slot=replace(SLOT, watched_at=NOW - timedelta(minutes=3)))
    [_, note, _] = found(unwatched)
    assert (note.severity, note.line) == ("note", "nobody has watched the replication slot shop for 3 min")
    [problem, _] = found(replace(unwatched, pending=1))
    assert (problem.severity, problem.commands) == ("problem", ("pillarbox relay watch --database postgresql:///shop",))
    assert problem.line.endswith(": 1 event is pending, unless its reader has carried them since")


def test_an_old_event_speaks_of_the_connector() -> None:
    [old, _] = found(replace(CARRIED, pending=1, oldest_pending_at=NOW - timedelta(hours=1)))
    assert old.kind == "old"
    assert "the connector is slower than the writers or stuck" in old.line
    assert old.line.endswith(": a heartbeat mends that (`pillarbox connector debezium --heartbeat 10`)")


def test_whoever_watches_is_listed() -> None:
    assert told(WATCH, NOW, SLOT) == "relay host-1-ab watches the replication slot shop; seen 2 s ago"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1_500, "1.5 kB"), (20_400_000, "20 MB"), (1_234 * 10**9, "1,234 GB")],
)
def test_bytes_are_written_in_one_unit(count: int, text: str) -> None:
    assert sized(count) == text
