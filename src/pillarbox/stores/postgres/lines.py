"""The names of lines in the parking lot."""

import json
from functools import lru_cache
from hashlib import sha256

from pillarbox.core.routing import Line

LONGEST = 1000
"""Bytes of a line's name; longer ones go by their hash. An index takes no more than 2,704."""
KNOWN = 20_000
"""Names that are kept read."""


def write_line(line: Line) -> str:
    """Give a line's name in the parking lot: what it is, or a hash where that is too long."""
    text = json.dumps(line, ensure_ascii=False)
    written = text.encode()
    return text if len(written) <= LONGEST else sha256(written).hexdigest()


@lru_cache(maxsize=KNOWN)
def read_line(name: str) -> Line:
    """Give the line of a name that is no hash."""
    topic, kind, id = json.loads(name)
    return topic, kind, id


def find_line(name: str, topic: str, kind: str, id: str) -> Line:
    """Give the line of a hash; topic and aggregate are those of an event that stands in it."""
    whole = (topic, "", "")
    return whole if name == write_line(whole) else (topic, kind, id)
