"""A run: writers, relays and consumers at work, faults by seed, then rest; all of it written down for the judge."""

import asyncio
import heapq
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.core.retry import words_of
from pillarbox.torture import answers
from pillarbox.torture.bank import SCHEMA, bank_at
from pillarbox.torture.cast import Cast
from pillarbox.torture.clocks import Clocks, clean_up
from pillarbox.torture.copies import REPLAY, Losses, barred, causes_of
from pillarbox.torture.deeds import PAUSE, PRUNE, Deeds, Operator
from pillarbox.torture.evidence import DEAD_LETTER, Evidence, read
from pillarbox.torture.faults import DEADLY, Strike, named, plan
from pillarbox.torture.judge import REST
from pillarbox.torture.processes import Process, Processes, ProcessFailed
from pillarbox.torture.programs import CONSUMERS, RELAYS, WRITERS, Programs
from pillarbox.torture.recording import Recording, counted, deadly, pruned
from pillarbox.torture.stage import CLOCKS, Deed, Stage, left_out, offered
from pillarbox.torture.taps import tap_at
from pillarbox.torture.writer import TOPICS

LOOK_EVERY = 0.05
FIRST = 60.0
"""Seconds that the first event may take: everything has to start."""
LONGEST_REST = 3 * REST
"""Seconds until a run that does not come to rest is judged as it is."""


class Progress(NamedTuple):
    """How far a run is, for whoever watches."""

    phase: str
    seconds: float
    struck: int
    fault: str | None = None


class Run:
    """One run on a stage, in an empty directory. `groups` are kinds of faults."""

    def __init__(
        self, stage: Stage, directory: Path, seconds: float, seed: int, groups: Collection[str],
        tell: Callable[[Progress], None] = lambda progress: None,
    ) -> None:  # fmt: skip
        self._stage, self._directory, self._seconds, self._seed, self._tell = stage, directory, seconds, seed, tell
        self._offered, self._left_out = offered(stage, groups), left_out(stage, groups)
        self._poisons = [*(stage.poisons if "broker" in groups else ()), *([DEADLY] if "consumer" in groups else ())]
        self._bank, self._tap = bank_at(stage.database), tap_at(stage.broker)
        self._struck: list[dict[str, Any]] = []
        self._started = self._last_fault = 0.0
        self._to_remove: list[tuple[str, str, Callable[[], None]]] = []

    def go(self) -> Evidence:
        """Run, and give the evidence. In any case nothing is left running."""
        for name in ("intents", "logs"):
            (self._directory / name).mkdir()
        clocks = Clocks(self._directory, RELAYS) if self._offered & CLOCKS else None
        pids: list[int] = []
        try:
            with Processes(self._directory / "logs") as processes:
                self._programs = Programs(
                    self._stage, self._directory, processes, self._seed, clocks, hurried=bool(self._offered),
                    prunes=PRUNE in self._offered,
                )  # fmt: skip
                pids = self._programs.relay_pids
                self._go(clocks)
        finally:
            clean_up(pids)
        return read(self._directory)

    def clean_up(self, *, keep_files: bool) -> list[str]:
        """Remove what the run has made, but nothing in its directory, nor files of SQLite that are to be kept.

        Each is removed by itself; say what is left.
        """
        left = []
        for url, what, remove in self._to_remove:
            if url.startswith("sqlite:") and (keep_files or url.startswith(f"sqlite:///{self._directory}/")):
                continue
            try:
                remove()
            except Exception as error:  # noqa: BLE001 - each client has its own
                left.append(f"{what} could not be removed: {words_of(error)}; remove it by hand")
        return left

    def _go(self, clocks: Clocks | None) -> None:
        self._to_remove.append((self._stage.broker, "what was made at the broker", lambda: self._tap.remove(TOPICS)))
        self._tap.prepare(TOPICS)
        for url in dict.fromkeys((self._stage.database, self._stage.ledger)):
            what = "the database's file" if url.startswith("sqlite:") else f"the schema {SCHEMA}"
            self._to_remove.append((url, what, bank_at(url).drop))
        self._programs.make_tables()
        relays = [lambda number=number: self._programs.relay(number) for number in range(RELAYS)]
        self._cast = Cast(relays, [self._programs.consumer] * CONSUMERS)
        self._operator = Operator(self._programs.command)
        self._deeds: Mapping[str, Deed] = {**Deeds(self._cast, self._operator, clocks)(), **self._stage.deeds}
        self._losses = Losses(self._directory / "logs")
        writers = [self._programs.writer(name, self._poisons) for name in range(WRITERS)]
        self._await_the_first(writers)
        self._started = self._last_fault = time.time()
        self._strike_all(writers)
        (self._directory / "stop").touch()
        for writer in writers:
            writer.finish()
        if PAUSE in self._offered:  # its end may have met a database that was away, or be lost by a failover
            for topic in TOPICS:
                self._operator.type("resume", topic, insisting=True)
        rest = self._rest()
        self._write_down(rest)
        for member in [*self._cast.relays, *self._cast.consumers]:
            member.process.stop()

    def _await_the_first(self, writers: Sequence[Process]) -> None:
        """Wait until an event has gone the whole way: who is not at work yet cannot be struck."""
        ledger, until = bank_at(self._stage.ledger), time.time() + FIRST
        with closing(ledger.connect()) as connection:
            while not ledger.run(connection, "SELECT 1 FROM {p}ledger LIMIT 1"):
                for writer in writers:
                    writer.check(may_end=False)
                self._cast.look()
                if time.time() > until:
                    raise ProcessFailed(f"no event has come to the ledger within {FIRST:g} s, before any fault")
                time.sleep(LOOK_EVERY)

    def _strike_all(self, writers: Sequence[Process]) -> None:
        """Strike as planned, end what lasts, and start again who has ended, until the time is over."""
        coming = list(plan(self._seed, self._seconds, self._offered))
        ends: list[tuple[float, int, Strike, dict[str, Any]]] = []
        while (elapsed := time.time() - self._started) < self._seconds or coming or ends:
            while coming and coming[0].at <= elapsed:
                strike = coming.pop(0)
                told = self._strike(strike)
                if strike.lasts:
                    heapq.heappush(ends, (elapsed + strike.lasts, len(coming), strike, told))
            while ends and ends[0][0] <= elapsed:
                self._heal(*heapq.heappop(ends)[2:])
            for writer in writers:
                writer.check(may_end=False)
            self._cast.look()
            self._operator.look()
            self._losses.look()
            self._tell(Progress("faults", elapsed, len(self._struck)))
            time.sleep(LOOK_EVERY)

    def _strike(self, strike: Strike) -> dict[str, Any]:
        now = time.time()
        self._tell(Progress("faults", now - self._started, len(self._struck), strike.name))
        whom = self._deeds[strike.name].whom(strike)  # who is killed has another name afterwards
        told = {
            "at": round(now - self._started, 2), "fault": strike.name, "whom": whom, "lasts": strike.lasts,
            "began_at": now,
        }  # fmt: skip
        self._deeds[strike.name].strike(strike)
        self._struck.append({**told, "ended_at": time.time()} if not strike.lasts else told)
        self._last_fault = time.time() + strike.lasts
        return self._struck[-1]

    def _heal(self, strike: Strike, told: dict[str, Any]) -> None:
        self._deeds[strike.name].heal(strike)
        self._last_fault = told["ended_at"] = time.time()

    def _rest(self) -> float | None:
        """Wait until all that was committed is published and applied; give the seconds since the last fault."""
        self._cast.thaw()
        over = time.time() + LONGEST_REST
        self._waited: list[tuple[float, int]] = []
        while time.time() < over:
            self._cast.look()
            self._operator.look()
            self._losses.look()
            self._tell(Progress("rest", time.time() - self._started, len(self._struck)))
            waiting = self._waiting()
            self._waited.append((round(time.time() - self._last_fault, 2), waiting))
            if self._operator.is_done and not waiting:
                # A handler that kills its process is a fault like any other, and so is a command, which waits for those
                # before it.
                return time.time() - max(self._last_fault, self._cast.killed_itself_at, self._operator.ended_at)
            time.sleep(5 * LOOK_EVERY)
        return None

    def _waiting(self) -> int:
        """Count what has not gone its way yet, and how much that still is: into the ledger, or to the dead letters,
        where that is its fate. Who is not applied and not published yet counts twice: each step is a move."""
        meant = self._meant()
        ledger = bank_at(self._stage.ledger)
        with closing(ledger.connect()) as connection:
            applied = {str(id) for (id,) in ledger.run(connection, "SELECT event_id FROM {p}ledger")}
            dead = ledger.run(connection, "SELECT event_id FROM {p}pillarbox_inbox_parked WHERE state = 'dead'")
        unmoved = len(meant[None] - applied) + len(meant[DEAD_LETTER] - {str(id) for (id,) in dead})
        told = asyncio.run(answers.figures(self._stage.database))
        return unmoved + sum(told[name] for name in ("pending", "retrying", "blocked", "delayed"))

    def _meant(self) -> Mapping[str | None, set[str]]:
        """Give the ids of what was committed, by the writers' own word and the journal, by their fate."""
        with closing(self._bank.connect()) as connection:
            journal = {change for (change,) in self._bank.run(connection, "SELECT change FROM {p}journal")}
        meant: dict[str | None, set[str]] = {None: set(), DEAD_LETTER: set()}
        for log in (self._directory / "intents").iterdir():
            for line in map(json.loads, log.open()):
                for event in line.get("events", ()) if line.get("change") in journal else ():
                    meant.setdefault(event.get("fate"), set()).add(event["id"])
        return meant

    def _write_down(self, rest: float | None) -> None:
        recording, logs = Recording(self._stage, self._directory), self._directory / "logs"
        lists = recording.write_lists()
        told = asyncio.run(answers.figures(self._stage.database))
        self._losses.look(now=True)
        commands = self._operator.commands
        causes = causes_of(
            self._struck, self._cast.relays_died, self._losses.seen, commands,
            (message["at"] for message in lists["wire"]),
        )  # fmt: skip
        recording.write_facts({
            "seed": self._seed, "seconds": self._seconds, "began_at": self._started, "faults": self._struck,
            "rest_seconds": rest, "waited": self._waited,
            "unended": [" ".join(one.words) for one in commands if one.code is None],
            "told": told, "tables": counted(lists["statuses"]),
            "metrics": self._metrics(told), "counts_are_whole": self._counts_are_whole(),
            "causes": causes, "barred": barred(self._struck, commands),
            "replayed": sum(cause["most"] for cause in causes if cause["what"] == REPLAY),
            "left_out": [one._asdict() for one in self._left_out], "deadly": deadly(logs), "pruned": pruned(logs),
            "prunes": PRUNE in self._offered,
            "words": self._cast.words, "servers": list(self._stage.versions()),
        })  # fmt: skip

    def _metrics(self, told: Mapping[str, int]) -> dict[str, Any]:
        def agree(said: Mapping[str, float]) -> bool:
            return (said.get("pending_events"), said.get("dead_events")) in (
                (told["pending"], told["dead"]),
                (None, None),
            )

        return {
            who: answers.metrics([member.process for member in members], agree)
            for who, members in (("relays", self._cast.relays), ("consumers", self._cast.consumers))
        }

    def _counts_are_whole(self) -> list[str]:
        """Say whose counters have counted everything: nobody of them was started again, nor lost his database, so that
        he could not know whether a commit of his was done."""
        struck = {one["fault"] for one in self._struck}
        if struck & (named({"database"}) | {name for name in named({"network"}) if "database" in name}):
            return []
        started = self._programs.started
        return [who for who, name, count in (("relays", "relay", RELAYS), ("consumers", "consumer", CONSUMERS))
                if started[name] == count]  # fmt: skip
