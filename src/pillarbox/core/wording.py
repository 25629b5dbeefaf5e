"""Words that messages need in several places."""


def a(name: str) -> str:
    """Write a name with its article.

    >>> a("Event"), a("sqlite3.Cursor"), a("UUID")
    ('an Event', 'a sqlite3.Cursor', 'a UUID')
    """
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"


def a_kind_of(value: object) -> str:
    """Say what something is, by the full name of its class."""
    return a(f"{type(value).__module__}.{type(value).__qualname__}")
