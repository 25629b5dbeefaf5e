"""The options of Kafka: read from the URL and the table, and refused by name where they are not safe."""

from typing import Any

import pytest

from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.errors import ConfigError


def test_hosts_get_the_usual_port() -> None:
    assert KafkaOptions.read("//one,two:9093/", {}).servers == "one:9092,two:9093"


@pytest.mark.parametrize("rest", ["", "//", "///orders", "//host/orders"])
def test_a_url_without_hosts_or_with_a_path_is_refused(rest: str) -> None:
    with pytest.raises(ConfigError, match="kafka://host:9092"):
        KafkaOptions.read(rest, {})


def test_options_stand_in_the_table_and_in_the_url_which_wins() -> None:
    options = KafkaOptions.read("//host?linger.ms=7", {"linger.ms": 20, "compression.type": "lz4"})
    assert options.for_producer(10)["linger.ms"] == "7"
    assert options.for_producer(10)["compression.type"] == "lz4"


def test_a_login_asks_for_encryption_unless_told_otherwise() -> None:
    options = KafkaOptions.read("//shop:p%40ss@host", {})
    assert options.properties["security.protocol"] == "SASL_SSL"
    assert options.properties["sasl.password"] == "p@ss"
    assert "p@ss" not in repr(options)
    plain = KafkaOptions.read("//shop:x@host?security.protocol=SASL_PLAINTEXT", {})
    assert plain.properties["security.protocol"] == "SASL_PLAINTEXT"


def test_by_default_everything_is_safe() -> None:
    options = KafkaOptions.read("//host", {})
    assert options.prefix_safe
    producer = options.for_producer(10)
    assert producer["acks"] == "all"
    assert producer["enable.idempotence"] == producer["enable.gapless.guarantee"] == "true"
    assert producer["message.timeout.ms"] == "0"
    assert producer["partitioner"] == "murmur2_random"
    assert options.for_consumer("billing")["enable.auto.commit"] == "false"


UNSAFE: dict[str, Any] = {
    "acks": 1,
    "request.required.acks": "0",
    "enable.idempotence": False,
    "enable.gapless.guarantee": "false",
    "message.timeout.ms": 30_000,
    "delivery.timeout.ms": 30_000,
    "partitioner": "consistent_random",
    "queuing.strategy": "lifo",
    "max.in.flight": 10,
    "enable.auto.commit": True,
    "auto.offset.reset": "latest",
    "isolation.level": "read_uncommitted",
    "group.instance.id": "one",
    "enable.ssl.certificate.verification": False,
    "ssl.endpoint.identification.algorithm": "none",
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_unsafe_is_refused_by_its_name_until_somebody_says_that_it_is_meant(name: str) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.\S+: \S+ is not safe: .*kafka\.unsafe = true"):
        KafkaOptions.read("//host", {name: UNSAFE[name]})
    with pytest.raises(ConfigError, match="is not safe"):
        KafkaOptions.read(f"//host?{name}={UNSAFE[name]}", {})
    KafkaOptions.read("//host?unsafe=true", {name: UNSAFE[name]})


@pytest.mark.parametrize(
    "name", ["acks", "enable.idempotence", "message.timeout.ms", "partitioner", "queuing.strategy"]
)
def test_who_is_unsafe_is_not_prefix_safe(name: str) -> None:
    assert not KafkaOptions.read("//host", {name: UNSAFE[name], "unsafe": True}).prefix_safe


@pytest.mark.parametrize("name", ["bootstrap.servers", "group.id", "transactional.id", "delivery.report.only.error"])
def test_what_is_ours_cannot_be_set_at_all(name: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name}: cannot be set"):
        KafkaOptions.read("//host", {name: "x", "unsafe": True})


@pytest.mark.parametrize("value", ["all", "-1", -1, "ALL"])
def test_a_safe_value_may_be_said(value: object) -> None:
    assert KafkaOptions.read("//host", {"acks": value}).prefix_safe
