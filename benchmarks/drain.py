"""How fast a full outbox is carried to the embedded broker, beside the textbook relay."""

import asyncio
import json
import sqlite3
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from benchmarks import shop, textbook
from benchmarks.measure import Goal, Progress, Row, in_turns, one_after_the_other
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import Relay


def rows(place: Path, quick: bool, tell: Progress) -> list[Row]:
    ours, reference = (3_000, 200) if quick else (30_000, 2_000)
    both = one_after_the_other(lambda at: _relay(at, ours), lambda at: _textbook(at, reference))
    return [in_turns("drain SQLite → embedded broker", "events/s", both, place, tell, Goal(">=", 10))]


def _relay(at: Path, count: int) -> float:
    database, broker = shop.filled(at / "shop.db", count), at / "stream.db"
    relay = Relay(database=f"sqlite:///{database}", broker=f"sqlite:///{broker}", hooks=Hooks())
    began = perf_counter()
    published = asyncio.run(relay.run_once())
    seconds = perf_counter() - began
    _check(broker, count, published)
    return count / seconds


def _textbook(at: Path, count: int) -> float:
    database, broker = prepare_textbook(at)
    database.execute("BEGIN")
    database.executemany(
        textbook.ADD,
        [
            (str(uuid4()), "order", str(n % shop.ORDERS), "OrderPlaced", json.dumps(shop.payload(n)))
            for n in range(count)
        ],
    )
    database.execute("COMMIT")
    began = perf_counter()
    published = textbook.drain(database, broker)
    seconds = perf_counter() - began
    database.close()
    broker.close()
    _check(at / "textbook-stream.db", count, published)
    return count / seconds


def prepare_textbook(at: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Make the textbook's two files and open them."""
    database, broker = shop.connect(at / "textbook-shop.db"), shop.connect(at / "textbook-stream.db")
    database.executescript(textbook.OUTBOX)
    broker.executescript(textbook.BROKER)
    return database, broker


def _check(broker: Path, count: int, published: int) -> None:
    connection = sqlite3.connect(broker)
    (arrived,) = connection.execute("SELECT count(*) FROM messages").fetchone()
    connection.close()
    if not count == arrived == published:
        raise RuntimeError(f"{count} events, {published} said to be published, {arrived} in {broker}")
