"""`pillarbox adopt`: go on with tables that were copied from another PostgreSQL cluster."""

import asyncio

from pillarbox.admin.wording import counted
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, with_settings
from pillarbox.cli.output import confirmed, print_json, print_line
from pillarbox.settings import Settings


@with_settings("database")
def adopt(*, yes: Yes = False, dry_run: DryRun = False, settings: Settings, json: Json = False) -> None:
    """Go on with tables that were copied from another cluster.

    After a dump and restore, a blue/green switch or pg_upgrade: what was settled there stays settled, what was pending
    is published here. Stop every relay of the old cluster first, or both publish. PostgreSQL only.
    """

    async def take_over() -> int:
        async with admin_of(settings) as admin:
            return await admin.adopt()

    what = "writers wait while the pending part of the log is written anew; no relay may run on the old cluster"
    if not confirmed(what, yes=yes, dry_run=dry_run):
        return
    pending = asyncio.run(take_over())
    if json:
        print_json({"pending": pending})
    else:
        print_line(f"adopted; {counted(pending, 'event')} to be published")
