"""Kafka: a broker of our own, or three of them as a cluster, that may be killed; in KRaft mode, without ZooKeeper."""

import logging
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from servers.fault_proxy import FaultProxy
from servers.jars import JAVA, KAFKA, jars_of
from servers.process import STARTED, AddressInUse, NotInstalled, Server, free_port, run_tool, workdir

CLUSTER_ID = "PillarboxTestCluster00"
PROXIES = 2
"""How many ways with a fault proxy lead to a single broker."""
USERS = {"shop": "secret", "nobody": "secret"}
"""Who may log in on the listener with passwords; what they may do is for a test to say, with ACLs."""

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
QUICK_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Starts fast and stays small; for measurements take FULL_JVM."""
FULL_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")

LOG4J = """<Configuration status="WARN"><Appenders><Console name="out">
<PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""
# The defaults that are changed make starts and rebalances quick and the heap small.
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    # A broker that was killed is let in again when its old session is over.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
CLUSTER_SETTINGS = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
}

quiet = logging.getLogger("servers.kafka")
quiet.addHandler(logging.NullHandler())
quiet.propagate = False


class Kafka:
    """Run one Kafka broker, or `nodes` of them, as our own children."""

    def __init__(
        self, *, nodes: int = 1, settings: Mapping[str, str] | None = None, jvm: tuple[str, ...] = QUICK_JVM
    ) -> None:
        self._classpath = f"{jars_of(KAFKA)}/*"
        self._jvm = jvm
        self.ports = [free_port() for _ in range(nodes)]
        self._controllers = [free_port() for _ in range(nodes)]
        self.sasl_port = free_port()
        self.proxies = [FaultProxy(free_port()) for _ in range(PROXIES if nodes == 1 else 0)]
        self._settings = {**SETTINGS, **(CLUSTER_SETTINGS if nodes > 1 else {}), **(settings or {})}
        self.directory = workdir("kafka")
        self.directory.chmod(0o755)
        self.servers: list[Server] = []

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    def proxied(self, number: int = 0) -> str:
        """Give the URL of a way through a fault proxy; the broker names no other address on it."""
        return f"kafka://127.0.0.1:{self.proxies[number].port}"

    def sasl(self, user: str, password: str | None = None) -> str:
        """Give the URL of the way on which users log in."""
        login = f"{user}:{USERS[user] if password is None else password}"
        return f"kafka://{login}@127.0.0.1:{self.sasl_port}?security.protocol=SASL_PLAINTEXT"

    def start(self) -> None:
        """Start all nodes and wait until a topic can be made."""
        for proxy in self.proxies:
            proxy.start()
        for number in range(1, len(self.ports) + 1):
            self._prepare(number)
        for server in self.servers:
            server.start()
        self._wait_until_ready()
        STARTED.add(KAFKA.program)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap}, logger=quiet)

    def create_topic(
        self, name: str, partitions: int = 1, *, replication: int | None = None, config: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic."""
        factor = replication or len(self.ports)
        topic = NewTopic(name, num_partitions=partitions, replication_factor=factor, config=dict(config or {}))
        admin = self.admin()  # what it was asked for ends with it
        admin.create_topics([topic], operation_timeout=10)[name].result(20)

    def leader_of(self, topic: str, partition: int) -> int:
        """Give the number of the node that leads a partition, from 1; -1 while there is none."""
        return int(self.admin().list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def in_sync(self, topic: str, partition: int) -> int:
        """Count the nodes that have all of a partition."""
        return len(self.admin().list_topics(topic, timeout=10).topics[topic].partitions[partition].isrs)

    def kill(self, node: int = 1) -> None:
        """Send SIGKILL to a node."""
        self.servers[node - 1].kill()

    def stop(self, node: int = 1) -> None:
        self.servers[node - 1].stop()

    def restart(self, node: int = 1) -> None:
        """Start a node again on the same port, after a clean stop if it still runs; wait until it answers."""
        self.servers[node - 1].restart()
        self._wait_until_ready()

    def begin(self, node: int = 1) -> None:
        """Start a node again without waiting; it is there when it `answers`."""
        self.servers[node - 1].start()

    def freeze(self, node: int = 1) -> None:
        """Let a node hang: connections stay open and nothing answers."""
        self.servers[node - 1].freeze()

    def thaw(self, node: int = 1) -> None:
        self.servers[node - 1].thaw()

    def close(self) -> None:
        """End everything and remove the directory."""
        for server in self.servers:
            server.kill()
        for proxy in self.proxies:
            proxy.close()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _prepare(self, number: int) -> None:
        """Write a node's files and format its storage."""
        here = self.directory / str(number)
        here.mkdir()
        (here / "log4j2.xml").write_text(LOG4J)
        file = here / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self._properties(number, here).items()))
        if (account := self.directory.stat()).st_uid:
            shutil.chown(here, account.st_uid, account.st_gid)
        java: list[str | Path] = [JAVA, *self._jvm, "-Dlog4j2.configurationFile=log4j2.xml", "-cp", self._classpath]
        run_tool([*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", file], directory=here)
        # A node of a cluster answers only with the others, so they are waited for together.
        self.servers.append(Server([*java, "kafka.Kafka", file], directory=here, ready=lambda: True, patience=60))

    def _properties(self, number: int, here: Path) -> dict[str, str]:
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(self._controllers, 1))
        ways = {"PLAINTEXT": (self.ports[number - 1],) * 2}
        kinds = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT"}
        for index, proxy in enumerate(self.proxies):
            ways[f"PROXY{index}"] = (proxy.target, proxy.port)
            kinds[f"PROXY{index}"] = "PLAINTEXT"
        if len(self.ports) == 1:
            ways["SASL"] = (self.sasl_port,) * 2
            kinds["SASL"] = "SASL_PLAINTEXT"
        controller = f"CONTROLLER://127.0.0.1:{self._controllers[number - 1]}"
        factor = str(len(self.ports))
        logins = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
        return {
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": ",".join([*(f"{name}://127.0.0.1:{port}" for name, (port, _) in ways.items()), controller]),
            "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, (_, port) in ways.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in kinds.items()),
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {logins};",
            "log.dirs": str(here / "data"),
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": factor if factor == "1" else "2",
            "share.coordinator.state.topic.replication.factor": factor,
            "share.coordinator.state.topic.min.isr": factor if factor == "1" else "2",
            **self._settings,
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while not self.answers():
            for server in self.servers:
                if not server.running and "address already in use" in server.tail().lower():
                    raise AddressInUse(f"Kafka found a port taken; its log ends:\n{server.tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka did not answer in 60 s; the log of a node ends:\n{self.servers[0].tail()}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Say whether every node that runs is known and a topic can be made, which needs a controller too."""
        running = [port for port, server in zip(self.ports, self.servers, strict=True) if server.running]
        if not running or not all(_is_open(port) for port in running):
            return False
        admin = self.admin()
        try:
            if len(admin.list_topics(timeout=5).brokers) < len(running):
                return False
            ready = NewTopic("ready", num_partitions=1, replication_factor=1)
            admin.create_topics([ready], request_timeout=5)["ready"].result(10)
        except KafkaException as error:
            return "already exists" in str(error)
        return True


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


__all__ = ["FULL_JVM", "Kafka", "NotInstalled"]
