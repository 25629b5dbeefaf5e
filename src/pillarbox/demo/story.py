"""The story: set up, start everything, kill relay and consumer twice each with work in flight, and wait for the end."""

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from pillarbox.demo import billing, shop
from pillarbox.demo.gauges import Gauges, Reading
from pillarbox.demo.view import View
from pillarbox.torture.processes import Process, Processes

LOOK_EVERY = 0.02
FROZEN_AT_MOST = 1.0
"""Seconds that a victim is held still until there is work it has not done."""


class Kill(NamedTuple):
    """One kill -9: who, how much it had done since it was started, and how much was left to do."""

    name: str
    pid: int
    done: int
    left: int


class TimeIsUp(Exception):
    """The story did not end in time; what there is can still be judged."""


class Victim:
    """A daemon that is killed and started again."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Process],
        done: Callable[[Reading], int],
        left: Callable[[Reading], int],
    ) -> None:
        self.name, self._start, self._done, self.left = name, start, done, left
        self.start(Reading())

    def start(self, reading: Reading) -> None:
        """Start it, and remember how far things were then."""
        self.process, self._before = self._start(), self._done(reading)

    def done(self, reading: Reading) -> int:
        """Say how much it has done since it was started."""
        return self._done(reading) - self._before


def sqlite_url(file: Path) -> str:
    """Name a database file as the command line wants it."""
    return f"sqlite:///{file}"


class Story:
    """One run of the demo in a directory."""

    def __init__(self, directory: Path, events: int, seed: int, view: View) -> None:
        self._directory, self._events, self._seed, self._view = directory, events, seed, view
        self._gauges = Gauges(directory)
        self._stages_open = 1
        self.kills: list[Kill] = []
        self._deadline = time.monotonic() + max(90.0, events / 100)

    def tell(self) -> None:
        """Run the story to its end. Raises TimeIsUp or ProcessFailed; in any case nothing is left running."""
        with Processes(self._directory / "logs") as self._processes:
            self._set_up()
            self._writers = [self._start_writer(number) for number in range(shop.WRITERS)]
            relay = Victim("relay", self._start_relay, lambda r: r.published, lambda r: r.unpublished)
            consumer = Victim("consumer", self._start_consumer, lambda r: r.applied, lambda r: r.unapplied)
            self._victims = [relay, consumer]
            chance = Random(self._seed)
            for victim in (relay, consumer, relay, consumer):
                self._strike(victim, after=max(1, int(self._events * chance.uniform(0.06, 0.14))))
            self._open_stages(shop.STAGES)
            self._wait(lambda reading: reading.applied >= self._events and self._gauges.all_delivered())
            relay.process.stop()
            consumer.process.stop()

    def _set_up(self) -> None:
        for name in ("intents", "logs"):
            (self._directory / name).mkdir()
        migrations = [
            self._processes.start(
                f"migrate-{name}", "pillarbox", "migrate", "up", "--database", self._url(f"{name}.db")
            )
            for name in ("shop", "billing")
        ]
        for migration in migrations:
            migration.finish()
        shop.create_tables(self._directory / "shop.db")
        billing.create_tables(self._directory / "billing.db")

    def _url(self, name: str) -> str:
        return sqlite_url(self._directory / name)

    def _start_writer(self, number: int) -> Process:
        arguments = [str(self._directory), str(self._events), str(self._seed), str(number)]
        return self._processes.start(f"writer-{number}", "pillarbox.demo.shop", *arguments)

    def _start_relay(self) -> Process:
        places = ["--database", self._url("shop.db"), "--broker", self._url("stream.db")]
        return self._processes.start("relay", "pillarbox", "relay", "run", *places)

    def _start_consumer(self) -> Process:
        places = ["--broker", self._url("stream.db"), "--topic", shop.TOPIC]
        environment = {"BILLING_DATABASE": str(self._directory / "billing.db")}
        return self._processes.start(
            "consumer", "pillarbox", "consume", "pillarbox.demo.billing:inbox", *places, environment=environment
        )

    def _strike(self, victim: Victim, after: int) -> None:
        """Kill a victim that has done some work and has some left; give up only if there is none to be had any more."""
        self._wait(lambda reading: victim.done(reading) >= after or self._over(reading))
        for attempt in count():
            if self._over(self._gauges.read()):
                return
            victim.process.freeze()
            if not victim.left(reading := self._gauges.read()):
                # It has kept up. Held still, it falls behind as soon as the shop writes on: one stage ahead is enough,
                # unless it stopped inside a transaction that keeps the shop from writing, time and again.
                self._open_stages(len(self.kills) + 2 + attempt // 5)
                reading = self._wait(lambda reading: victim.left(reading) > 0, FROZEN_AT_MOST)
            if victim.left(reading):
                self._kill(victim, reading)
                return
            victim.process.thaw()

    def _kill(self, victim: Victim, reading: Reading) -> None:
        victim.process.kill()
        kill = Kill(victim.name, victim.process.pid, victim.done(reading), victim.left(reading))
        self.kills.append(kill)
        self._view.note(f"kill -9 {kill.pid}, the {kill.name}: {kill.done:,} done, {kill.left:,} left to do")
        victim.start(reading)
        self._open_stages(len(self.kills) + 1)

    def _open_stages(self, stages: int) -> None:
        """Let the writers go on up to this stage."""
        for _ in range(self._stages_open, min(stages, shop.STAGES)):
            for writer in self._writers:
                writer.write(b".")
            self._stages_open += 1

    def _over(self, reading: Reading) -> bool:
        return reading.applied >= self._events

    def _wait(self, condition: Callable[[Reading], bool], at_most: float | None = None) -> Reading:
        """Watch until a condition holds, or for `at_most` seconds; give the last reading."""
        until = None if at_most is None else time.monotonic() + at_most
        while True:
            reading = self._gauges.read()
            self._view.show(reading, len(self.kills))
            now = time.monotonic()
            if condition(reading) or (until is not None and now > until):
                return reading
            if now > self._deadline:
                raise TimeIsUp("time is up before everything was published and applied")
            self._check_processes()
            time.sleep(LOOK_EVERY)

    def _check_processes(self) -> None:
        for writer in self._writers:
            writer.check()
        for victim in self._victims:
            victim.process.check(may_end=False)
