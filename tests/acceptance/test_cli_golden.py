"""What the commands print, word for word, for people and as JSON; and that what is mistyped touches nothing.

The words stand in golden.txt. PILLARBOX_GOLDEN=write writes them anew: read the difference before you keep it.
"""

import asyncio
import os
import re
import shlex
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import typer

from pillarbox import Event, PublishRejected, Relay
from pillarbox.cli.app import app, run
from pillarbox.dbapi import Outbox
from pillarbox.stores.sqlite.schema import Tables
from pillarbox.telemetry.logging import logger

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
    *("source log", "adopt --dry-run", "relay watch"),
]
NOT_GOLDEN = {"demo", "torture", "bench", "relay run", "events tail", "migrate sql", "source slot"}
"""Daemons and stories, which have tests of their own; a script that other tests run; a slot needs PostgreSQL."""
INBOX = """
import sqlite3
from pillarbox.dbapi import Inbox
inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))
inbox.handler("OrderPlaced")(lambda connection, event: None)
"""
CHANGING = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "<time>"),
    (r"(?m)^! \d\d:\d\d:\d\d \S+ (WARNING|ERROR|INFO)", r"! <time> <relay> \1"),
    (r'"relay": "[^"]+"', '"relay": "<relay>"'),
    (r"\S+-\d+-[0-9a-f]{8}\b", "<relay>"),
    (r"\b\d{8}-\d{6}-[0-9a-f]{6}\b", "<replay>"),
    (r"\b(?:[\w.-]+|uid \d+)@[\w.-]+\b(?=[\s\",])", "<who>"),
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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGNAME", "ann")
    for name in [name for name in os.environ if name.startswith("PILLARBOX_") and name != "PILLARBOX_GOLDEN"]:
        monkeypatch.delenv(name)
    (tmp_path / "pillarbox.toml").write_text('database = "sqlite:///shop.db"\nbroker = "sqlite:///stream.db"\n')
    (tmp_path / "billing.py").write_text(INBOX)
    monkeypatch.syspath_prepend(str(tmp_path))
    for file in ("shop.db", "billing.db"):
        connection = sqlite3.connect(file, isolation_level=None)
        Tables(str(tmp_path / file), "pillarbox_").up(connection)
        connection.close()
    before = logger.handlers, logger.level, logger.propagate
    yield tmp_path
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


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
            code, out, err = typed(line, capfd, monkeypatch)
            said += f"$ pillarbox {line}\n{out}" + "".join(f"! {talk}\n" for talk in err.splitlines())
            said += f"= {code}\n\n"
    said = still(said)
    if os.environ.get("PILLARBOX_GOLDEN") == "write":
        GOLDEN.write_text(said)
    assert said.split("\n\n$ ") == GOLDEN.read_text().split("\n\n$ ")


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from leaves(below, (*path, name))
    else:
        yield " ".join(path), command


ALL = dict(leaves(typer.main.get_command(app)))


def test_every_command_has_its_words_written_down() -> None:
    golden = {path for path in ALL for command in COMMANDS if f"{command} ".startswith(f"{path} ")}
    assert golden | NOT_GOLDEN == set(ALL)
    assert not golden & NOT_GOLDEN


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


def contents(directory: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in directory.rglob("*") if file.is_file() and file.suffix != ".pyc"}
