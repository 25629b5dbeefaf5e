"""What the demo shows while it runs, on a terminal and off it."""

from io import StringIO

import pytest
from rich.console import Console

from pillarbox.demo.gauges import Reading
from pillarbox.demo.view import View, open_view

READING = Reading(committed=1200, published=1000, copies=7, applied=900)


def shown(view_of: Console, silent: bool = False) -> str:
    with open_view(view_of, silent) as view:
        use(view)
    assert isinstance(view_of.file, StringIO)
    return view_of.file.getvalue()


def use(view: View) -> None:
    view.show(Reading(), 0)
    view.note("kill -9 42, the relay: 100 done, 200 left to do")
    view.show(READING, 1)


def test_a_terminal_shows_counts_backlogs_and_kills() -> None:
    text = shown(Console(file=StringIO(), force_terminal=True, width=100, color_system=None))
    for words in ("the relay publishes │      1,000 │", "│        200 │", "│        100 │", "1 kills", "kill -9 42"):
        assert words in text


def test_a_pipe_gets_plain_lines() -> None:
    lines = shown(Console(file=StringIO(), width=40)).splitlines()
    assert lines[0].endswith(" s  committed 0  published 0 (+0 copies)  applied 0  kills 0")
    assert lines[1].endswith(" s  kill -9 42, the relay: 100 done, 200 left to do")
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_silence_is_silent(terminal: bool) -> None:
    assert shown(Console(file=StringIO(), force_terminal=terminal), silent=True) == ""
