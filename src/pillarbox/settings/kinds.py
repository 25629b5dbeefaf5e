"""Kinds: which settings there are, what type each has, and how it is written. Plain values in, typed ones out."""

from collections.abc import Iterable
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import cache
from typing import Any, get_args, get_type_hints

from pillarbox.core.routing import Topic
from pillarbox.core.secrets import without_secrets
from pillarbox.core.wording import near_to
from pillarbox.errors import ConfigError
from pillarbox.settings.durations import parse_duration, write_duration
from pillarbox.settings.sources import Given
from pillarbox.settings.tables import OPTION_TABLES, TABLES, ZERO


@cache
def known_keys() -> tuple[str, ...]:
    """Give the settings that always exist, in the order of the documentation."""
    return ("database", "broker", *(f"{name}.{part.name}" for name, table in TABLES.items() for part in fields(table)))


def default_of(key: str) -> str | int | None:
    """Give the default of a known setting, as it is written in the file."""
    table, _, name = key.partition(".")
    if not name:
        return None
    part = next(part for part in fields(TABLES[table]) if part.name == name)
    assert part.default is not MISSING
    default: str | int | None = written(key, part.default)
    return default


def checked(given: Iterable[Given]) -> dict[str, Given]:
    """Turn what was given into values of the right type, by key; refuse what is not known."""
    return {one.key: one._replace(value=_converted(one)) for one in given}


def _converted(given: Given) -> object:
    kind = _kind_of(given)
    try:
        return _convert(kind, given.value, given.key)
    except ConfigError as error:
        raise ConfigError(f"{without_secrets(given.key)} ({given.origin}): {error}") from error


def _kind_of(given: Given) -> object:
    table, *below = given.path
    if table in OPTION_TABLES and below:
        return object
    if table == "topic" and len(below) == 2:
        kinds = get_type_hints(Topic)
        if below[1] in kinds:
            return kinds[below[1]]
        raise _unknown(given, [f"topic.{below[0]}.{name}" for name in kinds])
    if given.key in ("database", "broker"):
        return str
    if table in TABLES and len(below) == 1 and below[0] in (kinds := get_type_hints(TABLES[table])):
        return kinds[below[0]]
    if given.key in TABLES or given.key in OPTION_TABLES:
        raise ConfigError(f"{given.origin}: {given.key} is a table: write [{given.key}] and its settings below it")
    if table == "topic":
        raise ConfigError(
            f'{given.origin}: {without_secrets(given.key)} is no setting: write [topic."name"], and order = … below it'
        )
    raise _unknown(given, known_keys())


def _unknown(given: Given, known: Iterable[str]) -> ConfigError:
    keys, unknown = list(known), without_secrets(given.key)
    if near := near_to(given.key, keys):
        cure = f"the nearest known one is {without_secrets(near)!r}"
    else:
        beside = [key for key in keys if key.rpartition(".")[0] == given.key.rpartition(".")[0] != ""]
        known_ones = beside or ["database", "broker", *(f"[{table}]" for table in (*TABLES, "topic"))]
        cure = f"known are {', '.join(map(without_secrets, known_ones))}"
    # No colon behind the name: what stands behind "secret:" is taken for one, and hidden.
    return ConfigError(f"unknown setting {unknown!r} ({given.origin}); {cure}")


def _convert(kind: object, value: object, key: str) -> object:
    if kind is object:
        return value
    if kind is int:
        return _integer(value)
    if kind is bool:
        return _boolean(value)
    if kind is timedelta or kind == timedelta | None:
        return _duration(kind, value, key)
    if kind == str | None:
        return None if value == "none" else _convert(str, value, key)
    if not isinstance(value, str):
        raise ConfigError(f"expected text, found {_named(value)}")
    if (choices := get_args(kind)) and value not in choices:
        raise ConfigError(f"expected one of {', '.join(choices)}")
    if not value:
        raise ConfigError("is empty: leave it out, or give it a value")
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):  # out of the environment, or off a command line
        return value.lower() == "true"
    if type(value) is not bool:
        raise ConfigError(f"expected true or false, found {_named(value)}")
    return value


def _integer(value: object) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ConfigError("expected a whole number, found text") from None
    if type(value) is not int:
        raise ConfigError(f"expected a whole number, found {_named(value)}")
    return value


def _duration(kind: object, value: object, key: str) -> timedelta | None:
    if not isinstance(value, str):
        raise ConfigError(f'expected a duration such as "15 s", found {_named(value)}')
    may_be_none = kind != timedelta
    if may_be_none and value == "none":
        return ZERO if key.startswith("retention.") else None
    if may_be_none and value == "forever" and key.startswith("retention."):
        return None
    return parse_duration(value)


def _named(value: object) -> str:
    """Name what was found; only a number is repeated, because anything else may be a secret in the wrong place."""
    return f"{type(value).__name__} {value!r:.60}" if isinstance(value, int | float) else type(value).__name__


def written(key: str, value: Any) -> Any:
    """Write a value as the settings file has it."""
    if isinstance(value, timedelta):
        return write_duration(value) if value else "none"
    if value is None and "." in key:
        return "forever" if key.startswith("retention.") else "none"
    return value
