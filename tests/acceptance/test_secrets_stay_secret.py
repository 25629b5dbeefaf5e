"""Secret canaries through every way in, and never out: logs, metrics, probes, tracebacks, JSON, `config show`."""

import asyncio
import base64
import logging
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from pillarbox import BrokerUnavailable, ConfigError, Event, PublishError, PublishRejected, Relay
from pillarbox.cli.app import run
from pillarbox.core.message import Message
from pillarbox.core.secrets import HIDDEN
from pillarbox.dbapi import Outbox
from pillarbox.psycopg import Outbox as PostgresOutbox
from pillarbox.stores.sqlite.schema import Tables
from pillarbox.telemetry.logging import logger
from servers.postgres import RunningPostgres
from servers.process import free_port
from tests.acceptance.pseudo_terminal import Terminal
from tests.acceptance.test_cli_golden import ALL
from tests.conftest import template_of

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

CANARY = "c4n4ry-b1rd"
MARK = "n4ry-b1rd"
"""What is searched for: it stands in every spelling of the canary."""
SPELLINGS = [CANARY, "c4n4ry-b1rd%2F%40x", "%634n4ry-b1rd"]
KEY = "whsec_" + base64.b64encode(f"a key of 32 bytes: {CANARY}.".encode().ljust(32, b"!")).decode()
MARKS = (MARK, KEY.removeprefix("whsec_")[10:30])
BROKERS = {
    "kafka": f"kafka://shop:{CANARY}@127.0.0.1:1",
    "kafka's options": "kafka://127.0.0.1:1",
    "rabbitmq": f"rabbitmq://shop:{CANARY}@127.0.0.1:1/shop",
    "redis": f"redis://shop:{CANARY}@127.0.0.1:1/0",
    "redis, a password alone": f"redis://:{CANARY}@127.0.0.1:1/0",
    "nats": f"nats://shop:{CANARY}@127.0.0.1:1",
    "nats, a token": f"nats://{CANARY}@127.0.0.1:1",
    "webhooks": f"https://shop:{CANARY}@127.0.0.1:1/hooks/{CANARY}?token={CANARY}",
    "webhooks, plain": f"http://127.0.0.1:1/hooks/{CANARY}",
    "a slip": f"rabitmq://shop:{CANARY}@127.0.0.1/shop",
    "another slip": f"redis://shop:{CANARY}/x@127.0.0.1:1/0",
}
OPTIONS = {
    "kafka's options": {"kafka.sasl.password": CANARY, "kafka.sasl.username": "shop", "kafka.sasl.mechanisms": "PLAIN"}
}
SPARSE = {"relay.publish_timeout": "300 ms", "relay.lease": "1 s"}
COMMANDS = (
    *("config show", "migrate status", "migrate check", "migrate up", "migrate sql", "status", "health", "stats"),
    *("doctor", "events list", "events show 0198", "dead list", "dead show 0198", "dead retry --yes 0198"),
    *("dead drop --yes 0198", "audit list", "prune --yes", "replay --all --yes", "pause order-events", "adopt --yes"),
    *(
        "resume order-events",
        "source log",
        "connector debezium",
        "relay once --broker stdout:",
        "events list --since soon",
    ),
    *("relay once --set relay.batch=many", "relay once --set relay.lease=1", "events list --no-such-flag"),
    *("top", "top --once", "migrate sql --roles", "source slot shop --yes", "connector debezium --sql"),
)
ENDING_WITHOUT_DATABASE = ("events tail", "bench --yes --broker stdout:")
"""What ends at once only because the database is away."""
BY_FLAG = ("init --config new.toml --force", "torture --minutes 1")
"""Those that know no settings: the database comes in by a flag, and by a variable of their own."""
WITHOUT_DATABASE = {"demo", "consume"}
"""The demo makes its own; a consumer's database is its module's affair."""
BROKER_COMMANDS = (
    *("config show", "status", "health", "doctor", "relay once", "relay once --set relay.batch=many"),
    "consume billing:inbox --topic order-events --once",
)
INBOX = """
import sqlite3
from pillarbox.dbapi import Inbox
inbox = Inbox("billing", lambda: sqlite3.connect("shop.db"))
inbox.handler("OrderPlaced")(lambda connection, event: None)
"""
WAYS = {"flag": "", "environment": "--json", "file": "--debug", "set": "--debug --json"}
"""Ways in, each with another way to print."""


class Desk:
    """Types commands in this process, and keeps all that came out."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.directory, self._patch, self._capfd = directory, monkeypatch, capfd
        self.codes: dict[str, int] = {}

    def shown(self, command: str) -> str:
        """Type a command, and give what it printed."""
        self._patch.setattr("sys.argv", ["pillarbox", *shlex.split(command)])
        with pytest.raises(SystemExit):
            run()
        return self._capfd.readouterr().out

    def type(self, command: str, way: str, given: dict[str, str]) -> None:
        """Type a command with secrets given in one way; whatever it says, they are not in it."""
        self._patch.setattr("sys.argv", ["pillarbox", *self._words(command, way, given)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = self._capfd.readouterr()
        self.codes[command] = int(ended.value.code or 0)
        assert out + err or ended.value.code in (0, None), command
        for mark in MARKS:
            assert mark not in out + err, f"{command} ({way}) says a secret:\n{out}\n{err}"

    def _words(self, command: str, way: str, given: dict[str, str]) -> list[str]:
        shown, words = WAYS[way].split(), shlex.split(command)
        (self.directory / "pillarbox.toml").write_text("")
        os.environ.pop("PILLARBOX_DEBUG", None)
        for key in [name for name in os.environ if name.startswith("PILLARBOX_")]:
            self._patch.delenv(key)
        if way == "file":
            (self.directory / "pillarbox.toml").write_text(_toml(given))
        for key, value in given.items():
            if way == "environment":
                self._patch.setenv(f"PILLARBOX_{key.replace('.', '_').upper()}", value)
            elif way == "set" or (way == "flag" and "." in key):
                words += ["--set", f"{key}={value}"]
            elif way == "flag":
                words += [f"--{key}", value]
        before = [flag for flag in shown if flag == "--debug"]
        return [*before, *words, *(flag for flag in shown if flag != "--debug")]


def _toml(given: dict[str, str]) -> str:
    tables: dict[str, list[str]] = {}
    for key, value in given.items():
        table, _, name = key.rpartition(".") if key.count(".") < 2 else key.partition(".")
        tables.setdefault(table, []).append(f'{name} = "{value}"')
    return "\n".join((f"[{table}]\n" if table else "") + "\n".join(lines) for table, lines in tables.items())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    before = logger.handlers, logger.level, logger.propagate
    yield Desk(tmp_path, monkeypatch, capfd)
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])
    os.environ.pop("PILLARBOX_DEBUG", None)
    logging.captureWarnings(False)


@pytest.fixture
def guarded(postgres: RunningPostgres) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a database with the tables, whose owner needs the canary to come in, for some password."""
    if os.environ.get("PILLARBOX_TEST_POSTGRES"):
        pytest.skip("needs a PostgreSQL of our own: who may come in is changed")
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name, template_of(postgres))
    postgres.execute(sql.SQL("create role {} login superuser password {}").format(*named(name)))
    file = Path(postgres.execute("show hba_file")[0][0])
    rules = file.read_text()
    file.write_text(f"host {name} {name} 127.0.0.1/32 scram-sha-256\n{rules}")
    postgres.execute("select pg_reload_conf()")
    place = postgres.url(name).partition("@")[2] or postgres.url(name).partition("://")[2]
    yield lambda password: f"postgresql://{name}:{password}@{place}"
    file.write_text(rules)
    postgres.execute("select pg_reload_conf()")
    postgres.drop_database(name)
    postgres.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def named(name: str) -> tuple[Any, Any]:
    return sql.Identifier(name), sql.Literal(CANARY)


OFFSETS = [0, *(pytest.param(offset, marks=pytest.mark.soak) for offset in (1, 2, 3))]
"""Each command is given secrets in one way, and in the soak in every way."""


def turns(commands: tuple[str, ...], offset: int) -> Iterator[tuple[str, str]]:
    ways = list(WAYS)
    for place, command in enumerate(commands):
        yield command, ways[(place + offset) % len(ways)]


@pytest.mark.parametrize(
    ("broker", "option", "line"),
    [
        (
            "https://127.0.0.1:1/x",
            "webhooks.secret",
            "there is no option {}; the nearest known one is webhooks.secrets",
        ),
        ("https://127.0.0.1:1/x", "webhooks.secrets", "{}: a secret begins with whsec_"),
        ("https://127.0.0.1:1/x", None, "webhooks.secrets: is not set, so nobody could tell that an event is yours: "),
        ("redis://127.0.0.1:1", "redis.password", "there is no option {}; known are redis.durable, "),
        ("nats://127.0.0.1:1", "nats.secret", "there is no option {}; "),
        ("rabbitmq://127.0.0.1:1", "rabbitmq.secret", "there is no option {}; "),
        ("redis://127.0.0.1:1", "relay.secret", "unknown setting '{0}' (--set {0}); known are relay.batch, "),
    ],
)
def test_an_error_about_a_secret_hides_the_secret_and_none_of_its_words(
    migrated: "Shop", broker: str, option: str | None, line: str
) -> None:
    given = "" if option is None else f"--set {option}={CANARY}"
    done = migrated.type(f"pillarbox relay once --database {migrated.database} --broker {broker} {given}", code=2)
    assert done.stderr.startswith("pillarbox: " + line.format(option)), done.stderr
    assert CANARY not in done.stderr


@pytest.mark.parametrize("offset", OFFSETS)
def test_the_password_of_a_database_that_is_away(desk: Desk, offset: int) -> None:
    for place, (command, way) in enumerate(turns((*COMMANDS, *ENDING_WITHOUT_DATABASE), offset)):
        password = SPELLINGS[place % len(SPELLINGS)]
        desk.type(command, way, {"database": f"postgresql://shop:{password}@127.0.0.1:1/shop"})
    assert (desk.codes["config show"], desk.codes["stats"], desk.codes["health"]) == (0, 1, 3)


@pytest.mark.parametrize("json", ["", " --json"])
@pytest.mark.parametrize("command", BY_FLAG)
def test_the_password_of_a_database_that_only_a_flag_names(desk: Desk, command: str, json: str) -> None:
    for password in SPELLINGS:
        desk.type(f"{command}{json}", "flag", {"database": f"postgresql://shop:{password}@127.0.0.1:1/shop"})


def test_every_command_is_given_the_password_of_a_database() -> None:
    typed = [*COMMANDS, *ENDING_WITHOUT_DATABASE, *BY_FLAG, *(command for command, *_ in DAEMONS), *LETTING_IN]
    given = {path for path in ALL for command in typed if f"{command} ".startswith(f"{path} ")}
    assert given == set(ALL) - WITHOUT_DATABASE


def test_every_broker_that_takes_a_secret_meets_each_program_that_runs() -> None:
    kinds = {name.partition(",")[0].partition("'")[0] for name in BROKERS if "slip" not in name}
    assert {kind for _, kind, *_ in DAEMONS} == kinds | {"postgresql"}
    assert set(CONSUMED) == kinds - {"webhooks"}, "webhooks have no consumer"


@pytest.mark.parametrize("offset", OFFSETS)
def test_the_password_of_a_database_that_lets_us_in(desk: Desk, offset: int, guarded: Callable[[str], str]) -> None:
    for command, way in turns(COMMANDS, offset):
        desk.type(command, way, {"database": guarded(CANARY)})
    assert (desk.codes["config show"], desk.codes["stats"], desk.codes["migrate check"]) == (0, 0, 0)


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_password_that_is_wrong(desk: Desk, offset: int, guarded: Callable[[str], str]) -> None:
    commands = ("config show", "stats", "relay once --broker stdout:", "doctor", "status")
    for command, way in turns(commands, offset):
        desk.type(command, way, {"database": guarded(f"wrong-{CANARY}")})
    assert (desk.codes["config show"], desk.codes["stats"], desk.codes["status"]) == (0, 2, 2)


@pytest.mark.parametrize("password", [f"100%{CANARY}", f"%zz{CANARY}", f"{CANARY} x"])
def test_a_password_that_is_not_percent_encoded_is_in_no_traceback(password: str) -> None:
    with pytest.raises(ConfigError, match="database: ") as refused:
        Relay(database=f"postgresql://shop:{password}@127.0.0.1:1/shop", broker="stdout:").run_forever()
    assert MARK not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("name", BROKERS)
def test_the_secrets_of_a_broker(desk: Desk, name: str, offset: int) -> None:
    make_shop(desk.directory)
    given = {"database": "sqlite:///shop.db", "broker": BROKERS[name], **OPTIONS.get(name, {})} | SPARSE
    if name.startswith("webhooks"):
        given |= {"webhooks.secrets": KEY, "webhooks.allow": "127.0.0.1"}
    for command, way in turns(BROKER_COMMANDS, offset + list(BROKERS).index(name)):
        if name.startswith("kafka") and command == "doctor":
            continue  # it waits for the cluster for ten seconds and more
        desk.type(command, way, given)
    assert desk.codes["config show"] == (2 if name == "a slip" else 0)  # no broker is called so


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in BROKERS if name.startswith("kafka")])
def test_the_secrets_of_kafka_where_it_is_waited_for(desk: Desk, name: str) -> None:
    make_shop(desk.directory)
    given = {"database": "sqlite:///shop.db", "broker": BROKERS[name], **OPTIONS.get(name, {})} | SPARSE
    for way in WAYS:
        desk.type("doctor", way, given)
        assert desk.codes["doctor"] in (2, 3), way


SQLITE = "sqlite:///shop.db"
AWAY = f"postgresql://shop:{CANARY}@127.0.0.1:1/shop"
DAEMONS = [
    ("relay run", "postgresql", AWAY, "stdout:", "the database is away"),
    ("relay watch", "postgresql", AWAY, "stdout:", "the database is away"),
    *(
        ("relay run", kind, SQLITE, BROKERS[kind], "the broker is away")
        for kind in ("kafka", "rabbitmq", "redis", "nats")
    ),
    ("relay run", "webhooks", SQLITE, BROKERS["webhooks, plain"], "the broker is away"),
]
CONSUMED = ("kafka", "rabbitmq", "redis", "nats")
SOAKED = ("kafka", "rabbitmq", "nats")


def soaked(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.soak] if name in SOAKED else []


@pytest.mark.parametrize(
    ("command", "database", "broker", "trouble"),
    [pytest.param(command, *rest, id=f"{command}, {kind}", marks=soaked(kind)) for command, kind, *rest in DAEMONS],
)
def test_a_daemon_that_runs_says_no_secret(
    shop: "Shop", command: str, database: str, broker: str, trouble: str
) -> None:
    make_shop(shop.directory)
    port = free_port()
    shop.environment |= {
        "PILLARBOX_DATABASE": database,
        "PILLARBOX_BROKER": broker,
        "PILLARBOX_HEALTH_LISTEN": f"127.0.0.1:{port}",
        "PILLARBOX_WEBHOOKS_SECRETS": KEY,
        "PILLARBOX_WEBHOOKS_ALLOW": "127.0.0.1",
        "PILLARBOX_DEBUG": "1",
    }
    with shop.running(f"pillarbox {command} --json") as daemon:
        said = until_it_says(daemon, trouble)
        for path in ("/metrics", "/readyz", "/livez", "/startupz", "/nothing"):
            said += asked(f"http://127.0.0.1:{port}{path}")
        daemon.terminate()
        said += "".join(daemon.communicate(timeout=30))
    assert command != "relay run" or "pillarbox_relay_up" in said
    assert not [mark for mark in MARKS if mark in said], said


def until_it_says(daemon: "subprocess.Popen[str]", words: str) -> str:
    """Read what a daemon logs until these words; give all of it."""
    assert daemon.stderr is not None
    said = ""
    while words not in said:
        line = daemon.stderr.readline()
        assert line, said
        said += line
    return said


def asked(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as refusal:
        with refusal:
            return f"{refusal.headers}{refusal.read().decode()}"


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=soaked(kind)) for kind in CONSUMED])
def test_a_consumer_that_runs_says_no_secret(shop: "Shop", kind: str) -> None:
    make_shop(shop.directory)
    shop.environment |= {"PILLARBOX_BROKER": BROKERS[kind], "PILLARBOX_DEBUG": "1"}
    with shop.running("pillarbox consume billing:inbox --topic order-events") as consumer:
        said = until_it_says(consumer, "the broker is away")
        consumer.terminate()
        said += "".join(consumer.communicate(timeout=30))
    assert MARK not in said


LETTING_IN = {"relay run --broker stdout:": "holds 64 lanes", "relay watch": "watches the replication slot"}


@pytest.mark.parametrize("command", LETTING_IN)
def test_a_daemon_that_was_let_in_says_no_password(
    shop: "Shop", command: str, guarded: Callable[[str], str], postgres: RunningPostgres
) -> None:
    shop.environment |= {"PILLARBOX_DATABASE": guarded(CANARY), "PILLARBOX_DEBUG": "1"}
    slot = f"slot_{uuid.uuid4().hex}"
    with psycopg.connect(guarded(CANARY), autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
    try:
        said = told(shop.type(f"pillarbox source slot {slot} --yes")) if "watch" in command else ""
        with shop.running(f"pillarbox {command} --json") as daemon:
            said += until_it_says(daemon, LETTING_IN[command])
            daemon.terminate()
            said += "".join(daemon.communicate(timeout=30))
    finally:
        postgres.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    assert MARK not in said


def told(done: "subprocess.CompletedProcess[str]") -> str:
    return done.stdout + done.stderr


@pytest.mark.parametrize("json", ["", " --json"])
def test_a_tail_that_was_let_in_says_no_password(shop: "Shop", json: str, guarded: Callable[[str], str]) -> None:
    shop.environment |= {"PILLARBOX_DATABASE": guarded(CANARY), "PILLARBOX_DEBUG": "1"}
    with psycopg.connect(guarded(CANARY)) as connection:
        PostgresOutbox().add(connection, Event("OrderPlaced", {"order": 1}, aggregate=("order", 1)))
    tail = shop.start(f"pillarbox events tail --last 1{json}")
    try:
        assert tail.stdout is not None
        said = tail.stdout.readline()
        assert "OrderPlaced" in said
        tail.send_signal(signal.SIGINT)
        said += "".join(tail.communicate(timeout=30))
    finally:
        tail.kill()
    assert tail.returncode == 0
    assert MARK not in said


def test_the_live_view_shows_no_password(shop: "Shop", guarded: Callable[[str], str]) -> None:
    environment = shop.environment | {"PILLARBOX_DATABASE": guarded(CANARY), "PILLARBOX_DEBUG": "1"}
    with Terminal(["top"], shop.directory, environment) as terminal:
        terminal.until("pending 0")
        terminal.type("q")
        assert terminal.end() == 0
        assert "***" in terminal.shown
        assert MARK not in terminal.shown


TOLD = (
    f"redis://u:{CANARY}@h:6379 refused; password={CANARY} token: {CANARY} 'api_key': '{CANARY}'"
    f" Authorization: Bearer {CANARY}"
)
TALKATIVE = f"""
import sqlite3
from pillarbox.dbapi import Inbox
inbox = Inbox("billing", lambda: sqlite3.connect("shop.db"))
@inbox.handler("OrderPlaced")
def charge(connection, event):
    raise RuntimeError({TOLD!r})
"""
LOOKS = ("status", "health", "events list", "dead list", "dead list --group-by error", "top --once", "stats")
ONE = ("events show", "dead show")


@pytest.mark.parametrize("error", [BrokerUnavailable, PublishError, PublishRejected])
def test_an_error_of_a_publisher_tells_no_secret(
    desk: Desk, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    async def publish(messages: Sequence[Message]) -> None:
        raise error(TOLD)

    make_shop(desk.directory)
    logger.propagate = True
    relay = Relay(database="sqlite:///shop.db", publish=publish)
    if error is BrokerUnavailable:
        with pytest.raises(BrokerUnavailable):
            asyncio.run(relay.run_once())
    else:
        asyncio.run(relay.run_once())
    assert HIDDEN in caplog.text
    assert MARK not in caplog.text
    (id,) = ids("pillarbox_outbox")
    look_everywhere(desk, id, "")
    assert MARK not in stored()


def test_an_error_of_a_handler_tells_no_secret(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    make_shop(desk.directory)
    (desk.directory / "billing.py").write_text(TALKATIVE)
    given = {"database": "sqlite:///shop.db", "broker": "sqlite:///stream.db"}
    monkeypatch.syspath_prepend(str(desk.directory))
    monkeypatch.delitem(sys.modules, "billing", raising=False)
    desk.type("relay once", "flag", given)
    once = "consume billing:inbox --topic order-events --once --set relay.retries=0"
    desk.type(once, "flag", {"broker": given["broker"]})
    (id,) = ids("pillarbox_inbox_parked")
    look_everywhere(desk, id, " --inbox")
    assert MARK not in stored()


def test_an_error_that_was_kept_with_a_secret_is_shown_without_it(desk: Desk) -> None:
    make_shop(desk.directory)
    asyncio.run(Relay(database="sqlite:///shop.db", publish=refuse).run_once())
    connection = sqlite3.connect("shop.db")
    connection.execute("UPDATE pillarbox_parked SET last_error = ?", [TOLD])
    connection.commit()
    connection.close()
    (id,) = ids("pillarbox_outbox")
    look_everywhere(desk, id, "")


async def refuse(messages: Sequence[Message]) -> None:
    raise PublishRejected("no")


def ids(table: str) -> list[str]:
    connection = sqlite3.connect("shop.db")
    found = [id for (id,) in connection.execute(f"SELECT event_id FROM {table}")]
    connection.close()
    return found


def stored() -> str:
    connection = sqlite3.connect("shop.db")
    text = "\n".join(connection.iterdump())
    connection.close()
    return text


def look_everywhere(desk: Desk, id: str, where: str) -> None:
    """Let every command that shows errors show this one, for people and for programs."""
    for look in (*LOOKS, *(f"{command} {id}" for command in ONE)):
        inbox = where if look.startswith("dead") else ""
        for json in ("", " --json"):
            desk.type(f"{look}{inbox}{json}", "flag", {"database": "sqlite:///shop.db"})


def test_what_an_event_carries_is_shown_as_it_is(desk: Desk) -> None:
    make_shop(desk.directory)
    connection = sqlite3.connect("shop.db", isolation_level=None)
    sent = Event("LinkSent", {"link": "https://shop/x?token=abc"}, aggregate=("link", "https://shop/orders/7"))
    connection.execute("BEGIN IMMEDIATE")
    Outbox().add(connection, sent)
    connection.execute("COMMIT")
    connection.close()
    for json in ("", " --json"):
        out = desk.shown(f"events show {sent.id}{json} --database sqlite:///shop.db")
        assert "https://shop/x?token=abc" in out
        assert "https://shop/orders/7" in out


def make_shop(directory: Path) -> None:
    connection = sqlite3.connect(directory / "shop.db", isolation_level=None)
    Tables(str(directory / "shop.db"), "pillarbox_").up(connection)
    connection.execute("BEGIN IMMEDIATE")
    Outbox().add(connection, Event("OrderPlaced", {"order": 1}, aggregate=("order", 1)))
    connection.execute("COMMIT")
    connection.close()
    (directory / "billing.py").write_text(INBOX)
