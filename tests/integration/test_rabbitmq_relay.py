"""A relay to RabbitMQ that finds no queue, or a full one: what the suite of relays does not ask."""

from pathlib import Path

from pillarbox.telemetry.hooks import Moment
from servers.rabbitmq import RabbitMQ
from tests.contracts.rabbitmq_bench import stored_in
from tests.integration.relay_shop import RelayShop


async def test_an_unroutable_event_is_dead_in_one_attempt_and_the_others_flow(
    tmp_path: Path, rabbitmq: RabbitMQ, vhost: str
) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    shop = RelayShop(tmp_path / "shop.db")
    await shop.open()
    shop.add(1, topic="nowhere")
    shop.add(25)
    async with shop.relay(rabbitmq.url(vhost)):
        await shop.until_heard(Moment.EVENT_DEAD)
        await shop.until_all_published()
    (dead,) = await shop.records("dead")
    assert dead.attempts == 1
    assert dead.last_error == "RabbitMQ returned it (312 NO_ROUTE): there is no queue 'nowhere'"
    assert len(await shop.records("published")) == 25


async def test_an_event_for_a_full_queue_is_dead_in_one_attempt_and_the_others_flow(
    tmp_path: Path, rabbitmq: RabbitMQ, vhost: str
) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    # A quorum queue may take some more than its limit.
    full = {"x-queue-type": "classic", "x-max-length": 2, "x-overflow": "reject-publish"}
    rabbitmq.declare_queue(vhost, "mails", **full)
    shop = RelayShop(tmp_path / "shop.db")
    await shop.open()
    async with shop.relay(rabbitmq.url(vhost)):
        shop.add(2, topic="mails")
        await shop.until_all_published()
        shop.add(1, start=2, topic="mails")
        shop.add(25)
        await shop.until_heard(Moment.EVENT_DEAD)
        await shop.until_all_published()
    (dead,) = await shop.records("dead")
    assert (dead.topic, dead.attempts) == ("mails", 1)
    assert "RabbitMQ refused it (basic.nack)" in (dead.last_error or "")
    assert len(stored_in(rabbitmq, vhost, "mails")) == 2
    assert len(stored_in(rabbitmq, vhost, "orders")) == 25
