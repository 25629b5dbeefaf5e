"""Doctor: what may go wrong some day, as values. Facts of settings, database and broker in, findings out.

finding.py      what the checks know, and what they say
gathering.py    asks the database and the broker; the only file that waits
tables.py       the database can be read, its tables are as they should be, and somebody relays what is in them
sqlite.py       how an SQLite file is
postgres.py     how a PostgreSQL server is
broker.py       the broker can be asked, and has the topics
redis.py, nats.py, rabbitmq.py, kafka.py, webhook.py
                how each of these brokers keeps what it has
timing.py       a relay gives up before its lease does
retention.py    consumers remember for long enough

A check is a function of the facts that yields troubles, with a name in its group's CHECKS; a new one is a function, a
line there, and its tests.
"""

from collections.abc import Iterator, Sequence

from pillarbox.admin.diagnosis import Severity
from pillarbox.admin.doctor import (
    broker,
    kafka,
    nats,
    postgres,
    rabbitmq,
    redis,
    retention,
    sqlite,
    tables,
    timing,
    webhook,
)
from pillarbox.admin.doctor.finding import Checks, Facts, Finding
from pillarbox.admin.doctor.gathering import Doctor
from pillarbox.facts import (
    KafkaFacts,
    NatsFacts,
    PostgresFacts,
    RabbitFacts,
    RedisFacts,
    SqliteFacts,
    WebhookFacts,
)

__all__ = ["Doctor", "Facts", "Finding", "examine", "is_healthy"]

_ORDER: tuple[Severity, ...] = ("problem", "note", "fine")


def examine(facts: Facts) -> Sequence[Finding]:
    """Say what each check has found, the worst first."""
    found = [finding for checks in _groups(facts) for finding in _done(checks, facts)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def is_healthy(findings: Sequence[Finding]) -> bool:
    """Say whether none of them is a problem."""
    return not any(finding.severity == "problem" for finding in findings)


def _groups(facts: Facts) -> Iterator[Checks]:
    """Choose the checks of which the facts are there."""
    if facts.store is not None or facts.unread is not None or "database" in facts.unset:
        yield tables.DATABASE
    if facts.store is not None:
        yield tables.TABLES
    if isinstance(facts.store, SqliteFacts):
        yield sqlite.CHECKS
    if isinstance(facts.store, PostgresFacts):
        yield postgres.CHECKS
    if facts.stats is not None:
        yield tables.RELAYS
    if any(known is not None for known in (facts.kept, facts.broker, facts.away)) or "broker" in facts.unset:
        yield broker.BROKER
    if facts.kept is not None or facts.broker is not None:
        yield broker.TOPICS
    match facts.broker:
        case RedisFacts():
            yield redis.CHECKS
        case NatsFacts():
            yield nats.CHECKS
        case RabbitFacts():
            yield rabbitmq.CHECKS
        case KafkaFacts():
            yield kafka.CHECKS
        case WebhookFacts():
            yield webhook.CHECKS
    yield timing.CHECKS
    yield retention.CHECKS


def _done(checks: Checks, facts: Facts) -> Iterator[Finding]:
    for name, check in checks.items():
        troubles = list(check(facts))
        for trouble in troubles:
            yield Finding(name, *trouble)
        if not troubles:
            yield Finding(name, "fine")
