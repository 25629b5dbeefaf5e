"""The window against a model: a world with a log, a parking lot, an operator and a broker, driven by chance.

The model says at every step what must be ready and what must be settled; at the end everything is answered and the
window has to run empty. The same runs then find every one of the defects in `MUTANTS`, so they are able to fail.
"""

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core import window as real
from pillarbox.core.retry import PUBLISHED, Dead, Published, RetryAt, Untouched, Verdict
from pillarbox.core.routing import Line

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
LINES: list[Line | None] = [("t", "order", "1"), ("t", "order", "2"), ("t", "", "3"), ("global", "", ""), None]
UNTOUCHED = Untouched("away")


@dataclass(eq=False)
class Thing:
    """What passes through the window. The same event is another thing when it comes out of the parking lot."""

    position: int
    line: Line | None
    size: int
    available_at: datetime | None = None
    parked: bool = False


@dataclass
class Flight:
    thing: Thing
    call: int
    verdict: Verdict


class World:
    """A source, a broker and an operator around one window; every step is checked."""

    def __init__(self, chance: Random, module: Any = real) -> None:
        self.chance, self.module = chance, module
        self.prefix_safe = chance.random() < 0.5
        self.size, self.max_bytes = chance.randint(1, 8), chance.randint(3, 40)
        self.window = module.Window(
            self.size, lambda thing: thing.line, prefix_safe=self.prefix_safe,
            size_of=lambda thing: thing.size, max_bytes=self.max_bytes,
        )  # fmt: skip
        self.reliable = chance.choice([0.3, 0.6, 0.8])
        lines = chance.sample(LINES, chance.choice([1, 1, 2, 3, 5]))
        self.log = [self._new(position, lines) for position in range(chance.randint(1, 25))]
        self.read = self.settled_up_to = 0
        self.inside: dict[int, Thing] = {}  # by id(): everything in the window, in the order of entering
        self.flights: dict[int, Flight] = {}
        self.answers: dict[int, Verdict] = {}  # by id(): failures and successes that are not settled yet
        self.parking: dict[Line, dict[int, str]] = {}  # position → "failed" or "blocked"
        self.outside: set[int] = set()  # parked without a line
        self.over: set[int] = set()  # published, passed over or dropped
        self.delayed: set[int] = set()
        self.used_tickets: list[int] = []
        self.old_tickets: list[int] = []  # from before everything was forgotten
        self.calls = 0

    def _new(self, position: int, lines: list[Line | None]) -> Thing:
        due = self.chance.choice([None, None, None, None, NOW, LATER])
        return Thing(position, self.chance.choice(lines), self.chance.randint(0, 5), due)

    @property
    def blocked(self) -> set[Line]:
        return {line for line, parked in self.parking.items() if parked}

    def enter(self, everything: bool = False) -> None:
        room = self.window.room
        self._check_room(room)
        wanted = room if everything else self.chance.randint(0, room)
        things = self._due(everything)[:wanted]
        while len(things) < wanted and self.read < len(self.log):
            things.append(self.log[self.read])
            self.read += 1
        for thing in things:
            self.inside[id(thing)] = thing
        self.window.enter(things, NOW)

    def _due(self, everything: bool) -> list[Thing]:
        """Give what may come out of the parking lot: a failed head alone, or the followers of a head that is gone."""
        held = {thing.position for thing in self.inside.values() if thing.parked}
        due = [p for p in sorted(self.outside) if p not in held]
        for parked in self.parking.values():
            run = sorted(parked)
            if run and parked[run[0]] == "failed":
                run = run[:1]
            if "failed" in [parked[p] for p in run[1:]]:
                run = run[: next(i for i, p in enumerate(run) if i and parked[p] == "failed")]
            due += [p for p in run if p not in held]
        if not everything:
            cut = self.chance.randint(0, len(due))
            lines = {self.log[p].line for p in due[cut:]}
            due = [p for p in due[:cut] if self.log[p].line is None or self.log[p].line not in lines]
        return [self._parked(p) for p in due]

    def _parked(self, position: int) -> Thing:
        old = self.log[position]
        return Thing(position, None if position in self.outside else old.line, old.size, old.available_at, parked=True)

    def ready(self) -> None:
        blocked = self.blocked
        expected = self._expected_ready(blocked)
        given = self.window.ready(blocked)
        assert [thing for _, thing in given] == expected
        tickets = [ticket for ticket, _ in given]
        assert tickets == sorted(set(tickets))
        self.calls += 1
        self._check_order(expected, blocked)
        for ticket, thing in given:
            self.answers.pop(id(thing), None)
            self.flights[ticket] = Flight(thing, self.calls, PUBLISHED)
        for flights in self._by_line([self.flights[ticket] for ticket in tickets]):
            self._decide(flights)
        self.used_tickets += tickets

    def _expected_ready(self, blocked: set[Line]) -> list[Thing]:
        flying = {id(flight.thing) for flight in self.flights.values()}
        busy = {flight.thing.line for flight in self.flights.values()}
        expected: list[Thing] = []
        for line in {thing.line for thing in self.inside.values()}:
            mine = [t for t in self.inside.values() if t.line == line and not self._is_delayed(t)]
            mine = [t for t in mine if not self._holds_nobody_back(self.answers.get(id(t)))]
            if line is None:
                expected += [t for t in mine if id(t) not in flying and id(t) not in self.answers]
                continue
            queue = [t for t in mine if t.parked] or [t for t in mine if not t.parked]
            if line in busy or not queue or id(queue[0]) in self.answers:
                continue
            if queue[0].parked or line not in blocked:
                expected += queue if self.prefix_safe and line[2] else queue[:1]
        order = list(self.inside)
        return sorted(expected, key=lambda thing: order.index(id(thing)))

    def _check_order(self, going: list[Thing], blocked: set[Line]) -> None:
        """Whatever goes, everything before it in its line is over, or goes before it in this very call."""
        before: set[int] = set()
        for thing in going:
            if thing.line is None:
                continue
            assert thing.parked or thing.line not in blocked
            for earlier in self.log[: thing.position]:
                if earlier.line == thing.line and earlier.available_at != LATER:
                    assert earlier.position in self.over or (self.prefix_safe and earlier.position in before)
            before.add(thing.position)

    def _decide(self, flights: list[Flight]) -> None:
        """Let the broker decide. Prefix-safe: once one of a line is not accepted, none behind it is."""
        failing = False
        for flight in flights:
            verdict = PUBLISHED if self.chance.random() < self.reliable else self._failure()
            if failing and verdict is PUBLISHED:
                verdict = self._failure()
            failing = flight.thing.line is not None and verdict is not PUBLISHED
            flight.verdict = verdict

    def _failure(self) -> Verdict:
        word = f"failed {self.chance.random()}"
        failures: list[Verdict] = [UNTOUCHED, RetryAt(LATER, word), Dead(word, True), Dead(word, False)]
        return self.chance.choice(failures)

    def settle(self, everything: bool = False) -> None:
        tickets = list(self.flights)
        self.chance.shuffle(tickets)
        if not everything:
            tickets = tickets[: self.chance.randint(0, len(tickets))]
        verdicts = []
        for ticket in tickets:
            flight = self.flights.pop(ticket)
            verdicts.append((ticket, flight.verdict))
            if flight.verdict is not UNTOUCHED:
                self.answers[id(flight.thing)] = flight.verdict
            if self._holds_nobody_back(flight.verdict):
                self.over.add(flight.thing.position)
        stale = [t for t in self.used_tickets if t not in self.flights and t not in tickets] + self.old_tickets
        nonsense: list[tuple[int, Verdict]] = [(t, Dead("nonsense")) for t in [0, 10**9, *tickets, *stale]]
        before = self.blocked
        settlements = self.window.settle([*verdicts, *nonsense], before)
        self._record(settlements, before)
        self._check_nothing_is_kept()

    def drop(self) -> None:
        """An operator drops something parked, even if it is in flight."""
        lots = [parked for parked in self.parking.values() if parked]
        if lots:
            parked = self.chance.choice(lots)
            position = min(parked) if self.chance.random() < 0.7 else self.chance.choice(sorted(parked))
            del parked[position]
            self.over.add(position)

    def forget(self) -> None:
        """The lanes are lost and taken anew: everything unsettled comes out again."""
        self.window.forget()
        self.inside.clear()
        self.answers.clear()
        self.flights.clear()
        self.old_tickets += self.used_tickets
        self.used_tickets = []
        self.read = self.settled_up_to

    def _record(self, settlements: list[Any], before: set[Line]) -> None:
        failed_now: set[Line | None] = set()
        flying = {id(flight.thing) for flight in self.flights.values()}
        for thing, verdict in settlements:
            assert id(thing) not in flying
            assert self.inside.pop(id(thing)) is thing  # entered, and settled for the first time
            answer = self.answers.pop(id(thing), None)
            if verdict.__class__ is self.module.Delayed:
                assert self._is_delayed(thing)
                assert verdict.until == thing.available_at
            elif verdict.__class__ is self.module.Blocked:
                assert not self._holds_nobody_back(answer)
                if not thing.parked:
                    assert thing.line in before or thing.line in failed_now
            else:
                assert verdict is answer
            if not self._holds_nobody_back(verdict) and verdict.__class__ is not self.module.Delayed:
                if verdict.__class__ is not self.module.Blocked and not thing.parked:
                    assert thing.line is None or (thing.line not in before and thing.line not in failed_now)
                if not thing.parked or thing.position in self.parking.get(thing.line or ("", "", ""), {}):
                    failed_now.add(thing.line)  # and not dropped meanwhile
            if not thing.parked:
                assert thing.position == self.settled_up_to  # exactly in order
                self.settled_up_to += 1
            self._park(thing, verdict)

    def _park(self, thing: Thing, verdict: Any) -> None:
        """Do what a store does with a settlement."""
        position, kind = thing.position, verdict.__class__
        if kind is self.module.Delayed:
            self.outside.add(position)
            self.delayed.add(position)
        elif self._holds_nobody_back(verdict):
            self.over.add(position)
            self.outside.discard(position)
            if thing.line is not None:
                self.parking.get(thing.line, {}).pop(position, None)
        elif thing.line is None:
            assert kind is not self.module.Blocked
            self.outside.add(position)
        else:
            self._park_in_line(thing.line, position, "blocked" if kind is self.module.Blocked else "failed", thing)

    def _park_in_line(self, line: Line, position: int, state: str, thing: Thing) -> None:
        parked = self.parking.setdefault(line, {})
        if thing.parked and position not in parked:
            return  # dropped meanwhile
        dropped = any(e.line == line and e.position in self.over for e in self.log[:position])
        if state == "failed":
            assert not [p for p in parked if p < position]  # only the head of a line is tried and counted
        elif thing.parked and not dropped:
            assert [p for p in parked if p < position]  # somebody is there to wait for
        parked[position] = state

    def _check_nothing_is_kept(self) -> None:
        """What can be settled is settled: a parked one at once, the log as far as it goes."""
        flying = {id(flight.thing) for flight in self.flights.values()}
        lines: dict[Line | None, Thing] = {}
        for thing in self.inside.values():
            if thing.parked:
                lines.setdefault(thing.line, thing)
                assert not self._holds_nobody_back(self.answers.get(id(thing)))
        for head in lines.values():
            assert id(head) not in self.answers
        first = next((thing for thing in self.inside.values() if not thing.parked), None)
        if first is not None:
            assert not self._is_delayed(first)
            assert id(first) not in self.answers
            assert first.line not in self.blocked or id(first) in flying

    def _check_room(self, room: int) -> None:
        held = sum(thing.size for thing in self.inside.values())
        assert len(self.window) == len(self.inside)
        assert self.window.flying == len(self.flights)
        assert room == (0 if held >= self.max_bytes else self.size - len(self.inside))
        for ticket, flight in self.flights.items():
            assert self.window.item(ticket) is flight.thing

    def _is_delayed(self, thing: Thing) -> bool:
        return not thing.parked and thing.available_at == LATER

    @staticmethod
    def _holds_nobody_back(verdict: object) -> bool:
        return isinstance(verdict, Published) or (isinstance(verdict, Dead) and not verdict.blocks)

    @staticmethod
    def _by_line(flights: list[Flight]) -> list[list[Flight]]:
        lines: dict[Any, list[Flight]] = {}
        for flight in flights:
            lines.setdefault(flight.thing.line or id(flight), []).append(flight)
        return list(lines.values())

    def live(self, steps: int) -> None:
        """Take random steps, then let everything succeed: the window has to run empty, with nothing left."""
        acts: list[Callable[[], None]] = [self.enter, self.ready, self.settle]
        for _ in range(steps):
            self.chance.choices([*acts, self.drop, self.forget], [6, 6, 6, 2, 0.3])[0]()
        for _ in range(6 * len(self.log) + 10):
            if self.settled_up_to == len(self.log) and not self.inside and not self.blocked and not self.outside:
                break
            self.enter(everything=True)
            self.ready()
            for flight in self.flights.values():
                flight.verdict = PUBLISHED
            self.settle(everything=True)
        self._check_room(self.window.room)
        assert not self.inside
        assert not self.blocked
        assert self.settled_up_to == len(self.log)
        assert self.over == set(range(len(self.log)))


@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_the_window_does_what_the_model_says(chance: Random, steps: int) -> None:
    World(chance).live(steps)


def test_the_unbroken_window_passes_the_runs_that_find_the_broken_ones() -> None:
    for seed in range(300):
        World(Random(seed)).live(60)


MUTANTS = {
    "an untouched item counts as published": (
        "if verdict.__class__ is not Untouched:\n            slot.verdict = verdict",
        "if True:\n            slot.verdict = verdict if verdict.__class__ is not Untouched else Published()",
    ),
    "an untouched line stays closed": (
        "if not line.flying:\n            self._open",
        "if False:\n            self._open",
    ),
    "an untouched item without a line is lost": ("self._free.append(slot)\n            return", "return"),
    "a second one of a line goes while the first is in flight": ("if line.flying or not queue", "if not queue"),
    "a blocked line goes on": ("line.key not in blocked:", "True:"),
    "a blocked item waits for its line": ("behind = line in blocked or line in blocking", "behind = line in blocking"),
    "a follower of a failure waits for the store": (
        "behind = line in blocked or line in blocking",
        "behind = line in blocked",
    ),
    "a failure behind a failure is counted": ("        if behind:\n            return BLOCKED\n", ""),
    "the position moves over an unanswered item": (
        "return BLOCKED if behind and not slot.flying else None",
        "return BLOCKED if not slot.flying else Published()",
    ),
    "an item in flight is parked as blocked": ("BLOCKED if behind and not slot.flying", "BLOCKED if behind"),
    "an answer counts twice": ("if slot is None or not slot.flying:", "if slot is None:"),
    "an old answer counts after forgetting": ("self._bytes = 0\n", "self._bytes = 0\n        self._next_ticket = 1\n"),
    "a global topic goes together": ("self.alone = not key[2]", "self.alone = False"),
    "an aggregate without a type goes alone": ("self.alone = not key[2]", "self.alone = not key[1]"),
    "the log goes before the parking lot": ("queue = line.parked or line.log", "queue = line.log or line.parked"),
    "a delayed item goes at once": ("item.available_at > now", "item.available_at > item.available_at"),
    "a due item is delayed": ("item.available_at > now", "item.available_at >= now"),
    "an old verdict stays when an item goes again": (
        "slot.verdict = None  # one that failed",
        "pass  # one that failed",
    ),
    "an answered one is left in the line": ("while queue and queue[0].done:", "if queue and queue[0].done:"),
    "what is done goes again": ("[slot for slot in queue if not slot.done] if together", "list(queue) if together"),
    "the followers of a failed head stay": ("if line.stopped:\n", "if False:\n"),
    "a failure out of the parking lot counts before its head is answered": (
        "if slot.verdict is not None and (slot.line is None or slot.done):",
        "if slot.verdict is not None:",
    ),
    "a stopped line starts over while followers fly": ("line.stopped = bool(line.parked)", "line.stopped = False"),
    "the bytes of what left still count": ("self._bytes -= slot.size", "pass"),
    "the bytes are not counted": ("self._bytes += slot.size", "pass"),
    "what left the window is kept": ("del self._slots[slot.ticket]", "pass"),
    "a line is lost that others still wait in": ("if not (line.parked or line.log) and", "if not line.parked and"),
    "a line stays closed when its head leaves": (
        "self._open[line] = None\n            if not (",
        "pass\n            if not (",
    ),
    "items go out of order": ("going.sort(key=_ticket)", "going.sort(key=_ticket, reverse=True)"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds_a_window_in_which(name: str) -> None:
    module = _mutant(*MUTANTS[name])
    for seed in range(4000):
        try:
            World(Random(seed), module).live(60)
        except Exception:  # noqa: BLE001  whatever a broken window does, it is found
            return
    pytest.fail(f"4,000 runs did not notice that {name}")


def _mutant(old: str, new: str) -> types.ModuleType:
    source = inspect.getsource(real)
    assert source.count(old) == 1, f"the window changed: {old!r} is there {source.count(old)} times"
    module = types.ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)
    return module
