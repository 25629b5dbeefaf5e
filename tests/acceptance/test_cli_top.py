"""`pillarbox top`: a frame word for word, and the live view on a real pseudo-terminal, on SQLite and PostgreSQL."""

import json
import os
import re
import signal
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pillarbox import Event
from servers.fault_proxy import FaultProxy
from tests.acceptance.pseudo_terminal import Terminal
from tests.acceptance.test_cli_postgres import add, type_
from tests.acceptance.test_cli_stats import LATER, fill
from tests.integration.postgres_shop import made

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

FRAME = """
pillarbox top   DATABASE   TIME
pending 2   oldest AGE   published 0.0/s   last TIME
retrying 0   blocked 1   delayed 0   dead 1
✗ no relay has been seen for AGE; 2 events are waiting
✗ topic order-events was paused AGE ago by WHO: in the cellar; 2 events are waiting
✗ mail 1 in mail-events is blocked by Mailed ID, dead after 1 attempt: 550 no such user

TOPIC         PENDING  OLDEST  ADDED/S  FAILED  STATE   WHY
mail-events   0        -       0.0      2       dead    550 no such user
order-events  2        AGE     0.1      0       paused  by WHO: in the cellar
"""


def timeless(text: str, database: str) -> str:
    text = text.replace(database, "DATABASE")
    for pattern, word in (
        (r"\d+-\d+-\d+ \d+:\d+:\d+ UTC", "TIME"),
        (r"[0-9a-f-]{36}", "ID"),
        (r"by \S+@\S+: ", "by WHO: "),
        (r"no relay is running; one was here a moment ago", "no relay has been seen for AGE"),
        (r"\b\d+ s( ago|;|  )", r"AGE\1"),
        (r"oldest \d+ s", "oldest AGE"),
    ):
        text = re.sub(pattern, word, text)
    text = re.sub(r"(2 +AGE) {2,}", r"\1     ", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


async def test_a_frame_on_sqlite(migrated: "Shop") -> None:
    await fill(f"sqlite:///{migrated.directory / 'shop.db'}", migrated.add)
    migrated.type(f"pillarbox pause order-events --why 'in the cellar' --database {migrated.database}")
    migrated.add(*LATER)
    done = migrated.type(f"pillarbox top --once --database {migrated.database}", FORCE_COLOR="")
    assert timeless(done.stdout, migrated.database) == FRAME.strip()


async def test_a_frame_on_postgresql(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(database)
    await fill(database, partial(add, database))
    type_(f"pillarbox pause order-events --why 'in the cellar' --database {database}")
    add(database, *LATER)
    assert timeless(type_(f"pillarbox top --once --database {database}").stdout, database) == FRAME.strip()
    answer = json.loads(type_(f"pillarbox top --json --database {database}").stdout)
    assert set(answer) == {"healthy", "findings", "stats", "topics", "relays"}
    assert [(one["topic"], one["state"], one["pending"]) for one in answer["topics"]] == [
        ("mail-events", "dead", 0),
        ("order-events", "paused", 2),
    ]


def test_off_a_terminal_it_says_what_to_use_instead(migrated: "Shop") -> None:
    done = migrated.type(f"pillarbox top --database {migrated.database}", code=2)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "`pillarbox stats --json`" in line


@pytest.mark.parametrize("every", ["1 ms", "soon"])
def test_an_interval_that_is_none_is_refused(migrated: "Shop", every: str) -> None:
    assert "--every" in migrated.type(f"pillarbox top --every '{every}' --database {migrated.database}", code=2).stderr


def test_no_name_of_a_topic_moves_the_cursor(migrated: "Shop") -> None:
    migrated.add(Event("Placed", {}, topic="evil\x1b[2J\x07\ttopic\nof two"))
    done = migrated.type(f"pillarbox top --once --database {migrated.database}")
    assert "evil\\x1b[2J\\x07 topic of two" in done.stdout
    assert "\x1b" not in done.stdout


def pauses(shop: "Shop") -> list[tuple[str, str]]:
    connection = sqlite3.connect(shop.directory / "shop.db")
    try:
        return connection.execute("SELECT topic, why FROM pillarbox_pauses").fetchall()
    finally:
        connection.close()


def top(shop: "Shop", more: str = "", *, rows: int = 40, columns: int = 120, **environment: str) -> Terminal:
    line = f"top --every 100ms --database {shop.database} {more}".split()
    return Terminal(line, shop.directory, shop.environment | environment, rows=rows, columns=columns)


def test_keys_choose_and_pause_a_topic_and_the_terminal_is_given_back(
    migrated: "Shop", until: Callable[[Callable[[], bool]], None]
) -> None:
    migrated.add(Event("Placed", {}, topic="a"), Event("Placed", {}, topic="b"), Event("Placed", {}, topic="c"))
    with top(migrated, "--why cellar") as terminal:
        frame = terminal.until("pending 3", "▸ a", "no relay has ever run")
        assert "q quit" in frame
        assert terminal.settings != terminal.before
        terminal.type("j")
        terminal.until("▸ b")
        terminal.type("\x1b[B")
        terminal.until("▸ c")
        terminal.type("k")
        terminal.until("▸ b")
        terminal.type("pn")
        terminal.until("nothing was changed")
        assert pauses(migrated) == []
        terminal.type("p")
        terminal.until("pause b? y/n")
        terminal.type("y")
        terminal.until("b is paused", "cellar")
        assert pauses(migrated) == [("b", "cellar")]
        terminal.type("p")
        terminal.until("resume b? y/n")
        terminal.type("y")
        terminal.until("b flows again")
        assert pauses(migrated) == []
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.settings == terminal.before
        assert terminal.shown.rindex("\x1b[?1049l") > terminal.shown.rindex("\x1b[?1049h")
        assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
    deeds = migrated.json(f"pillarbox audit list --json --database {migrated.database}")
    assert [deed["what"].split()[0] for deed in deeds] == ["resume", "pause", "migrate"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_gives_the_terminal_back_too(migrated: "Shop", number: signal.Signals, code: int) -> None:
    with top(migrated) as terminal:
        terminal.until("nothing is waiting")
        assert terminal.end(number) == code
        assert terminal.settings == terminal.before
        assert terminal.shown.rindex("\x1b[?1049l") > terminal.shown.rindex("\x1b[?1049h")


def test_a_narrow_and_low_terminal_shows_the_keys_and_the_chosen_topic(migrated: "Shop") -> None:
    migrated.add(*(Event("Placed", {}, topic=f"{n:02}-of-many-topics") for n in range(30)))
    with top(migrated, rows=18, columns=44, NO_COLOR="1") as terminal:
        terminal.until("pending 30", "▸ 00", "choose")
        frames = []
        for place in ("▸ 05", "▸ 10", "▸ 15", "▸ 20", "▸ 25"):  # no more than a few frames behind
            terminal.type("j" * 5)
            frames.append(terminal.until(place))
        assert max(map(len, frames[-1].splitlines())) <= 44
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]", terminal.shown)
        terminal.resize(24, 100)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until("▸ 25-of-many-topics", "no relay has ever run on this outbox; 30 events are waiting")


def test_it_survives_a_database_that_goes_away_hangs_and_comes_back(database: str, tmp_path: Path) -> None:
    made(database)
    add(database, Event("Placed", {}, topic="a"))
    port = int(str(conninfo_to_dict(database)["port"]))
    with FaultProxy(port) as proxy:
        through = database.replace(f":{port}/", f":{proxy.port}/")
        line = ["top", "--every", "100 ms", "--database", through]
        with Terminal(line, tmp_path, dict(os.environ)) as terminal:
            terminal.until("pending 1", "▸ a")
            proxy.cut()
            assert "pending" not in terminal.until("the database is away")
            proxy.heal()
            terminal.until("pending 1", "▸ a")
            proxy.half_open()
            terminal.until("no answer from the database for")
            terminal.type("q")
            assert terminal.end() == 0
            assert terminal.settings == terminal.before


def test_p_pauses_on_postgresql(database: str, tmp_path: Path) -> None:
    made(database)
    add(database, Event("Placed", {}, topic="a"))
    with Terminal(["top", "--database", database], tmp_path, dict(os.environ)) as terminal:
        terminal.until("pending 1", "▸ a")
        terminal.type("py")
        terminal.until("a is paused", "in pillarbox top")
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT topic, why FROM pillarbox_pauses").fetchall() == [("a", "in pillarbox top")]


def test_a_relay_is_listed_with_its_lanes(migrated: "Shop") -> None:
    line = f"pillarbox relay run --database {migrated.database} --broker {migrated.broker}"
    with migrated.running(line) as relay, top(migrated) as terminal:
        frame = terminal.until("RELAY", "LANES", f"-{relay.pid}-")
    assert re.search(rf"-{relay.pid}-\w+ +64 +\d+ s ago +answers", frame)
