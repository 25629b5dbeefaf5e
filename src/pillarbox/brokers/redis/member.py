"""One member of a consumer group on Redis: what it holds, what it gave out, and what it asks the scripts to do."""

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple

from pillarbox.brokers.redis.entries import message_of
from pillarbox.brokers.redis.options import Options
from pillarbox.brokers.redis.scripts import ACKNOWLEDGE, LEAVE, MOST_PENDING, POLL, sha_of
from pillarbox.brokers.redis.wire import Wire, is_error, meaning, packed, words
from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable, ConfigError

LEASE = timedelta(seconds=15)
PATIENCE = 5.0
"""A server that does not answer for so many seconds is away."""
CHECK_EVERY = 1.0
"""How often to look whether the connections of the other members are still there, in seconds."""
MOST_BYTES = 8 << 20
"""About so much is read at one go, or one entry that is larger."""
MOST_AT_ONCE = 1000
_MOST_WORDS = 5000
_logger = logging.getLogger("pillarbox")
_CLIENT = re.compile(rb"^id=(\d+) ", re.MULTILINE)


class Place(NamedTuple):
    """Where a delivery comes from: the epoch tells whether the one who acknowledges it still holds the partition."""

    topic: str
    partition: int
    epoch: str
    id: str


class Held:
    """A partition that this member holds: up to where it was given out, and what of that is not acknowledged."""

    __slots__ = ("cursor", "epoch", "flying")

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.cursor = ""
        self.flying: set[str] = set()


class Member:
    """A member. One question is on the wire at a time."""

    def __init__(self, options: Options, consumer: str, topics: Sequence[str], lease: timedelta = LEASE) -> None:
        self._options, self._consumer, self._topics = options, consumer, tuple(topics)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}".replace(" ", "-")
        self._lease = int(lease.total_seconds() * 1000)
        self._wire = Wire(options)
        self._one_at_a_time = asyncio.Lock()
        self._held: dict[str, dict[int, Held]] = {topic: {} for topic in topics}
        self._others: dict[str, str] = {}
        self._client = ""
        self._check_at = 0.0
        self._turn = 0
        self._piece = 100
        self.meetings = 0
        """How often it has connected."""
        self.last: dict[str, str] = dict.fromkeys(topics, "$")
        """From where in each topic there is nothing that this member does not know."""

    async def poll(self, room: int) -> list[Delivery]:
        """Prolong the lease, keep to the fair share, and take at most `room` deliveries."""
        async with self._one_at_a_time:
            await self._meet()
            gone = await self._gone()
            topics = self._topics[self._turn :] + self._topics[: self._turn]
            self._turn = (self._turn + 1) % len(topics)
            parts = _shared(min(room, self._piece), topics)
            answers = await self._run(POLL, {topic: self._question(topic, parts[topic], gone) for topic in topics})
            self._others = {}
            return [delivery for topic, answer in answers.items() for delivery in self._learn(topic, answer)]

    async def acknowledge(self, places: Sequence[Place]) -> None:
        """Say that these need not come again; what is no longer ours is passed over."""
        async with self._one_at_a_time:
            await self._meet()
            for first in range(0, len(places), _MOST_WORDS):
                await self._acknowledge(places[first : first + _MOST_WORDS])

    async def _acknowledge(self, places: Sequence[Place]) -> None:
        questions: dict[str, list[str | int]] = {}
        for (topic, partition, epoch), group in groupby(sorted(places), key=lambda place: place[:3]):
            ids = [place.id for place in group]
            questions.setdefault(topic, []).extend((partition, epoch, len(ids), *ids))
        await self._run(ACKNOWLEDGE, questions)
        for topic, partition, epoch, id in places:
            held = self._held[topic].get(partition)
            if held is not None and held.epoch == epoch:
                held.flying.discard(id)

    async def leave(self) -> None:
        """Give everything back, so that others take over at once."""
        async with self._one_at_a_time:
            try:
                if self._client:
                    await self._meet()
                    await self._run(LEAVE, {topic: [] for topic in self._topics})
            except BrokerUnavailable:
                pass  # the others see that our connection is gone
            finally:
                await self._wire.finish()

    async def vanish(self) -> None:
        """Let go of the connection without a word, as the kernel does for a process that dies."""
        await self._wire.close()

    async def _meet(self) -> None:
        if not self._wire.is_open:
            (client,) = await self._wire.ask([packed("CLIENT", "ID")], 1, PATIENCE)
            self._client = "?" if is_error(client) else str(client)
            self.meetings += 1
            self._check_at = 0.0

    async def _gone(self) -> dict[str, str]:
        """Look which of the other members' connections are gone: their processes died, or the network broke."""
        now = asyncio.get_running_loop().time()
        if not self._others or now < self._check_at:
            return {}
        self._check_at = now + CHECK_EVERY
        clients = {self._client, *self._others.values()} - {"?"}
        (listed,) = await self._wire.ask([packed("CLIENT", "LIST", "ID", *sorted(clients))], 1, PATIENCE)
        there = set() if is_error(listed) else {id.decode() for id in _CLIENT.findall(listed)}
        if self._client not in there:
            return {}  # we may not ask, or something stands between: then the lease alone tells
        return {name: client for name, client in self._others.items() if client != "?" and client not in there}

    def _question(self, topic: str, room: int, gone: Mapping[str, str]) -> list[str | int]:
        question: list[str | int] = [self._lease, self._client, room, MOST_PENDING, len(gone)]
        for pair in gone.items():
            question += pair
        for partition, held in self._held[topic].items():
            question += (partition, held.epoch, held.cursor, len(held.flying))
        return question

    async def _run(self, script: str, questions: Mapping[str, Sequence[str | int]]) -> dict[str, Any]:
        """Run a script for each topic, in one round trip; the server is told the script if it does not know it."""
        answers: dict[str, Any] = {}
        for how, name in (("EVALSHA", sha_of(script)), ("EVAL", script)):
            missing = [topic for topic in questions if topic not in answers]
            commands = [
                packed(how, name, 2, topic, self._state(topic), self._consumer, self.name, *questions[topic])
                for topic in missing
            ]
            given = await self._wire.ask(commands, len(commands), PATIENCE)
            for topic, answer in zip(missing, given, strict=True):
                if not is_error(answer):
                    answers[topic] = answer
                elif not words(answer).startswith("NOSCRIPT"):
                    # A former primary keeps us, as its replica; the address may lead to the new one by now.
                    await self._wire.close()
                    raise self._trouble(topic, answer)
            if len(answers) == len(questions):
                break
        return answers

    def _state(self, topic: str) -> str:
        return state_of(topic, self._consumer)

    def _trouble(self, topic: str, answer: BaseException) -> BrokerUnavailable | ConfigError:
        error = meaning(answer, self._options)
        if isinstance(error, BrokerUnavailable | ConfigError):
            return error
        said = f"topic {topic!r} cannot be consumed from {self._options.address}: {words(answer)}"
        if words(answer).startswith("NOPERM"):
            return BrokerUnavailable(f"{said}; grant the user this right (ACL SETUSER)")
        return ConfigError(f"broker: {said}")

    def _learn(self, topic: str, answer: Any) -> list[Delivery]:
        """Take in what a poll answered."""
        holds, found, others, last, lost = answer
        known = self._held[topic]
        holding: dict[int, Held] = {}
        for partition, epoch in holds:
            held = known.get(partition)
            holding[partition] = held if held is not None and held.epoch == epoch.decode() else Held(epoch.decode())
        self._held[topic] = holding
        self._others.update((name.decode(), client.decode()) for name, client in others)
        if last:
            self.last[topic] = last.decode()
        if lost:
            _logger.warning(
                "the stream %s was trimmed: %d entries are gone that %s had not handled", topic, lost, self._consumer
            )
        if found:
            self._piece = _piece(found)
        return [self._delivery(topic, holding[entry[0]], entry) for entry in found]

    def _delivery(self, topic: str, held: Held, entry: Any) -> Delivery:
        partition, raw, tries, fields = entry
        id = raw.decode()
        held.cursor = id
        held.flying.add(id)
        return Delivery(
            message_of(topic, fields),
            Place(topic, partition, held.epoch, id),
            redelivered=tries > 0,
            attempt=tries + 1,
        )


def _shared(room: int, topics: Sequence[str]) -> dict[str, int]:
    """Share out the room; the first ones have a little more."""
    share, rest = divmod(room, len(topics))
    return {topic: share + (index < rest) for index, topic in enumerate(topics)}


def _piece(found: Sequence[Any]) -> int:
    """Say how many entries of the size of these are about as much as is read at one go."""
    size = sum(len(part) for entry in found for part in entry[3])
    return max(1, min(MOST_AT_ONCE, MOST_BYTES * len(found) // max(1, size)))


def state_of(topic: str, consumer: str) -> str:
    """Name the key beside a stream in which a group keeps its books."""
    return f"{topic}:pillarbox:{consumer}"
