"""`pillarbox demo`: prepares a directory, tells the story, lets the checker judge it, and shows the verdict."""

import json
import secrets
import shlex
import shutil
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pillarbox.admin.wording import counted
from pillarbox.demo.story import Kill, Story, TimeIsUp, sqlite_url
from pillarbox.demo.view import open_view
from pillarbox.torture.checker import Report, check, read
from pillarbox.torture.directory import open_directory
from pillarbox.torture.processes import ProcessFailed, sigterm_interrupts

KILLS_EACH = 2
FEWEST_EVENTS = 50
"""With fewer, there is not enough work to be in flight at every kill."""
FAULTS = ("lost", "phantom", "applied_twice", "out_of_order")
INTERRUPTED = 130


def run(events: int, seed: int | None, keep: Path | None, as_json: bool) -> int:
    """Run the demo; give the exit code."""
    console, errors = Console(), Console(stderr=True)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    try:
        with sigterm_interrupts(), open_directory(keep, "demo") as directory:
            talk = errors if as_json else console  # the seed repeats the run, also where JSON is wanted
            talk.print(f"{counted(events, 'event')}, seed {seed}, in {directory}", highlight=False, soft_wrap=True)
            return _run_in(directory, events, seed, keep, as_json, console, errors)
    except KeyboardInterrupt:
        errors.print("stopped; nothing is left running")
        return INTERRUPTED


def _run_in(
    directory: Path, events: int, seed: int, keep: Path | None, as_json: bool, console: Console, errors: Console
) -> int:
    start = time.monotonic()
    problems: list[str] = []
    with open_view(console, silent=as_json) as view:
        story = Story(directory, events, seed, view)
        try:
            story.tell()
        except (TimeIsUp, ProcessFailed) as error:
            problems.append(str(error))
    problems += _too_few(story.kills, events)
    report = judge(directory, problems)
    if report is not None:
        problems += _shortened(report.findings)
        seconds = time.monotonic() - start
        if as_json:
            print(json.dumps({**report.counts(), "kills": len(story.kills), "seconds": round(seconds, 1)}))
        else:
            console.print(_table(report, story.kills, seconds))
    if keep is not None and not as_json:
        console.print(_commands(directory), highlight=False, soft_wrap=True)
    for sentence in problems:
        errors.print(sentence, style="red", highlight=False, markup=False, soft_wrap=True)
    return 1 if problems else 0


def judge(directory: Path, problems: list[str]) -> Report | None:
    """Let the checker judge the files; one that is missing or damaged is a problem, not a crash."""
    try:
        return check(read(directory))
    except (OSError, sqlite3.Error) as error:
        problems.append(f"the files in {directory} cannot be judged: {error}")
        return None


def _too_few(kills: Sequence[Kill], events: int) -> Iterator[str]:
    count = Counter(kill.name for kill in kills)
    for name in ("relay", "consumer"):
        if count[name] < KILLS_EACH and events >= FEWEST_EVENTS:
            yield f"the {name} was killed {count[name]} times with work in flight, not {KILLS_EACH}: this proves little"


def _shortened(findings: Sequence[str], most: int = 20) -> Sequence[str]:
    return findings if len(findings) <= most else [*findings[:most], f"… and {len(findings) - most:,} more"]


def _table(report: Report, kills: Sequence[Kill], seconds: float) -> Table:
    table = Table(title="judged by plain SQL", show_header=False, title_justify="left")
    table.add_column(min_width=18)
    table.add_column(justify="right", min_width=8)
    for name, value in report.counts().items():
        label = "copies on the wire" if name == "copies" else name.replace("_", " ")
        style = None if name not in FAULTS else "green" if value == 0 else "bold red"
        table.add_row(label, f"{value:,}", style=style)
    table.add_row("kills", str(len(kills)))
    table.add_row("seconds", f"{seconds:.1f}")
    return table


def _commands(directory: Path) -> str:
    database = f"--database {shlex.quote(sqlite_url(directory / 'shop.db'))}"
    billing = f"--database {shlex.quote(sqlite_url(directory / 'billing.db'))}"
    command = "pillarbox" if shutil.which("pillarbox") else f"{shlex.quote(sys.executable)} -m pillarbox"
    return "\n".join(
        [
            "",
            "Look around:",
            f"  {command} status {database}",
            f"  {command} events list {database}",
            f"  {command} dead list {database}",
            f"  {command} dead list --inbox {billing}",
            f"  {shlex.quote(sys.executable)} -m pillarbox.torture.checker {shlex.quote(str(directory))}",
        ]
    )
