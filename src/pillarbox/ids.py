"""Event ids: UUID version 7. The one place where the clock and chance enter an event, kept outside the pure core."""

from os import register_at_fork, urandom
from random import getrandbits
from threading import local
from time import time_ns
from uuid import UUID, SafeUUID

_new = UUID.__new__
_set = object.__setattr__
_LOW = (1 << 62) - 1
_CHANCE_BITS = 74


class _Last(local):
    """The last id of this thread: its milliseconds, and the 74 random bits below them."""

    value = (0, 0)


_last = _Last()


def _start_over() -> None:
    global _last
    _last = _Last()


# A forked process must not go on where its parent does.
register_at_fork(after_in_child=_start_over)


def new_id() -> UUID:
    """Make a UUIDv7 (RFC 9562); within a thread each is greater than the one before, whatever the clock does."""
    now = time_ns() // 1_000_000
    last, chance = _last.value
    if now > last:
        chance = int.from_bytes(urandom(10)) >> 6
    else:  # the same millisecond, or the clock stepped back: go on from the last one by a random step
        now, chance = last, chance + 1 + getrandbits(40)  # as unique as its 74 bits; urandom costs four times as much
        if chance >> _CHANCE_BITS:
            now, chance = last + 1, int.from_bytes(urandom(5))
    _last.value = (now, chance)
    value = _new(UUID)  # UUID(int=...) checks what is right by construction and costs four times as much
    _set(value, "int", now << 80 | 7 << 76 | (chance >> 62) << 64 | 2 << 62 | chance & _LOW)
    _set(value, "is_safe", SafeUUID.unknown)
    return value
