"""The contract of a Publisher, rule by rule. Whoever writes one of their own runs it on a bench with their broker."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishRejected, PublishTimeout
from pillarbox.ports import Outcome, Publisher
from pillarbox.testing.contracts.rules import Bench, needs

LONG = 20.0
"""Seconds after which a rule gives up."""


@dataclass(frozen=True, slots=True)
class PublisherFeatures:
    """What a broker can do, or can be made to do on a bench."""

    prefix_safe: bool = False
    durable: bool = False
    """What it acknowledged survives the death of whoever published it."""
    refuses: bool = False
    """It can refuse a single message."""
    goes_away: bool = False
    goes_away_midway: bool = False
    """It can go away in the middle of a send."""
    falls_silent: bool = False
    """It can stop answering, without an error."""
    loses_answers: bool = False
    """It can store a whole send whose answer never comes."""
    loses_single_answers: bool = False
    dies: bool = False
    """The bench has a server of its own, which can be killed and started again."""


class PublisherBench(Bench, Protocol):
    """A broker on the bench. Publish timeouts are short here: the rules wait for some of them."""

    features: PublisherFeatures

    def publisher(self) -> Publisher:
        """Open a publisher."""

    async def stored(self) -> Sequence[Message]:
        """Read what the broker has, in its order, without any publisher's help."""

    def refused(self, message: Message) -> Message:
        """Give a message like this one that the broker will refuse for good (it may change the body)."""

    async def go_away(self) -> None: ...
    async def go_away_midway(self) -> None:
        """Go away after some twenty kilobytes, or some ten messages, more."""

    async def fall_silent(self) -> None: ...
    async def lose_answers(self, which: Sequence[int] | None) -> None:
        """Store messages without an answer: those with these numbers, in the broker's own order and the next one being
        0 (None: all of the next send). What comes before the first of them is answered in as few words as it can be."""

    async def kill(self) -> None:
        """Let the server die in whatever it is doing."""

    async def start_again(self) -> None: ...
    async def come_back(self) -> None:
        """Be there again, after any of these."""

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        """Publish from somewhere that is killed as soon as everything is acknowledged."""


def batch(keys: str, *, first: int = 1, topic: str = "orders", padding: int = 0) -> list[Message]:
    """Make a message for each letter, with that key; tickets and bodies count on."""
    return [
        Message(topic, key, {"id": f"{topic}-{key}-{ticket}"}, f"{key}{ticket}".encode() + b"." * padding, ticket)
        for ticket, key in enumerate(keys, first)
    ]


def same(one: Message, other: Message) -> bool:
    """Compare what goes over the wire."""
    return one[:2] == other[:2] and dict(one.headers) == dict(other.headers) and bytes(one.body) == bytes(other.body)


def bodies(messages: Iterable[Message], key: str | None = None) -> list[bytes]:
    """List bodies, of one key or of all."""
    return [bytes(message.body) for message in messages if key in (None, message.key)]


async def answers(publisher: Publisher, count: int) -> list[Outcome]:
    """Wait for `count` outcomes (or more, if more come at once)."""
    outcomes: list[Outcome] = []
    async with asyncio.timeout(LONG):
        while len(outcomes) < count:
            outcomes += await publisher.outcomes()
    return outcomes


def accepted(messages: Sequence[Message], outcomes: Iterable[Outcome]) -> list[Message]:
    """Pick the messages whose outcome is without error."""
    tickets = {outcome.ticket for outcome in outcomes if outcome.error is None}
    return [message for message in messages if message.ticket in tickets]


def errors(outcomes: Iterable[Outcome]) -> dict[int, type | None]:
    """Give the class of the error, or None, by ticket."""
    return {ticket: None if error is None else type(error) for ticket, error in outcomes}


class PublisherContract:
    """The rules."""

    async def test_every_message_gets_exactly_one_outcome(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("abcab"))
        outcomes = await answers(publisher, 5)
        publisher.send(batch("ab", first=6))
        outcomes += await answers(publisher, 2)
        assert Counter(outcome.ticket for outcome in outcomes) == Counter(range(1, 8))

    async def test_an_empty_send_gets_none(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send([])
        publisher.send(batch("a"))
        assert [outcome.ticket for outcome in await answers(publisher, 1)] == [1]

    async def test_an_outcome_without_error_comes_after_the_message_is_stored(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        messages = batch("abcabc")
        publisher.send(messages)
        waiting = len(messages)
        while waiting:
            outcomes = await answers(publisher, 1)
            stored = bodies(await bench.stored())
            assert all(message.body in stored for message in accepted(messages, outcomes))
            waiting -= len(outcomes)

    async def test_a_healthy_broker_accepts_everything(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("abcabc"))
        assert set(errors(await answers(publisher, 6)).values()) == {None}
        assert sorted(bodies(await bench.stored())) == [b"a1", b"a4", b"b2", b"b5", b"c3", b"c6"]

    async def test_a_send_keeps_the_order_of_a_key(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("aabaab"))
        await answers(publisher, 6)
        assert bodies(await bench.stored(), "a") == [b"a1", b"a2", b"a4", b"a5"]

    async def test_sends_in_flight_together_keep_their_order(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        for first in range(1, 11, 2):
            publisher.send(batch("ab", first=first))
        await answers(publisher, 10)
        assert bodies(await bench.stored(), "a") == [b"a1", b"a3", b"a5", b"a7", b"a9"]

    async def test_handing_over_does_not_wait(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("ab"))
        publisher.send(batch("cd", first=3))
        outcomes = await answers(publisher, 4)
        assert set(errors(outcomes)) == {1, 2, 3, 4}

    async def test_a_wait_that_is_cancelled_loses_no_outcome(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("ab"))
        waiting = asyncio.create_task(publisher.outcomes())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        known = list(waiting.result()) if not waiting.cancelled() else []
        assert set(errors(known + await answers(publisher, 2 - len(known)))) == {1, 2}

    async def test_bodies_arrive_byte_for_byte(self, bench: PublisherBench) -> None:
        sent = [b"", bytes(range(256)), b' {"a" :\n1.10} ', "Grüße".encode(), bytes(range(256)) * 1024]
        publisher = bench.publisher()
        publisher.send([Message("orders", "a", {"content_type": "application/avro"}, b, n) for n, b in enumerate(sent)])
        await answers(publisher, len(sent))
        arrived = bodies(await bench.stored())
        # Not as lists: what differs in so much is looked for by the hour.
        assert [len(body) for body in arrived] == [len(body) for body in sent]
        assert all(here == there for here, there in zip(arrived, sent, strict=True)), "a body was changed"

    async def test_headers_arrive_unchanged(self, bench: PublisherBench) -> None:
        headers = {"id": "7", "type": "OrderPlaced", "language": "Ελληνικά", "empty": "", "Upper-Case": 'a "b" \\ c'}
        headers |= {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": "shop=blue,other=1"}
        publisher = bench.publisher()
        publisher.send([Message("orders", "a", headers, b"x", 1)])
        await answers(publisher, 1)
        assert [dict(message.headers) for message in await bench.stored()] == [headers]

    async def test_keys_arrive_unchanged(self, bench: PublisherBench) -> None:
        keys = ["a", "A", "order 7/ü", None]
        publisher = bench.publisher()
        publisher.send([Message("orders", key, {"id": str(n)}, b"x", n) for n, key in enumerate(keys)])
        await answers(publisher, 4)
        stored = {message.headers["id"]: message.key for message in await bench.stored()}
        assert stored == {"0": "a", "1": "A", "2": "order 7/ü", "3": None}

    async def test_a_message_goes_to_its_topic(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("a", topic="orders") + batch("a", first=2, topic="mails"))
        await answers(publisher, 2)
        assert {(message.topic, bytes(message.body)) for message in await bench.stored()} == {
            ("orders", b"a1"),
            ("mails", b"a2"),
        }

    async def test_it_says_whether_it_is_prefix_safe(self, bench: PublisherBench) -> None:
        assert bench.publisher().prefix_safe is bench.features.prefix_safe

    @needs("durable")
    async def test_what_was_acknowledged_survives_a_kill(self, bench: PublisherBench) -> None:
        messages = batch("abcabc")
        await bench.publish_and_die(messages)
        assert sorted(bodies(await bench.stored())) == sorted(bodies(messages))

    @needs("refuses")
    async def test_a_refused_message_is_not_stored_and_told_as_rejected(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        refused = bench.refused(batch("a")[0])
        publisher.send([refused])
        assert errors(await answers(publisher, 1)) == {1: PublishRejected}
        assert not await bench.stored()

    @needs("refuses")
    async def test_a_refused_message_does_not_harm_other_keys(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        messages = batch("bacb")
        messages[1] = bench.refused(messages[1])
        publisher.send(messages)
        outcomes = await answers(publisher, 4)
        assert [message.ticket for message in accepted(messages, outcomes)] == [1, 3, 4]
        assert bodies(await bench.stored()) == [b"b1", b"c3", b"b4"]

    @needs("refuses")
    async def test_a_refused_message_does_not_harm_the_next_send(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send([bench.refused(batch("a")[0])])
        await answers(publisher, 1)
        publisher.send(batch("a", first=2))
        assert errors(await answers(publisher, 1)) == {2: None}

    @needs("refuses", "prefix_safe")
    async def test_of_a_key_nothing_is_stored_behind_a_refused_message(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        messages = batch("aaaa")
        messages[1] = bench.refused(messages[1])
        publisher.send(messages)
        outcomes = await answers(publisher, 4)
        assert bodies(await bench.stored()) == [b"a1"]
        assert [message.ticket for message in accepted(messages, outcomes)] == [1]

    @needs("refuses", "prefix_safe")
    async def test_what_stands_behind_a_refused_message_is_not_refused_for_good(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        messages = batch("aa")
        messages[0] = bench.refused(messages[0])
        publisher.send(messages)
        assert errors(await answers(publisher, 2))[2] is not PublishRejected

    @needs("goes_away")
    async def test_while_it_is_away_the_outcome_says_so(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        await bench.go_away()
        publisher.send(batch("ab"))
        assert set(errors(await answers(publisher, 2)).values()) == {BrokerUnavailable}

    @needs("goes_away")
    async def test_after_an_outage_it_works_again(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        await bench.go_away()
        publisher.send(batch("a"))
        await answers(publisher, 1)
        await bench.come_back()
        publisher.send(batch("a", first=2))
        assert errors(await answers(publisher, 1)) == {2: None}
        assert b"a2" in bodies(await bench.stored())

    @needs("goes_away_midway")
    async def test_when_it_goes_away_midway_nothing_is_accepted_that_is_not_stored(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        messages = await self._broken_off(bench, publisher)
        outcomes = await answers(publisher, len(messages))
        await bench.come_back()
        stored = bodies(await bench.stored())
        assert any(outcome.error for outcome in outcomes), "the bench did not go away"
        assert all(message.body in stored for message in accepted(messages, outcomes))

    @needs("goes_away_midway")
    async def test_when_it_goes_away_midway_what_is_not_accepted_is_told_as_away(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        messages = await self._broken_off(bench, publisher)
        outcomes = await answers(publisher, len(messages))
        assert set(errors(outcomes).values()) - {None} == {BrokerUnavailable}

    @needs("goes_away_midway", "prefix_safe")
    async def test_when_it_goes_away_midway_a_prefix_of_each_key_is_stored(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        messages = await self._broken_off(bench, publisher)
        await answers(publisher, len(messages))
        await bench.come_back()
        stored = await bench.stored()
        for key in "abc":
            of_key = bodies(stored, key)
            assert of_key == bodies(messages, key)[: len(of_key)]

    async def _broken_off(self, bench: PublisherBench, publisher: Publisher) -> list[Message]:
        publisher.send(batch("z"))
        await answers(publisher, 1)
        await bench.go_away_midway()
        messages = batch("abc" * 20, first=2, padding=3000)
        publisher.send(messages)
        return messages

    @needs("falls_silent")
    async def test_a_silent_broker_is_away_once_the_timeout_has_passed(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        await bench.fall_silent()
        publisher.send(batch("ab"))
        assert errors(await answers(publisher, 2)) == {1: BrokerUnavailable, 2: BrokerUnavailable}

    @needs("falls_silent")
    async def test_after_a_silence_it_works_again(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        await bench.fall_silent()
        publisher.send(batch("a"))
        await answers(publisher, 1)
        await bench.come_back()
        publisher.send(batch("a", first=2))
        assert errors(await answers(publisher, 1)) == {2: None}

    @needs("loses_answers")
    async def test_a_send_whose_answer_is_lost_counts_as_away(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("z"))  # or what is lost is the answer to a greeting
        await answers(publisher, 1)
        await bench.lose_answers(None)
        publisher.send(batch("ab", first=2))
        assert errors(await answers(publisher, 2)) == {2: BrokerUnavailable, 3: BrokerUnavailable}
        assert {b"a2", b"b3"} <= set(bodies(await bench.stored())), "the bench lost more than the answer"

    @needs("loses_answers")
    async def test_a_lost_answer_is_not_given_later(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        await bench.lose_answers(None)
        publisher.send(batch("a"))
        outcomes = await answers(publisher, 1)
        await bench.come_back()
        publisher.send(batch("a", first=2))
        outcomes += await answers(publisher, 1)
        assert Counter(outcome.ticket for outcome in outcomes) == Counter([1, 2])

    @needs("loses_single_answers")
    async def test_a_single_lost_answer_is_a_timeout(self, bench: PublisherBench) -> None:
        await self._loses(bench, "ab", [0])

    @needs("loses_single_answers")
    async def test_an_answer_for_several_is_for_none_behind_them(self, bench: PublisherBench) -> None:
        await self._loses(bench, "abcde", [3, 4])

    async def _loses(self, bench: PublisherBench, keys: str, lost: Sequence[int]) -> None:
        """Lose some of the answers to one send, and check what is told of each message."""
        publisher = bench.publisher()
        await bench.lose_answers(lost)
        messages = batch(keys)
        publisher.send(messages)
        told = errors(await answers(publisher, len(messages)))
        stored = bodies(await bench.stored())
        unanswered = {stored[number] for number in lost}
        assert told == {m.ticket: PublishTimeout if m.body in unanswered else None for m in messages}

    async def test_closing_with_sends_in_flight_returns_and_keeps_the_order(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        for first in range(1, 100, 2):
            publisher.send(batch("ab", first=first))
        async with asyncio.timeout(LONG):
            await publisher.close()
        stored = bodies(await bench.stored(), "a")
        assert stored == [f"a{ticket}".encode() for ticket in range(1, 100, 2)][: len(stored)]

    async def test_closing_twice_is_harmless(self, bench: PublisherBench) -> None:
        publisher = bench.publisher()
        publisher.send(batch("a"))
        await answers(publisher, 1)
        await publisher.close()
        await publisher.close()
        assert bodies(await bench.stored()) == [b"a1"]
