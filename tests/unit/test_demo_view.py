"""What the demo shows while it runs, on a terminal and off it."""

from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from pillarbox.demo import view as module
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


MORE = Reading(committed=1500, published=1400, copies=7, applied=900)


@pytest.mark.parametrize(
    ("readings", "rates"),
    [
        ({0.0: Reading(), 0.1: READING}, ["…", "…", "…"]),
        ({0.0: Reading(), 0.8: READING}, ["1,500", "1,250", "1,125"]),
        ({0.0: Reading(), 0.8: READING, 1.8: MORE}, ["300", "400", "0"]),
    ],
    ids=["too soon to tell", "since the start", "of the last second and a half"],
)
def test_rates_are_counted_between_readings(
    readings: dict[float, Reading], rates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    file = StringIO()
    with open_view(Console(file=file, force_terminal=True, width=100, color_system=None), silent=False) as view:
        for now, reading in readings.items():  # noqa: B007 - the clock looks at it
            view.show(reading, 0)
    rows = [line.split("│") for line in file.getvalue().splitlines() if line.count("│") == 5]
    assert [row[3].strip() for row in rows[-4:-1]] == rates


def test_a_pipe_gets_plain_lines() -> None:
    lines = shown(Console(file=StringIO(), width=40)).splitlines()
    assert lines[0].endswith(" s  committed 0  published 0 (+0 copies)  applied 0  kills 0")
    assert lines[1].endswith(" s  kill -9 42, the relay: 100 done, 200 left to do")
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_silence_is_silent(terminal: bool) -> None:
    assert shown(Console(file=StringIO(), force_terminal=terminal), silent=True) == ""
