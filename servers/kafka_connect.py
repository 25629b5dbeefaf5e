"""Kafka Connect with Debezium's PostgreSQL connector: one worker of our own, which may be killed."""

import json
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servers.jars import JAVA, KAFKA_CONNECT, jars_of
from servers.kafka import LOG4J, QUICK_JVM
from servers.own import OwnServer
from servers.process import Server, workdir

FULL_JVM = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC")
"""For measurements."""
SETTINGS = {
    "plugin.discovery": "service_load",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "1000",
    "connector.client.config.override.policy": "All",
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}
PATIENCE = 60


class KafkaConnect(OwnServer):
    """Run one standalone worker for the Kafka at `bootstrap`; started again, it knows its offsets and no connector.

    What stands in `environment`, a connector may name as ${env:NAME}.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        jvm: tuple[str, ...] = QUICK_JVM,
    ) -> None:
        self._jars = jars_of(KAFKA_CONNECT)
        self._settings = {**SETTINGS, "bootstrap.servers": bootstrap, **(settings or {})}
        self.directory = workdir("kafka-connect")
        java: list[str | Path] = [JAVA, *jvm, "-Dlog4j2.configurationFile=log4j2.xml", "-cp", f"{self._jars}/*"]
        self.server = Server(
            [*java, "org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties"],
            directory=self.directory,
            ready=self._answers,
            environment=environment,
            patience=PATIENCE,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to its REST interface, and give what it answers; None if that is nothing."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def state_of(self, connector: str) -> tuple[str, str]:
        """Give the state of a connector's only task, and what it ended with; the connector's own if it has none yet."""
        status = self.ask("GET", f"connectors/{connector}/status")
        one = (status["tasks"] or [status["connector"]])[0]
        return (one["state"] if status["tasks"] else "no task"), one.get("trace", "")

    def until(self, connector: str, state: str, seconds: float = PATIENCE) -> str:
        """Wait until a connector's task is in a state; give what it ended with."""
        deadline = time.monotonic() + seconds
        while True:
            found, trace = self.state_of(connector)
            if found == state:
                return trace
            if time.monotonic() > deadline:
                raise TimeoutError(f"{connector} is {found} and not {state} after {seconds:.0f} s: {trace}")
            time.sleep(0.05)

    def delete(self, connector: str) -> None:
        """Stop a connector for good; its slot stays."""
        self.ask("DELETE", f"connectors/{connector}")

    @property
    def title(self) -> str:
        return KAFKA_CONNECT.program

    def prepare(self) -> None:
        properties = {
            **self._settings,
            "listeners": self.url,
            "rest.advertised.host.name": "127.0.0.1",
            "plugin.path": str(self._jars / "plugins"),
            "offset.storage.file.filename": str(self.directory / "offsets"),
        }
        (self.directory / "log4j2.xml").write_text(LOG4J)
        lines = (f"{name}={value}\n" for name, value in properties.items())
        (self.directory / "worker.properties").write_text("".join(lines))

    def _answers(self) -> bool:
        try:
            return "kafka_cluster_id" in self.ask("GET", "")
        except (OSError, ValueError):
            return False
