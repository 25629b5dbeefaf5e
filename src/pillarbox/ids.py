"""Event ids: UUID version 7. The one place where the clock and chance enter an event, kept outside the pure core."""

from os import urandom
from time import time_ns
from uuid import UUID, SafeUUID

_new = UUID.__new__
_set = object.__setattr__
_LOW = (1 << 62) - 1
_chance_bits = 74
_last = (0, 0)  # milliseconds, and the 74 random bits below them


def new_id() -> UUID:
    """Make a UUIDv7 (RFC 9562); within a thread each is greater than the one before, whatever the clock does."""
    global _last
    now = time_ns() // 1_000_000
    last, chance = _last
    if now > last:
        chance = int.from_bytes(urandom(10)) >> 6
    else:  # the same millisecond, or the clock stepped back: go on from the last one by a random step
        now, chance = last, chance + 1 + int.from_bytes(urandom(5))
        if chance >> _chance_bits:
            now, chance = last + 1, int.from_bytes(urandom(5))
    _last = (now, chance)
    value = _new(UUID)  # UUID(int=...) checks what is right by construction and costs four times as much
    _set(value, "int", now << 80 | 7 << 76 | (chance >> 62) << 64 | 2 << 62 | chance & _LOW)
    _set(value, "is_safe", SafeUUID.unknown)
    return value
