"""`pillarbox status`: "I added an event and nothing happens"."""

import asyncio

import typer

from pillarbox.admin.diagnosis import told
from pillarbox.cli.findings import finding_json, print_finding, print_marked
from pillarbox.cli.options import Json, with_settings
from pillarbox.cli.output import ExitCode, print_json, stats_json
from pillarbox.settings import Settings
from pillarbox.wiring import open_admin


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
                "findings": [finding_json(finding) for finding in report.findings],
                "stats": None if report.stats is None else stats_json(report.stats, report.living),
            }
        )
    else:
        for finding in report.findings:
            print_finding(finding)
        for relay in report.living:
            print_marked("note", told(relay, report.now, report.slot))
    if not report.healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)
