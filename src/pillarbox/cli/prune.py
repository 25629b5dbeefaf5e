"""`pillarbox prune`: delete what was settled long enough ago, now instead of when a relay comes round to it."""

import asyncio
from datetime import timedelta

import typer

from pillarbox.admin.admin import COUNTED, Admin
from pillarbox.admin.wording import command, counted
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, with_settings
from pillarbox.cli.output import ExitCode, confirmed, print_json, print_line, say
from pillarbox.cli.progress import bar, stopping
from pillarbox.ports import Retention
from pillarbox.settings import Settings
from pillarbox.settings.durations import write_duration

BESIDE = "positions, ids that the inbox knows, idempotency keys, relays that are gone"


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
        pruned, finished = await _go_on(admin, retention, count) if goes else (0, False)
    if json:
        print_json({"pruned": pruned, "matched": count, "finished": finished, "dry_run": dry_run})
    elif goes:
        print_line(f"pruned {counted(pruned, 'row')}")
    if goes and not finished:
        say(f"stopped before its end; `{command('prune', settings)}` goes on")
        raise typer.Exit(ExitCode.INTERRUPTED)


async def _go_on(admin: Admin, retention: Retention, count: int) -> tuple[int, bool]:
    """Delete batch by batch, until nothing is left to do; False if somebody wanted it to stop before."""
    pruned, total = 0, float(count) if 0 < count <= COUNTED else await _estimated(admin, retention)
    with stopping() as stop, bar("pruning", "row") as shown:
        async for gone in admin.pruning(retention):
            pruned += gone
            shown.show(pruned, pruned, total and max(total, pruned))
            if stop.wanted:
                return pruned, False
    return pruned, True


async def _estimated(admin: Admin, retention: Retention) -> float | None:
    """Say how many will go, about; with an archive nobody knows, because what is in it lies between."""
    if retention.archive != timedelta(0):
        return None
    first, last = await admin.oldest(retention)
    return last - first or None


def _told(retention: Retention, count: int, or_fewer: bool, would: str) -> str:
    """Say what becomes of how many."""
    if retention.published is None:
        return f"no event {would} go, because retention.published is forever; old rows beside them {would}: {BESIDE}"
    bound = "more than " if count > COUNTED else "at most " if or_fewer and count else ""
    events = f"{bound}{counted(min(count, COUNTED), 'event')} settled"
    if retention.published:
        events += f" at least {write_duration(retention.published)} ago"
    fate = "moved to the archive" if retention.archive is None or retention.archive else "deleted"
    return f"{events} {would} be {fate}, and old rows beside them: {BESIDE}"
