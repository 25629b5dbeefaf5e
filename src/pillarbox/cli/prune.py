"""`pillarbox prune`: delete what was settled long enough ago, now instead of when a relay comes round to it."""

import asyncio

from pillarbox.admin.admin import COUNTED
from pillarbox.admin.wording import counted
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, with_settings
from pillarbox.cli.output import confirmed, print_json, print_line
from pillarbox.ports import Retention
from pillarbox.settings import Settings
from pillarbox.settings.durations import write_duration


@with_settings("database")
def prune(*, yes: Yes = False, dry_run: DryRun = False, settings: Settings, json: Json = False) -> None:
    """Delete what was settled long enough ago.

    The relay does this by itself, once a minute. What `[retention]` keeps is kept; what is pending or parked always is.
    Says how many events first, and asks.
    """
    kept = settings.retention
    retention = Retention(kept.published, kept.archive, kept.inbox)
    asyncio.run(_prune(settings, retention, yes=yes, dry_run=dry_run, json=json))


async def _prune(settings: Settings, retention: Retention, *, yes: bool, dry_run: bool, json: bool) -> None:
    """Count, ask, act, say."""
    async with admin_of(settings) as admin:
        count, or_fewer = await admin.prunable(retention)
        what = _told(retention, count, or_fewer, "would" if dry_run else "will")
        goes = confirmed(what, yes=yes, dry_run=dry_run)
        pruned = await admin.prune(retention) if goes else 0
    if json:
        print_json({"pruned": pruned, "matched": count, "dry_run": dry_run})
    elif goes:
        print_line(f"pruned {counted(pruned, 'row')}")


def _told(retention: Retention, count: int, or_fewer: bool, would: str) -> str:
    """Say what becomes of how many."""
    if retention.published is None:
        return f"no event {would} go, because retention.published is forever; what else is old enough {would}"
    bound = "more than " if count > COUNTED else "at most " if or_fewer and count else ""
    age = write_duration(retention.published) if retention.published else "0 s"
    events = f"{bound}{counted(min(count, COUNTED), 'event')} settled at least {age} ago"
    fate = "moved to the archive" if retention.archive is None or retention.archive else "deleted"
    return f"{events} {would} be {fate}, and what else is old enough"
