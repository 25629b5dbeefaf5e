"""PgBouncer in front of a PostgreSQL, which can be exchanged for another one as a failover does."""

import signal
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from servers.own import OwnServer
from servers.process import NotInstalled, Server, workdir

PROGRAM = Path("/usr/sbin/pgbouncer")

CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={target} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = postgres
pool_mode = {mode}
server_round_robin = {round_robin}
default_pool_size = 10
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,search_path
# A primary that comes back is found at once, not after 15 seconds.
server_login_retry = 0.1
"""


class PgBouncer(OwnServer):
    """Run PgBouncer as our own child in front of the PostgreSQL on port `target`, in one of its modes.

    It answers even when that is down; statements then wait for it, as long as PgBouncer's own default of two minutes.
    Version 1.18 knows no prepared statements here: connect with prepare_threshold=None, or statement_cache_size=0.
    """

    def __init__(self, target: int, *, mode: str = "transaction", round_robin: bool = False) -> None:
        if not PROGRAM.exists():
            raise NotInstalled(f"needs PgBouncer: {PROGRAM} is missing; run .ci/servers")
        self.target, self.mode, self.round_robin = target, mode, round_robin
        self.directory = workdir("pgbouncer")
        self.configuration = self.directory / "pgbouncer.ini"
        self.server = Server(
            [PROGRAM, self.configuration], directory=self.directory, ready=self._answers, stop_signal=signal.SIGINT
        )

    def point_to(self, target: int) -> None:
        """Send all that comes from now on to the PostgreSQL on port `target`; the clients stay connected."""
        self.target = target
        self.prepare()
        self.ask("reload")

    def ask(self, command: str) -> list[dict[str, Any]]:
        """Give one command to PgBouncer itself, such as `show pools`."""
        with psycopg.connect(
            self.url("pgbouncer"), autocommit=True, connect_timeout=10, row_factory=dict_row
        ) as console:
            cursor = console.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def url(self, database: str = "postgres") -> str:
        """Give the URL of one database through PgBouncer."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def title(self) -> str:
        return str(self.ask("show version")[0]["version"])

    def prepare(self) -> None:
        self.configuration.write_text(
            CONFIGURATION.format(port=self.port, target=self.target, mode=self.mode, round_robin=int(self.round_robin))
        )
        self.configuration.chmod(0o644)

    def _answers(self) -> bool:
        try:
            answer = self.ask("show config")
        except psycopg.OperationalError:
            return False
        return any(row["key"] == "conffile" and row["value"] == str(self.configuration) for row in answer)
