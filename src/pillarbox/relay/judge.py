"""What the broker's answers mean: verdicts for entries, and how the broker and each topic fare."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter

from pillarbox.core.circuit import Circuits
from pillarbox.core.entry import Entry
from pillarbox.core.pacing import Pacing
from pillarbox.core.reasons import Reasons
from pillarbox.core.retry import PUBLISHED, Published, RetryPolicy, Untouched, Verdict, told
from pillarbox.core.routing import Topics
from pillarbox.core.window import Gate, Window
from pillarbox.errors import PublishError, PublishRejected
from pillarbox.ports import Away, Clock, Outcome
from pillarbox.telemetry.hooks import Hooks, Moment


@dataclass(frozen=True, slots=True)
class Rules:
    """What a relay decides by: sizes, the order of topics, the retry policy, how long to wait for whom."""

    batch: int
    topics: Topics
    policy: RetryPolicy
    idle: Callable[[], Pacing]
    patience: Callable[[], Pacing]
    chance: Callable[[], float]


class Judge:
    """Judges answers about what is in the window; knows whether the broker is away, and which topics fail."""

    def __init__(self, window: Window[Entry], rules: Rules, clock: Clock, hooks: Hooks) -> None:
        self._window, self._rules, self._clock, self._hooks = window, rules, clock, hooks
        self._circuits, self._patience, self._reasons = Circuits(), rules.patience(), Reasons()
        self._trouble_since = clock.now()
        self._resume_at = 0.0
        self.away: Away | None = None
        self.refused: dict[str, int] = {}
        """The tickets of those that were just tried, by topic."""

    def forget(self) -> None:
        """Take every topic for well again."""
        self._circuits.forget()
        self.refused.clear()

    @property
    def trouble(self) -> Away | None:
        """What people should know: the broker is away, or topics fail while others do not."""
        if self.away or not (errors := self._circuits.errors()):
            return self.away
        words = "; ".join(f"topic {topic} fails while others go: {error}" for topic, error in errors)
        return Away(self._trouble_since, words)

    @property
    def is_pausing(self) -> bool:
        """The broker is away, and it is not yet time to try again."""
        return _now() < self._resume_at

    @property
    def pause(self) -> float | None:
        """Seconds until something is to be tried again, if anything is."""
        now = _now()
        return min((at - now for at in (self._resume_at, self._circuits.next_try() or 0.0) if at > now), default=None)

    @property
    def gate(self) -> Callable[[Entry], Gate] | None:
        """Says which entries may go, if topics fail."""
        now = _now()
        return (lambda entry: self._circuits.gate(entry.topic, now)) if self._circuits else None

    def suspect(self, topics: Iterable[str]) -> None:
        """Try one of each of these topics, which others had to hold, before more of it goes."""
        for topic in topics:
            self._circuits.suspect(topic, _now())

    def held(self) -> frozenset[str]:
        """Give the topics that fail and are not to be tried now."""
        return self._circuits.held(_now()) if self._circuits else frozenset()

    def not_sent(self, ticket: int, entry: Entry, error: str) -> Verdict:
        """Judge an entry that cannot be encoded."""
        self._circuits.not_sent(entry.topic)
        return self._failure(ticket, PublishRejected(error))

    def verdicts(self, outcomes: Sequence[Outcome]) -> list[tuple[int, Verdict]]:
        """Turn answers into verdicts, and notice when the broker goes and when it is back."""
        self._hooks.reach(Moment.ANSWERED, count=len(outcomes))
        if not self._circuits.watching and not self.away and not any(map(_error, outcomes)):
            return list(zip(map(_ticket, outcomes), repeat(PUBLISHED)))  # as they mostly are
        verdicts: list[tuple[int, Verdict]] = [
            (ticket, PUBLISHED if error is None else self._failure(ticket, error)) for ticket, error in outcomes
        ]
        self._note_topics(verdicts)
        silence = (self._silence(ticket, verdict) for ticket, verdict in verdicts)
        away = next((error for error in silence if error is not None), None)
        answers = any(verdict.__class__ is not Untouched for _, verdict in verdicts)
        if away is not None and not answers:
            self._note_away(away)
        elif self.away and answers:
            self._hooks.reach(Moment.BROKER_BACK, away=self._clock.now() - self.away.since)
            self._patience.busy()
            self._circuits.hurry(_now())
            self.away, self._resume_at = None, 0.0
            self._reasons.forget()
        return verdicts

    def _silence(self, ticket: int, verdict: Verdict) -> str | None:
        """Say why nobody answered, unless it is just that topic which fails."""
        if not isinstance(verdict, Untouched):
            return None
        entry = self._window.item(ticket)
        return None if entry and self._circuits.is_open(entry.topic) else told(verdict)

    def _note_topics(self, verdicts: Sequence[tuple[int, Verdict]]) -> None:
        """Notice when a topic fails while others do not, and when it is back."""
        topics = [
            (ticket, entry.topic, verdict) for ticket, verdict in verdicts if (entry := self._window.item(ticket))
        ]
        went = Counter(topic for _, topic, verdict in topics if isinstance(verdict, Published))
        for topic, count in went.items():
            if self._circuits.published(topic, count):
                self._hooks.reach(Moment.TOPIC_BACK, topic=topic)
        now = _now()
        silent = {topic for _, topic, verdict in topics if isinstance(verdict, Untouched)}
        waits = self._one_waits_for_its_try(now) or (silent and not went and self._nobody_else_is_asked(silent))
        for ticket, topic, verdict in topics:
            if isinstance(verdict, Published):
                continue
            was_well, answered = not self._circuits, not isinstance(verdict, Untouched)
            if answered and self._circuits.tries(topic):
                self.refused[topic] = ticket
            in_the_way = bool(waits) and not answered
            if self._circuits.failed(topic, told(verdict), now, answered=answered, in_the_way=in_the_way):
                self._trouble_since = self._clock.now() if was_well else self._trouble_since
                self._hooks.reach(Moment.TOPIC_AWAY, topic=topic, error=told(verdict))
        for topic in went:  # in this very answer, beside what failed for the first time
            self._circuits.went(topic)

    def _one_waits_for_its_try(self, now: float) -> bool:
        """A topic's turn to be tried has come, and what went back of it is still here: behind what nobody answers."""
        if not self._circuits:
            return False
        return not self._circuits.held(now).issuperset(entry.topic for entry in self._window.called_back())

    def _nobody_else_is_asked(self, silent: set[str]) -> bool:
        """What is silent fills the window; others in it went, and what else there is of them cannot enter."""
        if self._window.room >= max(1, self._rules.batch // 8):
            return False
        published, others = self._window.waiting()
        return {entry.topic for entry in others} <= silent and not {entry.topic for entry in published} <= silent

    def _failure(self, ticket: int, error: PublishError) -> Verdict:
        entry = self._window.item(ticket)
        if entry is None:  # forgotten meanwhile; the window passes over it too
            return PUBLISHED
        blocks = self._rules.topics[entry.topic].when_dead == "block"
        return self._rules.policy.judge(error, entry.attempts, self._clock.now(), self._rules.chance(), blocks=blocks)

    def _note_away(self, error: str) -> None:
        if self._reasons.is_news(error):
            self._hooks.reach(Moment.BROKER_STILL_AWAY if self.away else Moment.BROKER_AWAY, error=error)
        self.away = Away(self.away.since if self.away else self._clock.now(), error)
        self._resume_at = _now() + self._patience.quiet()


_ticket, _error = itemgetter(0), itemgetter(1)  # of an outcome


def _now() -> float:
    return asyncio.get_running_loop().time()
