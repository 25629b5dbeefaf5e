"""A run: writers, relays and consumers at work, faults by seed, then rest; all of it written down for the judge."""

import asyncio
import heapq
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.admin.admin import Admin
from pillarbox.ports import Query
from pillarbox.settings import Settings
from pillarbox.torture.bank import SCHEMA, bank_at
from pillarbox.torture.cast import Cast, Member
from pillarbox.torture.evidence import REST, Evidence, read
from pillarbox.torture.faults import LEASE, PUBLISH_TIMEOUT, Strike, plan
from pillarbox.torture.processes import Process, Processes, ProcessFailed
from pillarbox.torture.stage import ANYWHERE, Stage
from pillarbox.torture.taps import tap_at
from pillarbox.torture.writer import TOPICS
from pillarbox.wiring import open_admin

WRITERS, RELAYS, CONSUMERS = 8, 3, 3
BATCH = 100
WINDOW = 2 * BATCH
"""What a relay has in flight at most: this batch and the next one, which is read meanwhile."""
LOOK_EVERY = 0.05
PAGE = 5_000
LONGEST_REST = 3 * REST
"""Seconds until a run that does not come to rest is judged as it is."""


class Progress(NamedTuple):
    """How far a run is, for whoever watches."""

    phase: str
    seconds: float
    struck: int
    fault: str | None = None


class Run:
    """One run on a stage, in an empty directory."""

    def __init__(
        self, stage: Stage, directory: Path, seconds: float, seed: int, faults: Collection[str],
        tell: Callable[[Progress], None] = lambda progress: None,
    ) -> None:  # fmt: skip
        self._stage, self._directory, self._seconds, self._seed, self._tell = stage, directory, seconds, seed, tell
        self._offered = [name for name in faults if name in ANYWHERE or name in stage.offers]
        self._bank, self._tap = bank_at(stage.database), tap_at(stage.broker)
        embedded = stage.database.startswith("sqlite:")
        self._ledger = f"sqlite:///{directory / 'billing.db'}" if embedded else stage.database
        self._way_to_ledger = self._ledger if embedded else stage.way_to_database
        self._place = [] if embedded else ["--set", f"outbox.schema={SCHEMA}"]
        self._struck: list[dict[str, Any]] = []
        self._started = self._last_fault = 0.0
        self._count_started = Counter[str]()
        self._typed: list[tuple[str, ...]] = []
        self._typing: Process | None = None

    def go(self) -> Evidence:
        """Run, and give the evidence. In any case nothing is left running."""
        with Processes(self._directory / "logs") as self._processes:
            self._prepare()
            self._started = self._last_fault = time.time()
            self._cast = Cast([self._relay] * RELAYS, [self._consumer] * CONSUMERS)
            writers = [self._writer(name) for name in range(WRITERS)]
            self._strike_all(writers)
            (self._directory / "stop").touch()
            for writer in writers:
                writer.finish()
            rest = self._rest()
            told = asyncio.run(self._figures())
            for member in [*self._cast.relays, *self._cast.consumers]:
                member.process.stop()
        self._write_down(rest, told)
        return read(self._directory)

    def clean_up(self) -> None:
        """Remove what the run has made outside its directory."""
        self._tap.remove(TOPICS)
        self._bank.drop()

    def _prepare(self) -> None:
        for name in ("intents", "logs"):
            (self._directory / name).mkdir()
        self._bank.drop()
        self._tap.prepare(TOPICS)
        for url in dict.fromkeys((self._stage.database, self._ledger)):
            self._processes.start("migrate", "pillarbox", "migrate", "up", "--database", url, *self._place).finish()
        self._bank.make(WRITERS, business=True, ledger=self._ledger == self._stage.database)
        if self._ledger != self._stage.database:
            bank_at(self._ledger).make(0, business=False, ledger=True)

    def _writer(self, name: int) -> Process:
        arguments = [self._stage.database, str(self._directory), str(name), str(self._seed)]
        return self._processes.start(f"writer-{name}", "pillarbox.torture.writer", *arguments)

    def _relay(self) -> Process:
        flags = {"relay.lease": f"{LEASE:g} s", "relay.publish_timeout": f"{PUBLISH_TIMEOUT:g} s", "relay.batch": BATCH}
        sets = [word for key, value in flags.items() for word in ("--set", f"{key}={value}")]
        ways = ["--database", self._stage.way_to_database, "--broker", self._stage.way_to_broker]
        return self._start("relay", "relay", "run", *ways, *self._place, *sets, "--json")

    def _consumer(self) -> Process:
        ways = ["--broker", self._stage.way_to_broker, *(word for topic in TOPICS for word in ("--topic", topic))]
        return self._start("consumer", "consume", "pillarbox.torture.effects:inbox", *ways, "--json")

    def _start(self, name: str, *arguments: str) -> Process:
        """Start a daemon with a log of its own, each time."""
        self._count_started[name] += 1
        return self._processes.start(
            f"{name}-{self._count_started[name]}",
            "pillarbox",
            *arguments,
            environment={"TORTURE_LEDGER": self._way_to_ledger},
        )

    def _strike_all(self, writers: Sequence[Process]) -> None:
        """Strike as planned, end what lasts, and start again who has ended, until the time is over."""
        coming = list(plan(self._seed, self._seconds, self._offered))
        ends: list[tuple[float, int, Strike]] = []
        while (elapsed := time.time() - self._started) < self._seconds or coming or ends:
            while coming and coming[0].at <= elapsed:
                strike = coming.pop(0)
                self._strike(strike)
                if strike.lasts:
                    heapq.heappush(ends, (elapsed + strike.lasts, len(coming), strike))
            while ends and ends[0][0] <= elapsed:
                self._heal(heapq.heappop(ends)[2])
            for writer in writers:
                writer.check(may_end=False)
            self._cast.look()
            self._type()
            self._tell(Progress("faults", elapsed, len(self._struck)))
            time.sleep(LOOK_EVERY)

    def _strike(self, strike: Strike) -> None:
        at = time.time() - self._started
        self._tell(Progress("faults", at, len(self._struck), strike.name))
        if strike.name in self._stage.offers:
            self._stage.strike(strike)
        else:
            _DEEDS[strike.name](self, strike)
        self._struck.append({"at": round(at, 2), "fault": strike.name, "lasts": strike.lasts})
        self._last_fault = time.time() + strike.lasts

    def _heal(self, strike: Strike) -> None:
        if strike.name in self._stage.offers:
            self._stage.heal(strike)
        elif strike.name == "pause a topic":
            self._command("resume", self._topic(strike))
        else:
            self._whom(strike).thaw()
        self._last_fault = time.time()

    def _whom(self, strike: Strike) -> Member:
        members = self._cast.relays if "relay" in strike.name else self._cast.consumers
        return members[strike.whom % len(members)]

    def _topic(self, strike: Strike) -> str:
        return TOPICS[strike.whom % len(TOPICS)]

    def _command(self, *words: str, ledger: bool = False) -> None:
        """Type a command as an operator would, after the one before is done, and do not wait for it."""
        database = self._ledger if ledger else self._stage.database
        self._typed.append((*words, "--database", database, *self._place, "--json"))
        self._type()

    def _type(self) -> None:
        """Run the next command, if the one before has ended; however it ended, the tables are what is judged."""
        if self._typed and (self._typing is None or not self._typing.lives):
            words = self._typed.pop(0)
            self._typing = self._start(words[0], *words)

    def _rest(self) -> float | None:
        """Wait until all that was committed is published and applied; give the seconds since the last fault."""
        self._cast.thaw()
        committed, fated = self._committed()
        while (seconds := time.time() - self._last_fault) < LONGEST_REST:
            self._cast.look()
            self._type()
            self._tell(Progress("rest", time.time() - self._started, len(self._struck)))
            if self._is_at_rest(committed - fated, fated):
                return seconds
            time.sleep(5 * LOOK_EVERY)
        return None

    def _committed(self) -> tuple[set[str], set[str]]:
        """Give the ids of what was committed, by the writers' own word and the journal; and those of dead letters."""
        with closing(self._bank.connect()) as connection:
            journal = {change for (change,) in self._bank.run(connection, "SELECT change FROM {p}journal")}
        lines = [json.loads(line) for log in (self._directory / "intents").iterdir() for line in log.open()]
        events = [event for line in lines if line.get("change") in journal for event in line.get("events", ())]
        return {event["id"] for event in events}, {event["id"] for event in events if "fate" in event}

    def _is_at_rest(self, meant: set[str], fated: set[str]) -> bool:
        ledger = bank_at(self._ledger)
        with closing(ledger.connect()) as connection:
            applied = {str(id) for (id,) in ledger.run(connection, "SELECT event_id FROM {p}ledger")}
            dead = ledger.run(connection, "SELECT event_id FROM {p}pillarbox_inbox_parked WHERE state = 'dead'")
        if not (meant <= applied and fated <= {str(id) for (id,) in dead}):
            return False
        told = asyncio.run(self._figures())
        return not any(told[name] for name in ("pending", "retrying", "blocked", "delayed"))

    def _admin(self) -> Admin:
        flags = {"database": self._stage.database} | ({} if not self._place else {"outbox.schema": SCHEMA})
        return open_admin(Settings.load(environment={}, flags=flags))

    async def _statuses(self) -> list[dict[str, Any]]:
        """Ask what `pillarbox events list` says of every event."""
        found: list[dict[str, Any]] = []
        query = Query(newest_first=False, limit=PAGE)
        async with self._admin() as admin:
            while page := await admin.find(query):
                found += ({"side": "outbox", "id": str(one.event_id), "status": one.status} for one in page)
                query = replace(query, after=page[-1].position)
        return found

    async def _figures(self) -> dict[str, int]:
        """Ask what `pillarbox stats` says."""
        async with self._admin() as admin:
            figures = await admin.figures()
        names = ("retrying", "blocked", "delayed", "dead")
        return {"pending": figures.pending} | {name: int(getattr(figures.stats, name)) for name in names}

    def _write_down(self, rest: float | None, told: dict[str, int]) -> None:
        ledger = bank_at(self._ledger)
        with closing(self._bank.connect()) as connection, closing(ledger.connect()) as other:
            self._list("journal", ({"change": change} for (change,) in self._bank.run(
                connection, "SELECT change FROM {p}journal"
            )))  # fmt: skip
            statuses = asyncio.run(self._statuses())
            effects = ledger.run(other, "SELECT event_id, aggregate, version, amount FROM {p}ledger ORDER BY id")
            self._list("effects", ({"id": e[0], "aggregate": e[1], "version": e[2], "amount": e[3]} for e in effects))
            dead = ledger.run(other, "SELECT event_id, state FROM {p}pillarbox_inbox_parked WHERE state = 'dead'")
            self._list(
                "statuses", [*statuses, *({"side": "inbox", "id": str(id), "status": state} for id, state in dead)]
            )
        self._list("wire", map(_told, self._tap.messages(TOPICS)))
        states = Counter(one["status"] for one in statuses)
        tables = {name: states[name] for name in ("pending", "retrying", "blocked", "dead")}
        repeats = self._copies_come_from()
        facts = {
            "seed": self._seed, "seconds": self._seconds, "began_at": self._started, "faults": self._struck,
            "rest_seconds": rest, "told": told, "tables": tables,
            "copies_come_from": repeats, "most_copies": sum(repeats.values()),
            "prunes": any(one["fault"] == "prune" for one in self._struck), "words": self._cast.words,
            "servers": list(self._stage.versions()),
        }  # fmt: skip
        (self._directory / "facts.json").write_text(json.dumps(facts, indent=1))

    def _list(self, name: str, entries: Iterable[dict[str, Any]]) -> None:
        with (self._directory / f"{name}.jsonl").open("w") as file:
            count = 0
            for entry in entries:
                file.write(json.dumps(entry) + "\n")
                count += 1
            file.write(json.dumps({"end": count}) + "\n")

    def _copies_come_from(self) -> dict[str, int]:
        """Say what may have repeated how much: a crash, a lost lease or a lost acknowledgement at most what lies after
        the newest tick, a replay what it replays."""
        at_once = WINDOW + BATCH
        broken = sum(one["fault"] not in _REPEAT_NOTHING for one in self._struck)
        return {
            "relays that died": self._cast.relay_deaths * at_once,
            "lanes that were lost": _lines_saying("lanes lost", self._directory / "logs") * at_once,
            "answers that may have been lost": RELAYS * broken * at_once,
            "replays": self._replayed(),
        }

    def _replayed(self) -> int:
        """Count what was replayed, by the commands' own word."""
        return sum(
            json.loads(line)["replayed"]
            for log in (self._directory / "logs").glob("replay-*.log")
            for line in log.read_text().splitlines()
            if line.startswith("{")
        )


def _told(message: Any) -> dict[str, Any]:
    """Write down a message by the names that the writers use; what cannot be read will differ from what was meant."""
    headers = message.headers
    try:
        says = json.loads(message.body)
    except ValueError:
        says = {"version": repr(message.body[:80])}
    return {
        "id": headers.get("id"), "type": headers.get("type"), "topic": message.topic, "at": message.at,
        "aggregate": f"{headers.get('aggregate_type')}/{headers.get('aggregate_id')}",
        **says, "headers": {name: value for name, value in headers.items() if name == "writer"},
    }  # fmt: skip


def _lines_saying(moment: str, logs: Path) -> int:
    return sum(line.count(f'"{moment}"') for log in logs.glob("relay-*.log") for line in log.open(errors="replace"))


def _replay(run: Run, strike: Strike) -> None:
    run._command("replay", "--topic", run._topic(strike), "--since", "2 s", "--yes")


def _prune(run: Run, strike: Strike) -> None:
    run._command("prune", "--set", "retention.published=none", "--yes")


def _retry(run: Run, strike: Strike) -> None:
    run._command("dead", "retry", "--all", "--inbox", "--yes", ledger=True)


def _pause(run: Run, strike: Strike) -> None:
    run._command("pause", run._topic(strike), "--why", "torture")


_DEEDS: dict[str, Callable[[Run, Strike], None]] = {
    **{f"kill a {who}": lambda run, strike: run._whom(strike).kill() for who in ("relay", "consumer")},
    **{f"stop a {who}": lambda run, strike: run._whom(strike).stop() for who in ("relay", "consumer")},
    **{f"freeze a {who}": lambda run, strike: run._whom(strike).freeze() for who in ("relay", "consumer")},
    "replay": _replay,
    "prune": _prune,
    "pause a topic": _pause,
    "retry dead events": _retry,
}
_REPEAT_NOTHING = {"kill a relay", "stop a relay", *(name for name in _DEEDS if "relay" not in name)}
__all__ = ["ProcessFailed", "Progress", "Run"]
