"""Words that messages need in several places."""

from collections.abc import Collection
from difflib import get_close_matches


def a(name: str) -> str:
    """Write a name with its article.

    >>> a("Event"), a("sqlite3.Cursor"), a("UUID")
    ('an Event', 'a sqlite3.Cursor', 'a UUID')
    """
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


def a_kind_of(value: object) -> str:
    """Say what something is, by the full name of its class."""
    return a(f"{type(value).__module__}.{type(value).__qualname__}")


def near_to(name: str, known: Collection[str]) -> str | None:
    """Give the known name that an unknown one is near to; a far one would only lead astray.

    >>> near_to("relay.bach", ["relay.batch", "relay.lease"])
    'relay.batch'
    >>> near_to("relay.colour", ["relay.batch", "relay.lease"]) is None
    True
    """
    last = name.rpartition(".")[2]  # a table that both have makes nothing near
    for near in get_close_matches(name, known, len(known)):
        if get_close_matches(last, [near.rpartition(".")[2]]):
            return near
    return None
