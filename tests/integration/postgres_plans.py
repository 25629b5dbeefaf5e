"""The plans by which PostgreSQL really ran what a connection asked for, those inside functions too, with what each step
read: the server's own auto_explain tells them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest

from pillarbox.stores.postgres.connection import Connection

_TOLD = {
    "session_preload_libraries": "auto_explain",
    "client_min_messages": "log",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
}

_LOOKED_AT = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")


class Step(NamedTuple):
    """A step of a plan that reads a table."""

    kind: str
    table: str
    rows: int
    """So many it has looked at, whether it wanted them or not."""
    statement: str


def explained(url: str) -> str:
    """Give the URL of connections that are told their plans; only a superuser's may be."""
    options = "%20".join(f"-c%20{name}%3D{value}" for name, value in _TOLD.items())
    return f"{url}{'&' if '?' in url else '?'}options={options}"


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Step]]:
    """Note the steps of what our own connections run that are opened meanwhile."""
    steps: list[Step] = []

    def notice(_: Connection, diagnostic: psycopg.errors.Diagnostic) -> None:
        steps.extend(read_steps(diagnostic))

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "_notice", notice)
        yield steps


def read_steps(diagnostic: psycopg.errors.Diagnostic) -> Iterator[Step]:
    """Read what the server says of a statement that it ran."""
    _, found, text = (diagnostic.message_primary or "").partition("plan:\n")
    if found:
        told: dict[str, Any] = json.loads(text)
        yield from _steps(told["Plan"], told["Query Text"])


def _steps(plan: dict[str, Any], statement: str) -> Iterator[Step]:
    if "Relation Name" in plan:
        rows = sum(plan.get(key, 0) for key in _LOOKED_AT)
        yield Step(plan["Node Type"], plan["Relation Name"], round(rows * plan["Actual Loops"]), statement)
    for below in plan.get("Plans", ()):
        yield from _steps(below, statement)
