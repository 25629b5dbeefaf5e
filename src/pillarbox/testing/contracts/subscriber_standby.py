"""What holds of a Subscriber where one member has a topic, and the others stand by in case it goes."""

import asyncio
from collections.abc import Sequence
from string import ascii_letters

from pillarbox.core.message import Delivery
from pillarbox.ports import Subscriber
from pillarbox.testing.contracts.publisher import batch
from pillarbox.testing.contracts.rules import needs
from pillarbox.testing.contracts.subscriber_bench import QUIET, SubscriberBench, receive, texts, work_together

AT_ONCE = 5.0
"""Seconds in which another must have taken over."""


class StandbyRules:
    """The rules."""

    @needs("stands_by")
    async def test_one_member_has_a_topic_and_the_others_nothing(self, bench: SubscriberBench) -> None:
        members = [bench.subscriber("billing", ["orders"]) for _ in range(3)]
        for member in members:
            await member.deliveries(1, 0.0)
        await bench.publish(batch(ascii_letters))
        received = await work_together(members, len(ascii_letters))
        assert len({id(member) for member, _ in received}) == 1
        assert len({bytes(delivery.message.body) for _, delivery in received}) == len(received)
        assert not any([await member.deliveries(10, QUIET) for member in members])

    @needs("stands_by", "notices_death")
    async def test_another_takes_over_at_once_when_the_one_that_has_it_dies(self, bench: SubscriberBench) -> None:
        first, second = await self._busy_and_standing_by(bench)
        await bench.kill(first)
        await self._goes_on_in_order(bench, second)

    @needs("stands_by")
    async def test_another_takes_over_at_once_when_the_one_that_has_it_leaves(self, bench: SubscriberBench) -> None:
        first, second = await self._busy_and_standing_by(bench)
        await first.close()
        await self._goes_on_in_order(bench, second)

    @needs("stands_by", "expels")
    async def test_a_member_that_was_taken_for_dead_stands_by(self, bench: SubscriberBench) -> None:
        first, second = await self._busy_and_standing_by(bench)
        await bench.expel(first)
        received = await self._goes_on_in_order(bench, second)
        await second.acknowledge(received)
        assert not await first.deliveries(10, QUIET)
        await bench.publish(batch("a", first=9))
        assert texts(await receive(second, 1)) == [b"a9"]
        assert not await first.deliveries(10, QUIET)

    @needs("stands_by", "expels")
    async def test_a_member_that_was_taken_for_dead_takes_over_in_its_turn(self, bench: SubscriberBench) -> None:
        first, second = await self._busy_and_standing_by(bench)
        await bench.expel(first)
        await second.acknowledge(await self._goes_on_in_order(bench, second))
        await first.deliveries(10, 0.0)
        await second.close()
        await bench.publish(batch("aa", first=9))
        async with asyncio.timeout(AT_ONCE):
            assert texts(await receive(first, 2)) == [b"a9", b"a10"]

    async def _busy_and_standing_by(self, bench: SubscriberBench) -> tuple[Subscriber, Subscriber]:
        first, second = [bench.subscriber("billing", ["orders"]) for _ in range(2)]
        await bench.publish(batch("aaaaaaaa"))
        await first.acknowledge(await receive(first, 2))
        await receive(first, 3)
        assert not await second.deliveries(10, QUIET)
        return first, second

    async def _goes_on_in_order(self, bench: SubscriberBench, second: Subscriber) -> Sequence[Delivery]:
        """Take over what the first was given and did not acknowledge, and what comes behind it."""
        async with asyncio.timeout(AT_ONCE):
            received = await receive(second, 6)
        assert texts(received) == [f"a{n}".encode() for n in range(3, 9)]
        assert all(delivery.redelivered for delivery in received[:3]) or not bench.features.tells_redelivery
        return received
