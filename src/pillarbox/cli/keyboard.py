"""The keyboard of a terminal, key by key; and the terminal as it was, however we end."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import Signals

END = "end"
"""Nobody is at the keyboard any more."""
_KEYS = re.compile(rb"\x1b[\[O]([A-Z])|\x1b\[[0-9;]*~|(\x1b)|([ -~])")
_ARROWS = {b"A": "up", b"B": "down"}


def keys_of(typed: bytes) -> list[str]:
    """Read what was typed: printable characters as they are, and "up", "down", "escape"; the rest is passed over.

    >>> keys_of(b"j\\x1b[B\\x1b")
    ['j', 'down', 'escape']
    """
    keys = (
        _ARROWS.get(arrow) if arrow else "escape" if escape else one.decode()
        for arrow, escape, one in _KEYS.findall(typed)
    )
    return [key for key in keys if key]


@contextmanager
def keyboard(file: int, typed: Callable[[str], None]) -> Iterator[None]:
    """Hear every key of the terminal at once and without echo; afterwards it is as it was. Ctrl-C stays what it is."""
    import termios  # not on Windows
    import tty

    def read() -> None:
        try:
            what = os.read(file, 1024)
        except OSError:  # the terminal has gone
            what = b""
        if not what:
            loop.remove_reader(file)
            typed(END)
        for key in keys_of(what):
            typed(key)

    loop, before = asyncio.get_running_loop(), termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        loop.add_reader(file, read)
        yield
    finally:
        loop.remove_reader(file)
        try:
            termios.tcsetattr(file, termios.TCSAFLUSH, before)  # what was typed last is not the shell's
        except termios.error:
            pass  # the terminal has gone


@contextmanager
def signals(heard: Callable[[Signals], None], *numbers: Signals) -> Iterator[None]:
    """Hear signals in the loop instead of dying of them."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, heard, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
