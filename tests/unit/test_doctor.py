"""Doctor: what may go wrong some day, from values alone."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pillarbox.admin.doctor import Doctor, Facts, Finding, examine
from pillarbox.brokers.kafka.keeping import kept_by
from pillarbox.errors import BrokerUnavailable
from pillarbox.facts import Drift, SqliteFacts
from pillarbox.ports import Kept, RelaySeen, SchemaStatus, SlotSeen, Stats
from pillarbox.settings import Settings
from pillarbox.settings.tables import RelaySettings, RetentionSettings
from pillarbox.testing.clock import ManualClock
from pillarbox.wiring import open_keeping

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MADE = SchemaStatus(1, 1)


def days(count: float) -> timedelta:
    return timedelta(days=count)


def settings(inbox: timedelta | None = None, **retention: timedelta | None) -> Settings:
    return Settings(retention=RetentionSettings(inbox=inbox, **retention))


def troubles(facts: Facts) -> list[Finding]:
    return [finding for finding in examine(facts) if finding.severity != "fine"]


def found(facts: Facts) -> list[tuple[str, str]]:
    return [(finding.severity, finding.check) for finding in troubles(facts)]


def kept_for(age: timedelta | None, memory: timedelta | None) -> list[Finding]:
    kept = [Kept("orders", age, "its retention.ms")]
    return troubles(Facts(settings(memory, published=days(1)), NOW, topics=["orders"], kept=kept))


def test_the_defaults_are_well() -> None:
    assert examine(Facts(Settings(), NOW)) == [Finding("publish timeout", "fine"), Finding("retention.inbox", "fine")]


@pytest.mark.parametrize(("timeout", "healthy"), [(14.999, True), (15, False), (20, False)])
def test_a_relay_must_give_up_before_its_lease_does(timeout: float, healthy: bool) -> None:
    relay = RelaySettings(publish_timeout=timedelta(seconds=timeout))
    assert found(Facts(Settings(relay=relay), NOW)) == ([] if healthy else [("problem", "publish timeout")])


def test_a_publish_timeout_that_outlasts_the_lease_is_told_with_both() -> None:
    (finding,) = troubles(Facts(Settings(relay=RelaySettings(publish_timeout=timedelta(seconds=20))), NOW))
    assert finding.line.startswith("relay.publish_timeout is 20 s, and relay.lease only 15 s: ")


@pytest.mark.parametrize(
    ("published", "archive", "memory", "healthy"),
    [
        (days(7), days(0), days(7), True),
        (days(7), days(0), days(6.99), False),
        (days(7), days(23), days(30), True),
        (days(7), days(24), days(30), False),
        (days(7), None, days(3000), False),
        (None, days(0), days(3000), False),
        (None, None, None, True),
    ],
)
def test_a_replay_must_not_reach_further_back_than_consumers_remember(
    published: timedelta | None, archive: timedelta | None, memory: timedelta | None, healthy: bool
) -> None:
    facts = Facts(settings(memory, published=published, archive=archive), NOW)
    assert found(facts) == ([] if healthy else [("problem", "retention.inbox")])


def test_what_an_outbox_keeps_too_long_is_told_with_its_cure() -> None:
    (finding,) = troubles(Facts(settings(days(3)), NOW))
    assert finding.line == (
        "retention.inbox is 3 days, and the outbox keeps events for 7 days (retention.published and retention.archive):"
        " `pillarbox replay` can bring one back that its consumer has forgotten, and it would be handled a second time;"
        ' set retention.inbox to "7 days" or longer where the consumers are'
    )
    (finding,) = troubles(Facts(settings(days(3), archive=None), NOW))
    assert "keeps events for ever" in finding.line
    assert finding.line.endswith('set retention.inbox to "forever" where the consumers are')


@pytest.mark.parametrize(
    ("age", "memory", "severity"),
    [
        (days(30), days(30), "fine"),
        (days(30) + timedelta(milliseconds=1), days(30), "problem"),
        (days(7), days(30), "fine"),
        (days(0), days(30), "fine"),
        (None, days(30), "note"),
        (days(400), None, "fine"),
        (None, None, "fine"),
    ],
)
def test_a_broker_must_not_keep_longer_than_consumers_remember(
    age: timedelta | None, memory: timedelta | None, severity: str
) -> None:
    assert [finding.severity for finding in kept_for(age, memory)] == ([] if severity == "fine" else [severity])


def test_a_topic_that_is_kept_too_long_is_told_with_its_cure() -> None:
    (finding,) = kept_for(days(60), days(30))
    assert finding.line == (
        "the topic orders is kept for 60 days (by its retention.ms), and retention.inbox is only 30 days: a consumer"
        " whose place is reset or lost would handle a second time what it has forgotten;"
        ' set retention.inbox to "60 days" or longer where the consumers are'
    )


def test_a_topic_that_is_kept_without_limit_is_told_with_both_cures() -> None:
    (finding,) = kept_for(None, days(30))
    line = finding.line
    assert line.startswith("the topic orders is kept without limit of age (by its retention.ms), and retention.inbox")
    assert line.endswith('give the topic a limit, or set retention.inbox to "forever" where the consumers are')


def test_problems_come_first() -> None:
    kept = [Kept("a", None, "x"), Kept("b", days(60), "x")]
    facts = Facts(settings(days(30)), NOW, topics=["a", "b", "c"], kept=kept)
    assert [(finding.severity, finding.check) for finding in examine(facts)] == [
        ("problem", "retention.inbox"),
        ("note", "topics"),
        ("note", "retention.inbox"),
        ("fine", "broker"),
        ("fine", "publish timeout"),
    ]


def test_a_topic_that_the_broker_does_not_have_is_noted() -> None:
    (finding,) = troubles(Facts(settings(days(30)), NOW, topics=["ordres"], kept=[]))
    assert finding.line == "the broker has no topic ordres, so nothing is known of it; is its name right?"


def test_without_a_topic_the_flag_is_named() -> None:
    (finding,) = troubles(Facts(settings(days(30)), NOW, kept=[]))
    assert (finding.severity, finding.line) == ("note", "no topic is known here: name those to ask about with --topic")


async def test_a_broker_that_is_away_is_a_finding() -> None:
    async def keeping(topics: Sequence[str]) -> Sequence[Kept]:
        raise BrokerUnavailable("nobody listens.")

    facts = await Doctor(settings(days(30)), None, keeping, None, ManualClock()).gather(["orders"])
    finding = next(one for one in troubles(facts) if one.check != "database")
    assert (finding.severity, finding.check) == ("problem", "broker")
    assert finding.line == "the broker cannot be asked: nobody listens; while it is away, events wait in the outbox"


@pytest.mark.parametrize(
    ("topic", "age"),
    [
        ({"retention.ms": "604800000", "cleanup.policy": "delete"}, days(7)),
        ({"retention.ms": "604800000", "cleanup.policy": "compact,delete"}, days(7)),
        ({"retention.ms": "604800000", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "-1", "cleanup.policy": "delete"}, None),
        ({"retention.ms": "-1", "retention.bytes": "1000000", "cleanup.policy": "delete"}, None),
        ({"retention.ms": str((1 << 63) - 1), "cleanup.policy": "delete"}, None),
    ],
)
def test_a_topic_of_kafka_is_kept_as_its_settings_say(topic: dict[str, str], age: timedelta | None) -> None:
    assert kept_by("orders", topic).age == age


@pytest.mark.parametrize(
    ("broker", "ages"),
    [
        ("sqlite:///stream.db", [days(7)]),
        ("redis://localhost", [None]),
        ("redis://localhost?maxlen=1000&unsafe=true", [None]),
        ("amqp://localhost", None),
        ("https://localhost/hook", None),
        ("stdout:", None),
        ("memory:", None),
        (None, None),
    ],
)
async def test_brokers_say_what_they_keep_unless_they_drop_what_was_had(
    broker: str | None, ages: list[timedelta | None] | None
) -> None:
    keeping = open_keeping(Settings(broker=broker))
    assert ages == (None if keeping is None else [kept.age for kept in await keeping(["orders"])])


def sqlite(**facts: Any) -> Facts:
    healthy: dict[str, Any] = {"schema": MADE, "journal_mode": "wal", "synchronous": 2}
    store = SqliteFacts(**healthy | facts)
    return Facts(Settings(database="sqlite:///shop.db"), NOW, store=store)


def stats(*relays: RelaySeen, pending: int = 0, exact: bool = True) -> Stats:
    return Stats(
        pending=pending,
        pending_exact=exact,
        oldest_pending_at=NOW - timedelta(hours=2) if pending else None,
        retrying=0,
        blocked=0,
        delayed=0,
        dead=0,
        last_published_at=None,
        relays=relays,
    )


def relayed(seen: Stats) -> list[Finding]:
    return troubles(Facts(Settings(database="sqlite:///shop.db", broker="stdout:"), NOW, stats=seen))


ALIVE = RelaySeen("one", NOW - timedelta(seconds=1), NOW + timedelta(seconds=14), 64)
ENDED = RelaySeen("old", NOW - timedelta(hours=3), NOW - timedelta(hours=3), 0)
DIED = RelaySeen("dead", NOW - timedelta(hours=3), NOW - timedelta(hours=2), 64)


def test_events_that_a_living_relay_will_carry_are_no_trouble() -> None:
    assert relayed(stats(ALIVE, ENDED, pending=7)) == []
    assert relayed(stats(ENDED)) == []


def test_events_that_nobody_relays_are_told_with_their_age() -> None:
    (finding,) = relayed(stats(pending=1))
    assert finding.line.startswith("no relay has ever run here, and 1 event waits, the oldest for 2 h: nothing")
    assert finding.commands == ("pillarbox relay run --database sqlite:///shop.db --broker stdout:",)
    (finding,) = relayed(stats(ENDED, pending=10_000, exact=False))
    assert finding.line.startswith("no relay was seen for 3 h, and more than 10,000 events wait")


def test_delayed_events_whose_time_has_come_and_that_nobody_relays_are_told() -> None:
    overdue = replace(stats(ENDED), overdue_by_topic={"orders": 2}, oldest_due_at=NOW - timedelta(hours=1))
    (finding,) = relayed(overdue)
    assert finding.line.startswith("no relay was seen for 3 h, and 2 events wait, the oldest for 1 h")
    assert relayed(replace(overdue, relays=(ALIVE,))) == []


@pytest.mark.parametrize(("is_read", "pending", "healthy"), [(True, 5, True), (False, 0, True), (False, 5, False)])
def test_a_slot_with_events_that_nobody_reads_is_told(is_read: bool, pending: int, healthy: bool) -> None:
    slot = SlotSeen("debezium", None, is_read, behind=0, kept=0, at_risk=False, watched_at=NOW)
    lines = [finding.line for finding in relayed(replace(stats(pending=pending), slot=slot))]
    assert [line.startswith("nobody reads the replication slot debezium, ") for line in lines] == [True] * (not healthy)


def test_a_relay_that_died_with_its_lanes_is_named() -> None:
    (finding,) = relayed(stats(DIED))
    assert (finding.severity, finding.check) == ("problem", "expired relays")
    assert finding.line.startswith(
        "relay dead was last seen 3 h ago, its lease has run out, and it still holds 64 lanes"
    )


@pytest.mark.parametrize(("level", "name"), [(0, "OFF"), (1, "NORMAL")])
def test_a_library_that_opens_files_with_less_than_full_is_told(level: int, name: str) -> None:
    (finding,) = troubles(sqlite(synchronous=level))
    assert f"with synchronous = {name}:" in finding.line
    assert finding.commands == ("PRAGMA synchronous = FULL",)


@pytest.mark.parametrize("level", [2, 3])
def test_full_and_extra_are_well(level: int) -> None:
    assert troubles(sqlite(synchronous=level)) == []


def test_a_database_that_cannot_be_read_is_told() -> None:
    (finding,) = troubles(Facts(Settings(), NOW, unread="it is locked"))
    assert (finding.severity, finding.check) == ("problem", "database")
    assert finding.line == "the database cannot be read: it is locked"


@pytest.mark.parametrize(
    ("version", "words", "cure"),
    [
        (0, "there are none: no relay starts", "pillarbox migrate up --database sqlite:///shop.db"),
        (1, "the tables have version 1, and this release needs 2", "pillarbox migrate up --database sqlite:///shop.db"),
        (3, "the tables have version 3, and this release knows 2", "pip install --upgrade pillarbox"),
    ],
)
def test_tables_of_another_version_are_told_with_their_cure(version: int, words: str, cure: str) -> None:
    finding, *others = troubles(sqlite(schema=SchemaStatus(version, 2)))
    assert finding.line.startswith(words)
    assert finding.commands == (cure,)
    assert {(other.severity, other.line[:14]) for other in others} == {("note", "not looked at:")}
    assert "tables" in {other.check for other in others}


def test_of_a_file_that_is_not_there_nothing_is_called_fine() -> None:
    missing = SchemaStatus(0, 1, instead="there is no database shop.db yet")
    findings = examine(sqlite(schema=missing, journal_mode=None, synchronous=None))
    assert findings[0].line == "there is no database shop.db yet: no relay starts, and no event can be added"
    assert [finding.check for finding in findings[1:4]] == ["tables", "journal mode", "synchronous"]
    assert {finding.line[:14] for finding in findings[1:4]} == {"not looked at:"}


def test_tables_that_do_not_belong_there_are_not_to_be_made() -> None:
    finding, *_ = troubles(sqlite(schema=SchemaStatus(0, 1, instead="stream.db is another file", elsewhere=True)))
    assert finding.line == "stream.db is another file: no relay starts, and no event can be added"
    assert finding.commands == ()


@pytest.mark.parametrize(("broker", "severity"), [(None, "problem"), ("memory:", "note")])
async def test_what_is_not_set_is_not_looked_at(broker: str | None, severity: str) -> None:
    facts = await Doctor(Settings(broker=broker), None, None, None, ManualClock()).gather()
    told = {finding.check: finding for finding in troubles(facts)}
    assert told["database"].severity == severity
    assert told["database"].line.startswith("not looked at: none is set")
    assert ("broker" in told) == (broker is None)


def test_of_many_changes_to_the_tables_the_first_are_named_and_the_rest_counted() -> None:
    drift = [
        Drift("the index i is missing", "CREATE INDEX i"),
        *(Drift(f"the column {n} is missing") for n in range(11)),
    ]
    first, second, *_, last = troubles(sqlite(drift=drift))
    assert first.line == "the index i is missing: somebody has changed the tables, and commands may fail or become slow"
    assert first.commands == ("CREATE INDEX i",)
    assert second.line.endswith("; make it as the script of `pillarbox migrate sql` does")
    assert last.line == "2 more things of the tables changed; compare `pillarbox migrate sql`"
