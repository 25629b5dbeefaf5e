"""Editions: a seed that failed once is repeated in the world that it failed in, whatever has come into it since."""

from enum import IntEnum


class Edition(IntEnum):
    """What a world has, and all before it."""

    FIRST = 1
    TOPICS_FAIL = 2
    """One topic fails while others go."""
    OPERATED = 3
    """What was published is pruned and replayed; daemons are stopped and started; some events kill every relay, and
    careful mode finds them; most worlds are short and busy."""


NEWEST = max(Edition)
