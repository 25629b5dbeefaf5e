"""PostgreSQL: one of our own, with a standby if wanted, that may be killed; or one that somebody else runs."""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from servers.own import OwnServer
from servers.postgres_builds import build_of
from servers.process import STARTED, Server, end_processes_in, run_tool, start_on_free_port, workdir

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "wal_keep_size": "512MB",
    "wal_log_hints": "on",
    "wal_retrieve_retry_interval": "100ms",  # a standby that has lost its primary would else be promoted after 5 s
}

DURABLE = {"fsync": "on"}
FLEETING = {"fsync": "off", "dynamic_shared_memory_type": "mmap"}  # a killed one leaves the other kind in /dev/shm


class RunningPostgres:
    """A PostgreSQL that answers at a URL, whoever runs it."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    def url(self, database: str = "postgres", *, user: str | None = None) -> str:
        """Give the URL of one database, for the superuser or for `user`."""
        parts = self._url._replace(path=f"/{database}")
        if user is not None:
            parts = parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}")
        return parts.geturl()

    def execute(self, statement: str | sql.Composed, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own, and give its rows."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode() if isinstance(statement, str) else statement)
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database, empty or a copy of `template`, and give its URL; nobody may be connected to the template."""
        copied = sql.Identifier(template or "template1")
        make = sql.SQL("create database {} template {} strategy file_copy")  # the other one writes it all to the log
        self.execute(make.format(sql.Identifier(name), copied))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database whoever is connected to it, and whoever has left a replication slot in it."""
        here = sql.SQL("from pg_replication_slots where database = {}").format(sql.Literal(name))
        while self.execute(sql.SQL("select pg_terminate_backend(active_pid) {} and active").format(here)):
            time.sleep(0.01)
        self.execute(sql.SQL("select pg_drop_replication_slot(slot_name) {}").format(here))
        self.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    @property
    def version(self) -> str:
        """Give the exact version, such as 15.18."""
        return str(self.execute("show server_version")[0][0]).split()[0]


class Postgres(RunningPostgres, OwnServer):
    """Run PostgreSQL `major` (15, 17 or 18) as our own child, in a directory and on a port of its own.

    With `fsync` off it keeps every commit through kill -9, for the kernel has it; not through a power loss. After a
    kill the backends end by themselves; frozen, it lets new connections hang, and open ones go on, for each backend is
    a process group of its own.
    """

    def __init__(self, major: str = "15", *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.major = major
        self.build = build_of(major)
        self.settings = {**SETTINGS, **(DURABLE if fsync else FLEETING), **(settings or {})}
        # ext4 looks at each file deleted in the last minute before it makes one: hundreds for each database of a test.
        self.directory = workdir(f"postgres-{major}", durable=fsync)
        self.data = self.directory / "data"
        self.server = Server(
            [self.build.program("postgres"), "-D", self.data],
            directory=self.directory,
            ready=self._answers,
            environment=self.build.environment,
            stop_signal=signal.SIGINT,
        )

    def start(self) -> None:
        """Start it and wait until it answers; the first time with a new cluster on a free port."""
        if self.port:
            self.server.start()
        else:
            start_on_free_port(self.start_on)

    def start_on(self, port: int) -> None:
        """Start it for the first time on this port, which may turn out to be taken."""
        if not self.data.exists():
            self._initialise()
        self._configure(port)
        self._url = urlsplit(f"postgresql://postgres@127.0.0.1:{port}/postgres")
        self.server.start()
        self.port = port
        STARTED.add(f"PostgreSQL {self.version}")

    def close(self) -> None:
        """End it and remove its directory."""
        self.server.kill()
        end_processes_in(self.data)
        super().close()

    def standby(self, *, through: int | None = None) -> "Postgres":
        """Start an asynchronous standby, which reaches us by the port `through`, such as a fault proxy's."""
        standby = Postgres(self.major, settings=self.settings)
        source = ["-h", "127.0.0.1", "-p", str(through or self.port), "-U", "postgres"]
        how = ["-R", "-X", "stream", "-c", "fast", "--no-sync"]
        standby._tool("pg_basebackup", *source, *how, "-D", standby.data)
        standby.start()
        return standby

    def promote(self) -> None:
        """Make a standby the primary."""
        if self.execute("select pg_promote(true, 30)") != [(True,)]:
            raise RuntimeError(
                f"PostgreSQL on port {self.port} was not promoted in 30 s; its log ends:\n{self.server.tail()}"
            )

    def rewind(self, primary: "Postgres") -> None:
        """Come back as a standby of `primary`, which was promoted; what only we had is thrown away."""
        self.stop()
        # Without it pg_rewind of version 15 does not see the new timeline, and leaves two histories.
        primary.execute("checkpoint")
        self._tool("pg_rewind", "-D", self.data, "--source-server", primary.url(), "-R", "--no-sync")
        self._configure(self.port)  # it has brought the primary's own settings
        self.start()

    def wait_until_replayed(self, primary: RunningPostgres, seconds: float = 30) -> None:
        """Wait until this standby has replayed all that `primary` has written so far."""
        ((written,),) = primary.execute("select pg_current_wal_flush_lsn()::text")
        deadline = time.monotonic() + seconds
        while self.execute(f"select pg_last_wal_replay_lsn() >= '{written}'::pg_lsn") != [(True,)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the standby on port {self.port} has not replayed {written} in {seconds:.0f} s")
            time.sleep(0.02)

    def _initialise(self) -> None:
        how = ["-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        self._tool("initdb", "-D", self.data, "-U", "postgres", *how)

    def _configure(self, port: int) -> None:
        """Append our settings to the server's own file: pg_rewind reads it too, and the last line of a name wins."""
        settings = {**self.settings, "port": str(port), "unix_socket_directories": str(self.directory)}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self._url.geturl(), connect_timeout=2) as connection:
                found = connection.execute("show data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return found == (str(self.data),)

    def _tool(self, name: str, *arguments: str | Path) -> None:
        run_tool([self.build.program(name), *arguments], directory=self.directory, environment=self.build.environment)
