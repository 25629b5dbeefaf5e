"""A flight: what was published over one link and is not answered yet, by the numbers that the server counts in."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.frames import Writer, id_of
from pillarbox.brokers.rabbitmq.link import Link
from pillarbox.brokers.sends import Send
from pillarbox.core.message import Message
from pillarbox.errors import PublishError, PublishRejected
from pillarbox.ports import Outcome

Item = tuple[Send, Message]
NACKED = "RabbitMQ refused it (basic.nack): a queue that it goes to is full and rejects what comes, or has failed"


class Flight:
    """Listens to one link. Every link has its own: tags begin anew, and a late word must not meet another's message."""

    def __init__(
        self,
        address: Address,
        answer: Callable[[Send, Sequence[Outcome]], None],
        ended: Callable[["Flight", BaseException | None], None],
    ) -> None:
        self._address, self._answer, self._ended = address, answer, ended
        self.link = Link(address, self, confirms=True)
        self.over = False
        self.heard_at = 0.0
        self._items: dict[int, Item] = {}
        self._tag = self._confirmed = self._returned = 0

    async def open(self) -> None:
        """Connect. Raises what the link raises."""
        await self.link.open()
        address = self._address
        self._writer = Writer(
            address.exchange,
            mandatory=address.mandatory,
            persistent=address.persistent,
            frame_max=self.link.frame_max,
        )
        self._heard()

    def _heard(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()

    def __len__(self) -> int:
        return len(self._items)

    def board(self, item: Item) -> bytes:
        """Count a message as in flight and give its frames. Raises PublishRejected if it can never fly."""
        frames = self._writer.frames(item[1], self._tag + 1)
        self._tag += 1
        self._items[self._tag] = item
        return frames

    def take(self) -> list[Item]:
        """End it, and give what nobody has answered, in order."""
        self.over = True
        self.forget_answered()
        items, self._items = list(self._items.values()), {}
        return items

    def forget_answered(self) -> None:
        """Let go of what the deadline has answered for; the server may never do so."""
        self._items = {
            tag: (send, message) for tag, (send, message) in self._items.items() if message.ticket in send.unanswered
        }

    def confirmed(self, tag: int, multiple: bool, accepted: bool) -> None:
        first, tag = (self._confirmed + 1, tag or self._tag) if multiple else (tag, tag)
        if multiple:
            self._confirmed = tag
        self._heard()
        error: PublishError | None = None if accepted else PublishRejected(NACKED)
        answers: dict[Send, list[Outcome]] = {}
        for number in range(first, tag + 1):
            item = self._items.pop(number, None)
            if item is not None:
                answers.setdefault(item[0], []).append(Outcome(item[1].ticket, error))
        for send, outcomes in answers.items():
            self._answer(send, outcomes)

    def returned(self, message_id: str, topic: str, words: str) -> None:
        # It comes before its confirmation, and in the order of publishing: the first of that id is the one.
        tag = next((tag for tag in self._items if tag > self._returned and self._is(tag, message_id, topic)), None)
        if tag is None:
            return  # the deadline has answered for it
        self._heard()
        self._returned = tag
        send, message = self._items.pop(tag)
        error = PublishRejected(f"RabbitMQ returned it ({words}): {self._why(topic)}")
        self._answer(send, [Outcome(message.ticket, error)])

    def _is(self, tag: int, message_id: str, topic: str) -> bool:
        message = self._items[tag][1]
        return message.topic == topic and id_of(message, tag) == message_id

    def _why(self, topic: str) -> str:
        if self._address.exchange:
            return f"no queue is bound to the exchange {self._address.exchange!r} for the topic {topic!r}"
        return f"there is no queue {topic!r}"

    def delivered(self, tag: int, redelivered: bool, topic: str, properties: Any, body: bytes) -> None:
        """Nothing is ever delivered here: nobody consumes."""

    def lost(self, link: Link, error: BaseException | None) -> None:
        if not self.over:
            self._ended(self, error)
