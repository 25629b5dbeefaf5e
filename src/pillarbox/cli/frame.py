"""A frame of `pillarbox top`: the outbox as of one moment, as wide and as high as there is room."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pillarbox.admin.admin import Report
from pillarbox.admin.diagnosis import Finding
from pillarbox.admin.figures import PARKED, Figures, TopicSeen
from pillarbox.admin.wording import at
from pillarbox.cli.findings import MARKS
from pillarbox.cli.output import visible
from pillarbox.core.secrets import quiet
from pillarbox.settings.durations import about

FINDINGS, RELAYS = 5, 5
"""So many are shown where room is scarce."""
FIXED = 12
"""Lines of a frame beside findings, topics and relays: figures, keys, headings, and what lies between."""
FEWEST = 3
"""So many topics are shown however low the terminal is."""
KEYS = "↑↓ choose   p pause or resume   q quit"
_STATES = {"held": "red", "dead": "red", "paused": "yellow", "retrying": "yellow", "flows": "green"}


class View(NamedTuple):
    """What a frame shows beside the outbox itself."""

    title: str
    chosen: str | None = None
    line: str = ""
    """A question, or how a deed went; without one, the keys."""
    late: timedelta | None = None
    """The database has not answered for so long."""


def frame(report: Report | None, view: View, height: int | None = None) -> RenderableType:
    """Draw a frame that has so many lines, or as many as it takes; without a report there is nothing to show yet."""
    figures = None if report is None or report.stats is None else Figures(report.stats, report.now)
    parts: list[RenderableType] = [_line(view.title, "bold")]
    if view.late is not None:
        parts.append(_line(f"no answer from the database for {about(view.late)}", "red"))
    if figures is not None:
        parts += _totals(figures)
    if height is not None:
        parts.append(_line(view.line or KEYS, "bold yellow" if view.line else "dim"))
    if report is not None:
        parts += _findings(report.findings, height)
    if figures is not None:
        parts += [_line(""), _topics(figures.seen, view.chosen, height)]
    if report is not None and report.living:
        parts += [_line(""), _relays(report, height)]
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    """Write one line that is never folded: what does not fit is cut off."""
    text = visible(quiet(text)).replace("\n", " ").replace("\t", " ")
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _totals(figures: Figures) -> list[Text]:
    stats, age, last = figures.stats, figures.oldest_pending_age, figures.stats.last_published_at
    flow = [
        f"pending {figures.pending_told}",
        f"oldest {'-' if age is None else about(age)}",
        f"published {figures.published_per_second:,.1f}/s",
        f"last {'never' if last is None else at(last)}",
    ]
    kept = [
        f"delayed {figures.delayed_told}" if state == "delayed" else f"{state} {getattr(stats, state):,}"
        for state in PARKED
    ]
    if stats.receives:
        kept += [f"received {stats.inbox_waiting:,} waiting", f"{stats.inbox_dead:,} dead"]
    return [_line("   ".join(flow)), _line("   ".join(kept), "red" if stats.dead or stats.blocked else "")]


def _findings(findings: Sequence[Finding], height: int | None) -> list[Text]:
    """Show what `status` finds, a line each; the commands that mend it are on its own page."""
    shown = findings if height is None else findings[:FINDINGS]
    lines = [_line(f"{MARKS[one.severity][0]} {one.line}", MARKS[one.severity][1]) for one in shown]
    if more := len(findings) - len(shown):
        lines.append(_line(f"  and {more:,} more: `pillarbox status`"))
    return lines


def _topics(topics: Sequence[TopicSeen], chosen: str | None, height: int | None) -> Table:
    table = _table("TOPIC", "PENDING", "OLDEST", "ADDED/S", "FAILED", "STATE", "WHY")
    for seen in _around(topics, chosen, height):
        age = "-" if seen.age is None else about(seen.age)
        mark = "▸ " if seen.topic == chosen else "  " if height else ""
        cells = (f"{seen.pending:,}", age, f"{seen.added_per_second:,.1f}", f"{seen.failed:,}")
        table.add_row(
            _line(f"{mark}{seen.topic}"),
            *map(_line, cells),
            _line(seen.state, _STATES[seen.state]),
            _line(seen.why),
            style="reverse" if seen.topic == chosen else "",
        )
    return table


def _around(topics: Sequence[TopicSeen], chosen: str | None, height: int | None) -> Sequence[TopicSeen]:
    """Choose the topics that fit, the chosen one among them."""
    if height is None:
        return topics
    fit = max(height - FIXED - FINDINGS - RELAYS, FEWEST)
    place = next((place for place, seen in enumerate(topics) if seen.topic == chosen), 0)
    first = max(0, min(place - fit // 2, len(topics) - fit))
    return topics[first : first + fit]


def _relays(report: Report, height: int | None) -> Table:
    table = _table("RELAY", "LANES", "SEEN", "BROKER")
    living = report.living if height is None else report.living[:RELAYS]
    for relay in living:
        cells = (relay.owner, f"{relay.lanes:,}", f"{about(report.now - relay.seen_at)} ago")
        table.add_row(*map(_line, cells), _line("answers" if relay.away is None else relay.away.error))
    if more := len(report.living) - len(living):
        table.add_row(_line(f"and {more:,} more"))
    return table


def _table(*columns: str) -> Table:
    """Make a table without frames; where it is narrow, the first and the last column give way."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        gives = place in (0, len(columns) - 1)
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=8 if gives else None)
    return table
