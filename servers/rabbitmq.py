"""RabbitMQ, one of our own that may be killed: with its management API, and its own epmd beside it."""

import base64
import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from servers.own import OwnServer
from servers.process import AddressInUse, NotInstalled, Server, end_processes_in, free_port, run_tool, workdir

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = PROGRAM.with_name("rabbitmqctl")
EPMD = Path("/usr/bin/epmd")
PATIENCE = 90
LARGEST_MESSAGE = 1 << 20
"""Less than the default of 128 MiB, so that a message which is too large is small enough for a test."""
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
log.console = true
log.file = false
disk_free_limit.absolute = 50MB
max_message_size = {largest}
"""


class RabbitMQ(OwnServer):
    """Run RabbitMQ as our own child.

    It takes 7 to 15 s to start, and 6 s and more to stop cleanly: one per test process, and a virtual host per test.
    A quorum queue that is younger than about 5 s does not survive `kill`; with what was confirmed in it.
    """

    def __init__(self) -> None:
        if not PROGRAM.exists() or not EPMD.exists():
            raise NotInstalled(f"needs RabbitMQ: {PROGRAM} is missing; run .ci/servers")
        self.management = 0
        self.directory = workdir("rabbitmq")
        self._epmd_directory = workdir("epmd")
        self._epmd_port = 0
        self.epmd = Server([EPMD], directory=self._epmd_directory, ready=lambda: True)
        self.server = Server([PROGRAM], directory=self.directory, ready=self._answers, patience=PATIENCE)

    def close(self) -> None:
        """End it and its epmd, and remove their directories."""
        self.server.kill()
        self.epmd.kill()
        end_processes_in(self.directory)
        super().close()
        shutil.rmtree(self._epmd_directory)

    def url(self, vhost: str = "/", *, port: int | None = None, user: str = "guest", password: str = "guest") -> str:
        """Give the URL of one virtual host, perhaps by another port, such as a fault proxy's."""
        return f"rabbitmq://{user}:{password}@127.0.0.1:{port or self.port}/{quote(vhost, safe='')}"

    def ask(self, method: str, path: str, body: object = None, *, patience: float = 30) -> Any:
        """Ask the management API; `path` follows /api/."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.management}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(),
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=patience) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def control(self, *command: str) -> str:
        """Run rabbitmqctl, for what the management API cannot do; it takes seconds."""
        return run_tool([CONTROL, *command], directory=self.directory, environment=self.server.environment)

    def create_user(self, name: str, vhost: str, *, configure: str = "", write: str = "", read: str = "") -> None:
        """Make a user, with the password of the same name, who may do this much in one virtual host."""
        self.ask("PUT", f"users/{name}", {"password": name, "tags": ""})
        self.ask("PUT", f"permissions/{vhost}/{name}", {"configure": configure, "write": write, "read": read})

    def create_vhost(self, name: str) -> None:
        """Make a virtual host that guest may use."""
        self.ask("PUT", f"vhosts/{name}", {})
        self.ask("PUT", f"permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})

    def drop_vhost(self, name: str) -> None:
        """Drop a virtual host with all that is in it, whoever is connected to it."""
        self.ask("DELETE", f"vhosts/{name}")

    def declare_queue(self, vhost: str, name: str, **arguments: object) -> None:
        """Make a durable queue: a quorum queue, unless the arguments say otherwise."""
        wanted = {"x-queue-type": "quorum"} | arguments
        self.ask("PUT", f"queues/{vhost}/{quote(name, safe='')}", {"durable": True, "arguments": wanted})

    def declare_exchange(self, vhost: str, name: str, kind: str = "topic") -> None:
        """Make a durable exchange."""
        self.ask("PUT", f"exchanges/{vhost}/{name}", {"type": kind, "durable": True})

    def bind(self, vhost: str, exchange: str, queue: str, routing_key: str) -> None:
        """Bind a queue to an exchange."""
        path = f"bindings/{vhost}/e/{exchange}/q/{quote(queue, safe='')}"
        self.ask("POST", path, {"routing_key": routing_key, "arguments": {}})

    @property
    def version(self) -> str:
        return str(self.ask("GET", "overview")["rabbitmq_version"])

    @property
    def title(self) -> str:
        return f"RabbitMQ {self.version}"

    def _start_on(self, port: int) -> None:
        self.management, self._epmd_port = free_port(), free_port()
        self.epmd.argv = [str(EPMD), "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        self.epmd.start()
        time.sleep(0.1)  # it says nothing when it is ready; a node that does not find it would start a daemon
        try:
            super()._start_on(port)
        except AddressInUse:
            self.epmd.kill()
            raise

    def prepare(self) -> None:
        home, distribution = self.directory, free_port()
        configuration = CONFIGURATION.format(port=self.port, management=self.management, largest=LARGEST_MESSAGE)
        (home / "rabbitmq.conf").write_text(configuration)
        (home / "enabled_plugins").write_text("[rabbitmq_management].\n")
        for file in ("rabbitmq.conf", "enabled_plugins"):
            (home / file).chmod(0o666)
        self.server.environment = {
            "RUNNING_UNDER_SYSTEMD": "1",  # the pid that we hold is the server, with no shell between
            "RABBITMQ_NODENAME": f"pillarbox{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_SERVER_START_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{home}/gen",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{home}/ff",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }

    def _answers(self) -> bool:
        try:
            return bool(self.ask("GET", "health/checks/local-alarms", patience=2)["status"] == "ok")
        except (urllib.error.URLError, OSError, ValueError):
            return False
