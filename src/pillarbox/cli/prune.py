"""`pillarbox prune`: delete what was settled long enough ago, now instead of when a relay comes round to it."""

import asyncio

from pillarbox.admin.wording import counted
from pillarbox.cli.options import Json, Yes, admin_of, with_settings
from pillarbox.cli.output import confirmed, print_json, print_line
from pillarbox.ports import Retention
from pillarbox.settings import Settings


@with_settings("database")
def prune(*, yes: Yes = False, settings: Settings, json: Json = False) -> None:
    """Delete what was settled long enough ago.

    The relay does this by itself, once a minute. What `[retention]` keeps is kept; what is pending or parked always is.
    """

    async def delete() -> int:
        async with admin_of(settings) as admin:
            kept = settings.retention
            return await admin.prune(Retention(kept.published, kept.archive, kept.inbox))

    if not confirmed(f"deletes what was settled longer ago than {_kept(settings)}", yes=yes, dry_run=False):
        return
    pruned = asyncio.run(delete())
    if json:
        print_json({"pruned": pruned})
    else:
        print_line(f"pruned {counted(pruned, 'row')}")


def _kept(settings: Settings) -> str:
    published = settings.retention.published
    return "for ever (so nothing of the outbox)" if published is None else str(published)
