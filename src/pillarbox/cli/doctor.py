"""`pillarbox doctor`: what may go wrong some day, though all flows today."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from pillarbox.admin.diagnosis import Finding
from pillarbox.admin.doctor import examine, gather
from pillarbox.cli.findings import finding_json, print_finding
from pillarbox.cli.options import Json, admin_of, check_topic, with_settings
from pillarbox.cli.output import ExitCode, print_json
from pillarbox.settings import Settings
from pillarbox.wiring import open_keeping


@with_settings("database", "broker")
def doctor(
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="What to ask the broker about (repeatable).",
            show_default="those of the settings and of the newest events",
            callback=lambda topics: [check_topic(one) for one in topics or ()],
        ),
    ] = None,
    settings: Settings,
    json: Json = False,
) -> None:
    """Look for what may go wrong some day.

    Compares the settings with one another and with the broker. Exits with 3 if there is a problem.
    """
    findings = asyncio.run(_examine(settings, topic or ()))
    healthy = not any(finding.severity == "problem" for finding in findings)
    if json:
        print_json({"healthy": healthy, "findings": [finding_json(finding) for finding in findings]})
    else:
        for finding in findings:
            print_finding(finding)
    if not healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)


async def _examine(settings: Settings, named: Sequence[str]) -> Sequence[Finding]:
    keeping = open_keeping(settings)
    topics = named or (await _known(settings) if keeping is not None else ())
    return examine(await gather(settings, topics, keeping))


async def _known(settings: Settings) -> Sequence[str]:
    """Give the topics that the settings name, and those that events went to lately."""
    seen: Sequence[str] = ()
    if settings.database is not None:
        async with admin_of(settings) as admin:
            seen = await admin.topics()
    return sorted({*settings.topics, *seen})
