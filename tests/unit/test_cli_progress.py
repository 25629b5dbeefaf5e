"""The progress bar: on a terminal it says how far something is and what is left; elsewhere it says nothing."""

import io
import sys

import pytest

from pillarbox.cli.progress import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with bar("replaying", "event") as progress:
        progress.show(2_000, 50, 100)
    return stream.getvalue()


def test_on_a_terminal_it_counts_and_tells_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch)
    assert "replaying" in text
    assert "2,000 events" in text
    assert "left:" in text


def test_off_a_terminal_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch) == ""
