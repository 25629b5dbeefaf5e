"""`pillarbox bench`, as a user types it: it measures, touches nothing of theirs, leaves nothing, also interrupted."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pillarbox import Event
from pillarbox.dbapi import Outbox
from pillarbox.psycopg import Outbox as PostgresOutbox
from pillarbox.stores.postgres.schema import Tables as PostgresTables
from pillarbox.stores.sqlite.schema import Tables
from servers.kafka import Kafka
from servers.nats import Nats, ask
from servers.rabbitmq import RabbitMQ
from servers.redis import Redis

TINY = ("--events", "200", "--seconds", "0.2", "--aggregates", "7", "--yes", "--json")
LEFT_AT_WORK = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pillarbox_bench%'"
PATIENCE = 60.0
every_way = pytest.mark.parametrize("only", ["drain", pytest.param("drain,latency", marks=pytest.mark.soak)])


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pillarbox", "bench", *words]


def bench(*words: str, at: Path | None = None, says: str | None = None) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=110, cwd=at, input=says, env=clean)


def measured(*words: str, at: Path | None = None) -> dict[str, Any]:
    done = bench(*TINY, *words, at=at)
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    for key, row in said["rows"].items():
        assert row["value"] >= 0, key
        assert row["unit"], key
        assert (row["ratio"] is None) == (not row["reference"]), key
    return said


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory with an outbox of somebody's, in which three events are pending."""
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        Tables(str(tmp_path / "shop.db"), "pillarbox_").up(connection)
        connection.execute("BEGIN")
        Outbox().add(connection, *(Event("OrderPlaced", {"n": n}, aggregate=("order", n)) for n in range(3)))
        connection.execute("COMMIT")
    return tmp_path


@pytest.fixture
def postgres_shop(database: str) -> Iterator[str]:
    """A database with an outbox of somebody's; in the end it must be as it was."""
    with psycopg.connect(database) as connection:
        connection.execute(PostgresTables("public", "pillarbox_").sql().encode())
        PostgresOutbox().add(connection, *(Event("OrderPlaced", {"n": n}, aggregate=("order", n)) for n in range(3)))
    before = contents(database)
    yield database
    assert contents(database) == before


def contents(url: str) -> list[Any]:
    """Give all that somebody else would notice: schemas and tables, and what is in ours."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT schemaname, tablename FROM pg_tables ORDER BY 1, 2").fetchall()
        rows = [
            connection.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()
            for table in ("pillarbox_outbox", "pillarbox_ticks", "pillarbox_lanes", "pillarbox_relays")
        ]
        schemas = connection.execute("SELECT nspname FROM pg_namespace ORDER BY 1").fetchall()
    return [schemas, tables, rows]


def files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def asked(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def test_on_sqlite_everything_is_measured_and_only_the_plot_is_left(theirs: Path) -> None:
    before = files(theirs)
    where = ("--database", "sqlite:///shop.db", "--broker", "sqlite:///stream.db")
    said = measured(
        *where, "--plot", "plot.svg", "--only", "read,drain,sustained,latency,writer", "--payload", "100", at=theirs
    )
    assert set(said["rows"]) == {
        *("read", "drain", "cpu_relay", "sustained", "apply", "writer"),
        *(
            f"latency_{until}_{rate}_{share}"
            for until in ("broker", "applied")
            for rate in ("100", "1000", "80_percent")
            for share in ("p50", "p99")
        ),
        *("latency_broker_80_percent_rate", "latency_applied_80_percent_rate"),
    }
    assert (said["way"], said["events"], said["payload_bytes"], said["aggregates"]) == ("sqlite → sqlite", 200, 100, 7)
    assert all(said["rows"][key]["value"] > 0 for key in ("read", "drain", "apply", "writer"))
    assert "commit → applied at 1,000/s, p99" in (theirs / "plot.svg").read_text()
    after = files(theirs)
    after.pop("plot.svg")
    assert after == before


def test_what_is_said_beforehand_is_no_less_than_what_is_written(theirs: Path) -> None:
    """Everything that stands in the outbox and in the textbook's when the files are removed was announced."""
    spy = (
        "import sqlite3, sys\nfrom pillarbox.bench import sqlite as place\n"
        "drop = place.SqlitePlace.drop\n"
        "def counting(self):\n"
        "    connection = self.connect()\n"
        "    [rows] = connection.execute('SELECT (SELECT count(*) FROM pillarbox_outbox)"
        " + (SELECT count(*) FROM textbook)')\n"
        "    connection.close()\n"
        "    print('written', rows[0], file=sys.stderr)\n"
        "    drop(self)\n"
        "place.SqlitePlace.drop = counting\n"
        "if __name__ == '__main__':\n"
        "    from pillarbox.__main__ import main\n    main()\n"
    )
    (theirs / "spy.py").write_text(spy)
    where = (
        "--database",
        "sqlite:///shop.db",
        "--broker",
        "sqlite:///stream.db",
        "--only",
        "read,drain,sustained,writer",
    )
    done = subprocess.run(
        [sys.executable, "spy.py", "bench", *TINY, *where], cwd=theirs, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    [most] = [int(line.split()[4].replace(",", "")) for line in done.stderr.splitlines() if line.startswith("This wri")]
    [written] = [int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("written")]
    assert 400 < written <= most


def test_from_postgresql_to_redis_nothing_is_left(postgres_shop: str, redis: Redis) -> None:
    where = ("--database", postgres_shop, "--broker", redis.url())
    rows = measured(*where, "--only", "read,drain,sustained,latency,writer")["rows"]
    assert {"read", "drain", "sustained", "apply", "writer", "wal_relay", "wal_event", "cpu_database"} <= set(rows)
    assert rows["latency_applied_1000_p99"]["reference"] > 0
    with redis.client() as client:
        assert client.keys("*") == []
    until(lambda: asked(postgres_shop, LEFT_AT_WORK) == [(0,)], "nobody is at work")


@pytest.mark.soak
def test_an_idle_relay_on_postgresql_asks_now_and_then(postgres_shop: str, redis: Redis) -> None:
    rows = measured("--database", postgres_shop, "--broker", redis.url(), "--only", "idle")["rows"]
    assert set(rows) == {"idle_queries", "idle_cpu"}
    assert rows["idle_queries"]["value"] > 0


@every_way
async def test_to_nats_nothing_is_left(postgres_shop: str, nats_server: Nats, only: str) -> None:
    measured("--database", postgres_shop, "--broker", nats_server.url, "--only", only)
    assert (await ask(nats_server.url, "STREAM.NAMES", {}))["streams"] is None


@every_way
@pytest.mark.parametrize("exchange", [False, True])
def test_to_rabbitmq_nothing_is_left(
    postgres_shop: str, rabbitmq: RabbitMQ, vhost: str, exchange: bool, only: str
) -> None:
    url = rabbitmq.url(vhost)
    if exchange:
        rabbitmq.declare_exchange(vhost, "events")
        url += "?exchange=events"
    measured("--database", postgres_shop, "--broker", url, "--only", only)
    assert rabbitmq.ask("GET", f"queues/{vhost}") == []


def test_to_kafka_nothing_is_left(postgres_shop: str, kafka: Kafka) -> None:
    measured("--database", postgres_shop, "--broker", kafka.url, "--only", "drain,latency")
    assert [name for name in kafka.admin().list_topics(timeout=10).topics if "bench" in name] == []
    groups = kafka.admin().list_consumer_groups().result(20).valid
    assert [one.group_id for one in groups if "bench" in one.group_id] == []


def test_two_relays_drain_together(postgres_shop: str, tmp_path: Path) -> None:
    broker = f"sqlite:///{tmp_path}/stream.db"
    said = measured("--database", postgres_shop, "--broker", broker, "--only", "drain", "--relays", "2")
    assert said["rows"]["drain"]["name"] == "drain, 2 relays"
    assert files(tmp_path) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing(postgres_shop: str, redis: Redis, number: signal.Signals) -> None:
    words = ("--database", postgres_shop, "--broker", redis.url(), "--seconds", "60", "--only", "sustained", "--yes")
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process, redis.client() as client:
        until(lambda: bool(client.keys("pillarbox-bench-*")), "events arrive")
        process.send_signal(number)
        _, talk = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, talk
        assert b"Traceback" not in talk
        assert client.keys("*") == []
    assert asked(postgres_shop, SCHEMAS) == []
    until(lambda: asked(postgres_shop, LEFT_AT_WORK) == [(0,)], "nobody is at work")


def test_interrupted_it_leaves_no_file_of_the_embedded_broker(postgres_shop: str, tmp_path: Path) -> None:
    broker = f"sqlite:///{tmp_path}/stream.db"
    words = ("--database", postgres_shop, "--broker", broker, "--seconds", "60", "--only", "sustained", "--yes")
    with subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        until(lambda: any(file.name.endswith("-wal") for file in tmp_path.iterdir()), "the relay has made the file")
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, talk
    assert files(tmp_path) == {}


def test_after_kill_9_nobody_goes_on(database: str, redis: Redis) -> None:
    words = ("--database", database, "--broker", redis.url(), "--seconds", "60", "--only", "sustained", "--yes")
    with subprocess.Popen(command(*words), stderr=subprocess.DEVNULL) as process:
        with redis.client() as client:
            until(lambda: bool(client.keys("pillarbox-bench-*")), "events arrive")
        process.kill()
    until(lambda: asked(database, LEFT_AT_WORK) == [(0,)], "nobody is at work")


def test_what_cannot_be_removed_is_named(postgres_shop: str, own_redis: Callable[..., Redis]) -> None:
    server = own_redis("redis")
    words = ("--database", postgres_shop, "--broker", server.url(), "--seconds", "60", "--only", "sustained", "--yes")
    with subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True) as process:
        with server.client() as client:
            until(lambda: bool(client.keys("pillarbox-bench-*")), "events arrive")
        server.kill()
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "the topics pillarbox-bench-" in talk
    assert "could not be removed: Redis at" in talk
    assert talk.rstrip().endswith("remove it by hand")
    assert asked(postgres_shop, SCHEMAS) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "drain,speed"], "--only: 'speed' is no measurement: they are read, drain, sustained"),
        (["--only", " , "], "--only: names no measurement"),
        (["--payload", "10"], "Invalid value for '--payload'"),
        (["--aggregates", "0"], "Invalid value for '--aggregates'"),
        (["--relays", "2"], "--relays: SQLite has one writer"),
        (["--plot", "no/such/directory/plot.svg"], "cannot be written: name a file in a directory that is there"),
        (["--broker", "stdout:"], "broker: stdout: prints every event where the rows are printed"),
        (["--broker", "memory:"], "broker: memory:"),
        (["--broker", "gopher://x"], "is of no known kind"),
        (["--database", "sqlite:///no/such/directory/shop.db"], "there is no directory"),
        (["--database", "oracle://x"], "is of no known kind"),
    ],
)
def test_bad_input_is_one_line_code_2_and_touches_nothing(theirs: Path, words: list[str], says: str) -> None:
    before = files(theirs)
    done = bench("--database", "sqlite:///shop.db", "--broker", "sqlite:///stream.db", *words, "--yes", at=theirs)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert files(theirs) == before


def test_without_a_database_it_says_how_to_name_one(tmp_path: Path) -> None:
    done = bench("--yes", at=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "database, broker: are not set" in done.stderr


@pytest.mark.parametrize("answer", ["n\n", "", "later\n"])
def test_it_asks_first_and_no_means_no(theirs: Path, answer: str) -> None:
    before = files(theirs)
    done = bench("--database", "sqlite:///shop.db", "--broker", "sqlite:///stream.db", at=theirs, says=answer)
    assert done.returncode == 1
    assert "This writes up to " in done.stderr
    assert " events of 310 bytes, in the files " in done.stderr
    assert "Go on? [y/N]" in done.stderr
    assert files(theirs) == before


def test_an_exchange_that_is_not_there_is_not_made(postgres_shop: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    done = bench(*TINY, "--database", postgres_shop, "--broker", f"{rabbitmq.url(vhost)}?exchange=gone")
    assert done.returncode == 2
    assert "there is no exchange gone: declare it first" in done.stderr
    assert [one["name"] for one in rabbitmq.ask("GET", f"exchanges/{vhost}") if one["name"] == "gone"] == []


def test_a_database_that_is_away_is_one_line(tmp_path: Path) -> None:
    words = ("--database", "postgresql://127.0.0.1:1/shop", "--broker", f"sqlite:///{tmp_path}/stream.db")
    done = bench(*TINY, *words)
    assert done.returncode == 1
    assert "PostgreSQL is away" in done.stderr
    assert "Traceback" not in done.stderr
