"""RabbitMQ: where what is published goes, and what queues do with it, from what the management API says."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.brokers.rabbitmq.management import Host
from pillarbox.brokers.rabbitmq.routing import described, idle_policies, queues_of
from pillarbox.facts import IdlePolicy, RabbitQueue


def bound(source: str, destination: str, key: str, kind: str = "queue") -> dict[str, Any]:
    return {"source": source, "destination": destination, "destination_type": kind, "routing_key": key}


def exchange(name: str, kind: str, **arguments: Any) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    return {"name": name, "type": kind, "arguments": named}


def host(
    exchanges: Sequence[Any] = (),
    bindings: Sequence[Any] = (),
    queues: Sequence[Any] = (),
    policies: Sequence[Any] | None = (),
    version: str = "3.10.8",
) -> Host:
    return Host(version, exchanges, bindings, queues, policies)


@pytest.mark.parametrize(
    ("kind", "key", "topic", "taken"),
    [
        ("topic", "orders", "orders", True),
        ("topic", "orders", "orders.late", False),
        ("topic", "orders.*", "orders.late", True),
        ("topic", "orders.*", "orders", False),
        ("topic", "orders.*", "orders.late.again", False),
        ("topic", "orders.#", "orders", True),
        ("topic", "orders.#", "orders.late.again", True),
        ("topic", "#", "orders", True),
        ("topic", "#.late", "orders.very.late", True),
        ("topic", "#.late", "orders", False),
        ("topic", "orders", "Orders", False),
        ("direct", "orders", "orders", True),
        ("direct", "#", "orders", False),
        ("fanout", "", "orders", True),
        ("headers", "", "orders", True),
    ],
)
def test_a_binding_takes_what_its_exchange_gives_it(kind: str, key: str, topic: str, taken: bool) -> None:
    there = host([exchange("shop", kind)], [bound("shop", "audit", key)])
    assert queues_of(there, "shop", topic) == ({"audit"} if taken else set())


def test_exchanges_are_followed_and_none_twice() -> None:
    exchanges = [exchange("shop", "topic"), exchange("inner", "direct")]
    bindings = [
        bound("shop", "inner", "orders", "exchange"),
        bound("inner", "shop", "orders", "exchange"),
        bound("inner", "audit", "orders"),
        bound("inner", "other", "mails"),
    ]
    assert queues_of(host(exchanges, bindings), "shop", "orders") == {"audit"}
    assert queues_of(host(exchanges, bindings), "shop", "mails") == set()


def test_what_nothing_takes_goes_to_the_alternate_exchange() -> None:
    rest, alternate = exchange("rest", "fanout"), policy("alternate", "^shop$", "exchanges", alternate_exchange="rest")
    bindings = [bound("rest", "leftovers", ""), bound("shop", "audit", "orders")]
    for shop, policies in (
        (exchange("shop", "direct", alternate_exchange="rest"), []),
        (exchange("shop", "direct"), [alternate]),
    ):
        there = host([shop, rest], bindings, policies=policies)
        assert queues_of(there, "shop", "mails") == {"leftovers"}
        assert queues_of(there, "shop", "orders") == {"audit"}


def test_without_an_exchange_it_is_the_queue_of_the_topics_name() -> None:
    there = host(queues=[{"name": "orders"}])
    assert (queues_of(there, "", "orders"), queues_of(there, "", "mails")) == ({"orders"}, set())


def queue(version: str = "3.10.8", **described_as: Any) -> RabbitQueue:
    there = {"name": "orders", "type": "quorum", "durable": True, "arguments": {}} | described_as
    (found,) = described(host(queues=[there, {"name": "others"}], version=version), {"orders"})
    return found


WELL = RabbitQueue("orders", durable=True, drops_oldest=False, lives=None, deliveries=None, has_dead_letters=False)


def test_a_queue_without_limits_is_well() -> None:
    assert queue() == WELL
    assert queue("4.0.1", arguments={"x-delivery-limit": -1}) == WELL
    assert queue("4.0.1", type="classic") == WELL


@pytest.mark.parametrize(
    ("said", "drops"),
    [
        ({"x-max-length": 9}, True),
        ({"x-max-length-bytes": 9}, True),
        ({"x-max-length": 9, "x-overflow": "drop-head"}, True),
        ({"x-max-length": 9, "x-overflow": "reject-publish"}, False),
        ({"x-max-length": 9, "x-overflow": "reject-publish-dlx"}, False),
    ],
)
def test_a_bounded_queue_drops_its_oldest_unless_it_refuses(said: dict[str, Any], drops: bool) -> None:
    assert queue(arguments=said).drops_oldest == drops
    applied = {name.removeprefix("x-"): value for name, value in said.items()}
    assert queue(effective_policy_definition=applied).drops_oldest == drops


def test_the_queue_itself_wins_over_its_policy() -> None:
    applied = {"delivery-limit": 5, "message-ttl": 1000}
    found = queue(effective_policy_definition=applied, arguments={"x-delivery-limit": 7})
    assert (found.deliveries, found.lives) == (7, timedelta(seconds=1))


def test_since_version_4_a_quorum_queue_delivers_twenty_times() -> None:
    assert (queue("4.0.1").deliveries, queue("3.13.7").deliveries) == (20, None)
    assert queue("4.0.1", arguments={"x-delivery-limit": 3}).deliveries == 3


def test_dead_letters_and_streams_are_known() -> None:
    assert queue(arguments={"x-dead-letter-exchange": "dead"}).has_dead_letters
    assert described(host(queues=[{"name": "orders", "type": "stream"}]), {"orders"}) == []


def policy(name: str, pattern: str, apply_to: str = "all", priority: int = 0, **definition: Any) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"name": name, "pattern": pattern, "apply-to": apply_to, "priority": priority, "definition": named}


ORDERS = {"name": "orders", "type": "quorum", "durable": True, "arguments": {}}


@pytest.mark.parametrize(
    ("one", "idle"),
    [
        (policy("p", "^orders$"), False),
        (policy("p", "rde"), False),
        (policy("p", "^ordres$"), True),
        (policy("p", "^orders$", "queues"), False),
        (policy("p", "^orders$", "quorum_queues"), False),
        (policy("p", "^orders$", "classic_queues"), True),
        (policy("p", "^orders$", "streams"), True),
        (policy("p", "^orders$", "exchanges"), True),
        (policy("p", "^shop$", "exchanges"), False),
        (policy("p", "^shop$", "queues"), True),
        (policy("p", "(?<n>shop)\\k{n}"), False),  # Erlang may know what that is
    ],
)
def test_a_policy_that_applies_to_nothing_is_named(one: dict[str, Any], idle: bool) -> None:
    there = host([exchange("shop", "topic")], queues=[ORDERS], policies=[one])
    assert idle_policies(there) == ([IdlePolicy("p", one["pattern"])] if idle else [])
    assert idle_policies(there._replace(policies=None)) == []


def test_of_two_policies_the_one_with_the_higher_priority_applies_unless_the_server_says_otherwise() -> None:
    low, high = policy("low", "orders", message_ttl=1), policy("high", "orders", priority=1, message_ttl=2000)
    there = host(queues=[ORDERS], policies=[high, low])
    assert [one.name for one in idle_policies(there)] == ["low"]
    assert [one.lives for one in described(there, {"orders"})] == [timedelta(seconds=2)]
    named = there._replace(queues=[ORDERS | {"policy": "low", "effective_policy_definition": {"message-ttl": 1000}}])
    assert [one.name for one in idle_policies(named)] == ["high"]
    assert [one.lives for one in described(named, {"orders"})] == [timedelta(seconds=1)]
