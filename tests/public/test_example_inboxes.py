"""The inbox inside other people's frameworks: each effect once, though every message comes three times and the process
is killed while it commits. Real frameworks, real servers.

The commit is where it is decided, so that is where the process dies. A trigger that fires at the end of a transaction
waits there for a lock which the test holds; then the database either undoes the transaction or commits it after all.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Self

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition

from pillarbox.stores.postgres.schema import Tables
from servers.kafka import Kafka
from servers.rabbitmq import RabbitMQ
from tests.public.test_docs import ROOT

PATIENCE = 60
ORDERS, COPIES = 3, 3
MESSAGES = ORDERS * COPIES
LOCK = 7
TABLES = f"""
CREATE TABLE invoices (order_id bigint NOT NULL, total bigint NOT NULL);

CREATE FUNCTION wait_in_the_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_in_the_commit();

CREATE SEQUENCE asked; -- how often the inbox was asked; a sequence also counts what was undone
CREATE FUNCTION count_the_question() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM nextval('asked'); RETURN NEW; END $$;
CREATE TRIGGER counts BEFORE INSERT ON pillarbox_inbox FOR EACH ROW EXECUTE FUNCTION count_the_question();
"""


class Example(NamedTuple):
    """An example: what starts it, what it says when messages may be sent, and how far it gets when no commit ends."""

    name: str
    command: tuple[str, ...]
    ready: str
    committing: int
    """How many transactions wait in their commits."""
    asked: int
    """How often the inbox was asked by then: how many messages it has under way at once."""


FASTSTREAM = Example("faststream_inbox", ("billing.py",), "started successfully", ORDERS, MESSAGES)
WORKER = ("-m", "celery", "-A", "billing:app", "worker", "--concurrency", "1", "--loglevel", "INFO")
CELERY = Example("celery_inbox", WORKER, "ready", 1, 1)
AIOKAFKA = Example("aiokafka_inbox", ("billing.py",), "waiting for orders", 1, 1)


class Program:
    """An example's consumer as a process, with what it starts, in a group of its own."""

    def __init__(self, example: Example, directory: Path) -> None:
        self._example, self._directory = example, directory

    def __enter__(self) -> Self:
        self._log = (self._directory / "log").open("a+")
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self._log.close()

    def start(self) -> None:
        self._log.truncate(0)
        self._process = self._run(self._example.command, self._log)
        until(lambda: self._example.ready in self.said(), self.said)

    def send(self) -> None:
        """Send every order three times."""
        assert self._run(("shop.py", *map(str, range(1, ORDERS + 1))), self._log).wait(PATIENCE) == 0, self.said()

    def kill(self) -> None:
        """Kill it, and what it has started, with -9."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_child(self) -> None:
        """Kill the process that does the work with -9, and leave the one that started it."""
        pid = self._process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)

    def stop(self) -> None:
        """Stop it as a supervisor would."""
        self._process.terminate()
        assert self._process.wait(PATIENCE) == 0, self.said()

    def said(self) -> str:
        return (self._directory / "log").read_text()

    def _run(self, command: tuple[str, ...], log: IO[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Billing:
    """The database of an example, and what the test does to it."""

    def __init__(self) -> None:
        self._connection = psycopg.connect("dbname=shop", autocommit=True)
        self._connection.execute(Tables("public", "pillarbox_").sql().encode())
        self._connection.execute(TABLES.encode())

    def let_nobody_commit(self) -> None:
        self._connection.execute(f"SELECT pg_advisory_lock({LOCK})".encode())

    def let_everybody_commit(self) -> None:
        self._connection.execute(f"SELECT pg_advisory_unlock({LOCK})".encode())

    def committing(self) -> list[int]:
        """Name the sessions that wait in their commits."""
        sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted ORDER BY 1"
        return [pid for (pid,) in self._connection.execute(sql)]

    @contextmanager
    def keeping_the_inbox(self) -> Iterator[None]:
        """Let everybody wait who asks the inbox."""
        with self._connection.transaction():
            self._connection.execute("LOCK TABLE pillarbox_inbox")
            yield

    def asking(self) -> list[int]:
        """Name the sessions that wait in `first_time`."""
        sql = "SELECT pid FROM pg_locks WHERE relation = 'pillarbox_inbox'::regclass AND NOT granted"
        return [pid for (pid,) in self._connection.execute(sql)]

    def undo(self, sessions: list[int]) -> None:
        """End sessions, and wait until nothing is left of them."""
        for session in sessions:
            self._connection.execute("SELECT pg_terminate_backend(%s, 10000)", [session])

    def asked(self) -> int:
        row = self._connection.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM asked").fetchone()
        assert row is not None
        return int(row[0])

    def invoices(self) -> list[tuple[int, int]]:
        return list(self._connection.execute("SELECT order_id, total FROM invoices ORDER BY order_id"))

    def close(self) -> None:
        self._connection.close()


def until(done: Callable[[], bool], account: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s in vain: {account()}"
        time.sleep(0.02)


@pytest.fixture
def billing(shop_on_postgres: None) -> Iterator[Billing]:
    billing = Billing()
    yield billing
    billing.close()


@contextmanager
def started(example: Example, folder: Path) -> Iterator[Program]:
    here = folder / example.name
    shutil.copytree(ROOT / "examples" / example.name, here)
    with Program(example, here) as program:
        yield program


@contextmanager
def running(example: Example, billing: Billing, folder: Path) -> Iterator[Program]:
    """Run an example until every one of its orders is being committed, and cannot be."""
    with started(example, folder) as program:
        billing.let_nobody_commit()
        program.send()
        there = (example.committing, example.asked)
        until(lambda: (len(billing.committing()), billing.asked()) == there, lambda: (billing.asked(), program.said()))
        yield program


def check_the_rest(example: Example, billing: Billing, program: Program) -> None:
    """Wait until every message has come again; then each order is billed once."""
    until(
        lambda: billing.asked() == example.asked + MESSAGES,
        lambda: f"the inbox was asked {billing.asked()} times; {program.said()}",
    )
    check_the_end(billing, program, example.asked + MESSAGES)


def check_the_end(billing: Billing, program: Program, asked: int) -> None:
    """Stop it; nothing more may have come."""
    program.stop()
    assert billing.asked() == asked
    assert billing.invoices() == [(order, 10 * order) for order in range(1, ORDERS + 1)]


WHAT_BECOMES_OF_THE_COMMIT = pytest.mark.parametrize("undone", [True, False], ids=["it is undone", "it is done"])


def kill_in_the_commit(example: Example, billing: Billing, folder: Path, undone: bool) -> None:
    """Let it die in its commits, and start it again."""
    with running(example, billing, folder) as program:
        sessions = billing.committing()
        program.kill()
        if undone:
            billing.undo(sessions)
        billing.let_everybody_commit()
        program.start()
        check_the_rest(example, billing, program)


@pytest.mark.usefixtures("shop_on_rabbitmq")
@WHAT_BECOMES_OF_THE_COMMIT
def test_a_faststream_application_that_dies_in_its_commit(
    billing: Billing, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path, undone: bool
) -> None:
    kill_in_the_commit(FASTSTREAM, billing, tmp_path, undone)
    assert left_in(rabbitmq, vhost, "order-events") == []


@pytest.mark.usefixtures("shop_on_rabbitmq")
@WHAT_BECOMES_OF_THE_COMMIT
def test_a_celery_worker_that_dies_in_its_commit(
    billing: Billing, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path, undone: bool
) -> None:
    kill_in_the_commit(CELERY, billing, tmp_path, undone)
    assert left_in(rabbitmq, vhost, "billing") == []


@pytest.mark.usefixtures("shop_on_rabbitmq")
def test_a_celery_worker_whose_child_dies_in_its_commit(
    billing: Billing, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path
) -> None:
    with running(CELERY, billing, tmp_path) as program:
        sessions = billing.committing()
        program.kill_child()
        billing.undo(sessions)
        billing.let_everybody_commit()
        check_the_rest(CELERY, billing, program)
    assert left_in(rabbitmq, vhost, "billing") == []


@pytest.mark.usefixtures("shop_on_rabbitmq")
@pytest.mark.parametrize(
    ("example", "queue"), [(FASTSTREAM, "order-events"), (CELERY, "billing")], ids=["faststream", "celery"]
)
def test_a_database_that_ends_a_session_while_the_inbox_is_asked(
    billing: Billing, rabbitmq: RabbitMQ, vhost: str, tmp_path: Path, example: Example, queue: str
) -> None:
    with started(example, tmp_path) as program:
        with billing.keeping_the_inbox():
            program.send()
            at_once = example.asked
            until(lambda: len(billing.asking()) == at_once, program.said)
            billing.undo(billing.asking())
        until(lambda: billing.asked() == MESSAGES, lambda: (billing.asked(), program.said()))
        check_the_end(billing, program, MESSAGES)
    assert left_in(rabbitmq, vhost, queue) == []


@pytest.mark.soak  # Kafka runs on Java
@WHAT_BECOMES_OF_THE_COMMIT
def test_a_loop_on_aiokafka_that_dies_in_its_commit(
    billing: Billing, shop_on_kafka: Kafka, tmp_path: Path, undone: bool
) -> None:
    kill_in_the_commit(AIOKAFKA, billing, tmp_path, undone)
    reader = Consumer({"bootstrap.servers": shop_on_kafka.bootstrap, "group.id": "billing"})
    (committed,) = reader.committed([TopicPartition("order-events", 0)], timeout=30)
    reader.close()
    assert committed.offset == MESSAGES


def left_in(rabbitmq: RabbitMQ, vhost: str, queue: str) -> list[object]:
    """Give what was not acknowledged, now that nobody is connected."""
    wanted = {"count": 100, "ackmode": "ack_requeue_true", "encoding": "auto"}
    left: list[object] = rabbitmq.ask("POST", f"queues/{vhost}/{queue}/get", wanted)
    return left
