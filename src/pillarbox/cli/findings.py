"""How findings look: one line each for people, with the commands that mend it; JSON for programs."""

from pillarbox.admin.diagnosis import Finding, Severity
from pillarbox.cli.output import console

MARKS = {"fine": ("✓", "green"), "note": ("·", "yellow"), "problem": ("✗", "red")}


def finding_json(finding: Finding) -> dict[str, object]:
    """Write a finding with stable keys."""
    return {
        "severity": finding.severity,
        "kind": finding.kind,
        "line": finding.line,
        "commands": list(finding.commands),
    }


def print_finding(finding: Finding) -> None:
    """Print a finding and its cure."""
    print_marked(finding.severity, finding.line)
    for number, command in enumerate(finding.commands):
        console().print(f"  {'or: ' if number else 'run:'} {command}", style="bold")


def print_marked(severity: Severity, line: str) -> None:
    """Print a line with the mark of how bad it is."""
    mark, colour = MARKS[severity]
    out = console()
    out.print(mark, style=colour, end=" ")
    out.print(line)
