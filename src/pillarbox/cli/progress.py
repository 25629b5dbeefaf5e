"""A progress bar with an ETA on stderr, for what is done in batches; and Ctrl-C that waits for the end of a batch."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pillarbox.admin.wording import counted
from pillarbox.cli.output import console


class Bar:
    """How far something is; off a terminal it says nothing."""

    def __init__(self, progress: Progress, doing: str, noun: str) -> None:
        self._progress, self._noun = progress, noun
        self._task = progress.add_task(doing, total=None, done=counted(0, noun))

    def show(self, count: int, place: float, total: float | None) -> None:
        """Show how many are done, and which part of the whole that is, if it is known."""
        self._progress.update(self._task, completed=place, total=total, done=counted(count, self._noun))

    def at(self, doing: str, place: float) -> None:
        """Show what is being done, and which part of the whole is behind."""
        self._progress.update(self._task, description=doing, completed=place, total=1.0, done="")


@contextmanager
def bar(doing: str, noun: str) -> Iterator[Bar]:
    """Show a bar while something is done; it is gone afterwards."""
    talk = console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal) as progress:
        yield Bar(progress, doing, noun)


class Stop:
    """Whether somebody wants it to stop."""

    wanted = False


@contextmanager
def stopping() -> Iterator[Stop]:
    """Note Ctrl-C and SIGTERM instead of breaking off, so that the batch is ended; the second one breaks off."""
    stop, loop = Stop(), asyncio.get_running_loop()
    task = asyncio.current_task()

    def note() -> None:
        if stop.wanted and task is not None:
            task.cancel()
        stop.wanted = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, note)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
