"""Answers: what a status of an endpoint means. Pure.

2xx                      published
429, 503 + Retry-After   it asks for a pause: away until then, and nothing is counted
408, 425, 429, 5xx       try again; counted
3xx                      refused for good: redirects are not followed
410 and other 4xx        refused for good
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected

LONGEST_PAUSE = 3600.0
_AGAIN = frozenset((408, 425, 429))
_PAUSES = frozenset((429, 503))


def pause(status: int, headers: Mapping[str, str], now: datetime) -> float:
    """Say for how many seconds an endpoint asks to be left alone; 0 if it does not."""
    return _retry_after(headers.get("retry-after"), now) if status in _PAUSES else 0.0


def judge(status: int, words: str, pause: float = 0.0) -> PublishError | None:
    """Say what an answer means; `words` is what stood in its body, fit to be shown."""
    if 200 <= status < 300:
        return None
    answered, means = f"the endpoint answered {_named(status)}", ""
    kind: type[PublishError] = PublishRejected if 300 <= status < 500 and status not in _AGAIN else PublishError
    if pause:
        kind, means = BrokerUnavailable, f" (it asks for a pause of {pause:g} s, and gets it)"
    elif 300 <= status < 400:
        means = " (redirects are never followed: give the endpoint's own URL)"
    elif status == HTTPStatus.GONE:
        means = " (it is gone for good and wants no more events: stop sending to it)"
    # Its words may be the event's.
    return kind(f"{answered}: {words}{means}" if words else f"{answered}{means}", brief=f"{answered}{means}")


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(text: str | None, now: datetime) -> float:
    """Read seconds or a date; 0 if there is none, or none that makes sense."""
    if text is None:
        return 0.0
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_PAUSE)
    try:
        until = parsedate_to_datetime(text)
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    except (ValueError, TypeError, LookupError, ArithmeticError):  # by what is wrong with it, and by Python's version
        return 0.0
    return min(max(round(seconds, 1), 0.0), LONGEST_PAUSE)
