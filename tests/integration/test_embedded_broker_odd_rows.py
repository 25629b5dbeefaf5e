"""The embedded broker's file after somebody else has written into it: one message's fault, or said with advice."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Consumer
from pillarbox.core.message import Message
from pillarbox.dbapi import Inbox
from pillarbox.errors import ConfigError
from pillarbox.stores.sqlite.schema import Tables
from pillarbox.testing.contracts.publisher import answers, batch
from tests.integration.test_embedded_broker_file import publish, publisher_of, subscriber_of
from tests.unit.consumer_bench import id_of


class Billing:
    """A consumer's database, and what it has received."""

    def __init__(self, folder: Path) -> None:
        self.path, self.seen = str(folder / "billing.db"), list[Any]()
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            Tables(self.path, "pillarbox_").up(connection)
        self.inbox = Inbox("billing", lambda: sqlite3.connect(self.path))
        self.inbox.handler("Placed")(lambda connection, event: self.seen.append(event.payload))

    async def consume(self, broker: Path) -> None:
        await Consumer(self.inbox, topics=["orders"], broker=f"sqlite:///{broker}").run_once(patience=0.05)

    def dead(self) -> list[tuple[str]]:
        sql = "SELECT last_error FROM pillarbox_inbox_parked WHERE state = 'dead'"
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stream.db"


def spoil(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def placed(n: int) -> Message:
    return Message("orders", "7", {"id": id_of(n), "type": "Placed"}, str(n).encode(), ticket=n)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("headers", "'nope'"),
        ("headers", "'[1]'"),
        ("headers", "5"),
        ("headers", "CAST(x'ff' AS TEXT)"),
        ("headers", "x'ff'"),
        ("headers", f"""'{{"id": {"[" * 2000}'"""),
        ("headers", """'{"type": "Placed", "id": ""}'"""),
        ("body", "x'ff'"),
        ("body", "'no JSON'"),
        ("body", "CAST(x'ff' AS TEXT)"),
    ],
)
async def test_a_message_that_cannot_be_read_is_a_dead_letter_and_the_others_go_on(
    path: Path, tmp_path: Path, column: str, value: str
) -> None:
    billing = Billing(tmp_path)
    await publish(path, [placed(1), placed(2)])
    spoil(path, f"UPDATE messages SET {column} = {value} WHERE id = 1")
    await billing.consume(path)
    assert len(billing.dead()) == 1
    assert billing.seen == [2]


@pytest.mark.parametrize(("column", "value"), [("body", "'1'"), ("body", "1"), ("key", "x'ff'")])
async def test_a_message_of_another_type_of_column_is_read_all_the_same(
    path: Path, tmp_path: Path, column: str, value: str
) -> None:
    billing = Billing(tmp_path)
    await publish(path, [placed(1), placed(2)])
    spoil(path, f"UPDATE messages SET {column} = {value} WHERE id = 1")
    await billing.consume(path)
    assert billing.seen == [1, 2]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM broker",
        "UPDATE broker SET value = 'abc'",
        "UPDATE broker SET value = CAST(x'ff' AS TEXT)",
        "DROP TABLE members",
        "DROP TABLE consumers",
        "ALTER TABLE positions RENAME COLUMN epoch TO era",
        "ALTER TABLE messages DROP COLUMN body",
    ],
)
async def test_a_consumer_says_that_the_file_is_damaged(path: Path, sql: str) -> None:
    await publish(path, batch("a"))
    spoil(path, sql)
    subscriber = subscriber_of(path)
    with pytest.raises(ConfigError, match=r"stream\.db is damaged .*; restore it, or move it away and replay"):
        await subscriber.deliveries(1, 0)
    await subscriber.close()


@pytest.mark.parametrize(
    "sql", ["DELETE FROM broker", "UPDATE broker SET value = 'abc'", "ALTER TABLE messages DROP COLUMN at"]
)
async def test_a_relay_says_that_the_file_is_damaged(path: Path, sql: str) -> None:
    await publish(path, batch("a"))
    spoil(path, sql)
    with pytest.raises(ConfigError, match=r"stream\.db is damaged .*; restore it, or move it away and replay"):
        await send_into(path)


async def send_into(path: Path) -> None:
    publisher = publisher_of(path)
    try:
        publisher.send(batch("b"))
        await answers(publisher, 1)
    finally:
        await publisher.close()


@pytest.mark.parametrize("member", ["'nope', 99999999999999999", "'5', 99999999999999999", "'[]', 'soon'"])
async def test_a_member_that_nobody_can_read_is_buried(path: Path, member: str) -> None:
    await publish(path, batch("a"))
    spoil(path, f"INSERT INTO members VALUES (5, 'billing', 'zz', {member})")
    subscriber = subscriber_of(path)
    assert len(await subscriber.deliveries(10, 5)) == 1
    await subscriber.close()
