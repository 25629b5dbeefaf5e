"""`pillarbox status`: "I added an event and nothing happens"."""

import asyncio

import typer

from pillarbox.admin.admin import Report
from pillarbox.admin.diagnosis import Finding
from pillarbox.cli.options import Json, with_settings
from pillarbox.cli.output import ExitCode, console, print_json, stats_json
from pillarbox.settings import Settings
from pillarbox.wiring import open_admin

_MARKS = {"fine": ("✓", "green"), "note": ("·", "yellow"), "problem": ("✗", "red")}


@with_settings("database", "broker")
def status(*, settings: Settings, json: Json = False) -> None:
    """Say why nothing happens, or that all is well.

    What keeps events from flowing, and which command mends it. Exits with 3 if unhealthy.
    """

    async def look() -> Report:
        async with open_admin(settings) as admin:
            return await admin.report(settings)

    report = asyncio.run(look())
    if json:
        print_json(
            {
                "healthy": report.healthy,
                "findings": [_finding_json(finding) for finding in report.findings],
                "stats": None if report.stats is None else stats_json(report.stats),
            }
        )
    else:
        for finding in report.findings:
            _print(finding)
    if not report.healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _finding_json(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity,
        "kind": finding.kind,
        "line": finding.line,
        "commands": list(finding.commands),
    }


def _print(finding: Finding) -> None:
    mark, colour = _MARKS[finding.severity]
    out = console()
    out.print(mark, style=colour, end=" ")
    out.print(finding.line)
    for number, command in enumerate(finding.commands):
        out.print(f"  {'or: ' if number else 'run:'} {command}", style="bold")
