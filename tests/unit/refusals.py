"""Reading what may be refused: for tests that nothing else happens, whatever there is to read."""

from collections.abc import Callable

from pillarbox.errors import DecodeError


def read_or_refused(read: Callable[..., object], *arguments: object) -> object:
    """Give what was read, or the refusal; any other error is raised and fails the test."""
    try:
        return read(*arguments)
    except DecodeError as refusal:
        return refusal
