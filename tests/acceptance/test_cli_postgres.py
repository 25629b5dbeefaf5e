"""The command line on PostgreSQL: what it says when the server is away, the tables are elsewhere or rights are few."""

import json
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pillarbox import Event
from pillarbox.psycopg import Outbox
from tests.conftest import skip_unless_ours
from tests.integration.postgres_shop import made, roles

NOBODY_LISTENS = "postgresql://postgres@127.0.0.1:1/shop"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tables(database: str) -> str:
    """The URL of a database with the tables."""
    return made(database)


def type_(line: str, *, code: int = 0, answer: str = "") -> subprocess.CompletedProcess[str]:
    """Type a line and expect its exit code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}
    words = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(words, env=environment, input=answer, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def add(url: str, *events: Event[Any]) -> None:
    with psycopg.connect(url) as connection:
        Outbox().add(connection, *events)


def test_a_server_that_is_away_is_a_finding() -> None:
    assert type_(f"pillarbox status --database {NOBODY_LISTENS}", code=3).stdout.startswith("✗ the database is away: ")
    answer = json.loads(type_(f"pillarbox status --json --database {NOBODY_LISTENS}", code=3).stdout)
    assert (answer["healthy"], answer["stats"], answer["findings"][0]["kind"]) == (False, None, "database")


@pytest.mark.parametrize("command", ["status", "relay once --broker stdout:", "migrate check", "events list", "prune"])
def test_where_the_tables_are_missing_the_cure_runs_as_it_stands(database: str, command: str) -> None:
    place = f"--database {database} --set outbox.schema=acme --set outbox.prefix=pb_"
    refused = type_(f"pillarbox {command} {place}", code=3 if command in ("status", "migrate check") else 1)
    said = refused.stdout + refused.stderr
    cure = f"pillarbox migrate up {place}"
    assert cure in said
    type_(cure)
    type_(f"pillarbox migrate check {place}")


def test_pruning_says_how_many_and_asks(tables: str) -> None:
    add(tables, *(Event("Placed", {}, aggregate=("order", n)) for n in range(3)))
    type_(f"pillarbox relay once --database {tables} --broker stdout:")
    add(tables, Event("Placed", {}))
    prune = f"pillarbox prune --database {tables}"
    kept = type_(f"{prune} --yes")
    assert kept.stderr.startswith("0 events settled at least 7 days ago will be deleted, and old rows beside them: ")
    at_once = f"{prune} --set retention.published=none"
    rehearsed = type_(f"{at_once} --dry-run")
    assert rehearsed.stdout == ""
    assert rehearsed.stderr.startswith("3 events settled would be deleted, and old rows beside them: positions, ")
    rehearsed = json.loads(type_(f"{at_once} --dry-run --json").stdout)
    assert rehearsed == {"pruned": 0, "matched": 3, "finished": False, "dry_run": True}
    type_(at_once, code=1, answer="n\n")
    assert len(json.loads(type_(f"pillarbox events list --json --database {tables}").stdout)) == 4
    assert type_(at_once, answer="y\n").stdout.startswith("pruned ")
    [left] = json.loads(type_(f"pillarbox events list --json --database {tables}").stdout)
    assert left["status"] == "pending"


def test_adopting_says_how_many_and_what_is_no_copy_has_nothing_to_adopt(tables: str) -> None:
    adopt = f"pillarbox adopt --database {tables}"
    type_(f"{adopt} --dry-run", code=4)
    assert "belongs to this cluster already" in type_(adopt, code=1).stderr
    add(tables, Event("Placed", {}, topic="before"))
    type_(f"pillarbox relay once --database {tables} --broker stdout:")
    add(tables, Event("Placed", {}), Event("Placed", {}))
    with psycopg.connect(tables) as connection:
        connection.execute("UPDATE pillarbox_ticks SET cluster = 'another'")
    status = type_(f"pillarbox status --database {tables}", code=3).stdout
    assert f"  run: {adopt}\n" in status
    assert "pillarbox relay run" not in status
    for refused in ("prune --yes", "prune --dry-run", "replay --topic before --yes"):
        told = type_(f"pillarbox {refused} --database {tables}", code=1).stderr
        assert "copied from another cluster" in told
        assert "run `pillarbox adopt`" in told
    listed = json.loads(type_(f"pillarbox events list --json --database {tables}").stdout)
    assert [one["status"] for one in listed] == ["pending", "pending", "published"]
    assert type_(f"{adopt} --dry-run").stderr.startswith("2 events would be published here; writers wait")
    assert type_(f"{adopt} --yes").stdout == "adopted; 2 events to be published\n"


@pytest.fixture
def viewer(tables: str) -> Iterator[str]:
    """The URL of the database for a user who may only look."""
    skip_unless_ours()
    name = f"viewer_{uuid.uuid4().hex}"
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute(roles())
        connection.execute(f"CREATE ROLE {name} LOGIN IN ROLE pillarbox_viewer".encode())
        parts = conninfo_to_dict(tables)
        yield f"postgresql://{name}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        connection.execute(f"DROP ROLE {name}".encode())


def test_a_viewer_is_told_that_contents_are_hidden(tables: str, viewer: str) -> None:
    event = Event("Placed", {"secret": 1}, headers={"a": "b"})
    add(tables, event)
    for url, payload, headers in ((viewer, None, None), (tables, {"secret": 1}, {"a": "b"})):
        [found] = json.loads(type_(f"pillarbox events list --json --database {url}").stdout)
        assert (found["payload"], found["headers"]) == (payload, headers)
    shown = type_(f"pillarbox events show {event.id} --database {viewer}").stdout
    fields = dict(line.strip().split(maxsplit=1) for line in shown.splitlines() if line.strip())
    assert fields["headers"] == fields["payload"] == "(hidden from this role)"


def test_pausing_a_topic_that_nobody_knows_is_accepted_with_a_word(tables: str) -> None:
    add(tables, Event("Placed", {}, aggregate=("order", 1)))
    assert type_(f"pillarbox pause order-events --database {tables}").stderr == ""
    assert "none of the newest events goes to nosuch" in type_(f"pillarbox pause nosuch --database {tables}").stderr
    assert type_(f"pillarbox pause set --set topic.set.order=none --database {tables}").stderr == ""


def test_the_script_without_a_transaction_runs_inside_of_another(database: str) -> None:
    script = type_("pillarbox migrate sql --no-transaction --database postgresql://").stdout
    assert "SET LOCAL" not in script, "it would hold for what else that transaction does"
    with psycopg.connect(database) as connection:
        connection.execute(script.encode())
        connection.rollback()
    type_(f"pillarbox migrate check --database {database}", code=3)
    with psycopg.connect(database) as connection:
        connection.execute(script.encode())
    type_(f"pillarbox migrate check --database {database}")


def test_an_event_moves_no_cursor(tables: str) -> None:
    with psycopg.connect(tables) as connection:
        connection.execute(
            "INSERT INTO pillarbox_outbox (topic, event_type, payload) VALUES ('t', chr(27) || '[2J' || chr(7), '1')"
        )
    for line in ("events list", "status"):
        done = type_(f"pillarbox {line} --database {tables}", code=3 if line == "status" else 0)
        assert "\x1b" not in done.stdout + done.stderr
        assert "\x07" not in done.stdout + done.stderr


def test_headers_that_no_parser_gets_through_are_shown_as_they_stand(tables: str) -> None:
    with psycopg.connect(tables) as connection:
        connection.execute(
            "INSERT INTO pillarbox_outbox (topic, event_type, payload, headers)"
            " VALUES ('t', 'Odd', '1', ('{\"a\": ' || repeat('9', 5000) || '}')::json)"
        )
    [shown] = json.loads(type_(f"pillarbox events list --json --database {tables}").stdout)
    assert list(shown["headers"]) == ["(no JSON object)"]


def test_relays_that_died_again_and_again_are_a_finding(tables: str) -> None:
    with psycopg.connect(tables) as connection:
        connection.execute("UPDATE pillarbox_lanes SET crashes = 3 WHERE lane < 5")
    done = type_(f"pillarbox status --database {tables}", code=3)
    assert "relays died again and again with 5 of 64 lanes: their events go one at a time" in done.stdout


def test_a_database_in_another_encoding_is_refused(database: str) -> None:
    name = f"latin_{uuid.uuid4().hex}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0".encode())
    there = conninfo_to_dict(database)
    url = f"postgresql://{there['user']}@{there['host']}:{there['port']}/{name}"
    try:
        done = type_(f"pillarbox migrate up --database {url}", code=2)
        assert "its encoding is LATIN1, which cannot hold every event" in done.stderr
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
