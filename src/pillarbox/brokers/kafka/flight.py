"""A flight: one send on its way, and the reports that have come of it."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat

from pillarbox.brokers.kafka.client import KafkaError
from pillarbox.brokers.sends import Send
from pillarbox.core.message import Message
from pillarbox.errors import PublishError
from pillarbox.ports import Outcome

_outcome: Callable[[tuple[int, PublishError | None]], Outcome] = partial(tuple.__new__, Outcome)
"""What Outcome() calls in the end: the way there takes longer than the rest."""


class Flight:
    """What was handed to `send` in one call. Everything but its making happens in the producer's thread."""

    def __init__(self, send: Send, deadline: float) -> None:
        self.send, self.deadline = send, deadline
        self.messages: Sequence[Message] = send.messages
        self.acknowledged = False
        self.unanswered = len(self.messages)
        self.handed = 0
        """How many are with the client, or in a report that nobody has looked at."""
        self.failed: list[tuple[int, KafkaError]] = []
        """What the client reported as failed, and nobody has judged."""
        self._stored: list[int] = []
        self._refused: list[Outcome] = []
        self.report = _reporter(self._stored.append, self.failed.append)

    @property
    def pending(self) -> int:
        """Count those of which there is no report."""
        return self.handed - len(self._stored) - len(self.failed)

    def stored(self) -> bool:
        """Say whether reports without an error have come since the last time."""
        return bool(self._stored)

    def refuse(self, ticket: int, error: PublishError) -> None:
        """Answer for a message that is not at the broker."""
        self._refused.append(Outcome(ticket, error))

    def outcomes(self) -> list[Outcome]:
        """Take what is known since the last time."""
        reported = len(self._stored)
        tickets, self._stored[:reported] = self._stored[:reported], []
        refused, self._refused = self._refused, []
        self.handed -= reported
        self.unanswered -= reported + len(refused)
        self.acknowledged |= reported > 0
        return [*map(_outcome, zip(tickets, repeat(None))), *refused]

    def take_failed(self) -> list[tuple[Message, KafkaError]]:
        """Take what was reported as failed, in the order in which it was sent."""
        failed = dict(self.failed)
        self.failed.clear()
        self.handed -= len(failed)
        return [(message, failed[message.ticket]) for message in self.messages if message.ticket in failed]


def _reporter(
    stored: Callable[[int], None], failed: Callable[[tuple[int, KafkaError]], None]
) -> Callable[[int, KafkaError | None, object], None]:
    """Make what the client calls with its report. After a fatal error it does so with an exception on its way: a call
    into C then does its work and raises, so there is one, and the last thing."""

    def report(ticket: int, error: KafkaError | None, _: object) -> None:
        if error is None:
            stored(ticket)
        else:
            failed((ticket, error))

    return report
