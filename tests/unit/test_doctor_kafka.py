"""Doctor: what is wrong with topics of Kafka, from values alone."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pillarbox.admin.doctor import Facts, Finding, examine
from pillarbox.brokers.kafka.client import can_be_topic
from pillarbox.facts import KafkaFacts, KafkaTopic
from pillarbox.settings import Settings


def kafka(brokers: int = 3, **topic: Any) -> list[Finding]:
    healthy: dict[str, Any] = {
        "name": "orders", "replicas": 3, "min_insync": 2, "unclean": False, "largest": 1_048_588,
    }  # fmt: skip
    facts = KafkaFacts(brokers, 1_000_000, [KafkaTopic(**healthy | topic)])
    found = examine(Facts(Settings(), datetime(2026, 1, 1, tzinfo=UTC), broker=facts))
    return [finding for finding in found if finding.severity != "fine"]


def test_three_replicas_of_which_two_are_in_sync_are_well() -> None:
    assert kafka() == []


@pytest.mark.parametrize(("brokers", "severity"), [(1, "note"), (2, "problem"), (3, "problem")])
def test_one_replica_is_a_problem_unless_there_is_one_broker(brokers: int, severity: str) -> None:
    (finding,) = kafka(brokers, replicas=1, min_insync=1)
    assert (finding.severity, finding.check) == (severity, "replicas")


@pytest.mark.parametrize(
    ("replicas", "least", "severity", "setting"),
    [
        (3, 1, "problem", "min.insync.replicas=2"),
        (2, 1, "problem", "min.insync.replicas=2"),
        (3, 3, "note", "min.insync.replicas=2"),
        (3, 4, "problem", "min.insync.replicas=2"),
    ],
)
def test_too_few_and_too_many_in_sync_are_told(replicas: int, least: int, severity: str, setting: str) -> None:
    (finding,) = kafka(replicas=replicas, min_insync=least)
    assert (finding.severity, finding.check) == (severity, "replicas in sync")
    assert finding.commands == (
        f"kafka-configs.sh --alter --entity-type topics --entity-name orders --add-config {setting}",
    )


def test_replicas_that_are_not_known_are_not_judged() -> None:
    assert kafka(replicas=0) == []


@pytest.mark.parametrize(("makes", "severity"), [(False, "problem"), (True, "note"), (None, "note")])
def test_a_topic_that_is_not_there_is_a_problem_where_kafka_makes_none(makes: bool | None, severity: str) -> None:
    broker = KafkaFacts(3, 1_000_000, [], makes_topics=makes)
    facts = Facts(Settings(), datetime(2026, 1, 1, tzinfo=UTC), topics=["ordres"], kept=[], broker=broker)
    (finding,) = [one for one in examine(facts) if one.severity != "fine"]
    assert (finding.severity, finding.check) == (severity, "topics")
    assert ("every event for it is dead in one attempt" in finding.line) is (severity == "problem")


@pytest.mark.parametrize("name", ["orders", "Order.events_v-2", "x" * 249, "..."])
def test_what_a_topic_may_be_called(name: str) -> None:
    assert can_be_topic(name)


@pytest.mark.parametrize("name", ["a b", "", ".", "..", "x" * 250, "überweisung", "orders\n", "shop/orders"])
def test_what_no_topic_can_be_called(name: str) -> None:
    assert not can_be_topic(name)
