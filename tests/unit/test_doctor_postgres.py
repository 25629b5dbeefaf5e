"""Doctor: what is wrong with a PostgreSQL server, from values alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pillarbox.admin.doctor import Facts, Finding, examine
from pillarbox.admin.doctor.postgres import DEAD, FAR, LONG, TOO_FAR, TOO_LONG
from pillarbox.facts import (
    Lax,
    OpenTransaction,
    PostgresFacts,
    PreparedTransaction,
    Rights,
    VacuumedTable,
    XminHolder,
)
from pillarbox.ports import SchemaStatus
from pillarbox.settings import Settings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RELAY = Rights("relay", superuser=False, owner=False)


def postgres(**facts: Any) -> list[Finding]:
    healthy: dict[str, Any] = {
        "schema": SchemaStatus(1, 1), "version": 150018, "standby": False, "skew": timedelta(0), "pooler": None,
        "rights": RELAY,
    }  # fmt: skip
    found = examine(Facts(Settings(database="postgresql:///shop"), NOW, store=PostgresFacts(**healthy | facts)))
    return [finding for finding in found if finding.severity != "fine"]


def test_a_server_that_is_well_yields_nothing() -> None:
    assert postgres() == []


@pytest.mark.parametrize(
    ("age", "severity"),
    [
        (LONG - timedelta(seconds=1), None),
        (LONG, "note"),
        (TOO_LONG - timedelta(seconds=1), "note"),
        (TOO_LONG, "problem"),
    ],
)
def test_an_open_transaction_is_worse_the_longer_it_is_open(age: timedelta, severity: str | None) -> None:
    found = postgres(transactions=[OpenTransaction(42, "shop", "report", "idle in transaction", NOW - age)])
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])
    for finding in found:
        assert finding.line.startswith("the session 42 of shop (report) has had a transaction open for")
        assert finding.commands == ("SELECT pg_terminate_backend(42)",)


def test_a_prepared_transaction_is_told_with_both_ways_to_end_it() -> None:
    assert postgres(prepared=[PreparedTransaction("it's", "shop", NOW)]) == []
    (finding,) = postgres(prepared=[PreparedTransaction("it's", "shop", NOW - LONG)])
    assert finding.commands == ("COMMIT PREPARED 'it''s'", "ROLLBACK PREPARED 'it''s'")


@pytest.mark.parametrize(
    ("kind", "words", "statements"),
    [
        ("transaction", "the session 42", ("SELECT pg_terminate_backend(42)",)),
        ("prepared transaction", "the prepared transaction 42", ("ROLLBACK PREPARED '42'",)),
        ("slot", "the replication slot 42", ("SELECT pg_drop_replication_slot('42')",)),
        ("standby", "a standby (walsender 42)", ()),
    ],
)
def test_who_holds_vacuum_back_is_named(kind: Any, words: str, statements: tuple[str, ...]) -> None:
    assert postgres(xmin=[XminHolder(kind, "42", FAR - 1)]) == []
    (note,) = postgres(xmin=[XminHolder(kind, "42", FAR)])
    (problem,) = postgres(xmin=[XminHolder(kind, "42", TOO_FAR)])
    assert (note.severity, problem.severity) == ("note", "problem")
    assert note.line.startswith(f"{words} holds vacuum back by 1,000,000 transactions:")
    assert note.commands == statements


@pytest.mark.parametrize(
    ("lax", "words", "cure"),
    [
        (Lax(), "on this server", "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()"),
        (Lax(database="shop"), "for the database shop", 'ALTER DATABASE "shop" RESET synchronous_commit'),
        (Lax("anne"), "for the user anne", 'ALTER ROLE "anne" RESET synchronous_commit'),
        (
            Lax("anne", "shop"),
            "for the user anne in the database shop",
            'ALTER ROLE "anne" IN DATABASE "shop" RESET synchronous_commit',
        ),
    ],
)
def test_where_commits_do_not_wait_is_named_with_what_resets_it(lax: Lax, words: str, cure: str) -> None:
    (finding,) = postgres(lax=[lax])
    assert finding.line.startswith(f"synchronous_commit is off {words}: ")
    assert finding.commands == (cure,)


def test_dead_rows_are_noted_only_when_they_are_many_and_more_than_the_living() -> None:
    assert postgres(tables=[VacuumedTable("pillarbox_parked", True, 10, DEAD - 1)]) == []
    assert postgres(tables=[VacuumedTable("pillarbox_parked", True, 2 * DEAD, DEAD)]) == []
    (finding,) = postgres(tables=[VacuumedTable("pillarbox_parked", True, 10, DEAD)])
    assert finding.line.startswith("public.pillarbox_parked has 100,000 dead rows and 10 living ones:")
    assert finding.commands == ("VACUUM (VERBOSE) public.pillarbox_parked",)


def test_a_server_of_tomorrow_is_noted() -> None:
    (finding,) = postgres(version=190001)
    assert (finding.severity, finding.check) == ("note", "version of the server")
    assert postgres(version=180001) == []


@pytest.mark.parametrize(
    ("mode", "severity", "words"),
    [
        ("transaction", "note", "a pooler in transaction mode stands between: it works, but a relay that was killed"),
        ("session", "note", "a pooler in session mode stands between: it works, but a relay that was killed"),
        ("statement", "problem", "a pooler in statement mode stands between: it allows no transaction, so no event"),
    ],
)
def test_what_a_pooler_means_depends_on_its_mode(mode: str, severity: str, words: str) -> None:
    (finding,) = postgres(pooler=mode)
    assert (finding.severity, finding.check, finding.line.startswith(words)) == (severity, "pooler", True)
