"""`pillarbox adopt`: go on with tables that were copied from another PostgreSQL cluster."""

import asyncio

from pillarbox.admin.wording import counted
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, with_settings
from pillarbox.cli.output import confirmed, nothing_matched, print_json, print_line
from pillarbox.settings import Settings


@with_settings("database")
def adopt(*, yes: Yes = False, dry_run: DryRun = False, settings: Settings, json: Json = False) -> None:
    """Go on with tables that were copied from another cluster.

    After a dump and restore, a blue/green switch or pg_upgrade: what was settled there stays settled, what was pending
    is published here. Stop every relay of the old cluster first, or both publish. PostgreSQL only.
    """

    asyncio.run(_adopt(settings, yes=yes, dry_run=dry_run, json=json))


async def _adopt(settings: Settings, *, yes: bool, dry_run: bool, json: bool) -> None:
    """Count, ask, act, say."""
    async with admin_of(settings) as admin:
        stats = await admin.stats()
        if dry_run and stats.stopped is None:
            none = {"adopted": 0, "pending": 0, "dry_run": True} if json else None
            raise nothing_matched("copy of another cluster: there is nothing to adopt", none)
        pending = f"{'' if stats.pending_exact else 'more than '}{counted(stats.pending, 'event')}"
        what = (
            f"{pending} {'would' if dry_run else 'will'} be published here; writers wait while the pending part of the"
            " log is written anew; no relay may run on the old cluster"
        )
        # Where there is nothing to adopt, it refuses by itself.
        go_on = stats.stopped is None or confirmed(what, yes=yes, dry_run=dry_run)
        adopted = await admin.adopt() if go_on else 0
    if json:
        print_json({"adopted": adopted, "pending": adopted if go_on else stats.pending, "dry_run": dry_run})
    elif go_on:
        print_line(f"adopted; {counted(adopted, 'event')} to be published")
