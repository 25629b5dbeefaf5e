"""What a tap gives: a message, as the broker has it."""

from typing import NamedTuple

PATIENCE = 30.0
"""Seconds that a broker has to give what it says it has."""


class Caught(NamedTuple):
    """A message: when it was stored, in seconds since 1970, if the broker says so."""

    topic: str
    key: str | None
    headers: dict[str, str]
    body: bytes
    at: float | None


def text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
