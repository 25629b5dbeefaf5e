"""`pillarbox status`: "I added an event and nothing happens"."""

import asyncio

import typer

from pillarbox.admin.diagnosis import Finding, Severity, told
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
    report = asyncio.run(open_admin(settings).look(settings))
    if json:
        print_json(
            {
                "healthy": report.healthy,
                "findings": [_finding_json(finding) for finding in report.findings],
                "stats": None if report.stats is None else stats_json(report.stats, report.living),
            }
        )
    else:
        for finding in report.findings:
            _print(finding)
        for relay in report.living:
            _print_marked("note", told(relay, report.now, report.slot))
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
    _print_marked(finding.severity, finding.line)
    for number, command in enumerate(finding.commands):
        console().print(f"  {'or: ' if number else 'run:'} {command}", style="bold")


def _print_marked(severity: Severity, line: str) -> None:
    mark, colour = _MARKS[severity]
    out = console()
    out.print(mark, style=colour, end=" ")
    out.print(line)
