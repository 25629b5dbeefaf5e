"""Sends: what a publisher was handed and has not answered yet. It sees to it that every message is answered once.

The publishers share it; how a message travels is theirs.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter, itemgetter

from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishTimeout
from pillarbox.ports import Outcome

GRACE = 10.0
"""How many seconds longer we wait for what is being stored."""


class Send:
    """One call of `send`: its messages, its deadline in the loop's time, and the tickets that nobody answered."""

    __slots__ = ("acknowledged", "deadline", "messages", "storing", "unanswered")

    def __init__(self, messages: Sequence[Message], deadline: float) -> None:
        self.messages, self.deadline = messages, deadline
        self.unanswered = set(map(_ticket_of, messages))
        self.acknowledged = False
        self.storing: object = None
        """What of it is being stored right now: nobody can say that it was not, so the answer is worth waiting for."""

    def expires_at(self) -> float:
        """Say when its time is over."""
        return self.deadline if self.storing is None else self.deadline + GRACE


class Sends:
    """The sends in flight, oldest first, and the outcomes that nobody has fetched."""

    def __init__(self, publish_timeout: timedelta) -> None:
        self._timeout = publish_timeout.total_seconds()
        self._flying: dict[Send, None] = {}
        self._outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self._fatal: Exception | None = None

    def begin(self, messages: Sequence[Message]) -> Send:
        """Note that messages were handed over; their time runs from now."""
        send = Send(messages, asyncio.get_running_loop().time() + self._timeout)
        if send.unanswered:
            self._flying[send] = None
        return send

    def answer(self, send: Send, outcomes: Sequence[Outcome]) -> None:
        """Take answers; one that comes after the deadline has been answered for it and is dropped."""
        tickets = set(map(_ticket, outcomes))
        if len(tickets) == len(outcomes) and tickets <= send.unanswered:  # as they mostly are
            news = outcomes
        else:
            first = {outcome.ticket: outcome for outcome in outcomes if outcome.ticket in send.unanswered}
            news, tickets = list(first.values()), set(first)
        send.unanswered -= tickets
        send.acknowledged = send.acknowledged or any(outcome.error is None for outcome in news)
        self._outcomes += news
        if not send.unanswered:
            self._flying.pop(send, None)
        if self._outcomes:
            self._news.set()

    def go_on(self, stored: object) -> None:
        """The broker is slow, but it stores one thing after the other: what waits in its queue has its time anew."""
        for send in self._flying:
            send.deadline, send.acknowledged = asyncio.get_running_loop().time() + self._timeout, False
            if send.storing is stored:
                send.storing = None

    def fail(self, send: Send, error: PublishError) -> None:
        """Give the same answer to everything of a send that has none."""
        self.answer(send, [Outcome(message.ticket, error) for message in send.messages])

    def fail_all(self, error: PublishError) -> None:
        """Give the same answer to everything."""
        for send in list(self._flying):
            self.fail(send, error)

    def die(self, error: Exception) -> None:
        """Let `outcomes` raise what no retry can cure."""
        self._fatal = error
        self._news.set()

    async def outcomes(self) -> Sequence[Outcome]:
        """Wait until something is answered, by the broker or by the deadline, and give all there is."""
        while not self._outcomes:
            if self._fatal is not None:
                raise self._fatal
            self._news.clear()
            try:
                async with asyncio.timeout_at(min((send.expires_at() for send in self._flying), default=None)):
                    await self._news.wait()
            except TimeoutError:
                await asyncio.sleep(0)  # an answer that is here already counts, however late it is
                self._expire()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for send in [send for send in self._flying if send.expires_at() <= now]:
            self.fail(send, self._late(send))

    def _late(self, send: Send) -> PublishError:
        if send.acknowledged:
            return PublishTimeout(f"no answer within {self._timeout:g} s, while others of the same send were answered")
        return BrokerUnavailable(f"the broker answered nothing for {self._timeout:g} s; it is tried again by itself")


_ticket = itemgetter(0)  # of an outcome
_ticket_of = attrgetter("ticket")  # of a message
