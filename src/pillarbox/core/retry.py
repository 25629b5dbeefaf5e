"""Retry: what becomes of an event that was tried. Verdicts are values; the policy that makes them is pure.

Published    it is at the broker (or handled): done
RetryAt      it failed and is tried again at that time; counted
Dead         refused for good, or out of retries
Untouched    the other side is away: nothing counted, however long
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pillarbox.core.secrets import quiet
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected


@dataclass(frozen=True, slots=True)
class Published:
    """It is done."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    """It failed; it is tried again at `at`, and holds its line until then."""

    at: datetime
    error: str
    blocks = True


@dataclass(frozen=True, slots=True)
class Dead:
    """It is given up; `blocks` says whether its line waits for somebody to retry or drop it."""

    error: str
    blocks: bool = True


@dataclass(frozen=True, slots=True)
class Untouched:
    """Nothing happened to it; nothing is counted."""

    error: str = ""


Verdict = Published | RetryAt | Dead | Untouched

PUBLISHED = Published()
LONGEST_WORDS = 10_000


def words_of(error: BaseException) -> str:
    """Say what an error says, as a text that can be kept anywhere, without its secrets; its class if it says nothing.
    Never raises."""
    try:
        text = quiet(str(error)[:LONGEST_WORDS])
    except Exception:  # noqa: BLE001 - its __str__ is somebody else's
        text = ""
    return sayable(text) or type(error).__name__


def sayable(text: str) -> str:
    """Write as escapes what UTF-8 cannot say and databases do not keep: lone surrogates and NUL."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Judges failures: `retries` tries after the first, waiting `first`, doubling up to `longest`, ± `jitter`."""

    retries: int = 5
    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(seconds=16)
    jitter: float = 0.2

    def judge(
        self, error: PublishError | None, attempts: int, now: datetime, chance: float, *, blocks: bool = True
    ) -> Verdict:
        """Say what an outcome means for an event that failed `attempts` times before; `chance` is in [0, 1)."""
        if error is None:
            return PUBLISHED
        text = words_of(error)
        if isinstance(error, BrokerUnavailable):
            return Untouched(text)
        if isinstance(error, PublishRejected):
            return Dead(text, blocks)
        return self.failed(text, attempts, now, chance, blocks=blocks)

    def failed(self, error: str, attempts: int, now: datetime, chance: float, *, blocks: bool = True) -> RetryAt | Dead:
        """Say when to try again after one more failure, or that it is enough."""
        if attempts >= self.retries:
            return Dead(error, blocks)
        return RetryAt(now + self.delay(attempts, chance), error)

    def delay(self, attempts: int, chance: float) -> timedelta:
        """Give the wait after failure number `attempts` + 1: 1, 2, 4, 8, 16 s ± 20 % by default."""
        seconds = min(self.first.total_seconds() * 2.0 ** min(attempts, 60), self.longest.total_seconds())
        return timedelta(seconds=seconds * (1 + self.jitter * (2 * chance - 1)))
