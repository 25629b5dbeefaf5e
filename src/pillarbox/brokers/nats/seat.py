"""One topic of a subscriber: its durable consumer at the server, who may read it, and what it has in hand.

Members of a group would compete for single messages, and one key's messages would be handled in any order. So the
server pins one member at a time (a pinned client of a priority group); the others wait for their turn. And because a
message that the former member had in hand comes again only after a while, the new one gives nothing out until
everything that is not acknowledged is in its own hands:

    waiting ──pinned──▶ unsure ──nobody else has anything in hand──▶ sure ──silent for too long──▶ waiting
                          ▲──────────────connection lost──────────────┘

A message can be lost with a connection too: the server counts it as in our hand, and sends it again only after a while.

A member says several times in a lease that it is alive: for each message in hand, and for its place.
"""

import asyncio
import heapq
import json
import logging
import re
from hashlib import sha256
from typing import Any, NamedTuple

from pillarbox.brokers.nats.connection import Client, Connection, Msg
from pillarbox.brokers.nats.streams import API, find_stream
from pillarbox.brokers.nats.wire import unpack
from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable, ConfigError

_logger = logging.getLogger("pillarbox.brokers.nats")

GROUP = "pillarbox"
MOST = 500
"""How many messages are asked for at once."""
MOST_IN_HAND = 20_000
LOOK_AGAIN = 0.5
"""Seconds until a topic that no stream takes is looked for again."""
OLD_SERVER = "the subscriber needs NATS 2.11 or newer: this server cannot pin one member of a group at a time"


class Place(NamedTuple):
    """Where a delivery comes from; the epoch tells whether it is still in hand."""

    topic: str
    sequence: int
    epoch: int


def durable_name(consumer: str, topic: str) -> str:
    """Name the durable consumer of a group and a topic: readable, and different for different ones."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", f"{consumer}-{topic}")[:120]
    distinct = sha256(json.dumps([consumer, topic]).encode()).hexdigest()[:8]
    return f"{readable}-{distinct}"


class Seat:
    """This member's place at one topic."""

    def __init__(
        self, connection: Connection, consumer: str, topic: str, stream: str | None, lease: float, news: asyncio.Event
    ) -> None:
        self._connection, self.topic, self._lease, self._news = connection, topic, lease, news
        self.name = durable_name(consumer, topic)
        self._given_stream = stream
        self._stream: str | None = None
        self._look_at = 0.0
        self._missed = False
        self.inbox = ""
        self.pin: str | None = None
        self.sure = False
        self.epoch = 0
        self.held: dict[int, str] = {}
        """What is in hand, with the subject on which it is acknowledged."""
        self.doubted: set[int] = set()
        """What of it may be acknowledged, or not: nobody knows whether the server has heard it."""
        self._ready: list[tuple[int, Delivery]] = []
        self._pulls = 0
        self._asked, self._asked_until = 0, 0.0
        self._checked_at = 0.0

    @property
    def joined(self) -> bool:
        """Whether the durable consumer is known to be there."""
        return self._stream is not None

    async def join(self, client: Client) -> None:
        """Make the durable consumer, unless it is there; a topic that no stream takes is looked for again later."""
        if self._stream is not None or _now() < self._look_at:
            return
        self._look_at = _now() + LOOK_AGAIN
        stream = self._given_stream or await find_stream(self._connection, client, self.topic)
        if stream is None:
            self._miss()
            return
        answer = await self._connection.ask(
            client,
            f"{API}.CONSUMER.CREATE.{stream}.{self.name}",
            {"stream_name": stream, "config": self._config(), "action": ""},
        )
        if error := answer.get("error"):
            raise BrokerUnavailable(f"NATS refuses the consumer {self.name} of {stream}: {error.get('description')}")
        if answer.get("config", {}).get("priority_policy") != "pinned_client":
            raise ConfigError(OLD_SERVER)
        self._stream = stream

    def _miss(self) -> None:
        """Tell once that nobody takes the topic: a name that is misspelt would be waited for in silence."""
        if not self._missed:
            self._missed = True
            words = "no stream takes the topic %r; create one with this subject, or mend the name: it is waited for"
            _logger.warning(words, self.topic)

    def _config(self) -> dict[str, Any]:
        return {
            "durable_name": self.name,
            "filter_subject": self.topic,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": _nanoseconds(self._lease),
            "max_deliver": -1,
            "max_ack_pending": MOST_IN_HAND,
            "priority_policy": "pinned_client",
            "priority_groups": [GROUP],
            # Longer than a message is kept for a member that is silent: who is pinned next finds all of them.
            "priority_timeout": _nanoseconds(self._lease * 1.5),
        }

    async def ask_for(self, client: Client, room: int) -> None:
        """Ask the server for messages, unless it was asked already and may still answer."""
        if self._stream is None or (self._asked > 0 and _now() < self._asked_until):
            return
        if self.pin is not None and not self.sure:
            return
        wanted = min(room, MOST) - len(self._ready)
        if wanted > 0:
            await self._pull(client, wanted)

    async def _pull(self, client: Client, count: int) -> None:
        expires = self._lease / 2
        self._pulls += 1
        self._asked, self._asked_until = count, _now() + expires + 1
        await self._request(client, {"batch": count, "expires": _nanoseconds(expires)}, str(self._pulls))

    async def _request(self, client: Client, request: dict[str, Any], reply: str) -> None:
        request["group"] = GROUP
        if self.pin is not None:
            request["id"] = self.pin
        subject = f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{self.name}"
        await client.publish(subject, json.dumps(request).encode(), f"{self.inbox}.{reply}")

    async def hear(self, message: Msg) -> None:
        """Take what the server sends: a message, or word that there is none."""
        headers = message.headers or {}
        if not message.reply:
            self._hear_status(headers.get("Status", ""), message.subject.rpartition(".")[2])
        else:
            self._receive(message, headers)
        self._news.set()

    def _hear_status(self, status: str, pull: str) -> None:
        if status == "423":
            self._lose_pin()
        elif status == "503":
            self._stream = None  # the consumer or its stream is gone
        elif status == "100":
            return
        if pull == str(self._pulls):
            self._asked = 0

    def _receive(self, message: Msg, headers: dict[str, str]) -> None:
        self._asked -= 1
        pin = headers.get("Nats-Pin-Id")
        if pin is not None and pin != self.pin:
            self.pin, self.sure, self._checked_at = pin, False, 0.0
        sequence, times = message.metadata.sequence.stream, message.metadata.num_delivered or 1
        if sequence not in self.held:
            delivery = Delivery(
                unpack(self.topic, headers, message.data),
                Place(self.topic, sequence, self.epoch),
                redelivered=times > 1,
                attempt=times,
            )
            heapq.heappush(self._ready, (sequence, delivery))
        self.doubted.discard(sequence)
        self.held[sequence] = message.reply  # one that is in hand and comes again is only kept alive

    async def make_sure(self, client: Client) -> None:
        """Find out whether somebody else still has something in hand; what he had comes to us once his time is over."""
        if self.pin is None or self.sure or _now() < self._checked_at:
            return
        answer = await self._connection.ask(client, f"{API}.CONSUMER.INFO.{self._stream}.{self.name}", {})
        missing = int(answer.get("num_ack_pending", 1)) - (len(self.held) - len(self.doubted))
        self.sure = missing <= 0
        if not self.sure:
            self._checked_at = _now() + self._lease / 20
            if self._asked <= 0 or _now() >= self._asked_until:
                await self._pull(client, missing)

    @property
    def check_again_at(self) -> float | None:
        """When it is worth looking again, if no news come before that."""
        if self._stream is None:
            return self._look_at
        if self.pin is not None and not self.sure:
            return self._checked_at
        return self._asked_until if self._asked > 0 else None

    def give(self, room: int) -> list[Delivery]:
        """Give what is ready, in the order of the stream."""
        if not self.sure:
            return []
        return [heapq.heappop(self._ready)[1] for _ in range(min(room, len(self._ready)))]

    async def keep_alive(self, client: Client) -> None:
        """Say that we are alive: for what is in hand, and for the place."""
        for reply in list(self.held.values()):
            await client.publish(reply, b"+WPI")
        if self.pin is not None and self._stream is not None:
            # No message is as small as that: the request brings nothing, and prolongs our being pinned.
            await self._request(client, {"batch": 1, "max_bytes": 1, "no_wait": True}, "alive")

    async def hand_back(self, client: Client) -> None:
        """Give back everything that is in hand, in order, and the place."""
        for _, reply in sorted(self.held.items()):
            await client.publish(reply, b"-NAK")
        if self.pin is not None:
            await self._connection.ask(client, f"{API}.CONSUMER.UNPIN.{self._stream}.{self.name}", {"group": GROUP})
        self.forget()

    def _lose_pin(self) -> None:
        """Another member is pinned, or nobody: what was not given out must not wait here."""
        self.pin, self.sure, self._asked = None, False, 0
        for sequence, _ in self._ready:
            self.let_go(sequence)  # it is not kept alive any more, and goes to the other one
        self._ready.clear()

    def let_go(self, sequence: int) -> None:
        """It is not in hand any more."""
        self.held.pop(sequence, None)
        self.doubted.discard(sequence)

    def lose_connection(self) -> None:
        """What was asked for will not come; what was on its way will come again, and nothing may overtake it."""
        self._asked, self.sure, self._checked_at = 0, False, 0.0

    def forget(self) -> None:
        """Take for granted that everything in hand has gone to others, after too long a silence."""
        self.epoch += 1
        self.held.clear()
        self.doubted.clear()
        self._ready.clear()
        self.pin, self.sure = None, False


def _now() -> float:
    return asyncio.get_running_loop().time()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
