"""What the audit says of an operator's action: who did it, and what was asked."""

import os
import socket
from getpass import getuser

from pillarbox.ports import Query, Replay

_FIELDS = (
    "side",
    "ids",
    "status",
    "type",
    "topic",
    "aggregate",
    "consumer",
    "since",
    "until",
    "error",
    "after",
    "upto",
)


def describe(verb: str, query: Query) -> str:
    """Write what was asked: only the fields that were set."""
    unset = Query()
    fields = ((name, getattr(query, name)) for name in _FIELDS)
    said = [f"{name}={_text(name, value)}" for name, value in fields if value != getattr(unset, name)]
    return " ".join([verb, *said])[:1000]


def describe_replay(replay: Replay) -> str:
    """Write what was asked of a replay."""
    how = (("again", "yes" if replay.again else None), ("to", replay.to), ("rate", _rate(replay.rate)))
    said = [f"{name}={value}" for name, value in how if value is not None]
    return describe(" ".join(["replay", replay.id, *said]), replay.query)


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.15g}"


def user() -> str:
    """Name who runs this process, and where."""
    return f"{_name()}@{socket.gethostname()}"


def _name() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def _text(name: str, value: object) -> str:
    if name == "error":  # which has blanks in it
        return repr(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
