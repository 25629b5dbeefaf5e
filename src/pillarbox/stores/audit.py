"""What the audit says of an operator's action: who did it, and what was asked."""

import os
from getpass import getuser

from pillarbox.ports import Query

_FIELDS = ("side", "ids", "status", "type", "topic", "aggregate", "consumer", "since", "until", "error", "after")


def describe(verb: str, query: Query) -> str:
    """Write what was asked: only the fields that were set."""
    unset = Query()
    fields = ((name, getattr(query, name)) for name in _FIELDS)
    said = [f"{name}={_text(name, value)}" for name, value in fields if value != getattr(unset, name)]
    return " ".join([verb, *said])[:1000]


def describe_replay(query: Query, again: str | None, to: str | None, rate: float | None) -> str:
    """Write what was asked of a replay."""
    how = (("again", again), ("to", to), ("rate", rate))
    return describe(" ".join(["replay", *(f"{name}={value}" for name, value in how if value is not None)]), query)


def user() -> str:
    """Name who runs this process."""
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def _text(name: str, value: object) -> str:
    if name == "error":  # which has blanks in it
        return repr(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
