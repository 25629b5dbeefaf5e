"""Three brokers, three replicas, two of them in sync at least: leaders die in mid-batch, and nothing is lost."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from pillarbox import Settings
from pillarbox.admin.doctor import examine
from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher
from pillarbox.errors import BrokerUnavailable
from pillarbox.telemetry.hooks import Facts, Moment
from pillarbox.testing.contracts.publisher import answers, batch, bodies
from pillarbox.wiring import open_doctor
from servers.kafka import Kafka
from tests.conftest import installed
from tests.integration.kafka_topics import Topics, check_arrived, ends_of
from tests.integration.relay_shop import TRIED, UNSETTLED, RelayShop, until

pytestmark = pytest.mark.soak

BATCH, BACKLOG, KILLS = 500, 10_000, 2
ON_ITS_WAY = 0.003
"""Seconds after which a batch that was sent has partly arrived."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    with installed(lambda: Kafka(nodes=3)) as cluster:
        yield cluster


class AttackedShop(RelayShop):
    """Its relay is struck while a batch is on its way."""

    strike: Callable[[], None] | None = None
    flying = 0
    """How many events were sent and are not answered."""

    def hear(self, moment: Moment, facts: Facts) -> None:
        super().hear(moment, facts)
        if moment is Moment.SENT:
            self.flying += cast(int, facts["count"])
            if self.flying >= self.settings.relay.batch:
                asyncio.get_running_loop().call_later(ON_ITS_WAY, self._strike)
        elif moment is Moment.ANSWERED:
            self.flying -= cast(int, facts["count"])

    def _strike(self) -> None:
        if self.flying and self.strike is not None:
            self.strike()
            self.strike = None


async def test_a_leader_that_is_killed_twice_in_mid_batch_loses_nothing_and_keeps_the_order(
    cluster: Kafka, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topics = Topics(cluster)
    topics.make("orders", partitions=3)
    orders = topics.full("orders")
    shop = AttackedShop(tmp_path / "shop.db", batch=BATCH, timeout=10)
    await shop.open()
    enough, turn, added = asyncio.Event(), asyncio.Lock(), 0

    async def add(count: int) -> None:
        nonlocal added
        async with turn:
            await asyncio.to_thread(shop.add, count, start=added, topic=orders)
            added += count

    async def write() -> None:
        while not enough.is_set():
            await add(50)
            await asyncio.sleep(0.05)

    async with shop.relay(cluster.url):
        writing = asyncio.create_task(write())
        for _ in range(KILLS):
            leader = await asyncio.to_thread(cluster.leader_of, orders, 0)
            shop.strike = partial(cluster.kill, leader)
            await add(BACKLOG)
            await until(lambda: shop.strike is None)
            unpublished = len(await shop.records(*UNSETTLED))
            assert unpublished > BATCH, "there was no backlog any more when the leader was killed"
            before = await asyncio.to_thread(ends_of, cluster, orders)
            await until(lambda before=before: ends_of(cluster, orders) > before + 500)  # type: ignore[misc]
            cluster.begin(leader)
            await until(cluster.answers)
            await until(lambda: cluster.in_sync(orders, 0) == 3)
        enough.set()
        await writing
        await shop.until_all_published()
    copies = check_arrived(cluster, orders, added)
    record_property("says", f"{added} events, the leader killed twice in mid-batch: 0 lost, {copies} copies")
    assert copies <= KILLS * 2 * BATCH, "more than was in flight"
    assert not TRIED & set(shop.heard)


async def test_of_a_partition_without_a_leader_nothing_is_stored_and_the_others_go(cluster: Kafka) -> None:
    """Record k fails by timeout: what stands behind it in its partition fails too, all others are delivered."""
    topics = Topics(cluster)
    cluster.create_topic(topics.full("lonely"), 3, replication=1, config={"min.insync.replicas": "1"})
    topics.make("orders", partitions=3)
    options = KafkaOptions.read(cluster.url.removeprefix("kafka:"), {})
    kafka = KafkaPublisher(options, publish_timeout=timedelta(seconds=8))
    publisher = topics.publisher(kafka)
    messages = batch("abcdef" * 3, topic="lonely") + batch("abc", first=100)
    publisher.send(messages)
    assert all(outcome.error is None for outcome in await answers(publisher, len(messages)))
    dead = cluster.leader_of(topics.full("lonely"), 0)
    cluster.kill(dead)
    again = [message._replace(ticket=message.ticket + 1000) for message in messages]
    publisher.send(again)
    found = dict(await answers(publisher, len(again)))
    failed = {m.key for m in again if m.topic == "lonely" and found[m.ticket] is not None}
    assert failed
    assert failed < set("abcdef"), "only one of three partitions has lost its leader"
    assert all(found[m.ticket] is None for m in again if m.topic == "orders" or m.key not in failed)
    assert {type(error) for error in found.values() if error is not None} == {BrokerUnavailable}
    await kafka.close()
    cluster.begin(dead)
    await until(cluster.answers)
    await until(lambda: cluster.leader_of(topics.full("lonely"), 0) == dead)
    topics._made.append("lonely")
    stored = topics.stored("lonely")
    for key in "abcdef":
        sent = bodies(messages[:18], key)
        assert bodies(stored, key) in (sent, sent + sent), "a prefix of what was sent again: all or nothing here"


async def test_events_of_a_partition_without_a_leader_wait_for_it_and_none_is_dead(
    cluster: Kafka, tmp_path: Path
) -> None:
    topics = Topics(cluster)
    lonely, orders = topics.full("lonely"), topics.full("orders")
    cluster.create_topic(lonely, 3, replication=1, config={"min.insync.replicas": "1"})
    topics.make("orders", partitions=3)
    shop = RelayShop(tmp_path / "shop.db", timeout=2)
    shop.settings = replace(shop.settings, relay=replace(shop.settings.relay, retries=0))  # the first count is the end
    await shop.open()
    dead = cluster.leader_of(lonely, 0)
    cluster.kill(dead)
    shop.add(18, topic=lonely)  # fewer failures than hold a topic
    shop.add(30, topic=orders)
    async with shop.relay(cluster.url):
        try:
            await until(lambda: ends_of(cluster, orders) >= 30)
        except TimeoutError:
            in_sync = [cluster.in_sync(orders, partition) for partition in range(3)]
            pytest.fail(f"{ends_of(cluster, orders)} of 30 are there; in sync: {in_sync}; {shop.troubles[-20:]}")
        cluster.begin(dead)
        await shop.until_all_published()
    check_arrived(cluster, lonely, 18)
    check_arrived(cluster, orders, 30)
    assert not TRIED & set(shop.heard)


async def test_the_doctor_finds_what_is_wrong_in_a_cluster_and_nothing_in_one_that_is_well(cluster: Kafka) -> None:
    topics = Topics(cluster)
    faults = {
        "well": (3, 2, []),
        "alone": (1, 1, [("problem", "replicas")]),
        "hasty": (3, 1, [("problem", "replicas in sync")]),
        "touchy": (3, 3, [("note", "replicas in sync")]),
        "stuck": (2, 3, [("problem", "replicas in sync")]),
    }
    for name, (replicas, in_sync, _) in faults.items():
        settings = {"min.insync.replicas": str(in_sync)}
        cluster.create_topic(topics.full(name), replication=replicas, config=settings)
    for name, (_, _, found) in faults.items():
        doctor = open_doctor(Settings(broker=cluster.url))
        findings = [one for one in examine(await doctor.gather([topics.full(name)])) if one.check != "database"]
        assert [(one.severity, one.check) for one in findings if one.severity != "fine"] == found, name
