"""A relay to Redis, one of whose topics is no stream: what the suite of relays does not ask."""

from pathlib import Path

from pillarbox.telemetry.hooks import Moment
from servers.redis import Redis
from tests.integration.relay_shop import RelayShop, until


async def test_a_topic_that_is_refused_does_not_stop_the_others(redis: Redis, tmp_path: Path) -> None:
    with redis.client() as client:
        client.set("mails", "no stream")
    shop = RelayShop(tmp_path / "shop.db")
    await shop.open()
    shop.add(25, topic="mails")
    shop.add(100)
    with redis.client() as client:
        async with shop.relay(redis.url()):
            await shop.until_heard(Moment.EVENT_DEAD)
            await until(lambda: client.xlen("orders") == 100)
    assert {record.attempts for record in await shop.records("dead")} == {1}
    assert Moment.EVENT_RETRYING not in shop.heard
