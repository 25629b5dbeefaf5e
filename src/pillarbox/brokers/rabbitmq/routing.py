"""Where RabbitMQ puts what is published on an exchange, and what a queue then does with it. Pure: what the management
API says of a virtual host in, facts out."""

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from pillarbox.brokers.rabbitmq.management import Host, Thing
from pillarbox.facts import IdlePolicy, RabbitQueue

QUORUM_LIMITED = 4
"""Since this major version a quorum queue throws a message away after so many deliveries, unless it says otherwise."""
DELIVERY_LIMIT = 20
QUEUES = ("classic", "quorum", "stream")


def queues_of(host: Host, exchange: str, topic: str) -> set[str]:
    """Name the queues that get a topic; without an exchange it is the queue of its name."""
    if not exchange:
        return {topic} & {queue["name"] for queue in host.queues}
    return set(_routed(host, exchange, topic, set()))


def _routed(host: Host, exchange: str, topic: str, seen: set[str]) -> Iterator[str]:
    """Follow the bindings, from exchange to exchange; what nothing takes goes to the alternate exchange."""
    described = next((one for one in host.exchanges if one["name"] == exchange), None)
    if described is None or exchange in seen:
        return
    seen.add(exchange)
    taken = [one for one in host.bindings if one["source"] == exchange and takes(described["type"], one, topic)]
    for binding in taken:
        if binding["destination_type"] == "queue":
            yield binding["destination"]
        else:
            yield from _routed(host, binding["destination"], topic, seen)
    if not taken and (other := _setting(host, described, "alternate-exchange")) is not None:
        yield from _routed(host, other, topic, seen)


def takes(kind: str, binding: Thing, topic: str) -> bool:
    """Say whether a binding of an exchange of this kind takes a topic; of kinds that go by headers nobody can tell."""
    key = binding["routing_key"]
    match kind:
        case "direct":
            return bool(key == topic)
        case "topic":
            return _matches(key.split("."), topic.split("."))
        case _:
            return True


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match words: `*` stands for one, `#` for any number."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


def described(host: Host, names: set[str]) -> list[RabbitQueue]:
    """Say how queues keep what they get; a stream keeps it for whoever comes, as long as it is told to."""
    return [
        _described(host, queue)
        for queue in sorted(host.queues, key=lambda queue: str(queue["name"]))
        if queue["name"] in names and queue.get("type") != "stream"
    ]


def _described(host: Host, queue: Thing) -> RabbitQueue:
    bounded = any(_setting(host, queue, limit) is not None for limit in ("max-length", "max-length-bytes"))
    overflow = _setting(host, queue, "overflow") or "drop-head"
    lives = _setting(host, queue, "message-ttl")
    return RabbitQueue(
        name=queue["name"],
        durable=queue["durable"],
        drops_oldest=bounded and not overflow.startswith("reject-publish"),
        lives=None if lives is None else timedelta(milliseconds=lives),
        deliveries=_deliveries(host, queue),
        has_dead_letters=_setting(host, queue, "dead-letter-exchange") is not None,
    )


def _deliveries(host: Host, queue: Thing) -> int | None:
    if queue.get("type") != "quorum":
        return None
    limit = _setting(host, queue, "delivery-limit")
    major = re.match(r"\d+", host.version)
    if limit is None and major is not None and int(major[0]) >= QUORUM_LIMITED:
        return DELIVERY_LIMIT
    return None if limit is None or limit < 0 else int(limit)


def _setting(host: Host, thing: Thing, name: str) -> Any:
    """Give what an argument says, or else the policy that applies."""
    arguments = thing.get("arguments") or {}
    for key in (f"x-{name}", name):
        if key in arguments:
            return arguments[key]
    applied = thing.get("effective_policy_definition") or (_policy_of(host, thing) or {}).get("definition", {})
    return applied.get(name)


def idle_policies(host: Host) -> list[IdlePolicy]:
    """Give the policies that apply to no queue and no exchange, for their pattern or because others come first."""
    at_work = {policy["name"] for thing in (*host.queues, *host.exchanges) if (policy := _policy_of(host, thing))}
    return [IdlePolicy(one["name"], one["pattern"]) for one in host.policies or () if one["name"] not in at_work]


def _policy_of(host: Host, thing: Thing) -> Thing | None:
    """Find the policy that applies. The server itself names it only once it has statistics of a queue."""
    fitting = [policy for policy in host.policies or () if _fits(policy, thing)]
    named = next((policy for policy in fitting if policy["name"] == thing.get("policy")), None)
    return named or max(fitting, key=lambda policy: int(policy["priority"]), default=None)


def _fits(policy: Thing, thing: Thing) -> bool:
    kind = thing.get("type", "classic")
    kinds = ("queues", f"{kind}_queues", f"{kind}s") if kind in QUEUES else ("exchanges",)
    if policy["apply-to"] not in ("all", *kinds):
        return False
    try:
        return re.search(policy["pattern"], thing["name"]) is not None
    except re.error:  # what Erlang takes for a pattern, and Python does not
        return True
