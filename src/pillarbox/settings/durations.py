"""Durations as people write them ("5 ms", "15 s", "7 days") and as people read them ("3 min")."""

import re
from datetime import timedelta
from decimal import Decimal

from pillarbox.errors import ConfigError

MICROSECOND = timedelta(microseconds=1)
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "day": timedelta(days=1),
    "days": timedelta(days=1),
}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def parse_duration(text: str) -> timedelta:
    """Read a duration.

    >>> parse_duration("1.5 h")
    datetime.timedelta(seconds=5400)
    """
    found = _WRITTEN.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f'not a duration: write a number and one of {", ".join(_UNITS)}, such as "15 s"')
    try:
        return timedelta(microseconds=round(Decimal(found[1]) * (_UNITS[found[2]] // MICROSECOND)))
    except OverflowError as error:
        raise ConfigError("longer than any duration that can be kept") from error


def write_duration(duration: timedelta) -> str:
    """Write a duration exactly, in the largest unit that divides it, so that `parse_duration` gives it back.

    >>> write_duration(timedelta(minutes=5)), write_duration(timedelta(seconds=90)), write_duration(timedelta(days=1))
    ('5 min', '90 s', '1 day')
    """
    for name in ("days", "h", "min", "s"):
        count, rest = divmod(duration, _UNITS[name])
        if count and not rest:
            return f"{count} {'day' if (name, count) == ('days', 1) else name}"
    return f"{Decimal(duration // MICROSECOND) / 1000} ms"


def about(duration: timedelta) -> str:
    """Say a duration in one unit, rounded down: how long something has lasted.

    >>> about(timedelta(seconds=200)), about(timedelta(hours=50)), about(timedelta(milliseconds=20))
    ('3 min', '2 days', '0 s')
    """
    for name in ("days", "h", "min"):
        if (count := duration // _UNITS[name]) > 0:
            return f"{count} {'day' if (name, count) == ('days', 1) else name}"
    return f"{max(0, int(duration.total_seconds()))} s"
