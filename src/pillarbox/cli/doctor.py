"""`pillarbox doctor`: what may go wrong some day, though all flows today."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from pillarbox.admin.doctor import Finding, examine, is_healthy
from pillarbox.cli.findings import print_marked
from pillarbox.cli.options import Json, check_topic, with_settings
from pillarbox.cli.output import ExitCode, console, print_json
from pillarbox.core.secrets import quiet
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.settings import Settings
from pillarbox.wiring import open_doctor


def _refused(error: ConfigError, *, json: bool, **_: object) -> NoReturn:
    """Show what is wrong with the settings as the only row: with them, nothing can be asked."""
    _show([Finding("settings", "problem", quiet(str(error)))], json=json)
    raise typer.Exit(ExitCode.UNHEALTHY if isinstance(error, MissingExtra) else ExitCode.USAGE)


@with_settings("database", "broker", refused=_refused)
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

    Asks the database and the broker, and compares the settings. Changes nothing. Exits with 3 if there is a problem,
    and with 2 if the settings themselves cannot be used.
    """
    try:
        opened = open_doctor(settings)
    except ConfigError as error:
        _refused(error, json=json)
    findings = examine(asyncio.run(opened.gather(topic or ())))
    _show(findings, json=json)
    if not is_healthy(findings):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _show(findings: Sequence[Finding], *, json: bool) -> None:
    if json:
        print_json({"healthy": is_healthy(findings), "findings": [_json(finding) for finding in findings]})
    else:
        _print(findings)


def _json(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "severity": finding.severity,
        "line": finding.line,
        "commands": list(finding.commands),
    }


def _print(findings: Sequence[Finding]) -> None:
    """Print a table: how bad, the check, what is wrong and what to do; below it the commands that mend it."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print_marked(finding.severity, f"{finding.check:{width}}  {finding.line}".rstrip())
        for number, command in enumerate(finding.commands):
            console().print(f"{'':{width + 4}}{'or: ' if number else 'run:'} {command}", style="bold")
