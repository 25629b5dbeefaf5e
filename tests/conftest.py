"""What all tests share: real servers, a skip must be justified, and the run says at its end what it ran against."""

import functools
import importlib.util
import os
import platform
import re
import shutil
import signal
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from pillarbox.stores.postgres.schema import Tables
from servers.kafka import Kafka
from servers.kafka_connect import KafkaConnect
from servers.nats import Nats
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres, RunningPostgres
from servers.process import STARTED, NotInstalled
from servers.rabbitmq import RabbitMQ
from servers.redis import Redis
from servers.webhook_receiver import WebhookReceiver

Made = TypeVar("Made")

EVERY_POSTGRES = ["15", *(pytest.param(major, marks=pytest.mark.soak) for major in ("17", "18"))]
"""The versions that a test of the store runs on: 15 always, the others in the soak."""

SOMEBODY_ELSES = os.environ.get("PILLARBOX_TEST_POSTGRES")
"""The URL of a PostgreSQL to use instead of one of our own, if set; its user must be allowed to make databases."""

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

REQUIREMENTS: dict[str, Callable[[], bool]] = {
    "Linux": lambda: sys.platform == "linux",
    "Python 3.12": lambda: sys.version_info >= (3, 12),
    "Python 3.13": lambda: sys.version_info >= (3, 13),
    "systemd": lambda: shutil.which("systemd-analyze") is not None,
    "git": lambda: shutil.which("git") is not None,
    "SQLAlchemy": lambda: importlib.util.find_spec("sqlalchemy") is not None,
    "faketime": FAKETIME.exists,
    "x86-64": lambda: platform.machine() == "x86_64",
    "a PostgreSQL of our own": lambda: SOMEBODY_ELSES is None,
}
"""What a test may need that not every machine has. A skip says `needs <name>: …`, and the name must stand here."""


def needless(reason: str) -> bool:
    """Tell whether this machine could have run a test that was skipped for `reason`."""
    named = re.search(r"needs ([^:]+):", reason)
    return named is None or named[1] not in REQUIREMENTS or REQUIREMENTS[named[1]]()


@pytest.fixture(scope="session")
def postgres() -> Iterator[RunningPostgres]:
    """PostgreSQL 15, one per test process; a test that kills one takes its own."""
    if SOMEBODY_ELSES is None:
        with installed(lambda: Postgres("15")) as ours:
            yield ours
    else:
        theirs = RunningPostgres(SOMEBODY_ELSES)
        STARTED.add(f"PostgreSQL {theirs.version} (PILLARBOX_TEST_POSTGRES)")
        yield theirs


@pytest.fixture(scope="session")
def postgres_at(request: pytest.FixtureRequest) -> Iterator[Callable[[str], RunningPostgres]]:
    """Gives PostgreSQL "15", "17" or "18", one of each per test process; a test that kills one takes its own."""
    with ExitStack() as servers:

        @functools.cache
        def at(major: str) -> RunningPostgres:
            if major == "15":
                shared: RunningPostgres = request.getfixturevalue("postgres")
                return shared
            return servers.enter_context(installed(lambda: Postgres(major)))

        yield at


@pytest.fixture
def own_postgres() -> Iterator[Callable[[str], Postgres]]:
    """Starts a PostgreSQL "15", "17" or "18" for one test, which may kill it."""
    skip_unless_ours()
    with ExitStack() as servers:
        yield lambda major: servers.enter_context(installed(lambda: Postgres(major)))


@pytest.fixture
def database(request: pytest.FixtureRequest, postgres_at: Callable[[str], RunningPostgres]) -> Iterator[str]:
    """The URL of a new, empty database: on PostgreSQL 15, or on the version that is the fixture's parameter."""
    server = postgres_at(getattr(request, "param", "15"))
    name = f"test_{uuid.uuid4().hex}"
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture
def migrated(request: pytest.FixtureRequest, postgres_at: Callable[[str], RunningPostgres]) -> Iterator[str]:
    """The URL of a new database with the tables; the version as with `database`. A copy, because that is quicker."""
    server = postgres_at(getattr(request, "param", "15"))
    name = f"test_{uuid.uuid4().hex}"
    yield server.create_database(name, template_of(server))
    server.drop_database(name)


@functools.cache
def template_of(server: RunningPostgres) -> str:
    """Make a database with the tables, once per server, and give its name."""
    name = f"migrated_{uuid.uuid4().hex}"
    with psycopg.connect(server.create_database(name), autocommit=True) as connection:
        connection.execute(Tables("public", "pillarbox_").sql().encode())
    return name


@pytest.fixture(scope="session")
def pgbouncer(postgres: RunningPostgres) -> Iterator[PgBouncer]:
    """PgBouncer in front of `postgres`, one per test process; a test that points it elsewhere takes its own."""
    skip_unless_ours()
    assert isinstance(postgres, Postgres)
    with installed(lambda: PgBouncer(postgres.port)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_at() -> Iterator[Callable[[str], Redis]]:
    """Gives "redis" or "valkey", one of each per test process; a test that kills one takes its own."""
    with ExitStack() as servers:
        yield functools.cache(lambda kind: servers.enter_context(installed(lambda: Redis(kind))))


@pytest.fixture(params=["redis", pytest.param("valkey", marks=pytest.mark.soak)])
def redis(request: pytest.FixtureRequest, redis_at: Callable[[str], Redis]) -> Redis:
    """Redis, and once more Valkey: empty, and shared with other tests."""
    server = redis_at(request.param)
    with server.client() as client:
        client.flushall()
    return server


@pytest.fixture
def own_redis() -> Iterator[Callable[..., Redis]]:
    """Starts a "redis" or a "valkey" for one test, which may kill it."""
    with ExitStack() as servers:
        yield lambda kind, **settings: servers.enter_context(installed(lambda: Redis(kind, settings=settings)))


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """Kafka, one broker per test process; a test takes topics of its own, and one that kills a broker of its own."""
    with installed(Kafka) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_connect(kafka: Kafka) -> Iterator[KafkaConnect]:
    """Kafka Connect with Debezium over `kafka`, one worker per test process; a test that kills one takes its own."""
    with installed(
        lambda: KafkaConnect(kafka.bootstrap, environment={"OUTBOX_DATABASE_PASSWORD": "hunter2"})
    ) as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    """NATS with JetStream, one per test process; a test that makes streams deletes them; one that kills has its own."""
    with installed(Nats) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """RabbitMQ, one per test process; a test that kills one takes its own."""
    with installed(RabbitMQ) as server:
        yield server


@pytest.fixture
def vhost(rabbitmq: RabbitMQ) -> Iterator[str]:
    """The name of a new, empty virtual host on `rabbitmq`."""
    name = f"test-{uuid.uuid4().hex}"
    rabbitmq.create_vhost(name)
    yield name
    rabbitmq.drop_vhost(name)


@pytest.fixture(scope="session")
def shared_webhook_receiver() -> Iterator[WebhookReceiver]:
    with installed(WebhookReceiver) as server:
        yield server


@pytest.fixture
def webhook_receiver(shared_webhook_receiver: WebhookReceiver) -> WebhookReceiver:
    """An endpoint over plain HTTP: it has received nothing yet, and is shared; a test that kills one takes its own."""
    shared_webhook_receiver.forget()
    return shared_webhook_receiver


def skip_unless_ours() -> None:
    if SOMEBODY_ELSES is not None:
        pytest.skip("needs a PostgreSQL of our own: the one of PILLARBOX_TEST_POSTGRES must not be killed")


def installed(server: Callable[[], Made]) -> Made:
    """Make a server, or skip the test; `make test` then fails, for .ci/servers should have fetched it."""
    try:
        return server()
    except NotInstalled as missing:
        pytest.skip(str(missing))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-skip-needs-a-reason",
        action="store_true",
        help="fail if a test was skipped that this machine could have run",
    )


def pytest_configure() -> None:
    # A shell's background jobs ignore SIGINT, and children inherit that: a Ctrl-C that is tested would do nothing.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Hundreds of tests start a Python: where it may not keep what it has compiled, each start takes twice as long.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


ON_JAVA = {"kafka", "kafka_connect"}
"""Fixtures that start Kafka: to fetch and to start that takes minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).with_name("soak") in item.path.parents or ON_JAVA & set(getattr(item, "fixturenames", ())):
            item.add_marker("soak")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    counts = {outcome: len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "error")}
    skipped = [reason_of(report) for report in terminalreporter.stats.get("skipped", ())]
    terminalreporter.section("what this ran against")
    write(f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    if STARTED:
        write(", ".join(sorted(STARTED)))
    write(f"{platform.platform()}, {platform.machine()}")
    write(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + f", {len(skipped)} skipped")
    for nodeid, reason in skipped:
        write(f"  skipped {nodeid}: {reason}" + (" ← this machine could have run it" if needless(reason) else ""))
    for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
        for name, value in report.user_properties:
            if name == "not run":
                write(f"  not run: {value}")
            elif name == "says":
                write(f"  {value}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["started"] = sorted(STARTED)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--every-skip-needs-a-reason"):
        return
    if session.exitstatus == pytest.ExitCode.OK and any(
        needless(reason_of(report)[1]) for report in reporter.stats.get("skipped", ())
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # The summary is written by the process that started the workers, and the servers are theirs.
    STARTED.update(getattr(node, "workeroutput", {}).get("started", ()))


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str]:
    """Give the test's name and why it was skipped."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return report.nodeid, reason.removeprefix("Skipped: ")
