"""Retry: what becomes of an event that was tried. Verdicts are values; the policy that makes them is pure.

Published    it is at the broker (or handled): done
RetryAt      it failed and is tried again at that time; counted
Dead         refused for good, or out of retries
Untouched    the other side is away: nothing counted, however long

A verdict has the whole of an error, for the database alone; `told` gives what logs and traces may have of it.
"""

import inspect
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from traceback import walk_tb

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
    brief: str | None = None
    blocks = True


@dataclass(frozen=True, slots=True)
class Dead:
    """It is given up; `blocks` says whether its line waits for somebody to retry or drop it."""

    error: str
    blocks: bool = True
    brief: str | None = None


@dataclass(frozen=True, slots=True)
class Untouched:
    """Nothing happened to it; nothing is counted."""

    error: str = ""
    brief: str | None = None


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


def brief_of(error: BaseException) -> str:
    """Say what an error says without words of others, which may have what the event carries: for logs and traces."""
    brief = getattr(error, "brief", None)
    return words_of(error) if brief is None else sayable(quiet(brief))


def told(verdict: RetryAt | Dead | Untouched) -> str:
    """Give what logs may say of a failure."""
    return verdict.error if verdict.brief is None else verdict.brief


def place_of(error: BaseException, function: object = None) -> str:
    """Say where an exception was raised, or where the function's own file was left for it: that is the reader's to
    mend. Its words may have what an event carries: they are the database's alone."""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    if not places:
        return ""
    own = _file_of(function)
    file, line = next((place for place in reversed(places) if place[0] == own), places[-1])
    return f" at {file.rpartition('/')[2]}, line {line}; its words are kept with the event"


def _file_of(function: object) -> str | None:
    """Give the file in which a function is written; None if it is not written in Python."""
    while isinstance(function, partial):
        function = function.func
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004 - its code is what is asked for
        code = getattr(inspect.unwrap(one) if callable(one) else None, "__code__", None)
        if code is not None:
            return str(code.co_filename)
    return None


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
        text, brief = words_of(error), None if error.brief is None else brief_of(error)
        if isinstance(error, BrokerUnavailable):
            return Untouched(text, brief)
        if isinstance(error, PublishRejected):
            return Dead(text, blocks, brief)
        return self.failed(text, attempts, now, chance, blocks=blocks, brief=brief)

    def failed(
        self,
        error: str,
        attempts: int,
        now: datetime,
        chance: float,
        *,
        blocks: bool = True,
        brief: str | None = None,
    ) -> RetryAt | Dead:
        """Say when to try again after one more failure, or that it is enough."""
        if attempts >= self.retries:
            return Dead(error, blocks, brief)
        return RetryAt(now + self.delay(attempts, chance), error, brief)

    def delay(self, attempts: int, chance: float) -> timedelta:
        """Give the wait after failure number `attempts` + 1: 1, 2, 4, 8, 16 s ± 20 % by default."""
        seconds = min(self.first.total_seconds() * 2.0 ** min(attempts, 60), self.longest.total_seconds())
        return timedelta(seconds=seconds * (1 + self.jitter * (2 * chance - 1)))
