"""Doctor: what may go wrong some day, from values alone."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from pillarbox.admin.diagnosis import Finding
from pillarbox.admin.doctor import Facts, examine, gather
from pillarbox.brokers.kafka.keeping import kept_by
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Kept
from pillarbox.settings import Settings
from pillarbox.settings.tables import RetentionSettings
from pillarbox.wiring import open_keeping


def days(count: float) -> timedelta:
    return timedelta(days=count)


def settings(inbox: timedelta | None = None, **retention: timedelta | None) -> Settings:
    return Settings(retention=RetentionSettings(inbox=inbox, **retention))


def found(facts: Facts) -> list[tuple[str, str]]:
    return [(finding.severity, finding.kind) for finding in examine(facts)]


def kept_for(age: timedelta | None, memory: timedelta | None) -> Finding:
    facts = Facts(settings(memory, published=days(1)), ["orders"], [Kept("orders", age, "its retention.ms")])
    (finding,) = examine(facts)
    return finding


def test_the_defaults_are_well() -> None:
    assert examine(Facts(Settings())) == [
        Finding(
            "fine",
            "fine",
            "nothing found: consumers remember what they have handled for 30 days, longer than a replay reaches back",
        )
    ]


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
    facts = Facts(settings(memory, published=published, archive=archive))
    assert found(facts) == [("fine", "fine") if healthy else ("problem", "forgets too soon")]


def test_what_an_outbox_keeps_too_long_is_told_with_its_cure() -> None:
    (finding,) = examine(Facts(settings(days(3))))
    assert finding.line == (
        "retention.inbox is 3 days, and the outbox keeps events for 7 days (retention.published and retention.archive):"
        " `pillarbox replay` can bring one back that its consumer has forgotten, and it would be handled a second time;"
        ' set retention.inbox to "7 days" or longer where the consumers are'
    )
    (finding,) = examine(Facts(settings(days(3), archive=None)))
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
    assert kept_for(age, memory).severity == severity


def test_a_topic_that_is_kept_too_long_is_told_with_its_cure() -> None:
    assert kept_for(days(60), days(30)).line == (
        "the topic orders is kept for 60 days (by its retention.ms), and retention.inbox is only 30 days: a consumer"
        " whose place is reset or lost would handle a second time what it has forgotten;"
        ' set retention.inbox to "60 days" or longer where the consumers are'
    )


def test_a_topic_that_is_kept_without_limit_is_told_with_both_cures() -> None:
    line = kept_for(None, days(30)).line
    assert line.startswith("the topic orders is kept without limit of age (by its retention.ms), and retention.inbox")
    assert line.endswith('give the topic a limit, or set retention.inbox to "forever" where the consumers are')


def test_problems_come_first() -> None:
    kept = [Kept("a", None, "x"), Kept("b", days(60), "x")]
    facts = Facts(settings(days(30)), ["a", "b", "c"], kept)
    assert found(facts) == [
        ("problem", "forgets too soon"),
        ("note", "forgets too soon"),
        ("note", "topic unknown"),
    ]


def test_a_topic_that_the_broker_does_not_have_is_noted() -> None:
    (finding,) = examine(Facts(settings(days(30)), ["ordres"], []))
    assert finding.line == "the broker has no topic ordres, so nothing is known of it; is its name right?"


def test_without_a_topic_the_flag_is_named() -> None:
    (finding,) = examine(Facts(settings(days(30)), [], []))
    assert (finding.severity, finding.line) == ("note", "no topic is known here: name those to ask about with --topic")


async def test_a_broker_that_is_away_is_a_finding() -> None:
    async def keeping(topics: Sequence[str]) -> Sequence[Kept]:
        raise BrokerUnavailable("nobody listens")

    facts = await gather(settings(days(30)), ["orders"], keeping)
    (finding,) = examine(facts)
    assert (finding.severity, finding.kind) == ("problem", "broker away")
    assert finding.line == "the broker cannot be asked: nobody listens"


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
        ("redis://localhost?maxlen=1000", [None]),
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
