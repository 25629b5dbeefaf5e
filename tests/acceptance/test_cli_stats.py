"""`pillarbox stats`: the outbox in numbers, word for word and as JSON, on SQLite and PostgreSQL."""

import json
import re
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pillarbox import Event, PublishRejected, Relay
from pillarbox.core.message import Message
from tests.acceptance.test_cli_postgres import add, type_
from tests.integration.postgres_shop import made

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

PASSWORD = "s3cr3t-0f-the-sh0p"
ORDERS: tuple[Event[Any], ...] = (
    Event("Placed", {}, aggregate=("order", 1)),
    Event("Placed", {}, aggregate=("order", 2)),
)
MAILS: tuple[Event[Any], ...] = (Event("Mailed", {}, aggregate=("mail", 1)), Event("Mailed", {}, aggregate=("mail", 1)))
LATER: tuple[Event[Any], ...] = (
    Event("Placed", {}, aggregate=("order", 3)),
    Event("Placed", {}, aggregate=("order", 3)),
)


def refuse(messages: list[Message]) -> None:
    raise PublishRejected("550 no such user")


async def fill(database: str, add: Callable[..., object]) -> None:
    """Publish two, let one die with one behind it."""
    add(*ORDERS)
    assert await Relay(database=database, publish=lambda messages: None).run_once() == 2
    add(*MAILS)
    assert await Relay(database=database, publish=refuse).run_once() == 0


TABLE = """
pending                       2
oldest pending                TIME ago
published in the last minute  2 (0.0 a second)
last published                TIME
retrying                      0
blocked                       1
delayed                       0
dead                          1
blocked aggregates            1
relays                        0

TOPIC         PENDING  RETRYING  BLOCKED  DELAYED  DEAD  PAUSED
mail-events   0        0         1        0        1     no
order-events  2        0         0        0        0     yes
"""


def timeless(text: str) -> str:
    text = re.sub(r"\d+-\d+-\d+ \d+:\d+:\d+ UTC", "TIME", text)
    text = re.sub(r"[\d.]+ (ms|s|min) ago", "TIME ago", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def check(answer: dict[str, Any]) -> None:
    age, rate = answer.pop("oldest_pending_age_seconds"), answer.pop("published_per_second")
    assert 0 <= age < 60
    assert rate == pytest.approx(2 / 60)
    for instant in ("oldest_pending_at", "last_published_at"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", answer.pop(instant))
    assert answer == {
        "pending": 2,
        "pending_exact": True,
        "retrying": 0,
        "blocked": 1,
        "delayed": 0,
        "dead": 1,
        "overdue": 0,
        "copies": 0,
        "blocked_aggregates": 1,
        "relays": 0,
        "inbox_waiting": 0,
        "inbox_dead": 0,
        "topics": {
            "mail-events": {"pending": 0, "retrying": 0, "blocked": 1, "delayed": 0, "dead": 1, "paused": False},
            "order-events": {"pending": 2, "retrying": 0, "blocked": 0, "delayed": 0, "dead": 0, "paused": True},
        },
    }


async def test_on_sqlite(migrated: "Shop") -> None:
    await fill(f"sqlite:///{migrated.directory / 'shop.db'}", migrated.add)
    migrated.type(f"pillarbox pause order-events --database {migrated.database}")
    migrated.add(*LATER)
    assert timeless(migrated.type(f"pillarbox stats --database {migrated.database}").stdout) == TABLE.strip()
    check(migrated.json(f"pillarbox stats --json --database {migrated.database}"))


async def test_on_postgresql(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(database)
    await fill(database, partial(add, database))
    type_(f"pillarbox pause order-events --database {database}")
    add(database, *LATER)
    assert timeless(type_(f"pillarbox stats --database {database}").stdout) == TABLE.strip()
    check(json.loads(type_(f"pillarbox stats --json --database {database}").stdout))


MANY = 10_050


def test_beyond_ten_thousand_it_is_an_estimate_on_sqlite(migrated: "Shop") -> None:
    with sqlite3.connect(migrated.directory / "shop.db") as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload)"
            " SELECT 'order-events', 'order', i, 'Placed', '{}' FROM n",
            (MANY,),
        )
    connection.close()
    answer = migrated.json(f"pillarbox stats --json --database {migrated.database}")
    assert (answer["pending"], answer["pending_exact"]) == (MANY, False)
    assert timeless(migrated.type(f"pillarbox stats --database {migrated.database}").stdout).startswith(
        "pending                       about 10,050\n"
    )


def test_beyond_ten_thousand_it_is_an_estimate_on_postgresql(database: str) -> None:
    made(database)
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload)"
            " SELECT 'order-events', 'order', i, 'Placed', '{}' FROM generate_series(1, %s) i",
            [MANY],
        )
    answer = json.loads(type_(f"pillarbox stats --json --database {database}").stdout)
    assert (answer["pending"], answer["pending_exact"]) == (MANY, False)


def test_a_paused_topic_behind_a_long_log_is_more_than_can_be_counted(migrated: "Shop") -> None:
    migrated.type(f"pillarbox pause order-events --database {migrated.database}")
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")
    with sqlite3.connect(migrated.directory / "shop.db") as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload)"
            " SELECT 'order-events', 'order', i, 'Placed', '{}' FROM n",
            (MANY,),
        )
    connection.close()
    migrated.add(Event("Mailed", {}, aggregate=("mail", 1)))
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")
    answer = migrated.json(f"pillarbox stats --json --database {migrated.database}")
    assert (answer["pending"], answer["pending_exact"]) == (10_000, False)
    assert "more than 10,000" in migrated.type(f"pillarbox stats --database {migrated.database}").stdout


def test_without_tables_it_names_the_command(shop: "Shop") -> None:
    done = shop.type(f"pillarbox stats --database {shop.database}", code=1)
    assert done.stdout == ""
    assert "pillarbox migrate up --database sqlite:///shop.db" in done.stderr


def test_no_password_is_told(shop: "Shop") -> None:
    done = shop.type(f"pillarbox stats --database postgresql://ann:{PASSWORD}@127.0.0.1:1/shop", code=1)
    assert PASSWORD not in done.stdout + done.stderr
