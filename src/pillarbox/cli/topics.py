"""`pillarbox pause` and `pillarbox resume`: stop one topic while the others flow on."""

import asyncio
from typing import Annotated

import typer

from pillarbox.admin.wording import at, resume_command
from pillarbox.cli.options import Json, admin_of, check_topic, with_settings
from pillarbox.cli.output import nothing_matched, print_json, print_line, say
from pillarbox.ports import Pause
from pillarbox.settings import Settings

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", callback=check_topic)]
NO_REASON = "no reason given"


@with_settings("database")
def pause(
    *,
    topic: Topic,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="What others will read.")] = NO_REASON,
    settings: Settings,
    json: Json = False,
) -> None:
    """Stop publishing one topic.

    It keeps its place, the others flow on. Survives restarts. A topic that is paused already stays so, with its reason.
    """

    async def stop() -> tuple[Pause | None, bool]:
        async with admin_of(settings) as admin:
            return await admin.pause(topic, why), topic in settings.topics or await admin.knows(topic)

    standing, known = asyncio.run(stop())
    if standing is None and not known:
        say(f"none of the newest events goes to {topic}, and no setting names it: look whether its name is right")
    if json:
        print_json({"topic": topic, "paused": True, "changed": standing is None})
    else:
        how = "paused" if standing is None else _already(standing, why)
        print_line(f"{topic} is {how}; `{resume_command(topic, settings)}` lets it flow again")


def _already(standing: Pause, why: str) -> str:
    said = f"paused already, by {told(standing)}"
    return said if why in (standing.why, NO_REASON) else f"{said}: nothing was changed, your reason was not noted"


def told(pause: Pause) -> str:
    """Tell of a pause: by whom, since when, why."""
    return f"{pause.who} since {at(pause.since)} ({pause.why})"


@with_settings("database")
def resume(*, topic: Topic, settings: Settings, json: Json = False) -> None:
    """Publish a paused topic again.

    It goes on from where it stopped. Exits with 4 if it was not paused.
    """

    async def go_on() -> bool:
        async with admin_of(settings) as admin:
            return await admin.resume(topic)

    if not asyncio.run(go_on()):
        none = {"topic": topic, "paused": False, "changed": False}
        raise nothing_matched(f"pause of {topic!r}: it was flowing already", none if json else None)
    if json:
        print_json({"topic": topic, "paused": False, "changed": True})
    else:
        print_line(f"{topic} flows again")
