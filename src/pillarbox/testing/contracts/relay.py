"""What a relay promises over any broker, rule by rule: on the bench of its publisher, with a store in memory.

A publisher that keeps its own contract may still be told to the relay wrongly; here the whole way is gone.
"""

import asyncio
from collections import Counter

from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.testing.contracts.publisher import PublisherBench
from pillarbox.testing.contracts.relay_shop import (
    BATCH,
    ORDERS,
    TOPIC,
    Shop,
    check_arrivals,
    check_prefixes,
    eventually,
    memory_in_use,
    orders,
)
from pillarbox.testing.contracts.rules import needs

EVENTS, SOME = 1000, 50
WINDOW = 2 * BATCH
"""How many are in flight at most, and may come again when their answers are lost."""
SILENCE = 2.0
"""Seconds, longer than a bench's publish timeout."""
OUTAGES = (0.5, 1.0, 10.0)
"""Seconds, from a blink to one that outlasts every pause of the relay."""
BACK = 15.0
"""Seconds in which all must have gone out once the broker is back; it takes one or two, unless the machine is busy."""
DEATHS = 3
MOST_MEMORY = 32 << 20


class RelayContract:
    """The rules."""

    async def test_everything_arrives_once_and_in_order(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        shop.place(*orders(0, EVENTS))
        async with shop.relay():
            await shop.until_published()
        check_arrivals(await shop.arrived(), EVENTS, copies=0)

    @needs("loses_answers")
    async def test_acknowledgements_that_are_lost_make_copies_and_lose_nothing(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        shop.place(*orders(0, EVENTS // 2))
        async with shop.relay():
            await shop.until_published()
            await bench.lose_answers(None)
            shop.place(*orders(EVENTS // 2, EVENTS // 2))
            await shop.until_away()
            await bench.come_back()
            await shop.until_published()
        arrived = await shop.arrived()
        assert len(arrived) > EVENTS, "the bench lost no answer"
        check_arrivals(arrived, EVENTS, copies=WINDOW)  # it is back before the relay tries again
        assert not shop.failures, "a lost answer is no failure of the event"

    @needs("loses_single_answers")
    async def test_of_a_thousand_a_hundred_acknowledgements_are_lost(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        lost = range(5, EVENTS, 10)
        await bench.lose_answers(lost)
        shop.place(*orders(0, EVENTS))
        async with shop.relay():
            await shop.until_published()
        arrived = await shop.arrived()
        assert len(arrived) >= EVENTS + len(lost), "the bench lost fewer answers"
        check_arrivals(arrived, EVENTS, copies=len(lost) + WINDOW)
        assert not any("dead" in failure for failure in shop.failures)

    @needs("goes_away")
    async def test_outages_lose_nothing_count_nothing_and_end_by_themselves(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        async with shop.relay():
            for outage, seconds in enumerate(OUTAGES):
                shop.place(*orders(shop.placed, SOME))
                await asyncio.sleep(0.02 * outage)  # in the middle of something, each time of something else
                await bench.go_away()
                shop.place(*orders(shop.placed, SOME))
                await asyncio.sleep(seconds)
                await bench.come_back()
                await shop.until_published(BACK)
        check_arrivals(await shop.arrived(), shop.placed, copies=len(OUTAGES) * WINDOW)
        assert not shop.failures, "an outage is no failure of an event"

    @needs("falls_silent")
    async def test_a_silence_in_mid_batch_leaves_the_first_of_each_aggregate(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        shop.place(*orders(0, EVENTS))
        async with shop.relay():
            await shop.until_some_are_published(EVENTS // 4)
            await bench.fall_silent()
            assert shop.published < EVENTS, "it fell silent too late"
            await asyncio.sleep(SILENCE)
            check_prefixes(await shop.arrived())
            await bench.come_back()
            await shop.until_published()
        # What was held back on the way may arrive once for each try.
        check_arrivals(await shop.arrived(), EVENTS, copies=shop.tried_again)
        assert not any("dead" in failure for failure in shop.failures)

    @needs("loses_single_answers")
    async def test_an_event_that_times_out_holds_back_its_aggregate_alone_and_goes_first(
        self, bench: PublisherBench
    ) -> None:
        shop = Shop(bench)
        late, each = 20, 3
        await bench.lose_answers([late])
        shop.place(*orders(0, each * ORDERS))
        async with shop.relay():
            await eventually(lambda: bool(shop.failures), "it is told as failed", every=0.005)
            held = {record.aggregate for record in await shop.records() if record.status in ("retrying", "blocked")}
            arrived = await shop.arrived()
            await shop.until_published()
        assert len(held) == 1, f"one event was late, and these wait: {held}"
        check_prefixes(arrived)
        check_arrivals(await shop.arrived(), each * ORDERS, copies=each)
        assert not any("dead" in failure for failure in shop.failures)

    @needs("refuses")
    async def test_a_refused_event_is_dead_at_once_and_holds_back_its_aggregate_alone(
        self, bench: PublisherBench
    ) -> None:
        shop = Shop(bench)
        refused = bench.refused(Message(TOPIC, "7", {}, b"x"))
        shop.place(*orders(0, 2 * ORDERS))
        behind = 2 if refused.topic == TOPIC else 0  # a topic that is refused has no followers here
        bad = Event("Bad", bytes(refused.body), aggregate=("order", 7), topic=refused.topic, content_type="text/plain")
        shop.place(bad)
        shop.place(*orders(2 * ORDERS, 2 * ORDERS))
        async with shop.relay():

            async def done() -> bool:
                return Counter(record.status for record in await shop.records()) == +Counter(
                    published=4 * ORDERS - behind, dead=1, blocked=behind
                )

            await eventually(done, "all others are published, and what is behind it is blocked")
        [dead] = [record for record in await shop.records() if record.status == "dead"]
        assert (dead.type, dead.attempts) == ("Bad", 1)
        assert dead.last_error, "the broker's own words"
        arrived = dict.fromkeys(await shop.arrived())
        assert [n for order, n in arrived if order == 7] == [0, 1, 2, 3][: 4 - behind]

    @needs("dies")
    async def test_a_broker_killed_three_times_in_mid_batch_loses_nothing(self, bench: PublisherBench) -> None:
        shop = Shop(bench)
        count = (DEATHS + 1) * EVENTS
        shop.place(*orders(0, count))
        async with shop.relay():
            await shop.until_some_are_published(BATCH)
            before = memory_in_use()
            for death in range(1, DEATHS + 1):
                await shop.until_some_are_published(death * EVENTS - EVENTS // 2)
                await bench.kill()
                assert shop.published < count, "it was killed too late"
                await shop.until_away()
                await bench.start_again()
            await shop.until_published()
            grown = memory_in_use() - before
        check_arrivals(await shop.arrived(), count, copies=DEATHS * WINDOW)
        assert not shop.failures, "a death is no failure of an event"
        assert grown < MOST_MEMORY, f"the relay's memory has grown by {grown >> 20} MiB"
