"""The keyboard: what is typed, as keys."""

import pytest

from pillarbox.cli.keyboard import keys_of


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\x1b[C\x1b[3~\x1b[5;2~", []),
        (b"\x1b", ["escape"]),
        (b"\xc3\xbcj\x00\n", ["j"]),
    ],
)
def test_keys(typed: bytes, keys: list[str]) -> None:
    assert keys_of(typed) == keys
