"""Whatever a command changes is written down: who, when, what, to how many."""

import asyncio
import getpass
import json
import socket
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from pillarbox import Event, PublishRejected, Relay
from pillarbox.core.message import Message
from pillarbox.psycopg import Outbox
from tests.acceptance.conftest import migrate
from tests.acceptance.test_cli_golden import ALL, ID, fill, typed
from tests.conftest import skip_unless_ours

Deeds = Mapping[str, tuple[str, int | None] | None]
"""Commands, and what they leave in the audit: the line, and to how many, where that is not what they say themselves."""

DEEDS: Deeds = {
    "migrate up --set relay.batch=10": None,  # which changes nothing there: the tables are as they should be
    "pause order-events": ("pause topic=order-events", 1),
    "resume order-events": ("resume topic=order-events", 1),
    f"dead retry {ID.format(2)} --payload mended.json --yes": (f"edit ids={ID.format(2)} status=dead", 1),
    "dead retry --all --yes": ("retry status=dead", 1),
    "dead drop --type OrderPlaced --yes": ("drop status=dead type=OrderPlaced", 1),
    "relay once": None,
    "replay --all --yes": ("replay <id> status=published", 2),
    "prune --yes": ("prune published=7days archive=none inbox=30days", None),
}
ON_POSTGRESQL: Deeds = {
    "source slot {slot} --yes": ("source slot {slot}", 0),
    "source log --yes": ("source log", 0),
    "adopt --yes": ("adopt", 1),
}
NO_DEEDS = {"demo", "torture", "bench", "init", "relay run", "relay once", "relay watch", "consume"}
"""Those that make something of their own, and the daemons, whose work is no operator's."""
LOOKS = {
    *("status", "health", "stats", "top", "doctor", "config show", "connector debezium"),
    *("events list", "events show", "events tail", "dead list", "dead show", "audit list"),
    *("migrate status", "migrate check", "migrate sql"),
}
"""`top` pauses and resumes by its keys, which its own tests read in the audit."""


def audit(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    code, out, _ = typed("audit list --json", capfd, monkeypatch)
    assert code in (0, 4)
    lines: list[dict[str, object]] = json.loads(out)
    return lines


def refuse_everything() -> None:
    def refuse(messages: list[Message]) -> None:
        raise PublishRejected("no such order")

    asyncio.run(Relay(database="sqlite:///shop.db", publish=refuse).run_once())


def check_lines(
    deeds: Deeds,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    slot: str = "",
) -> None:
    """Type each command, and look which line it has left."""
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    for command, line in deeds.items():
        if command.startswith("dead"):
            refuse_everything()
        before = audit(capfd, monkeypatch)
        code, out, err = typed(f"{command.format(slot=slot)} --json", capfd, monkeypatch)
        after = audit(capfd, monkeypatch)
        new = after[: len(after) - len(before)]
        if line is None:
            assert new == [], command
            continue
        what, count = line[0].format(slot=slot), json.loads(out)["pruned"] if line[1] is None else line[1]
        if "<id>" in what:
            what = what.replace("<id>", json.loads(out)["replay"])
        assert [(one["who"], one["what"], one["count"]) for one in new] == [(who, what, count)], (code, err)


def test_whoever_makes_the_tables_is_written_down(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", getpass.getuser())
    (here / "shop.db").unlink()
    typed("migrate up", capfd, monkeypatch)
    [deed] = audit(capfd, monkeypatch)
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    assert (deed["who"], deed["what"], deed["count"]) == (who, "migrate up version=1", 0)


def test_every_deed_of_a_command_is_written_down(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", getpass.getuser())
    fill()
    (here / "mended.json").write_text('{"order": 5}')
    check_lines(DEEDS, capfd, monkeypatch)


def test_every_deed_that_only_postgresql_knows_is_written_down(
    here: Path, database: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_ours()
    migrate(database)
    slot = f"audit_{database.rpartition('_')[2]}"
    (here / "pillarbox.toml").write_text(f'database = "{database}"\nbroker = "sqlite:///stream.db"\n')
    with psycopg.connect(database) as writer:
        Outbox().add(writer, Event("OrderPlaced", {"order": 1}, aggregate=("order", 1)))
    slots, copied = dict(list(ON_POSTGRESQL.items())[:2]), dict(list(ON_POSTGRESQL.items())[2:])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
        try:
            check_lines(slots, capfd, monkeypatch, slot)
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        connection.execute("UPDATE pillarbox_ticks SET cluster = 'another'")
        check_lines(copied, capfd, monkeypatch)


def test_every_command_looks_or_is_a_deed_that_is_written_down() -> None:
    deeds = {path for path in ALL for command in (*DEEDS, *ON_POSTGRESQL) if command.startswith(f"{path} ")}
    assert deeds | NO_DEEDS | LOOKS == set(ALL)
    asks = {path for path, command in ALL.items() if any("--yes" in option.opts for option in command.params)}
    assert asks - {"bench"} <= deeds, "what asks first is a deed; a bench works in a place of its own"
    assert not LOOKS & deeds
