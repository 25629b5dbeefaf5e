"""The contract of a Subscriber, rule by rule. Whoever writes one of their own runs it on a bench with their broker."""

import asyncio
from string import ascii_letters

from pillarbox.core.message import REPLAY_HEADER, Message
from pillarbox.testing.contracts.publisher import batch, same
from pillarbox.testing.contracts.rules import needs
from pillarbox.testing.contracts.subscriber_bench import (
    LONG,
    QUIET,
    SubscriberBench,
    SubscriberFeatures,
    is_away,
    receive,
    settle_down,
    texts,
    work_together,
)
from pillarbox.testing.contracts.subscriber_standby import StandbyRules

__all__ = ["QUIET", "SubscriberBench", "SubscriberContract", "SubscriberFeatures", "receive", "texts", "work_together"]

UNDER_WAY = 0.03
"""Seconds after which a wait has asked the broker."""
STEPS = 15
"""How many waits are cancelled: each a little later, the last ones when they are over."""


class SubscriberContract(StandbyRules):
    """The rules."""

    async def test_everything_published_is_delivered(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abcabc"))
        received = await receive(bench.subscriber("billing", ["orders"]), 6)
        assert sorted(texts(received)) == [b"a1", b"a4", b"b2", b"b5", b"c3", b"c6"]

    async def test_a_message_arrives_unchanged(self, bench: SubscriberBench) -> None:
        headers = {"id": "7", "language": "Ελληνικά", "empty": "", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        sent = Message("orders", "order 7/ü", headers, bytes(range(256)), 1)
        await bench.publish([sent])
        (delivery,) = await receive(bench.subscriber("billing", ["orders"]), 1)
        assert same(delivery.message, sent)

    async def test_a_message_without_a_key_arrives_without_one(self, bench: SubscriberBench) -> None:
        await bench.publish([Message("orders", None, {"id": "7"}, b"x", 1)])
        (delivery,) = await receive(bench.subscriber("billing", ["orders"]), 1)
        assert delivery.message.key is None

    async def test_what_is_replayed_on_purpose_comes_again_and_says_by_which_replay(
        self, bench: SubscriberBench
    ) -> None:
        sent = Message("orders", "7", {"id": "7"}, b"x", 1)
        await bench.publish([sent])
        await bench.publish([sent._replace(headers={"id": "7", REPLAY_HEADER: "20260131-120000-0a1b2c"})])
        received = await receive(bench.subscriber("billing", ["orders"]), 2)
        assert [delivery.replay for delivery in received] == [None, "20260131-120000-0a1b2c"]

    async def test_a_key_comes_in_the_order_of_the_broker(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("aabaabaaba"))
        received = await receive(bench.subscriber("billing", ["orders"]), 10, room=3)
        assert texts(received, "a") == [b"a1", b"a2", b"a4", b"a5", b"a7", b"a8", b"a10"]

    async def test_no_more_come_than_there_is_room_for(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abcdef" * 5))
        subscriber = bench.subscriber("billing", ["orders"])
        for _ in range(3):
            assert len(await subscriber.deliveries(4, 1.0)) <= 4

    async def test_it_waits_no_longer_than_its_patience(self, bench: SubscriberBench) -> None:
        subscriber = bench.subscriber("billing", ["orders"])
        await subscriber.deliveries(10, 0.0)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        assert not await subscriber.deliveries(10, 0.2)
        assert loop.time() - begin < 2

    async def test_it_waits_as_long_as_its_patience(self, bench: SubscriberBench) -> None:
        subscriber = bench.subscriber("billing", ["orders"])
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await subscriber.deliveries(10, 0.5)
        assert loop.time() - begin > 0.4

    async def test_news_end_the_waiting(self, bench: SubscriberBench) -> None:
        subscriber = bench.subscriber("billing", ["orders"])
        waiting = asyncio.create_task(subscriber.deliveries(10, 60.0))
        await asyncio.sleep(QUIET)
        await bench.publish(batch("a"))
        async with asyncio.timeout(LONG):
            assert texts(await waiting) == [b"a1"]

    async def test_only_its_topics_are_delivered(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abc", topic="mails") + batch("abc", first=4, topic="orders"))
        received = await receive(bench.subscriber("billing", ["orders"]), 3)
        assert {delivery.topic for delivery in received} == {"orders"}

    async def test_several_topics_are_delivered(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abc", topic="mails") + batch("abc", first=4, topic="orders"))
        received = await receive(bench.subscriber("billing", ["orders", "mails"]), 6)
        assert {delivery.topic for delivery in received} == {"orders", "mails"}

    async def test_a_topic_may_be_unknown_at_first(self, bench: SubscriberBench) -> None:
        subscriber = bench.subscriber("billing", ["orders"])
        assert not await subscriber.deliveries(10, 0.0)
        await bench.publish(batch("a"))
        assert texts(await receive(subscriber, 1)) == [b"a1"]

    async def test_what_was_given_out_is_not_given_out_again(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abab"))
        subscriber = bench.subscriber("billing", ["orders"])
        await receive(subscriber, 4)
        assert not await subscriber.deliveries(10, QUIET)

    async def test_a_wait_that_is_cancelled_loses_no_delivery(self, bench: SubscriberBench) -> None:
        subscriber = bench.subscriber("billing", ["orders"])
        await bench.publish(batch("a"))
        received = await receive(subscriber, 1)
        loop = asyncio.get_running_loop()
        took: float | None = None  # from the publishing until it is delivered, when nobody cancels
        for step in range(STEPS):
            waiting = asyncio.create_task(subscriber.deliveries(10, LONG))
            await asyncio.sleep(UNDER_WAY)
            begin = loop.time()
            publishing = asyncio.create_task(bench.publish(batch("a", first=2 + step)))
            if took is None:
                await asyncio.wait([waiting])
                took = loop.time() - begin
            for _ in range(step):
                await asyncio.sleep(took / (STEPS - 3))
            waiting.cancel()
            await asyncio.wait([waiting, publishing])
            received += [] if waiting.cancelled() else waiting.result()
            received += await receive(subscriber, 2 + step - len(received))
        assert texts(received) == [f"a{ticket}".encode() for ticket in range(1, STEPS + 2)]

    async def test_what_was_acknowledged_does_not_come_again(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abab"))
        first = bench.subscriber("billing", ["orders"])
        await first.acknowledge(await receive(first, 4))
        await bench.kill(first)
        assert not await bench.subscriber("billing", ["orders"]).deliveries(10, QUIET)

    async def test_what_was_not_acknowledged_comes_again_after_a_death(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("aaaa"))
        first = bench.subscriber("billing", ["orders"])
        received = await receive(first, 4)
        await first.acknowledge(received[:2])
        await bench.kill(first)
        assert texts(await receive(bench.subscriber("billing", ["orders"]), 2)) == [b"a3", b"a4"]

    async def test_what_was_not_acknowledged_comes_again_after_closing(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("aaaa"))
        first = bench.subscriber("billing", ["orders"])
        received = await receive(first, 4)
        await first.acknowledge(received[:2])
        await first.close()
        assert texts(await receive(bench.subscriber("billing", ["orders"]), 2)) == [b"a3", b"a4"]

    async def test_an_acknowledgement_out_of_order_skips_nothing(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("aaaa"))
        first = bench.subscriber("billing", ["orders"])
        received = await receive(first, 4)
        await first.acknowledge([received[1], received[3]])
        await bench.kill(first)
        second = bench.subscriber("billing", ["orders"])
        again = await receive(second, 2) + list(await second.deliveries(10, QUIET))
        assert {b"a1", b"a3"} <= set(texts(again))

    @needs("tells_redelivery")
    async def test_what_comes_again_is_marked(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abab"))
        first = bench.subscriber("billing", ["orders"])
        await receive(first, 4)
        await bench.kill(first)
        again = await receive(bench.subscriber("billing", ["orders"]), 4)
        assert all(delivery.redelivered for delivery in again)

    @needs("tells_redelivery")
    async def test_what_comes_again_after_closing_is_marked(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abab"))
        first = bench.subscriber("billing", ["orders"])
        await receive(first, 4)
        await first.close()
        again = await receive(bench.subscriber("billing", ["orders"]), 4)
        assert all(delivery.redelivered for delivery in again)

    @needs("tells_redelivery")
    async def test_what_comes_for_the_first_time_is_not_marked(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abab"))
        first = bench.subscriber("billing", ["orders"])
        received = await receive(first, 4)
        await first.acknowledge(received)
        await first.close()
        await bench.publish(batch("ab", first=5))
        received += await receive(bench.subscriber("billing", ["orders"]), 2)
        assert not any(delivery.redelivered for delivery in received)

    async def test_each_consumer_gets_everything(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abab"))
        billing, shipping = bench.subscriber("billing", ["orders"]), bench.subscriber("shipping", ["orders"])
        received = await receive(billing, 4)
        await billing.acknowledge(received)
        assert sorted(texts(await receive(shipping, 4))) == sorted(texts(received))

    @needs("shares_keys")
    async def test_members_share_the_keys(self, bench: SubscriberBench) -> None:
        members = [bench.subscriber("billing", ["orders"]) for _ in range(2)]
        await settle_down(bench, members)
        await bench.publish(batch(ascii_letters * 2, first=100_000))
        received = await work_together(members, 2 * len(ascii_letters))
        holders = {(delivery.message.key, id(member)) for member, delivery in received}
        assert len(holders) == len(ascii_letters), "a key went to two members"
        assert len({member for _, member in holders}) == 2, "a member got nothing"

    @needs("shares_keys")
    async def test_members_get_nothing_twice(self, bench: SubscriberBench) -> None:
        members = [bench.subscriber("billing", ["orders"]) for _ in range(3)]
        await settle_down(bench, members)
        await bench.publish(batch(ascii_letters * 2, first=100_000))
        received = await work_together(members, 2 * len(ascii_letters))
        assert len(received) == len({bytes(delivery.message.body) for _, delivery in received})
        assert not any([await member.deliveries(10, QUIET) for member in members])

    async def test_a_key_moves_on_only_when_all_of_it_is_acknowledged(self, bench: SubscriberBench) -> None:
        await bench.publish(batch(ascii_letters))
        first, second = bench.subscriber("billing", ["orders"]), bench.subscriber("billing", ["orders"])
        pending = {delivery.message.key for delivery in await receive(first, len(ascii_letters))}
        await second.deliveries(10, 0.0)
        await first.deliveries(10, 0.0)
        await bench.publish(batch(ascii_letters, first=1000))
        overtaking = {delivery.message.key for delivery in await second.deliveries(100, QUIET)}
        assert not overtaking & pending

    @needs("notices_death", "shares_keys")
    async def test_others_take_over_at_once_when_a_member_dies(self, bench: SubscriberBench) -> None:
        first, second = [bench.subscriber("billing", ["orders"]) for _ in range(2)]
        await settle_down(bench, [first, second])
        await bench.kill(first)
        await bench.publish(batch(ascii_letters, first=100_000))
        async with asyncio.timeout(5):
            await work_together([second], len(ascii_letters))

    @needs("shares_keys")
    async def test_others_take_over_at_once_when_a_member_leaves(self, bench: SubscriberBench) -> None:
        first, second = [bench.subscriber("billing", ["orders"]) for _ in range(2)]
        await settle_down(bench, [first, second])
        await first.close()
        await bench.publish(batch(ascii_letters, first=100_000))
        async with asyncio.timeout(5):
            await work_together([second], len(ascii_letters))

    @needs("notices_death")
    async def test_a_key_keeps_its_order_when_it_changes_hands(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("aaaaaaaa"))
        first = bench.subscriber("billing", ["orders"])
        received = await receive(first, 5)
        await first.acknowledge(received[:3])
        await bench.kill(first)
        assert texts(await receive(bench.subscriber("billing", ["orders"]), 5)) == [b"a4", b"a5", b"a6", b"a7", b"a8"]

    @needs("expels")
    async def test_acknowledging_what_another_has_taken_over_moves_nothing(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("abab"))
        first, second = [bench.subscriber("billing", ["orders"]) for _ in range(2)]
        received = await receive(first, 4)
        await bench.expel(first)
        await receive(second, 4)
        await first.acknowledge(received)
        await bench.kill(first)
        await bench.kill(second)
        again = await receive(bench.subscriber("billing", ["orders"]), 4)
        assert sorted(texts(again)) == sorted(texts(received))

    @needs("expels", "shares_keys")
    async def test_a_member_that_was_taken_for_dead_comes_back(self, bench: SubscriberBench) -> None:
        first, second = [bench.subscriber("billing", ["orders"]) for _ in range(2)]
        await settle_down(bench, [first, second])
        await bench.expel(first)
        await second.deliveries(1, 0.0)
        await settle_down(bench, [first, second])

    @needs("goes_away")
    async def test_while_it_is_away_it_says_so(self, bench: SubscriberBench) -> None:
        subscriber = bench.subscriber("billing", ["orders"])
        await bench.publish(batch("aa"))
        received = await receive(subscriber, 1)
        await bench.go_away()
        assert await is_away(subscriber.deliveries(10, 0.0))
        assert await is_away(subscriber.acknowledge(received))

    @needs("goes_away")
    async def test_after_an_outage_it_goes_on(self, bench: SubscriberBench) -> None:
        subscriber = bench.subscriber("billing", ["orders"])
        await bench.publish(batch("aa"))
        received = await receive(subscriber, 1)
        await bench.go_away()
        await is_away(subscriber.deliveries(10, 0.0))
        await bench.come_back()
        received += await receive(subscriber, 1)
        assert texts(received) == [b"a1", b"a2"]

    async def test_closing_twice_is_harmless(self, bench: SubscriberBench) -> None:
        await bench.publish(batch("a"))
        subscriber = bench.subscriber("billing", ["orders"])
        await subscriber.acknowledge(await receive(subscriber, 1))
        await subscriber.close()
        await subscriber.close()
        assert not await bench.subscriber("billing", ["orders"]).deliveries(10, 0.0)
