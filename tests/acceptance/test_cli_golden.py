"""What the commands print, word for word, for people and as JSON; and that what is mistyped touches nothing.

The words stand in golden.txt. PILLARBOX_GOLDEN=write writes them anew: read the difference before you keep it.
"""

import asyncio
import json
import os
import re
import shlex
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import typer

from pillarbox import Event, PublishRejected, Relay
from pillarbox.cli.app import app, run
from pillarbox.dbapi import Outbox
from pillarbox.psycopg import Outbox as PostgresOutbox
from servers.postgres import RunningPostgres
from tests.acceptance.conftest import PATIENCE, Shop, migrate, until
from tests.conftest import skip_unless_ours

GOLDEN = Path(__file__).with_name("golden.txt")
ID = "019a9c00-0000-7000-8000-00000000000{}"
COMMANDS = [
    *(
        "init --config new.toml",
        "init --config new.toml",
        "migrate status",
        "migrate check",
        "migrate up",
        "config show",
    ),
    *("status", "health", "stats", "top --once", "doctor", "events list", f"events show {ID.format(1)}"),
    "events list --type None",
    *("dead list", f"dead show {ID.format(2)}", "dead list --group-by error", "dead retry --all --dry-run"),
    *("replay --all --dry-run", "replay --type OrderPlaced --yes", "pause order-events --why moves", "relay once"),
    *("resume order-events", "dead retry --all --yes", "relay once", "dead drop --all --yes", "prune --dry-run"),
    *("prune --yes", "audit list", "connector debezium", "consume billing:inbox --topic order-events --once"),
    *(
        "source log",
        "source slot shop",
        "adopt --dry-run",
        "relay watch",
        "connector debezium --database postgresql://shop@db.internal/shop",
        "migrate sql",
        "migrate sql --no-transaction",
    ),
]
AFRESH = {
    "init --config new.toml": [],
    "migrate up --database sqlite:///new.db": [],
    "status": ["dead drop --all --yes", "relay once"],
    "health": ["dead drop --all --yes", "relay once"],
    "dead retry --all --yes": [],
    "dead drop --all --yes": [],
    "pause order-events --why moves": [],
    "resume order-events": ["pause order-events"],
    "prune --yes --set retention.published=none": [],
}
"""What succeeds only once: each form of it in a shop of its own, behind what has to be typed before."""
DAEMONS = ["relay run", "events tail --last 2"]
ON_POSTGRESQL = [
    *("source slot {slot} --dry-run", "source slot {slot} --yes", "relay once", "source slot nobody --yes"),
    *("source log --dry-run", "source log --yes", "source log --yes", "adopt --dry-run", "audit list"),
]
AFRESH_ON_POSTGRESQL = {
    "source log --yes": ["source slot {slot} --yes"],
    "adopt --yes": [],
    "relay watch": ["source slot {slot} --yes"],
}
NOT_GOLDEN = {"demo", "torture", "bench"}
"""Stories and measurements, which have tests of their own."""
CHANGING = (
    (r"(?s)(-- Pillarbox on SQLite, version \d+\.).*?(INSERT INTO pillarbox_meta)", r"\1 <script> \2"),
    (r"postgresql://[^\s\"]+", "<database>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "<time>"),
    (r"(?m)^\d\d:\d\d:\d\d(?= [0-9a-f]{8}-)", "<time>"),
    (r"(?m)^! \d\d:\d\d:\d\d \S+ (WARNING|ERROR|INFO)", r"! <time> <relay> \1"),
    (r'"relay": "[^"]+"', '"relay": "<relay>"'),
    (r"\S+-\d+-[0-9a-f]{8}\b", "<relay>"),
    (r"\b\d{8}-\d{6}-[0-9a-f]{6}\b", "<replay>"),
    (r"\b(?:[\w.-]+|uid \d+)@[\w.-]+\b(?=[\s\",)])", "<who>"),
    (r"\b\d+(\.\d+)? (ms|s|min|h)( ago|\b)", "<span>"),
    (r'"(\w*(?:age|ago|second|bytes)\w*)": [\d.]+', r'"\1": <number>'),
    (r"\b\d[\d,.]* (?:KiB|MiB|kB|MB|bytes)", "<size>"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[89ab][0-9a-f]{3}-(?!00000000000)[0-9a-f]{12}", "<id>"),
    (r"\b\d+\.\d/s", "<rate>/s"),
    (r"(?m)^(order-events +\d+ +\S+ +)\d+\.\d\b", r"\1<rate>"),
    (r"/\S*(?=new\.toml)", ""),
    (r"version 3\.\d+\.\d+|SQLite 3\.\d+\.\d+", "<SQLite>"),
    (r"no relay (is running; one was here a moment ago|has been seen for [^\n\"]+)", "<no relay of late>"),
    (r"(?m) +$", ""),
    (r"  +", "  "),
)


def fill() -> None:
    """Add three events with ids that are known: one is published, one dead, one waits behind it."""

    def refuse(messages: list[Any]) -> None:
        raise PublishRejected("no such order")

    add(1, order=1)
    asyncio.run(Relay(database="sqlite:///shop.db", publish=lambda messages: None).run_once())
    add(2, 3, order=2)
    asyncio.run(Relay(database="sqlite:///shop.db", publish=refuse).run_once())


def add(*numbers: int, order: int) -> None:
    connection = sqlite3.connect("shop.db")
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with connection:
        for n in numbers:
            id = UUID(ID.format(n))
            Outbox().add(
                connection, Event("OrderPlaced", {"order": n}, aggregate=("order", order), id=id, occurred_at=at)
            )
    connection.close()


def typed(command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["pillarbox", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        run()
    return int(ended.value.code or 0), *capfd.readouterr()


def still(text: str) -> str:
    """Put names in the place of what is another at each run."""
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return text


def test_the_commands_print_what_they_always_did(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    said = ""
    for command in COMMANDS:
        for line in (command, f"{command} --json"):
            said += told(line, *typed(line, capfd, monkeypatch))
    compare(said, GOLDEN)


def test_what_succeeds_only_once_prints_what_it_always_did(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ""
    for command, before in AFRESH.items():
        for line in (command, f"{command} --json"):
            for file in (*here.glob("*.db*"), here / "new.toml"):
                file.unlink(missing_ok=True)
            migrate(f"sqlite:///{here}/shop.db")
            fill()
            capfd.readouterr()
            for one in before:
                typed(one, capfd, monkeypatch)
            said += told(line, *typed(line, capfd, monkeypatch))
    compare(said, GOLDEN.with_name("golden_afresh.txt"))


def told(line: str, code: int, out: str, err: str) -> str:
    """Write what was typed and what came of it."""
    talk = "".join(f"! {line}\n" for line in err.splitlines())
    return f"$ pillarbox {line}\n{out}{talk}= {code}\n\n"


def compare(said: str, golden: Path) -> None:
    said = still(said)
    if os.environ.get("PILLARBOX_GOLDEN") == "write":
        golden.write_text(said)
    assert said.split("\n\n$ ") == golden.read_text().split("\n\n$ ")


def test_the_daemons_print_what_they_always_did(here: Path) -> None:
    said = ""
    for daemon in DAEMONS:
        for line in (daemon, f"{daemon} --json"):
            for file in ("shop.db", "stream.db"):
                (here / file).unlink(missing_ok=True)
            migrate(f"sqlite:///{here}/shop.db")
            add(1, 2, order=1)
            said += told(line, *run_until_it_has_done_its_work(here, line))
    compare(said, GOLDEN.with_name("golden_daemons.txt"))


def run_until_it_has_done_its_work(here: Path, line: str) -> tuple[int, str, str]:
    """Run a daemon until it has printed, or carried, two events; then tell it to stop."""
    shop = Shop(here)
    daemon = shop.start(f"pillarbox {line}")
    try:
        assert daemon.stdout is not None
        if line.startswith("events tail"):
            printed = [daemon.stdout.readline() for _ in range(2)]
            daemon.send_signal(signal.SIGINT)
        else:
            printed = []
            until(lambda: len(shop.received()) == 2 and pending(here) == 0)
            daemon.send_signal(signal.SIGTERM)
        out, err = daemon.communicate(timeout=PATIENCE)
    finally:
        daemon.kill()
    return daemon.returncode, "".join(printed) + out, err


def pending(here: Path) -> int:
    with closing(sqlite3.connect(here / "shop.db")) as connection:
        [count] = connection.execute("SELECT count(*) FROM pillarbox_events WHERE status = 'pending'").fetchone()
        return int(count)


def test_the_commands_on_postgresql_print_what_they_always_did(
    here: Path, database: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_ours()
    migrate(database)
    slot = f"golden_{database.rpartition('_')[2]}"
    (here / "pillarbox.toml").write_text(f'database = "{database}"\nbroker = "sqlite:///stream.db"\n')
    said = ""
    with psycopg.connect(database) as writer:
        PostgresOutbox().add(writer, Event("OrderPlaced", {"order": 1}, aggregate=("order", 1)))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
        try:
            for command in ON_POSTGRESQL:
                for line in (command, f"{command} --json"):
                    said += told(line, *typed(line.format(slot=slot), capfd, monkeypatch))
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    compare(said.replace(slot, "{slot}"), GOLDEN.with_name("golden_postgres.txt"))


def test_what_succeeds_only_once_on_postgresql_prints_what_it_always_did(
    here: Path, postgres: RunningPostgres, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_ours()
    said = ""
    for command, before in AFRESH_ON_POSTGRESQL.items():
        for line in (command, f"{command} --json"):
            with slotted(postgres, here, copied=command.startswith("adopt")) as slot:
                for one in before:
                    typed(one.format(slot=slot), capfd, monkeypatch)
                if command == "relay watch":
                    ended = watch_until_it_has_looked(here, line)
                else:
                    ended = typed(line, capfd, monkeypatch)
                said += told(line, *ended).replace(slot, "{slot}")
    compare(said, GOLDEN.with_name("golden_postgres_afresh.txt"))


@contextmanager
def slotted(postgres: RunningPostgres, here: Path, *, copied: bool) -> Iterator[str]:
    """Make a database with an event and a replication slot, or a copy of one; give the slot's name."""
    slot = f"golden_{uuid4().hex}"
    database = postgres.create_database(slot)
    migrate(database)
    (here / "pillarbox.toml").write_text(f'database = "{database}"\nbroker = "sqlite:///stream.db"\n')
    with psycopg.connect(database) as writer:
        PostgresOutbox().add(writer, Event("OrderPlaced", {"order": 1}, aggregate=("order", 1)))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
        if copied:
            connection.execute("UPDATE pillarbox_ticks SET cluster = 'another'")
    try:
        yield slot
    finally:
        postgres.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        postgres.drop_database(slot)


def watch_until_it_has_looked(here: Path, line: str) -> tuple[int, str, str]:
    """Run `relay watch` until it says what it watches; then tell it to stop."""
    watch = Shop(here).start(f"pillarbox {line}")
    try:
        assert watch.stderr is not None
        first = watch.stderr.readline()
        watch.send_signal(signal.SIGTERM)
        out, err = watch.communicate(timeout=PATIENCE)
    finally:
        watch.kill()
    return watch.returncode, out, first + err


def test_the_script_that_is_printed_is_the_one_that_makes_the_tables(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, script, _ = typed("migrate sql", capfd, monkeypatch)
    _, document, _ = typed("migrate sql --json", capfd, monkeypatch)
    assert json.loads(document) == {"sql": script.removesuffix("\n")}
    with closing(sqlite3.connect(":memory:")) as new, closing(sqlite3.connect(here / "shop.db")) as old:
        new.executescript(script)
        tables = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
        assert new.execute(tables).fetchall() == old.execute(tables).fetchall()


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from leaves(below, (*path, name))
    else:
        yield " ".join(path), command


ALL = dict(leaves(typer.main.get_command(app)))


FORMS = ("for people", "as JSON")


def test_every_command_is_shown_where_it_succeeds_for_people_and_as_json() -> None:
    files = ("golden", "golden_afresh", "golden_daemons", "golden_postgres", "golden_postgres_afresh")
    shown = {
        (command_of(line), FORMS[line.endswith(" --json")])
        for file in files
        for block in GOLDEN.with_name(f"{file}.txt").read_text().removeprefix("$ ").split("\n\n$ ")
        for line in block.splitlines()[:1]
        if block.rstrip().endswith("\n= 0")
    }
    assert shown == {(path, form) for path in ALL if path not in NOT_GOLDEN for form in FORMS}


def command_of(line: str) -> str:
    [path] = [path for path in ALL if f"{line} ".startswith(f"pillarbox {path} ")]
    return path


def test_what_is_mistyped_is_one_line_code_2_and_touches_nothing(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill()
    before = contents(here)
    for path in ALL:
        for wrong in ("--no-such-flag", "--json --config", "one two three four five --bogus=1"):
            code, out, err = typed(f"{path} {wrong}", capfd, monkeypatch)
            assert (code, out) == (2, ""), (path, wrong, err)
            assert re.fullmatch(rf"pillarbox: [^\n]+; `pillarbox( {path})? --help` shows what there is\n", err), err
    assert contents(here) == before


def test_a_look_that_did_not_go_to_the_end_says_so(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.admin.looking.STRETCH", 2)
    fill()
    short = "looked at 2 events and no further; --all looks at every one\n"
    assert typed("events list --type None", capfd, monkeypatch) == (4, "", f"{short}no events match\n")
    code, out, err = typed("events list --topic order-events --json", capfd, monkeypatch)
    assert (code, len(json.loads(out)), err) == (0, 2, short)
    code, out, err = typed("events list --topic order-events --all --json", capfd, monkeypatch)
    assert (code, len(json.loads(out)), err) == (0, 3, "")
    assert typed("events list --type None --all", capfd, monkeypatch) == (4, "", "no events match\n")


def contents(directory: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in directory.rglob("*") if file.is_file() and file.suffix != ".pyc"}
