"""`pillarbox replay`, through the real command: what it asks and says, and what becomes of it on the other side."""

import json
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from pillarbox import Event
from pillarbox.psycopg import Outbox
from tests.integration.postgres_shop import made

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
BILLING = """
import sqlite3
from pillarbox.dbapi import Inbox

inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))

@inbox.handler("Placed")
def bill(connection, event):
    connection.execute("INSERT INTO effects VALUES ('billed', ?, ?)", [event.payload["n"], event.delivery.replay])

@inbox.handler("Shown", replays=True)
def show(connection, event):
    connection.execute("INSERT INTO effects VALUES ('shown', ?, ?)", [event.payload["n"], event.delivery.replay])
"""


def orders() -> list[Event[dict[str, int]]]:
    """Two types of event, of numbered aggregates."""
    return [
        Event(type, {"n": n}, aggregate=("order", n % 2), topic="orders", numbered=True)
        for n, type in enumerate(("Placed", "Shown", "Placed", "Shown"), start=1)
    ]


class Store:
    """A shop whose four events were published once, on either database."""

    def __init__(self, shop: "Shop", database: str) -> None:
        self.shop, self.database = shop, database

    def type(self, words: str, *, code: int = 0, answer: str = "") -> tuple[str, str]:
        done = self.shop.type(f"pillarbox {words} --database {self.database}", code=code, answer=answer)
        return done.stdout, done.stderr

    def relay(self) -> list[dict[str, str]]:
        """Carry what there is; give the headers of each message."""
        lines = self.type("relay once --broker stdout:")[0].splitlines()
        return [json.loads(line)["headers"] for line in lines]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def store(shop: "Shop", request: pytest.FixtureRequest) -> Store:
    if request.param == "sqlite":
        shop.migrate("shop.db")
        shop.add(*orders())
        store = Store(shop, shop.database)
    else:
        store = Store(shop, made(request.getfixturevalue("database")))
        with psycopg.connect(store.database) as connection:
            Outbox().add(connection, *orders())
    assert len(store.relay()) == 4
    return store


def test_it_says_how_many_and_asks(store: Store) -> None:
    will = "2 published events will be published again, as copies of what consumers have\n"
    assert will in store.type("replay --type Shown", code=1, answer="n\n")[1]
    assert store.type("replay --type Shown --dry-run") == ("", will.replace("will", "would"))
    assert store.relay() == []
    said, asked = store.type("replay --type Shown", answer="y\n")
    assert (said, asked) == (f"replayed 2 events, as replay {ID.findall(said)[0]}\n", f"{will}Go on? [y/N] ")
    again = store.relay()
    assert [headers["type"] for headers in again] == ["Shown", "Shown"]
    assert all("pillarbox-replay" not in headers for headers in again)


def test_again_tells_the_id_that_goes_along(store: Store) -> None:
    said, told = store.type("replay --all --again --yes")
    assert told == (
        "4 published events will be published again, to be handled once more where handlers ask for replays\n"
    )
    (id,) = ID.findall(said)
    assert said == f"replayed 4 events, as replay {id}\n"
    assert [headers["pillarbox-replay"] for headers in store.relay()] == [id] * 4
    other = json.loads(store.type("replay --all --again --yes --json")[0])
    assert (other["replayed"], other["matched"], other["dry_run"]) == (4, 4, False)
    assert ID.fullmatch(other["replay"])
    assert other["replay"] != id
    plain = json.loads(store.type("replay --all --yes --json")[0])
    assert ID.fullmatch(plain.pop("replay"))
    assert plain == {"replayed": 4, "matched": 4, "finished": True, "dry_run": False}
    rehearsed = json.loads(store.type("replay --all --dry-run --json")[0])
    assert rehearsed == {"replayed": 0, "matched": 4, "replay": None, "finished": False, "dry_run": True}


def test_it_may_go_to_another_topic_at_a_rate(store: Store) -> None:
    said, told = store.type("replay --type Shown --to anew --rate 1000000 --yes")
    (id,) = ID.findall(said)
    assert (said, told) == (
        f"replayed 2 events, as replay {id}\n",
        "2 published events will be published again to anew, 1,000,000 a second, as copies of what consumers have\n",
    )
    sent = [json.loads(line) for line in store.type("relay once --broker stdout:")[0].splitlines()]
    assert [(message["topic"], message["headers"]["type"]) for message in sent] == [("anew", "Shown")] * 2
    assert {record["topic"] for record in json.loads(store.type("events list --json")[0])} == {"orders"}
    [deed, *_] = json.loads(store.type("audit list --json")[0])  # before it, the tables may have been made
    assert (deed["what"], deed["count"]) == (f"replay {id} to=anew rate=1000000 status=published type=Shown", 2)


def test_flags_and_ids_say_which(store: Store) -> None:
    found = json.loads(store.type("events list --oldest-first --json")[0])
    ids = [record["event_id"] for record in found]
    for flags, chosen in [
        (f"{ids[2]} {ids[0]}", [0, 2]),
        ("--aggregate order:0", [1, 3]),
        ("--topic orders --type Placed", [0, 2]),
        (f"--since {found[0]['created_at']} --until '0 s' --type Shown", [1, 3]),
    ]:
        store.type(f"replay {flags} --yes")
        assert [headers["id"] for headers in store.relay()] == [ids[n] for n in chosen], flags


def test_without_a_filter_nothing_is_replayed_unless_all_is_said(store: Store) -> None:
    assert "name events by their ids, narrow them down, or say --all" in store.type("replay --again --yes", code=2)[1]
    assert store.relay() == []


@pytest.mark.parametrize("flags", ["--type Nothing", "--until 2020-01-01", "00000000-0000-0000-0000-000000000000"])
def test_nothing_that_matches_is_code_4(store: Store, flags: str) -> None:
    assert store.type(f"replay {flags} --yes", code=4) == ("", "no published events match\n")


def test_what_was_not_published_is_not_replayed(migrated: "Shop") -> None:
    migrated.placed()
    done = migrated.type(f"pillarbox replay --all --yes --database {migrated.database}", code=4)
    assert (done.stdout, done.stderr) == ("", "no published events match\n")


class Billing:
    """A shop and a consumer on the other side of the embedded broker, in files."""

    def __init__(self, shop: "Shop") -> None:
        self.shop = shop
        (shop.directory / "pillarbox.toml").write_text(f'database = "{shop.database}"\nbroker = "{shop.broker}"\n')
        (shop.directory / "billing.py").write_text(BILLING)
        shop.migrate("shop.db")
        shop.migrate("billing.db")
        self.ask("CREATE TABLE effects (what, n, replay)")

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.shop.directory / "billing.db")
        try:
            with connection:
                return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def carry(self) -> None:
        """Let the relay carry and the consumer handle what there is."""
        self.shop.type("pillarbox relay once")
        self.shop.type("pillarbox consume billing:inbox --topic orders --once")

    def replay(self, flags: str) -> str:
        """Replay everything; give the id of the replay."""
        done = self.shop.json(f"pillarbox replay --all --yes --json {flags}")
        assert done["replayed"] == 4
        self.carry()
        id = done["replay"]
        assert isinstance(id, str)
        return id

    def effects(self) -> list[tuple[object, ...]]:
        return self.ask("SELECT what, n, replay FROM effects ORDER BY n, rowid")

    def numbers(self) -> list[tuple[object, ...]]:
        return self.ask("SELECT aggregate_id, last FROM pillarbox_inbox_numbers ORDER BY aggregate_id")


FIRST = [("billed", 1, None), ("shown", 2, None), ("billed", 3, None), ("shown", 4, None)]


@pytest.fixture
def billing(shop: "Shop") -> Billing:
    billing = Billing(shop)
    shop.add(*orders())
    billing.carry()
    assert billing.effects() == FIRST
    assert billing.numbers() == [("0", 2), ("1", 2)]
    return billing


def parked(billing: Billing) -> list[tuple[object, ...]]:
    return billing.ask("SELECT event_id, state, numbering FROM pillarbox_inbox_parked")


def test_a_replay_is_a_copy_to_every_handler(billing: Billing) -> None:
    billing.replay("")
    assert len(billing.shop.received()) == 8
    assert billing.effects() == FIRST
    assert (billing.numbers(), parked(billing)) == ([("0", 2), ("1", 2)], [])


def test_a_replay_again_is_handled_once_more_where_that_was_asked_for(billing: Billing) -> None:
    ids = [billing.replay("--again"), billing.replay("--again")]
    once_more = [("shown", n, id) for n in (2, 4) for id in ids]
    assert sorted(billing.effects(), key=str) == sorted([*FIRST, *once_more], key=str)
    assert (billing.numbers(), parked(billing)) == ([("0", 2), ("1", 2)], [])


def test_copies_of_a_replay_again_do_nothing(billing: Billing) -> None:
    id = billing.replay("--again")
    after = billing.effects()
    assert after.count(("shown", 2, id)) == 1
    repeat_everything(billing.shop.directory / "stream.db")
    billing.carry()
    assert len(billing.shop.received()) == 16
    assert billing.effects() == after
    assert (billing.numbers(), parked(billing)) == ([("0", 2), ("1", 2)], [])


def repeat_everything(stream: Path) -> None:
    """Let the broker have every message twice, as after a relay that died before it could note what it had sent."""
    connection = sqlite3.connect(stream)
    with connection:
        columns = "topic, partition, key, headers, body, at"
        connection.execute(f"INSERT INTO messages ({columns}) SELECT {columns} FROM messages ORDER BY id")
    connection.close()


def test_numbers_go_on_after_replays(billing: Billing) -> None:
    billing.replay("")
    billing.replay("--again")
    billing.shop.add(Event("Placed", {"n": 5}, aggregate=("order", 1), topic="orders", numbered=True))
    billing.carry()
    assert billing.effects()[-1] == ("billed", 5, None)
    assert (billing.numbers(), parked(billing)) == ([("0", 2), ("1", 3)], [])


def test_a_replay_fills_the_gap_that_a_consumer_waits_for(billing: Billing) -> None:
    lost, next = (Event("Placed", {"n": n}, aggregate=("order", 1), topic="orders", numbered=True) for n in (5, 7))
    billing.shop.add(lost)
    billing.shop.type("pillarbox relay once --broker sqlite:///lost.db")  # where no consumer is
    billing.shop.add(next)
    billing.carry()
    assert parked(billing) == [(str(next.id), "dead", "gap")]
    billing.shop.type(f"pillarbox replay {lost.id} --yes")
    billing.carry()
    assert billing.effects() == [*FIRST, ("billed", 5, None), ("billed", 7, None)]
    assert billing.numbers() == [("0", 2), ("1", 4)]
