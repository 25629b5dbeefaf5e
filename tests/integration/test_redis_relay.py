"""A relay to Redis that is refused: what the suite of relays does not ask."""

from pathlib import Path

from pillarbox.telemetry.hooks import Moment
from servers.redis import Redis
from tests.integration.relay_shop import TRIED, RelayShop, until


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


async def test_a_relay_that_is_not_let_in_waits_and_goes_on_when_it_is(redis: Redis, tmp_path: Path) -> None:
    shop = RelayShop(tmp_path / "shop.db")
    await shop.open()
    shop.add(10)
    with redis.client() as client:
        client.acl_setuser("shop", enabled=True, reset=True, passwords=["+new"], keys=["*"], commands=["+@all"])
        async with shop.relay(redis.url(login="shop:old@")):
            await shop.until_heard(Moment.BROKER_AWAY)
            client.acl_setuser("shop", enabled=True, passwords=["+old"])
            await until(lambda: client.xlen("orders") == 10)
    assert not TRIED.intersection(shop.heard)
