"""`pillarbox top`: the outbox as it changes, and a key that pauses a topic."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from signal import Signals
from typing import Annotated, NamedTuple

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from pillarbox.admin.admin import Report
from pillarbox.admin.figures import Figures, TopicSeen
from pillarbox.admin.wording import at
from pillarbox.cli.findings import finding_json
from pillarbox.cli.frame import View, frame
from pillarbox.cli.keyboard import END, keyboard, signals
from pillarbox.cli.options import Json, admin_of, with_settings
from pillarbox.cli.output import ExitCode, console, print_json, say
from pillarbox.cli.stats import figures_json
from pillarbox.cli.topics import told
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.settings import Settings
from pillarbox.settings.durations import parse_duration
from pillarbox.wiring import open_admin

PATIENCE = 2.0
"""Seconds without an answer of the database, beyond which the view says so."""
REASON = "in pillarbox top"
SHORTEST = timedelta(milliseconds=100)


def _interval(text: str) -> str:
    try:
        every = parse_duration(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if every < SHORTEST:
        raise typer.BadParameter("at least 100 ms, to leave the database alone in between")
    return text


@with_settings("database", "broker")
def top(
    *,
    every: Annotated[
        str,
        typer.Option("--every", metavar="DURATION", callback=_interval, help="How often to look."),
    ] = "1 s",
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What others will read of a pause.")] = REASON,
    once: Annotated[
        bool, typer.Option("--once", show_default="off", help="Print one frame and stop; needs no terminal.")
    ] = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Watch the outbox live.

    What waits and for how long, what flows, fails or is paused, by topic; the relays; what `status` finds.
    Keys: up and down (or k and j) choose a topic, p pauses or resumes it, q quits. --json prints one frame as JSON.
    """
    if once or json:
        report = asyncio.run(open_admin(settings).look(settings))
        if json:
            print_json(_frame_json(report))
        else:
            console().print(frame(report, View(_title(settings, report))), soft_wrap=False)
        return
    screen = Console(highlight=False, markup=False, emoji=False)
    if not (screen.is_terminal and sys.stdin.isatty()) or screen.is_dumb_terminal:
        say(
            "pillarbox: top needs a terminal: `pillarbox stats --json` is for programs,"
            " `pillarbox top --once` prints one frame"
        )
        raise typer.Exit(ExitCode.USAGE)
    if number := asyncio.run(Top(settings, screen, parse_duration(every), why).run()):
        raise typer.Exit(128 + number)


def _title(settings: Settings, report: Report | None) -> str:
    when = "" if report is None else f"   {at(report.now)}"
    return f"pillarbox top   {without_secrets(settings.database or '')}{when}"


def _frame_json(report: Report) -> dict[str, object]:
    """Write a frame with stable keys: what `stats` and `status` write of the same moment."""
    figures = None if report.stats is None else Figures(report.stats, report.now)
    return {
        "healthy": report.healthy,
        "findings": [finding_json(finding) for finding in report.findings],
        "stats": None if figures is None else figures_json(figures),
        "topics": [] if figures is None else [_topic_json(seen) for seen in figures.seen],
        "relays": [{"owner": one.owner, "lanes": one.lanes, "seen_at": one.seen_at} for one in report.living],
    }


def _topic_json(seen: TopicSeen) -> dict[str, object]:
    age = None if seen.age is None else seen.age.total_seconds()
    return {**seen._asdict(), "age": age}


class Question(NamedTuple):
    """What waits for a yes: to pause this topic, or to resume it."""

    topic: str
    pauses: bool

    def __str__(self) -> str:
        return f"{'pause' if self.pauses else 'resume'} {self.topic}? y/n"


class Top:
    """Looks at the outbox again and again, draws, and does what the keys say."""

    def __init__(self, settings: Settings, screen: Console, every: timedelta, why: str) -> None:
        self._settings, self._screen, self._every, self._why = settings, screen, every.total_seconds(), why
        self._news: asyncio.Queue[str | Signals] = asyncio.Queue()
        self._report: Report | None = None
        self._chosen: str | None = None
        self._question: Question | None = None
        self._said = ""
        self._doing: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        self._again = asyncio.Event()

    async def run(self) -> int:
        """Show it until somebody quits: 0; or until a signal ends it: its number."""
        looking = asyncio.create_task(self._look(), name="looks")
        try:
            while (end := await self._show(looking)) == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)  # with the terminal as it was; `fg` goes on here
            return end
        finally:
            tasks = [task for task in (looking, self._doing) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _show(self, looking: "asyncio.Task[None]") -> int:
        """Take the terminal until somebody quits or a signal comes, and give it back whatever happens."""
        with (
            signals(self._news.put_nowait, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH),
            keyboard(sys.stdin.fileno(), self._news.put_nowait),
            Live(console=self._screen, screen=True, auto_refresh=False) as live,
        ):
            while True:
                live.update(self._frame(), refresh=True)
                news = await self._next()
                if looking.done():
                    looking.result()  # raises what nobody foresaw
                if isinstance(news, Signals) and news is not signal.SIGWINCH:
                    return news
                if news == END or (news == "q" and self._question is None):
                    return 0
                if isinstance(news, str):
                    self._typed(news)

    async def _next(self) -> str | Signals:
        """Wait for a key, a signal or a look that was had; at the latest until the next second begins."""
        try:
            return await asyncio.wait_for(self._news.get(), timeout=1.0)
        except TimeoutError:
            return ""

    async def _look(self) -> None:
        """Look again and again; a database that is away is what is seen then."""
        now = asyncio.get_running_loop().time
        while True:
            self._again.clear()
            self._asked_at = now()
            self._report = await open_admin(self._settings).look(self._settings)
            self._asked_at = None
            self._news.put_nowait("")
            try:
                await asyncio.wait_for(self._again.wait(), self._every)
            except TimeoutError:
                pass  # nobody did anything: the time is over

    def _frame(self) -> RenderableType:
        waits = 0.0 if self._asked_at is None else asyncio.get_running_loop().time() - self._asked_at
        late = timedelta(seconds=waits) if waits > PATIENCE else None
        line = self._said if self._question is None else str(self._question)
        view = View(_title(self._settings, self._report), self._chosen_now(), line, late)
        return frame(self._report, view, self._screen.height)

    @property
    def _topics(self) -> Sequence[TopicSeen]:
        report = self._report
        return [] if report is None or report.stats is None else Figures(report.stats, report.now).seen

    def _chosen_now(self) -> str | None:
        """Give the chosen topic, as long as it is there; else the first."""
        topics = [seen.topic for seen in self._topics]
        return self._chosen if self._chosen in topics else next(iter(topics), None)

    def _typed(self, key: str) -> None:
        if self._question is not None:
            self._answered(key)
        elif key in ("up", "k", "down", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif key == "p":
            self._ask()

    def _move(self, by: int) -> None:
        topics = [seen.topic for seen in self._topics]
        if topics:
            place = topics.index(self._chosen_now() or topics[0]) + by
            self._chosen, self._said = topics[min(max(place, 0), len(topics) - 1)], ""

    def _ask(self) -> None:
        self._chosen, self._said = self._chosen_now(), ""
        for seen in self._topics:
            if seen.topic == self._chosen:
                self._question = Question(seen.topic, pauses=seen.state != "paused")

    def _answered(self, key: str) -> None:
        """Do it for a yes; anything that was typed and is no yes is a no."""
        question = self._question
        if not key or question is None:
            return
        self._question = None
        if key not in ("y", "Y"):
            self._said = "nothing was changed"
        elif self._doing is not None and not self._doing.done():
            self._said = "the last one is still being done; nothing was changed"
        else:
            self._said = "…"
            self._doing = asyncio.create_task(self._do(question), name="does")

    async def _do(self, question: Question) -> None:
        try:
            async with admin_of(self._settings) as admin:
                if question.pauses:
                    standing = await admin.pause(question.topic, self._why)
                    how = "is paused" if standing is None else f"was paused already, by {told(standing)}"
                else:
                    how = "flows again" if await admin.resume(question.topic) else "was flowing already"
            self._said = f"{question.topic} {how}"
        except PillarboxError as error:
            self._said = f"{question.topic}: nothing was changed: {error}"
        self._again.set()
        self._news.put_nowait("")
