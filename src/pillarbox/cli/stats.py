"""`pillarbox stats`: the outbox in numbers."""

import asyncio

from pillarbox.admin.figures import PARKED, Figures
from pillarbox.admin.wording import at
from pillarbox.cli.options import Json, admin_of, with_settings
from pillarbox.cli.output import print_json, print_line, print_table
from pillarbox.settings import Settings
from pillarbox.settings.durations import about


@with_settings("database")
def stats(*, settings: Settings, json: Json = False) -> None:
    """Print the outbox in numbers.

    What is pending, how old the oldest is, how fast it goes, what is retrying, blocked, delayed or dead, by topic.
    Nothing is counted beyond 10,000: from there on, what is pending is an estimate, and says so.
    """
    figures = asyncio.run(_look(settings))
    if json:
        print_json(figures_json(figures))
        return
    print_table(("", ""), _rows(figures))
    if topics := figures.topics:
        print_line("")
        columns = ("TOPIC", "PENDING", "RETRYING", "BLOCKED", "DELAYED", "DEAD", "PAUSED")
        print_table(columns, ((name, *of[:-1], "yes" if of.paused else "no") for name, of in topics.items()))


async def _look(settings: Settings) -> Figures:
    async with admin_of(settings) as admin:
        return await admin.figures()


def _rows(figures: Figures) -> list[tuple[str, str]]:
    stats, age = figures.stats, figures.oldest_pending_age
    published = "never" if stats.last_published_at is None else at(stats.last_published_at)
    rows = [
        ("pending", figures.pending_told),
        ("oldest pending", "-" if age is None else f"{about(age)} ago"),
        ("published in the last minute", f"{stats.published_lately:,} ({figures.published_per_second:,.1f} a second)"),
        ("last published", published),
        *((state, figures.delayed_told if state == "delayed" else f"{getattr(stats, state):,}") for state in PARKED),
        ("blocked aggregates", f"{stats.blocked_lines:,}"),
        ("relays", f"{figures.relays:,}"),
    ]
    if stats.receives:
        rows += [("received, waiting", f"{stats.inbox_waiting:,}"), ("received, dead", f"{stats.inbox_dead:,}")]
    return rows


def figures_json(figures: Figures) -> dict[str, object]:
    """Write the figures with stable keys."""
    stats, age = figures.stats, figures.oldest_pending_age
    return {
        "pending": figures.pending,
        "pending_exact": stats.pending_exact,
        "oldest_pending_at": stats.oldest_waiting_at,
        "oldest_pending_age_seconds": None if age is None else age.total_seconds(),
        "published_per_second": figures.published_per_second,
        "last_published_at": stats.last_published_at,
        **{state: getattr(stats, state) for state in PARKED},
        "overdue": stats.overdue,
        "copies": stats.copies,
        "blocked_aggregates": stats.blocked_lines,
        "relays": figures.relays,
        "inbox_waiting": stats.inbox_waiting,
        "inbox_dead": stats.inbox_dead,
        "topics": {name: of._asdict() for name, of in figures.topics.items()},
    }
