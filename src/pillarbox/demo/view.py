"""What the demo shows while it runs: a live table on a terminal, a line a second elsewhere, nothing with --json."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pillarbox.demo.gauges import Reading

SPAN = 1.5
"""Seconds over which a rate is taken."""


class View(Protocol):
    """Somewhere to show how far things are."""

    def show(self, reading: Reading, kills: int) -> None: ...

    def note(self, line: str) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, reading: Reading, kills: int) -> None:
        return

    def note(self, line: str) -> None:
        return


class Lines:
    """A line a second, and one for every kill: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console, self._start, self._last = console, time.monotonic(), 0.0

    def show(self, reading: Reading, kills: int) -> None:
        now = time.monotonic()
        if now - self._last >= 1:
            self._last = now
            self._say(
                f"committed {reading.committed:,}  published {reading.published:,} (+{reading.copies:,} copies)"
                f"  applied {reading.applied:,}  kills {kills}"
            )

    def note(self, line: str) -> None:
        self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._start:5.1f} s  {line}", highlight=False, soft_wrap=True)


class Screen:
    """A table that changes in place: counts, rates, backlogs, and the kills as they happen."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._past: deque[tuple[float, Reading]] = deque()
        self._notes: list[str] = []
        self._start = time.monotonic()

    def show(self, reading: Reading, kills: int) -> None:
        now = time.monotonic()
        self._past.append((now, reading))
        while now - self._past[0][0] > SPAN:
            self._past.popleft()
        self._live.update(self._draw(reading, kills))

    def note(self, line: str) -> None:
        self._notes.append(f"{time.monotonic() - self._start:5.1f} s  {line}")

    def _draw(self, reading: Reading, kills: int) -> RenderableType:
        table = Table(title=f"{time.monotonic() - self._start:4.1f} s, {kills} kills", title_justify="left")
        for heading in ("", "events", "per second", "backlog"):
            table.add_column(heading, justify="left" if heading == "" else "right", min_width=10)
        table.add_row("the shop commits", f"{reading.committed:,}", self._rate("committed"), "")
        relay = f"{reading.unpublished:,}"
        table.add_row("the relay publishes", f"{reading.published:,}", self._rate("published"), relay)
        table.add_row("billing applies", f"{reading.applied:,}", self._rate("applied"), f"{reading.unapplied:,}")
        table.add_row("copies on the wire", f"{reading.copies:,}", "", "", style="dim")
        return Group(table, *(Text(note, style="red") for note in self._notes))

    def _rate(self, name: str) -> str:
        (start, before), (end, after) = self._past[0], self._past[-1]
        if end - start < SPAN / 3:
            return "…"
        return f"{(getattr(after, name) - getattr(before, name)) / (end - start):,.0f}"


@contextmanager
def open_view(console: Console, silent: bool) -> Iterator[View]:
    """Choose how to show things: by the wish for silence, and by whether there is a terminal."""
    if silent:
        yield Silent()
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=8) as live:
            yield Screen(live)
    else:
        yield Lines(console)
