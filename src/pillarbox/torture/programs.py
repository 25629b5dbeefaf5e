"""The programs of a torture: writers of its own; relays, consumers and commands as everybody has them."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from pillarbox.torture.bank import SCHEMA, bank_at
from pillarbox.torture.clocks import Clocks
from pillarbox.torture.faults import LEASE, PUBLISH_TIMEOUT
from pillarbox.torture.processes import Process, Processes
from pillarbox.torture.stage import Stage
from pillarbox.torture.writer import TOPICS

WRITERS, RELAYS, CONSUMERS = 8, 3, 3
BATCH = 100
KEPT = 30.0
"""Seconds for which relays keep what is published, where operators prune as well: far less than a run, so that a relay
that is struck, 5 s after its start or later, has pruned something; and what came last keeps its status."""
HEALTH = ["--set", "health.listen=127.0.0.1:0"]
"""Where metrics are asked for, in the end; each process says in its log which port it got."""


class Programs:
    """Starts everything on a stage, each process with a log of its own in the directory."""

    def __init__(
        self, stage: Stage, directory: Path, processes: Processes, seed: int, clocks: Clocks | None, *,
        hurried: bool, prunes: bool,
    ) -> None:  # fmt: skip
        self._stage, self._directory, self._processes, self._seed = stage, directory, processes, seed
        self._clocks, self._hurried, self._prunes = clocks, hurried, prunes
        self._place = [] if stage.database.startswith("sqlite:") else ["--set", f"outbox.schema={SCHEMA}"]
        self.started = Counter[str]()
        """How many there were of each kind."""
        self.relay_pids: list[int] = []

    def make_tables(self) -> None:
        """Make the outbox, the inbox and the business, anew."""
        apart = self._stage.ledger != self._stage.database
        for url in dict.fromkeys((self._stage.database, self._stage.ledger)):
            bank_at(url).drop()
            where = ["--database", url, *self._place]
            self._processes.start("migrate", "pillarbox", "migrate", "up", *where).finish()
        bank_at(self._stage.database).make(WRITERS, business=True, ledger=not apart)
        if apart:
            bank_at(self._stage.ledger).make(0, business=False, ledger=True)

    def writer(self, name: int, poisons: Collection[str]) -> Process:
        arguments = [self._stage.database, str(self._directory), str(name), str(self._seed), *poisons]
        return self._processes.start(f"writer-{name}", "pillarbox.torture.writer", *arguments)

    def relay(self, number: int) -> Process:
        flags = {"relay.batch": str(BATCH)}
        if self._hurried:  # else nobody waits for a lease, and nobody may lose one because the machine is busy
            flags |= {"relay.lease": f"{LEASE:g} s", "relay.publish_timeout": f"{PUBLISH_TIMEOUT:g} s"}
        if self._prunes:  # a relay that is struck as it prunes must have something to prune
            flags["retention.published"] = f"{KEPT:g} s"
        sets = [word for key, value in flags.items() for word in ("--set", f"{key}={value}")]
        ways = ["--database", self._stage.way_to_database, "--broker", self._stage.way_to_broker]
        environment = {} if self._clocks is None else self._clocks.environment(number)
        relay = self._start("relay", ["relay", "run", *ways, *self._place, *sets, *HEALTH, "--json"], **environment)
        self.relay_pids.append(relay.pid)
        return relay

    def consumer(self) -> Process:
        ways = ["--broker", self._stage.way_to_broker, *(word for topic in TOPICS for word in ("--topic", topic))]
        hint = [] if self._stage.hint is None else ["--set", f"inbox.hint={self._stage.hint}"]
        # Where one member at a time has a topic, who waits for a dead one waits for a lease.
        lease = ["--set", f"nats.lease={LEASE:g}"] if self._stage.broker.startswith(("nats:", "tls:")) else []
        words = ["consume", "pillarbox.torture.effects:inbox", *ways, *hint, *lease, *HEALTH, "--json"]
        return self._start("consumer", words, TORTURE_LEDGER=self._stage.way_to_ledger)

    def command(self, *words: str, ledger: bool = False) -> Process:
        """Type a command as an operator would, and do not wait for it."""
        database = self._stage.ledger if ledger else self._stage.database
        return self._start(words[0], [*words, "--database", database, *self._place, "--json"])

    def _start(self, name: str, words: Sequence[str], **environment: str) -> Process:
        self.started[name] += 1
        return self._processes.start(
            f"{name}-{self.started[name]}", "pillarbox", *words, environment=environment
        )  # fmt: skip
