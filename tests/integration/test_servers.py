"""The servers that other tests stand on: they start, keep what was committed, fail over, and die with us."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from servers import process
from servers.fault_proxy import FaultProxy
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres, RunningPostgres
from servers.process import AddressInUse, clients_ports, end_processes_in, free_port, start_on_free_port
from servers.prometheus import Prometheus
from tests.conftest import installed

MAJORS = ["15", "17", "18"]

OwnPostgres = Callable[[str], Postgres]


@pytest.mark.parametrize("major", MAJORS)
def test_the_version_asked_for_answers(postgres_at: Callable[[str], RunningPostgres], major: str) -> None:
    assert postgres_at(major).version.split(".")[0] == major


@pytest.mark.parametrize("major", MAJORS)
def test_committed_rows_survive_kill_9(own_postgres: OwnPostgres, major: str) -> None:
    server = own_postgres(major)
    server.execute("create table kept (number int)")
    for number in range(3):
        server.execute(f"insert into kept values ({number})")
        server.kill()
        server.restart()
    assert server.execute("select number from kept order by number") == [(0,), (1,), (2,)]


@pytest.mark.parametrize("major", MAJORS)
def test_a_standby_takes_over_and_the_old_primary_comes_back_behind_it(own_postgres: OwnPostgres, major: str) -> None:
    primary = own_postgres(major)
    primary.execute("create table kept (number int)")
    with primary.standby() as standby:
        primary.execute("insert into kept values (1)")
        standby.wait_until_replayed(primary)
        primary.kill()
        standby.promote()
        standby.execute("insert into kept values (2)")
        primary.rewind(standby)
        primary.wait_until_replayed(standby)
        assert primary.execute("select number, pg_is_in_recovery() from kept order by 1") == [(1, True), (2, True)]


def test_a_standby_behind_a_half_open_proxy_misses_the_last_commits(own_postgres: OwnPostgres) -> None:
    primary = own_postgres("15")
    primary.execute("create table kept (number int)")
    with FaultProxy(primary.port) as proxy, primary.standby(through=proxy.port) as standby:
        primary.execute("insert into kept values (1)")
        standby.wait_until_replayed(primary)
        proxy.half_open()
        primary.execute("insert into kept values (2)")
        primary.kill()
        standby.promote()
        assert standby.execute("select number from kept") == [(1,)]


def test_a_primary_that_was_rewound_forgets_what_only_it_had(own_postgres: OwnPostgres) -> None:
    primary = own_postgres("15")
    primary.execute("create table kept (number int)")
    with FaultProxy(primary.port) as proxy, primary.standby(through=proxy.port) as standby:
        standby.wait_until_replayed(primary)
        proxy.half_open()
        primary.execute("insert into kept values (1)")
        primary.kill()
        standby.promote()
        primary.rewind(standby)
        primary.wait_until_replayed(standby)
        assert primary.execute("select number from kept") == []


def test_a_transaction_can_be_prepared(own_postgres: OwnPostgres) -> None:
    server = own_postgres("15")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("prepare transaction 'later'")
    assert server.execute("select gid from pg_prepared_xacts") == [("later",)]


def test_a_frozen_server_lets_new_connections_hang_until_it_thaws(own_postgres: OwnPostgres) -> None:
    server = own_postgres("15")
    server.freeze()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(server.url(), connect_timeout=2)
    server.thaw()
    assert server.execute("select 1") == [(1,)]


def test_somebody_elses_server_on_the_port_is_not_taken_for_ours(own_postgres: OwnPostgres) -> None:
    other = own_postgres("15")
    server = Postgres("15")
    try:
        with pytest.raises(AddressInUse):
            server.start_on(other.port)
    finally:
        server.close()


def test_a_taken_port_is_exchanged_for_another() -> None:
    tried: list[int] = []

    def start(port: int) -> int:
        tried.append(port)
        if len(tried) == 1:
            raise AddressInUse("somebody was faster")
        return port

    assert start_on_free_port(start) == tried[1]


def test_no_client_can_be_given_the_port_of_a_server() -> None:
    first, end = clients_ports()
    assert free_port() not in range(first, end)


@pytest.mark.usefixtures("own_postgres")
@pytest.mark.parametrize(
    ("durable", "room", "place"), [(False, 0, "memory"), (False, sys.maxsize, "disk"), (True, 0, "disk")]
)
def test_what_needs_no_disk_is_kept_in_memory_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, room: int, place: str
) -> None:
    monkeypatch.setattr(process, "MEMORY", tmp_path)
    monkeypatch.setattr(process, "ROOM", room)
    directory = process.workdir("some", durable=durable)
    assert directory.parent == (tmp_path if place == "memory" else Path("/tmp"))
    directory.rmdir()


def test_a_killed_server_leaves_nothing_in_memory() -> None:
    with Postgres("15") as server:
        # Its own kind of shared memory lies in its directory; the usual one would stay in /dev/shm.
        assert server.execute("show dynamic_shared_memory_type") == [("mmap",)]
        server.kill()
    assert not server.directory.exists()


def test_what_a_server_says_as_it_fails_is_in_the_error() -> None:
    server = Postgres("15", settings={"shared_buffers": "nonsense"})
    try:
        with pytest.raises(RuntimeError, match="shared_buffers"):
            server.start()
    finally:
        server.close()


STARTS_ONE_AND_WAITS = """
from servers.postgres import Postgres
with Postgres() as server:
    print(server.server.pid, server.directory, flush=True)
    input()
"""


@pytest.mark.usefixtures("own_postgres")
def test_a_server_dies_with_the_process_that_started_it() -> None:
    command = [sys.executable, "-c", STARTS_ONE_AND_WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        pid, directory = runner.stdout.readline().split()
        runner.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} has outlived its runner"
        time.sleep(0.01)
    end_processes_in(Path(directory, "data"))
    shutil.rmtree(directory)


def test_a_new_database_is_empty(database: str) -> None:
    with psycopg.connect(database) as connection:
        found = connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone()
    assert found == (0,)


@pytest.mark.parametrize(("database", "major"), [("17", 17), ("18", 18)], indirect=["database"])
def test_a_database_can_be_on_another_version(database: str, major: int) -> None:
    with psycopg.connect(database) as connection:
        assert connection.info.server_version // 10000 == major


def test_a_database_can_be_copied_and_dropped_while_in_use(postgres: RunningPostgres) -> None:
    name = f"copied_{os.getpid()}"
    postgres.create_database(name)
    postgres.execute("create table filled as select 1 as one", name)
    url = postgres.create_database(f"{name}_copy", template=name)
    with psycopg.connect(url) as connection:
        assert connection.execute("select one from filled").fetchone() == (1,)
        postgres.drop_database(f"{name}_copy")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    postgres.drop_database(name)


def test_the_url_of_another_database_keeps_the_rest_of_the_url() -> None:
    somebody_elses = RunningPostgres("postgresql://me:secret@db.example:6000/mine?sslmode=disable")
    assert somebody_elses.url("yours") == "postgresql://me:secret@db.example:6000/yours?sslmode=disable"
    assert somebody_elses.url("yours", user="you") == "postgresql://you@db.example:6000/yours?sslmode=disable"


def test_pgbouncer_lends_one_backend_to_many_clients(pgbouncer: PgBouncer) -> None:
    backends = set()
    with through(pgbouncer) as first, through(pgbouncer) as second:
        for client in (first, second, first, second):
            backends.add(client.execute("select pg_backend_pid()").fetchone())
    assert len(backends) == 1


@pytest.fixture
def two(own_postgres: OwnPostgres) -> tuple[Postgres, Postgres]:
    """Two servers that know their names."""
    first, second = own_postgres("15"), own_postgres("15")
    first.execute("create table names as select 'first' as name")
    second.execute("create table names as select 'second' as name")
    return first, second


@pytest.fixture
def bouncer(two: tuple[Postgres, Postgres]) -> Iterator[PgBouncer]:
    """PgBouncer in front of the first of the two."""
    with PgBouncer(two[0].port) as bouncer:
        yield bouncer


def test_pgbouncer_points_a_connected_client_to_another_server(
    two: tuple[Postgres, Postgres], bouncer: PgBouncer
) -> None:
    with through(bouncer) as client:
        assert client.execute("select name from names").fetchone() == ("first",)
        bouncer.point_to(two[1].port)
        assert client.execute("select name from names").fetchone() == ("second",)


def test_pgbouncer_points_away_from_a_dead_server(two: tuple[Postgres, Postgres], bouncer: PgBouncer) -> None:
    with through(bouncer) as client:
        assert client.execute("select name from names").fetchone() == ("first",)
        two[0].kill()
        bouncer.point_to(two[1].port)
        assert client.execute("select name from names").fetchone() == ("second",)


def test_pgbouncer_starts_again_on_its_port(two: tuple[Postgres, Postgres], bouncer: PgBouncer) -> None:
    bouncer.kill()
    bouncer.restart()
    with through(bouncer) as client:
        assert client.execute("select name from names").fetchone() == ("first",)


def through(bouncer: PgBouncer) -> psycopg.Connection:
    return psycopg.connect(bouncer.url(), autocommit=True, prepare_threshold=None)


def test_a_prometheus_takes_its_configuration_answers_and_says_what_it_refuses() -> None:
    configuration = "scrape_configs: [{job_name: nobody, static_configs: [{targets: ['127.0.0.1:1']}]}]"
    with installed(lambda: Prometheus(configuration)) as server:
        assert server.query("vector(7)") == {(): 7}
        assert server.alerts() == {}
        assert "job_name: nobody" in server.ask("status/config")["yaml"]
        with pytest.raises(ValueError, match="unclosed left parenthesis"):
            server.query("rate(")
