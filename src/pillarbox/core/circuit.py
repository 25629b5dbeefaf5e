"""Circuits: when a topic fails while others do not, it is held; then one message is tried from time to time. Pure.

    closed      everything goes
    open        after 20 failures in a row, or more than half of the last 1,000: nothing of the topic goes
    half open   after 1 s, doubling up to 30 s: one message goes; its answer closes or opens the circuit

That nobody answers counts only if another topic was published meanwhile: else it is the broker that is away, which is
none of this file's business. But where a topic cannot be tried, because what is silent stands before it, the first
silence opens the circuit: else the one would wait for as long as the other is silent. So it does where what is silent
fills the window, and others in it went: else nobody behind it would ever be asked.

A topic that stands behind others when lanes are taken was held by whoever had them. Its circuit begins half open: all
of it at once could fill the window, and nobody else would be asked for as long as it is silent.
"""

from collections import deque
from dataclasses import dataclass, field

from pillarbox.core.window import Gate

IN_A_ROW = 20
RECENT = 1000
FIRST, LONGEST = 1.0, 30.0


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    """In a row."""
    others_went: bool = False
    """Since the first of them, a message of another topic was published."""
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    recent_failures: int = 0
    pause: float = 0.0
    """Seconds until the next try; 0 if the circuit is closed."""
    try_at: float = 0.0
    trying: bool = False
    error: str = ""
    suspected: bool = False
    """Nobody has seen it fail here: somebody else held it."""

    def note(self, failed: bool) -> None:
        if len(self.recent) == RECENT:
            self.recent_failures -= self.recent[0]
        self.recent.append(failed)
        self.recent_failures += failed

    @property
    def fails(self) -> bool:
        return self.failures >= IN_A_ROW or (len(self.recent) == RECENT and 2 * self.recent_failures > RECENT)


class Circuits:
    """One circuit a topic. Times are seconds on any clock that only moves on."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}
        self._failing: set[str] = set()  # topics whose last message failed
        self._open: set[str] = set()

    def __bool__(self) -> bool:
        """A circuit is not closed."""
        return bool(self._open)

    @property
    def watching(self) -> bool:
        """A topic has failed lately: what is published counts."""
        return bool(self._circuits)

    def published(self, topic: str, count: int = 1) -> bool:
        """Note that messages of a topic were published; tell whether that closed its circuit."""
        self.went(topic)
        circuit = self._circuits.get(topic)
        if circuit is None:
            return False
        for _ in range(min(count, RECENT)):
            circuit.note(False)
        self._failing.discard(topic)
        if topic in self._open:
            # One that was under way when the circuit opened says nothing: what failed would be sent again at once.
            if not circuit.trying:
                return False
            self._open.remove(topic)
            del self._circuits[topic]
            return True
        circuit.failures, circuit.others_went = 0, False
        if not circuit.recent_failures:
            del self._circuits[topic]
        return False

    def went(self, topic: str) -> None:
        """Note that a message of a topic was published: where others fail, it is not the broker that is away."""
        for other in self._failing - {topic}:
            self._circuits[other].others_went = True

    def failed(self, topic: str, error: str, now: float, *, answered: bool, in_the_way: bool = False) -> bool:
        """Note that a message of a topic failed: refused, or not answered; tell whether that opened its circuit."""
        circuit = self._circuits.setdefault(topic, _Circuit())
        self._failing.add(topic)
        circuit.failures, circuit.error = circuit.failures + 1, error
        circuit.note(True)
        if topic in self._open:
            if circuit.trying:
                circuit.trying, circuit.pause = False, min(LONGEST, 2 * circuit.pause)
                circuit.try_at = now + circuit.pause
            was_suspected, circuit.suspected = circuit.suspected, False
            return was_suspected
        if in_the_way or (circuit.fails and (answered or circuit.others_went)):
            self._open.add(topic)
            circuit.pause, circuit.try_at, circuit.trying = FIRST, now + FIRST, False
            return True
        return False

    def suspect(self, topic: str, now: float) -> None:
        """Somebody else had to hold a topic: one message of it is tried, now, before more of it goes."""
        if topic not in self._open:
            circuit = self._circuits.setdefault(topic, _Circuit())
            circuit.suspected, circuit.trying, circuit.pause, circuit.try_at = True, False, FIRST / 2, now
            self._open.add(topic)

    def held(self, now: float) -> frozenset[str]:
        """Give the topics of which nothing may go now."""
        return frozenset(topic for topic in self._open if now < self._circuits[topic].try_at)

    def gate(self, topic: str, now: float) -> Gate:
        """Say what may go of a topic; of one that is tried, one message until it is answered. Who asks, sends."""
        if topic not in self._open:
            return Gate.OPEN
        circuit = self._circuits[topic]
        if circuit.trying or now < circuit.try_at:
            return Gate.SHUT
        circuit.trying = True
        return Gate.ONE

    def hurry(self, now: float) -> None:
        """The broker is back: try every topic now."""
        for topic in self._open:
            circuit = self._circuits[topic]
            circuit.pause, circuit.try_at = FIRST, min(circuit.try_at, now)

    def tries(self, topic: str) -> bool:
        """A message of the topic is being tried."""
        return topic in self._open and self._circuits[topic].trying

    def is_open(self, topic: str) -> bool:
        """The topic fails while others go."""
        return topic in self._open

    def not_sent(self, topic: str) -> None:
        """What was to be tried could not be sent, so nobody will answer: the next one is tried."""
        if topic in self._open:
            self._circuits[topic].trying = False

    def next_try(self) -> float | None:
        """Say when the next topic is tried; None if every circuit is closed."""
        return min((self._circuits[topic].try_at for topic in self._open), default=None)

    def errors(self) -> list[tuple[str, str]]:
        """Give the topics that fail, with their last error."""
        return [
            (topic, self._circuits[topic].error) for topic in sorted(self._open) if not self._circuits[topic].suspected
        ]

    def forget(self) -> None:
        """Whatever was being tried is not answered any more."""
        for topic in self._open:
            self._circuits[topic].trying = False
