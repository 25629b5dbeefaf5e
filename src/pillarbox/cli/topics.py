"""`pillarbox pause` and `pillarbox resume`: stop one topic while the others flow on."""

import asyncio
from typing import Annotated

import typer

from pillarbox.cli.options import Config, Database, Json, Set, admin_of, check_topic, load
from pillarbox.cli.output import nothing_matched, print_json, print_line

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", callback=check_topic)]


def pause(
    ctx: typer.Context,
    topic: Topic,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What others will read.")] = "no reason given",
    database: Database = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """Stop publishing one topic.

    It keeps its place, the others flow on. Survives restarts.
    """
    settings = load(ctx, config, set=set, database=database)

    async def stop() -> None:
        async with admin_of(settings) as admin:
            await admin.pause(topic, why)

    asyncio.run(stop())
    if json:
        print_json({"topic": topic, "paused": True})
    else:
        print_line(f"{topic} is paused; `pillarbox resume {topic}` lets it flow again")


def resume(
    ctx: typer.Context,
    topic: Topic,
    database: Database = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """Publish a paused topic again.

    It goes on from where it stopped. Exits with 4 if it was not paused.
    """
    settings = load(ctx, config, set=set, database=database)

    async def go_on() -> bool:
        async with admin_of(settings) as admin:
            return await admin.resume(topic)

    if not asyncio.run(go_on()):
        raise nothing_matched(f"pause of {topic!r}: it was flowing already")
    if json:
        print_json({"topic": topic, "paused": False})
    else:
        print_line(f"{topic} flows again")
