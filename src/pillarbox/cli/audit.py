"""`pillarbox audit`: what operators did to this outbox."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import typer

from pillarbox.cli import selection
from pillarbox.cli.listing import print_listing
from pillarbox.cli.options import Json, admin_of, with_settings
from pillarbox.cli.output import nothing_matched, print_json
from pillarbox.ports import Deed
from pillarbox.settings import Settings

app = typer.Typer(help="What operators did.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
@with_settings("database")
def list_(
    *,
    since: selection.Since = None,
    limit: selection.Limit = 100,
    settings: Settings,
    json: Json = False,
) -> None:
    """List who did what, when, and to how many events, the newest first.

    Exits with 4 if nothing was done.
    """
    query = selection.select(since=since)

    async def look() -> Sequence[Deed]:
        async with admin_of(settings) as admin:
            return await admin.deeds(query.since, limit)

    deeds = asyncio.run(look())
    if json:
        print_json([asdict(deed) for deed in deeds])
    elif deeds:
        rows = [(deed.at, deed.who, deed.count, deed.what) for deed in deeds]
        print_listing(("WHEN (UTC)", "WHO", "COUNT", "WHAT"), rows)
    if not deeds:
        raise nothing_matched("deeds of operators")
