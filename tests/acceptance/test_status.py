""" "I added an event and nothing happens": each answer of `pillarbox status`, word for word, and its cure, tried."""

import asyncio
import re
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pillarbox import PublishRejected, Relay, Settings
from pillarbox.admin.admin import Report
from pillarbox.core.message import Message
from pillarbox.wiring import open_admin

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

Until = Callable[[Callable[[], bool]], None]


def commands_of(lines: list[str]) -> list[str]:
    """Give the commands that the answer names."""
    return [line.removeprefix("  run: ").removeprefix("  or:  ") for line in lines if line.startswith("  ")]


def test_no_tables(shop: "Shop") -> None:
    lines = shop.status(code=3)
    assert lines == [
        "✗ there is no database shop.db yet",
        "  run: pillarbox migrate up --database sqlite:///shop.db",
    ]
    shop.type(commands_of(lines)[0])
    id = shop.placed()
    shop.type(f"pillarbox relay once --database {shop.database} --broker {shop.broker}")
    assert shop.received() == [id]


def test_no_tables_in_a_database_that_is_there(shop: "Shop") -> None:
    sqlite3.connect(shop.directory / "shop.db").executescript("CREATE TABLE orders (id)").connection.close()
    assert shop.status(code=3)[0] == "✗ there are no Pillarbox tables in sqlite:///shop.db"


def test_asking_makes_no_database(shop: "Shop") -> None:
    shop.status(code=3)
    assert list(shop.directory.iterdir()) == []


def test_no_relay_ever(on_each: "Shop", until: Until) -> None:
    id = on_each.placed()
    lines = on_each.status(code=3)
    assert lines == [
        "✗ no relay has ever run on this outbox; 1 event is waiting",
        f"  run: pillarbox relay run --database {on_each.database} --broker sqlite:///stream.db",
    ]
    with on_each.running(commands_of(lines)[0]):
        until(lambda: on_each.received() == [id])
        until(lambda: on_each.status()[0] == "✓ all is well: nothing is waiting")
        _, relay = on_each.status()
        assert re.fullmatch(r"· relay \S+ holds 64 lanes; seen \d s ago", relay)


def test_a_killed_relay_is_missed_at_once(on_each: "Shop", until: Until) -> None:
    run = f"pillarbox relay run --database {on_each.database} --broker {on_each.broker}"
    first = on_each.placed()
    process = on_each.start(run)
    until(lambda: on_each.received() == [first])
    process.kill()
    process.communicate()
    second = on_each.placed()
    lines = on_each.status(code=3)
    seen = r"✗ no relay (has been seen for \d+ s|is running; one was here a moment ago)"
    assert re.fullmatch(rf"{seen}; (1 event is|2 events are) waiting", lines[0])
    with on_each.running(commands_of(lines)[0]):
        until(lambda: on_each.received()[-1] == second)


def test_no_relay_seen_for_minutes(migrated: "Shop", until: Until) -> None:
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")
    with sqlite3.connect(migrated.directory / "shop.db") as connection:
        connection.execute(
            "UPDATE pillarbox_relays SET seen_at = seen_at - 720000000, lease_until = lease_until - 705000000"
        )
    connection.close()
    ids = [migrated.placed(), migrated.placed()]
    lines = migrated.status(code=3)
    assert lines == [
        "✗ no relay has been seen for 12 min; 2 events are waiting",
        "  run: pillarbox relay run --database sqlite:///shop.db --broker sqlite:///stream.db",
    ]
    with migrated.running(commands_of(lines)[0]):
        until(lambda: migrated.received() == ids)


def test_paused_and_by_whom(on_each: "Shop", until: Until) -> None:
    on_each.type(
        f"pillarbox pause order-events --why 'the shop moves house' --database {on_each.database}",
        LOGNAME="ann",
    )
    id = on_each.placed()
    with on_each.running(f"pillarbox relay run --database {on_each.database} --broker {on_each.broker}"):
        until(lambda: relay_is_seen(on_each))
        (line, *commands, _) = on_each.status(code=3)
        assert line.startswith("✗ topic order-events was paused ")
        assert " ago by ann@" in line
        assert line.endswith(": the shop moves house; 1 event is waiting")
        assert commands == [f"  run: pillarbox resume order-events --database {on_each.database}"]
        assert on_each.received() == []
        on_each.type(commands_of(commands)[0])
        until(lambda: on_each.received() == [id])


def test_a_broker_that_is_away(on_each: "Shop", until: Until) -> None:
    in_the_way = on_each.directory / "stream.db"
    in_the_way.mkdir()
    id = on_each.placed()
    with on_each.running(
        f"pillarbox relay run --database {on_each.database} --broker {on_each.broker} --set relay.lease='12 s'"
    ):
        until(lambda: "broker away" in kinds(on_each))
        line, relay = on_each.status(code=3)
        assert relay.startswith("· relay ")
        assert line.startswith("✗ the broker has been away since 20")
        assert line.endswith(
            "): the broker's file stream.db cannot be used now: unable to open database file; "
            "the relay goes on by itself once it is back"
        )
        in_the_way.rmdir()
        until(lambda: on_each.received() == [id])
        until(lambda: kinds(on_each) == ["fine"])


@pytest.fixture
def blocked(on_each: "Shop") -> tuple["Shop", list[str]]:
    """An aggregate of two events, the first of which was refused for good."""
    ids = [on_each.placed(), on_each.placed()]

    def publish(messages: list[Message]) -> None:
        raise PublishRejected("the schema registry does not know it")

    relay = Relay(database=on_each.url, publish=publish)
    asyncio.run(relay.run_once())
    return on_each, ids


def test_blocked_behind_a_dead_event_which_is_retried(blocked: tuple["Shop", list[str]]) -> None:
    shop, (refused, follower) = blocked
    lines = shop.status(code=3)
    assert lines[:3] == [
        f"✗ order 7 in order-events is blocked by OrderPlaced {refused}, dead after 1 attempt: "
        "the schema registry does not know it",
        f"  run: pillarbox dead retry {refused} --database {shop.database}",
        f"  or:  pillarbox dead drop {refused} --database {shop.database}",
    ]
    retry, _ = commands_of(lines[:3])
    assert shop.type(retry, answer="y\n").stdout == "retried 1 event\n"
    shop.type(f"pillarbox relay once --database {shop.database} --broker {shop.broker}")
    assert shop.received() == [refused, follower]
    assert shop.status()[0] == "✓ nothing is waiting"


def test_blocked_behind_a_dead_event_which_is_dropped(blocked: tuple["Shop", list[str]]) -> None:
    shop, (_, follower) = blocked
    _, drop = commands_of(shop.status(code=3)[:3])
    assert shop.type(drop, answer="y\n").stdout == "dropped 1 event\n"
    shop.type(f"pillarbox relay once --database {shop.database} --broker {shop.broker}")
    assert shop.received() == [follower]


def test_a_database_that_is_none(shop: "Shop") -> None:
    (shop.directory / "shop.db").write_text("this is a letter, not a database, and it is long enough to be read as one")
    words = "the database cannot be read: shop.db is not an SQLite database; look at the path in the setting database"
    assert shop.status(code=3) == [f"✗ {words}"]
    assert shop.type(f"pillarbox health --database {shop.database}", code=3).stdout == f"degraded: {words}\n"


def test_a_database_that_is_damaged(migrated: "Shop") -> None:
    file = migrated.directory / "shop.db"
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 40_000)
    assert "is damaged" in migrated.status(code=3)[0]
    assert "is damaged" in migrated.type(f"pillarbox health --database {migrated.database}", code=3).stdout


def test_tables_from_the_future(migrated: "Shop") -> None:
    with sqlite3.connect(migrated.directory / "shop.db") as connection:
        connection.execute("UPDATE pillarbox_meta SET value = '9' WHERE name = 'schema'")
    connection.close()
    assert migrated.status(code=3) == [
        "✗ the tables in sqlite:///shop.db are version 9, but this release knows only 1: "
        "a newer release made them, use that one"
    ]
    for command in ("migrate up", "events list", "dead list", "pause order-events"):
        done = migrated.type(f"pillarbox {command} --database {migrated.database}", code=1)
        assert "version 9, from the future" in done.stderr
    migrated.type(f"pillarbox migrate check --database {migrated.database}", code=3)


def test_settings_in_a_file_are_not_repeated_in_the_command(shop: "Shop") -> None:
    shop.type("pillarbox init")
    done = shop.type("pillarbox status", code=3)
    assert done.stdout.splitlines()[1] == "  run: pillarbox migrate up"
    shop.type("pillarbox migrate up")
    shop.placed()
    assert shop.type("pillarbox status", code=3).stdout.splitlines()[1] == "  run: pillarbox relay run"


def test_the_keys_of_its_json_are_fixed(migrated: "Shop") -> None:
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")
    migrated.type(f"pillarbox pause a --database {migrated.database}")
    answer = migrated.json(f"pillarbox status --json --database {migrated.database}")
    assert set(answer) == {"healthy", "findings", "stats"}
    assert answer["healthy"] is True
    assert set(answer["findings"][0]) == {"severity", "kind", "line", "commands"}
    assert set(answer["stats"]) == {
        "pending",
        "pending_exact",
        "pending_by_topic",
        "oldest_pending_at",
        "retrying",
        "blocked",
        "delayed",
        "overdue",
        "copies",
        "dead",
        "inbox_dead",
        "inbox_waiting",
        "last_published_at",
        "pauses",
        "relays",
        "slot",
    }
    assert set(answer["stats"]["pauses"][0]) == {"topic", "since", "who", "why"}
    assert set(answer["stats"]["relays"][0]) == {
        "owner",
        "alive",
        "seen_at",
        "lease_until",
        "lanes",
        "away_since",
        "away_error",
    }


def test_without_tables_its_json_has_no_figures(shop: "Shop") -> None:
    answer = shop.json(f"pillarbox status --json --database {shop.database}", code=3)
    assert answer["healthy"] is False
    assert answer["stats"] is None


def relay_is_seen(shop: "Shop") -> bool:
    return "no relay" not in kinds(shop)


def kinds(shop: "Shop") -> list[str]:
    """Give the kinds of findings, without the cost of a process."""
    settings = Settings(database=shop.url)

    async def look() -> Report:
        async with open_admin(settings) as admin:
            return await admin.report(settings)

    return [finding.kind for finding in asyncio.run(look()).findings]
