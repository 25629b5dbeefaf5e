"""Diagnosis: "I added an event and nothing happens", answered from values alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.admin.diagnosis import Finding, diagnose, living, told
from pillarbox.admin.wording import command
from pillarbox.errors import StoreUnavailable
from pillarbox.ports import Away, CanarySeen, FullLot, Pause, Record, RelaySeen, SchemaStatus, Stats
from pillarbox.settings import Settings
from pillarbox.settings.tables import HealthSettings, OutboxSettings
from pillarbox.stores.postgres.stats import ELSEWHERE

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
DATABASE = "sqlite:///shop.db"
SETTINGS = Settings(database=DATABASE, broker="sqlite:///stream.db")
RELAY = RelaySeen("host-1-ab", NOW - timedelta(seconds=2), NOW + timedelta(seconds=13), lanes=64)
QUIET = Stats(
    pending=0,
    pending_exact=True,
    oldest_pending_at=None,
    retrying=0,
    blocked=0,
    delayed=0,
    dead=0,
    last_published_at=None,
    relays=(RELAY,),
)
HEAD = Record(
    position=7,
    event_id="0198c0de-0000-7000-8000-000000000007",
    status="dead",
    type="OrderPlaced",
    topic="order-events",
    aggregate=("order", "7"),
    created_at=NOW - timedelta(minutes=1),
    attempts=6,
    last_error="message too large",
)


def found(stats: Stats | None, settings: Settings = SETTINGS, schema: SchemaStatus | None = None) -> list[Finding]:
    return list(diagnose(schema or SchemaStatus(1, 1), stats, NOW, settings))


def ago(**units: float) -> datetime:
    return NOW - timedelta(**units)


def test_a_relay_that_has_just_stopped_was_here_a_moment_ago() -> None:
    seen = RelaySeen("a", NOW, NOW - timedelta(seconds=1), 0)
    [_, note] = found(replace(QUIET, relays=(seen,)))
    assert (note.severity, note.line) == ("note", "no relay is running; one was here a moment ago")


def test_a_database_that_only_receives_needs_no_relay() -> None:
    assert [finding.kind for finding in found(replace(QUIET, relays=(), receives=True))] == ["fine"]
    assert [finding.kind for finding in found(replace(QUIET, relays=(), receives=True, pending=1))] == ["no relay"]


def test_what_is_tried_again_or_not_handled_yet_is_not_called_nothing() -> None:
    [finding] = [one for one in found(replace(QUIET, retrying=1)) if one.kind == "fine"]
    assert (finding.severity, finding.line) == ("fine", "nothing else is waiting: 1 event is tried again")
    [finding] = [one for one in found(replace(QUIET, receives=True, inbox_waiting=6)) if one.kind == "fine"]
    assert finding.line.startswith("6 events received, and not handled yet: a consumer does that while it runs")


def test_all_is_well() -> None:
    assert found(QUIET) == [Finding("fine", "fine", "all is well: nothing is waiting")]


def test_an_outbox_that_nobody_relays_is_not_called_well_though_nothing_waits() -> None:
    fine, note = found(replace(QUIET, relays=()))
    assert fine == Finding("fine", "fine", "nothing is waiting")
    assert (note.severity, note.kind) == ("note", "no relay")


def test_events_on_the_way_are_well_too() -> None:
    stats = replace(QUIET, pending=1, oldest_pending_at=ago(seconds=1))
    assert found(stats) == [Finding("fine", "fine", "all is well: 1 event is on the way")]


def test_no_tables_names_the_command_that_makes_them() -> None:
    assert found(None, schema=SchemaStatus(0, 1)) == [
        Finding(
            "problem",
            "tables",
            "there are no Pillarbox tables in sqlite:///shop.db",
            ("pillarbox migrate up --database sqlite:///shop.db",),
        )
    ]


def test_a_file_that_is_not_there_is_told_apart_from_one_without_tables() -> None:
    missing = SchemaStatus(0, 1, instead="there is no database shop.db yet")
    [problem] = found(None, schema=missing)
    assert problem.line == "there is no database shop.db yet"
    assert problem.commands == ("pillarbox migrate up --database sqlite:///shop.db",)


def test_where_tables_do_not_belong_no_command_makes_them() -> None:
    [problem] = found(None, schema=SchemaStatus(0, 1, instead="stream.db is another file", elsewhere=True))
    assert (problem.line, problem.commands) == ("stream.db is another file", ())


def test_old_tables_name_the_command_that_mends_them() -> None:
    assert found(None, schema=SchemaStatus(1, 3)) == [
        Finding(
            "problem",
            "tables",
            "the tables in sqlite:///shop.db are version 1, and this release needs 3",
            ("pillarbox migrate up --database sqlite:///shop.db",),
        )
    ]


def test_tables_from_the_future_ask_for_the_newer_release() -> None:
    assert found(None, schema=SchemaStatus(9, 1)) == [
        Finding(
            "problem",
            "tables",
            "the tables in sqlite:///shop.db are version 9, but this release knows only 1: "
            "a newer release made them, use that one",
        )
    ]


def test_a_database_that_cannot_be_read_says_why() -> None:
    assert diagnose(StoreUnavailable("disk I/O error"), None, NOW, SETTINGS) == [
        Finding("problem", "database", "the database cannot be read: disk I/O error")
    ]


def test_a_server_that_is_away_says_so() -> None:
    [finding] = diagnose(StoreUnavailable("PostgreSQL is away: connection refused"), None, NOW, SETTINGS)
    assert finding == Finding("problem", "database", "the database is away: connection refused")


def test_no_relay_ever() -> None:
    assert found(replace(QUIET, relays=(), pending=2)) == [
        Finding(
            "problem",
            "no relay",
            "no relay has ever run on this outbox; 2 events are waiting",
            ("pillarbox relay run --database sqlite:///shop.db --broker sqlite:///stream.db",),
        )
    ]


def test_no_relay_seen_for_minutes() -> None:
    gone = replace(RELAY, seen_at=ago(minutes=12), lease_until=ago(minutes=11))
    assert found(replace(QUIET, relays=(gone,), pending=10_000, pending_exact=False))[0].line == (
        "no relay has been seen for 12 min; more than 10,000 events are waiting"
    )


def test_a_relay_that_left_politely_is_missed_too() -> None:
    stats = replace(QUIET, relays=(), pending=1, last_published_at=ago(hours=3))
    assert found(stats)[0].line == ("no relay is running; the last event was published 3 h ago; 1 event is waiting")


def test_no_relay_while_nothing_waits_is_only_a_note() -> None:
    fine, note = found(replace(QUIET, relays=()))
    assert (fine.severity, note.severity, note.line) == ("fine", "note", "no relay has ever run on this outbox")


def test_one_living_relay_is_enough() -> None:
    gone = replace(RELAY, owner="other", lease_until=ago(minutes=11))
    assert [finding.kind for finding in found(replace(QUIET, relays=(gone, RELAY)))] == ["fine"]


def test_a_broker_that_is_away_is_quoted() -> None:
    away = replace(RELAY, away=Away(ago(minutes=3), "connection refused"))
    assert found(replace(QUIET, relays=(away,), pending=1)) == [
        Finding(
            "problem",
            "broker away",
            "the broker has been away since 2026-01-31 11:57:00 UTC (3 min): connection refused; "
            "the relay goes on by itself once it is back",
        )
    ]


def test_a_brokers_words_that_end_with_a_full_stop_go_on_well() -> None:
    away = replace(RELAY, away=Away(ago(minutes=3), "invalid username-password pair or user is disabled."))
    [problem] = found(replace(QUIET, relays=(away,), pending=1))
    assert "user is disabled; the relay goes on by itself" in problem.line


def test_a_dead_relays_opinion_of_the_broker_does_not_count() -> None:
    gone = replace(RELAY, away=Away(ago(minutes=3), "refused"), lease_until=ago(minutes=1))
    assert [finding.kind for finding in found(replace(QUIET, relays=(gone, RELAY)))] == ["fine"]


def test_a_topic_that_is_held_is_named_and_its_retries_are_summed_up() -> None:
    words = "topic bad-events fails while others go: 503; down; topic mails fails while others go: 421"
    relays = (
        replace(RELAY, away=Away(ago(minutes=3), words)),
        replace(RELAY, owner="other", away=Away(ago(minutes=5), "topic mails fails while others go: 420")),
    )
    heads = tuple(replace(HEAD, status="retrying", topic="bad-events", next_try_at=NOW) for _ in range(20))
    stats = replace(QUIET, relays=relays, heads=heads, retrying=40)
    held, mails, retried = found(stats)
    assert held == Finding(
        "problem",
        "topic held",
        "topic bad-events is held since 2026-01-31 11:57:00 UTC (3 min), because it fails while others go: 503; down;"
        " the relay tries it again by itself",
    )
    assert mails.line.startswith("topic mails is held since 2026-01-31 11:55:00 UTC (5 min)")
    assert retried.line == "40 events are being retried in all"


def test_of_another_topic_than_the_held_one_each_retry_is_told() -> None:
    held = replace(RELAY, away=Away(ago(minutes=3), "topic mails fails while others go: 421"))
    head = replace(HEAD, status="retrying", next_try_at=NOW)
    kinds = [finding.kind for finding in found(replace(QUIET, relays=(held,), heads=(head,), retrying=1))]
    assert kinds == ["topic held", "retrying"]


def test_delayed_events_are_mentioned() -> None:
    fine, note = found(replace(QUIET, delayed=2))
    assert (fine.kind, note.line) == ("fine", "2 events are delayed: each goes when its time has come")
    assert note.commands == ("pillarbox events list --status delayed --database sqlite:///shop.db",)


OVERDUE = replace(QUIET, delayed=3, overdue_by_topic={"mails": 1, "orders": 1}, oldest_due_at=ago(minutes=4))


def test_delayed_events_whose_time_has_come_wait_for_a_relay() -> None:
    problem, _ = found(replace(OVERDUE, relays=()))
    assert (problem.severity, problem.kind) == ("problem", "no relay")
    assert problem.line.endswith("; 2 events are waiting, all of them delayed ones whose time has come")
    problem, _ = found(replace(OVERDUE, relays=(), pending=5, receives=True))
    assert problem.line.endswith("; 7 events are waiting, 2 of them delayed ones whose time has come")


def test_replayed_copies_wait_for_a_relay_and_no_list_of_delayed_events_is_named() -> None:
    replayed = replace(QUIET, delayed=1, copies=1, overdue_by_topic={"mails": 1}, copies_overdue=1, relays=())
    [problem] = found(replayed)
    assert (problem.severity, problem.kind) == ("problem", "no relay")
    assert problem.line.endswith("; 1 replayed copy is waiting for a relay")
    assert [command.split(" --")[0] for command in problem.commands] == ["pillarbox relay run"]
    problem = found(replace(replayed, pending=2))[0]
    assert problem.line.endswith("; 3 events are waiting, 1 of them replayed copies")
    problem = found(replace(replayed, delayed=3, copies=2, copies_overdue=2, overdue_by_topic={"mails": 3}))[0]
    assert problem.line.endswith(
        "; 3 events are waiting, 1 of them delayed ones whose time has come, 2 of them replayed copies"
    )


def test_old_replayed_copies_are_called_so() -> None:
    copies = replace(
        QUIET, delayed=1, copies=1, overdue_by_topic={"mails": 1}, copies_overdue=1, oldest_due_at=ago(minutes=6)
    )
    [problem] = found(copies)
    assert problem.line.startswith("the oldest replayed copy has waited 6 min")
    assert problem.commands == ()


def test_replayed_copies_whose_time_has_not_come_are_told_apart_from_delayed_events() -> None:
    _, delayed, copies = found(replace(QUIET, delayed=3, copies=2))
    assert delayed.line.startswith("1 event is delayed")
    assert copies.line == "2 replayed copies are yet to go: each goes when its time has come"
    assert copies.commands == ()


def test_delayed_events_whose_time_has_come_are_on_the_way_where_a_relay_is() -> None:
    fine, note = found(OVERDUE)
    assert (fine.line, note.kind) == ("all is well: 2 events are on the way", "delayed")


def test_a_delayed_event_whose_time_came_long_ago_is_a_problem() -> None:
    problem, _ = found(replace(OVERDUE, oldest_due_at=ago(minutes=6), pending=1, oldest_pending_at=ago(minutes=5.5)))
    assert problem.line.startswith("the oldest delayed event, whose time has come, has waited 6 min, longer than 5 min")
    assert problem.commands == ("pillarbox events list --status delayed --oldest-first --database sqlite:///shop.db",)


def test_a_pause_keeps_back_delayed_events_whose_time_has_come() -> None:
    problem, _ = found(replace(OVERDUE, pauses=(Pause("mails", ago(minutes=9), "ada", "moving"),)))
    assert problem.line.endswith("ago by ada: moving; 1 event is waiting")


def test_only_living_relays_are_told_of() -> None:
    gone = replace(RELAY, owner="gone", lease_until=ago(minutes=11))
    waits = replace(RELAY, owner="host-2-cd", lanes=0)
    assert [told(relay, NOW) for relay in living((RELAY, gone, waits), NOW)] == [
        "relay host-1-ab holds 64 lanes; seen 2 s ago",
        "relay host-2-cd waits, and holds no lanes; seen 2 s ago",
    ]


def test_a_pause_names_who_why_and_how_to_resume() -> None:
    pause = Pause("order-events", ago(minutes=90), "ann@desk", "the shop moves house")
    stats = replace(QUIET, pauses=(pause,), pending=3, pending_by_topic={"order-events": 3})
    assert found(stats) == [
        Finding(
            "problem",
            "paused",
            "topic order-events was paused 1 h ago by ann@desk: the shop moves house; 3 events are waiting",
            ("pillarbox resume order-events --database sqlite:///shop.db",),
        )
    ]


def test_a_pause_that_holds_nothing_back_is_only_a_note() -> None:
    stats = replace(QUIET, pauses=(Pause("a b", ago(minutes=1), "ann", "why not"),))
    fine, note = found(stats)
    assert (fine.severity, note.severity) == ("fine", "note")
    assert note.commands == ("pillarbox resume 'a b' --database sqlite:///shop.db",)


def test_a_blocked_aggregate_names_the_event_and_both_ways_out() -> None:
    assert found(replace(QUIET, heads=(HEAD,), dead=1, blocked=2)) == [
        Finding(
            "problem",
            "blocked",
            "order 7 in order-events is blocked by OrderPlaced 0198c0de-0000-7000-8000-000000000007, "
            "dead after 6 attempts: message too large",
            (
                "pillarbox dead retry 0198c0de-0000-7000-8000-000000000007 --database sqlite:///shop.db",
                "pillarbox dead drop 0198c0de-0000-7000-8000-000000000007 --database sqlite:///shop.db",
            ),
        )
    ]


def test_a_blocked_topic_in_global_order_is_named_as_a_whole() -> None:
    head = replace(HEAD, aggregate=None, attempts=1)
    assert found(replace(QUIET, heads=(head,), dead=1))[0].line.startswith("topic order-events is blocked by")


@pytest.mark.parametrize(("next_try", "words"), [(8, "in 8 s"), (-1, "now")])
def test_a_retry_says_when_it_comes(next_try: float, words: str) -> None:
    head = replace(HEAD, status="retrying", attempts=1, next_try_at=NOW + timedelta(seconds=next_try))
    fine, note = found(replace(QUIET, heads=(head,), retrying=1))
    assert (fine.severity, note.severity) == ("fine", "note")
    assert note.line == (
        "OrderPlaced 0198c0de-0000-7000-8000-000000000007 for order 7 in order-events failed once "
        f"and is tried again {words}: message too large"
    )


def test_dead_events_that_block_nobody_are_a_note() -> None:
    fine, note = found(replace(QUIET, dead=2))
    assert (fine.severity, note.severity, note.line) == ("fine", "note", "2 events are dead in all")
    assert note.commands == ("pillarbox dead list --database sqlite:///shop.db",)


def test_retries_that_block_nobody_are_a_note() -> None:
    note = found(replace(QUIET, retrying=3))[1]
    assert (note.severity, note.line) == ("note", "3 events are being retried in all")
    assert note.commands == ("pillarbox events list --status retrying --database sqlite:///shop.db",)


def test_a_dead_event_of_the_inbox_is_a_problem() -> None:
    problem = found(replace(QUIET, inbox_dead=1))[0]
    assert problem.severity == "problem"
    assert problem.line == "1 received event is dead; the list says why, and what waits behind"
    assert problem.commands == ("pillarbox dead list --inbox --database sqlite:///shop.db",)


def test_an_event_that_waits_too_long_without_a_reason_is_a_problem() -> None:
    stats = replace(QUIET, pending=5, oldest_pending_at=ago(minutes=6))
    assert found(stats) == [
        Finding(
            "problem",
            "old",
            "the oldest pending event has waited 6 min, longer than 5 min: "
            "the relay is slower than the writers, or stuck",
            ("pillarbox events list --status pending --oldest-first --database sqlite:///shop.db",),
        )
    ]


def test_a_wait_that_has_a_reason_is_not_mentioned_twice() -> None:
    stats = replace(QUIET, relays=(), pending=5, oldest_pending_at=ago(minutes=6))
    assert [finding.kind for finding in found(stats)] == ["no relay"]


def test_the_command_repeats_flags_and_leaves_out_what_a_file_says() -> None:
    settings = Settings(
        database="sqlite:///shop.db",
        broker="redis://:hunter2@host",
        file="conf/shop.toml",
        origins={"database": "conf/shop.toml", "broker": "--broker"},
    )
    assert found(replace(QUIET, relays=(), pending=1), settings)[0].commands == (
        "pillarbox relay run --config conf/shop.toml --broker 'redis://:***@host'",
    )


def test_the_command_asks_for_the_broker_that_nobody_named() -> None:
    settings = Settings(database=DATABASE, file="pillarbox.toml", origins={"database": "pillarbox.toml"})
    assert found(replace(QUIET, relays=(), pending=1), settings)[0].commands == ("pillarbox relay run --broker URL",)


def test_the_command_repeats_the_place_of_the_tables() -> None:
    settings = replace(SETTINGS, outbox=OutboxSettings("acme", "pb_"))
    assert command("migrate up", settings) == "pillarbox migrate up --database sqlite:///shop.db"
    settings = replace(settings, origins={"outbox.schema": "--set", "outbox.prefix": "--set"})
    assert command("migrate up", settings).endswith(" --set outbox.schema=acme --set outbox.prefix=pb_")


def test_several_reasons_come_together_the_most_fundamental_first() -> None:
    pause = Pause("order-events", ago(minutes=1), "ann", "x")
    stats = replace(
        QUIET, relays=(), pauses=(pause,), heads=(HEAD,), dead=1, pending=2, pending_by_topic={"order-events": 2}
    )
    assert [finding.kind for finding in found(stats)] == ["no relay", "paused", "blocked"]


def test_a_log_that_cannot_be_read_on_is_never_well() -> None:
    assert found(replace(QUIET, stopped="the ids have begun again")) == [
        Finding("problem", "log stopped", "the ids have begun again")
    ]


def test_a_copy_from_another_cluster_names_adopt_and_no_relay() -> None:
    [stopped] = found(replace(QUIET, relays=(), pending=3, stopped=ELSEWHERE))
    assert stopped.commands == ("pillarbox adopt --database sqlite:///shop.db",)


def test_a_full_parking_lot_names_its_longest_line_and_both_cures() -> None:
    [full] = found(replace(QUIET, full=FullLot(standing=10_003, head=HEAD, behind=9_998)))
    assert full.severity == "problem"
    assert full.line == (
        "the parking lot is full: 10,003 events are standing in lines, so the log is read no further; the longest line"
        " is order 7 in order-events, where 9,998 events are waiting behind OrderPlaced"
        " 0198c0de-0000-7000-8000-000000000007, dead: message too large"
    )
    assert full.commands == tuple(
        f"pillarbox dead {verb} 0198c0de-0000-7000-8000-000000000007 --database sqlite:///shop.db"
        for verb in ("retry", "drop")
    )


SINGING = replace(SETTINGS, health=HealthSettings(canary=timedelta(minutes=1), oldest_pending=timedelta(minutes=5)))


def canary(status: str, minutes: float, error: str | None = None) -> Stats:
    return replace(QUIET, canary=CanarySeen("id", ago(minutes=minutes), status, error))  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["published", "pending", "retrying"])
def test_a_canary_that_was_sent_lately_is_well(status: str) -> None:
    assert [finding.kind for finding in found(canary(status, 5), SINGING)] == ["fine"]


def test_nobody_asks_for_a_canary_that_is_not_set() -> None:
    assert [finding.kind for finding in found(canary("pending", 50))] == ["fine"]
    assert [finding.kind for finding in found(QUIET)] == ["fine"]


@pytest.mark.parametrize(
    ("stats", "line"),
    [
        (QUIET, "no canary has been sent yet, and one is to be every 1 min: a relay sends it"),
        (canary("pending", 6), "the canary is stuck, sent 6 min ago (pending), and one is to go every 1 min"),
        (canary("published", 6), "the last canary was sent 6 min ago (published), and one is to go every 1 min"),
        (canary("dead", 1, "no queue"), "the canary was refused: no queue; the relay tries it again by itself"),
    ],
)
def test_a_canary_that_does_not_go_is_a_problem(stats: Stats, line: str) -> None:
    [finding] = found(stats, SINGING)
    assert (finding.severity, finding.kind, finding.line) == ("problem", "canary", line)


def test_twice_the_interval_is_always_time_enough() -> None:
    often = replace(SETTINGS, health=HealthSettings(canary=timedelta(minutes=10)))
    assert [finding.kind for finding in found(canary("published", 19), often)] == ["fine"]
    assert [finding.kind for finding in found(canary("published", 21), often)] == ["canary"]


def test_where_events_are_only_received_no_canary_is_missed() -> None:
    assert [one.kind for one in found(replace(QUIET, relays=(), receives=True), SINGING)] == ["fine"]
