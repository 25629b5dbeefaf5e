"""`pillarbox health`: yes or no, for scripts and probes."""

import asyncio

import typer

from pillarbox.admin.figures import Figures
from pillarbox.cli.findings import finding_json
from pillarbox.cli.options import Json, with_settings
from pillarbox.cli.output import ExitCode, print_json, print_line
from pillarbox.settings import Settings
from pillarbox.wiring import open_admin


@with_settings("database", "broker")
def health(*, settings: Settings, json: Json = False) -> None:
    """Say whether events flow, in one line.

    Exits with 0, or with 3 if something keeps them from flowing or the oldest has waited too long
    (health.oldest_pending). It says the same as `pillarbox status`, which names everything and what mends it.
    """
    report = asyncio.run(open_admin(settings).look(settings))
    problems = [finding for finding in report.findings if finding.severity == "problem"]
    if json:
        figures = None if report.stats is None else Figures(report.stats, report.now)
        age = None if figures is None else figures.oldest_pending_age
        print_json(
            {
                "status": "healthy" if report.healthy else "degraded",
                "problems": [finding_json(finding) for finding in problems],
                "pending": None if figures is None else figures.pending,
                "pending_exact": None if figures is None else figures.stats.pending_exact,
                "overdue": None if figures is None else figures.stats.overdue,
                "oldest_pending_age_seconds": None if age is None else age.total_seconds(),
                "relays": len(report.living),
            }
        )
    elif report.healthy:
        print_line("healthy")
    else:
        more = f" (and {len(problems) - 1} more: `pillarbox status`)" if len(problems) > 1 else ""
        print_line(f"degraded: {problems[0].line}{more}")
    if not report.healthy:
        raise typer.Exit(ExitCode.UNHEALTHY)
