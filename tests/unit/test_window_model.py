"""The window against a model: a world with a log, detours, a parking lot, an operator and a broker, driven by chance.

The model says at every step what must be ready and what must be settled; at the end everything is answered and the
window has to run empty. The same runs then find every one of the defects in `MUTANTS`, so they are able to fail.
"""

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core import convoy as real_convoys
from pillarbox.core import window as real
from pillarbox.core.retry import PUBLISHED, Dead, Published, RetryAt, Untouched, Verdict
from pillarbox.core.routing import Line

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
LINES: list[Line | None] = [("t", "order", "1"), ("t", "order", "2"), ("t", "", "3"), ("global", "", ""), None]
TOPICS = ("t", "global")
UNTOUCHED = Untouched("away")
FIRST = 4150
"""The first seed of the runs that find the mutants: from here on, even the rarest are found soon."""


@dataclass(eq=False)
class Thing:
    """What passes through the window. The same event is another thing when it comes out of the parking lot."""

    position: int
    line: Line | None
    size: int
    topic: str
    available_at: datetime | None = None
    parked: bool = False
    detour: bool = False
    """It came out of a detour."""


@dataclass
class Flight:
    thing: Thing
    call: int
    verdict: Verdict


class World:
    """A source, a broker and an operator around one window; every step is checked."""

    def __init__(self, chance: Random, module: Any = real, *, topics_fail: bool, convoys: Any = None) -> None:
        self.chance, self.module, self.topics_fail, self.convoys = chance, module, topics_fail, convoys
        self.prefix_safe = chance.random() < 0.5 or convoys is not None
        self.size, self.max_bytes = chance.randint(1, 8), chance.randint(3, 40)
        self.reliable = chance.choice([0.3, 0.6, 0.8])
        lines = chance.sample(LINES, chance.choice([1, 1, 2, 3, 5]))
        if convoys is None:
            make = partial(module.Window, prefix_safe=self.prefix_safe)
        else:
            make = partial(
                convoys.ConvoyWindow,
                smallest=chance.randint(1, 3),
                are_plain=lambda things: not any(thing.parked or thing.available_at for thing in things),
                size_of_all=lambda things: sum(thing.size for thing in things),
            )
            lines = [line for line in lines if line is None or line[2]] or LINES[:2]
            self.reliable = chance.choice([0.6, 0.8, 0.9, 1.0])
        self.window = make(
            self.size, lambda thing: thing.line, size_of=lambda thing: thing.size, max_bytes=self.max_bytes
        )
        self.log = [self._new(position, lines) for position in range(chance.randint(1, 25))]
        self.read = 0  # by the main line
        self.detours: dict[str, set[int]] = {
            topic: set() for topic in TOPICS
        }  # what comes out again, or was read around
        self.held: set[str] = set()  # topics of which the source gives out nothing
        self.recalled: set[int] = set()  # by id(): what is to go back unless it is published
        self.gone: set[int] = set()  # by id(): what goes back for sure
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
        line = self.chance.choice(lines)
        topic = line[0] if line is not None else self.chance.choice(TOPICS)
        return Thing(position, line, self.chance.randint(0, 5), topic, due)

    @property
    def blocked(self) -> set[Line]:
        return {line for line, parked in self.parking.items() if parked}

    def enter(self, everything: bool = False) -> None:
        room = self.window.room
        self._check_room(room)
        wanted = room if everything else self.chance.randint(0, room)
        things = self._due(everything)[:wanted]
        things += self._from_detours(wanted - len(things))
        while len(things) < wanted and self.read < len(self.log):
            thing = self.log[self.read]
            self.read += 1
            if thing.topic in self._around:
                self.detours[thing.topic].add(thing.position)
            else:
                things.append(thing)
        for thing in things:
            self.inside[id(thing)] = thing
        self.window.enter(things, NOW)

    @property
    def _around(self) -> set[str]:
        """The topics that the main line goes around."""
        return self.held | {topic for topic, positions in self.detours.items() if positions}

    def _from_detours(self, room: int) -> list[Thing]:
        """Give what went back, or was read around, in order."""
        things: list[Thing] = []
        for topic, positions in self.detours.items():
            if topic not in self.held:
                for position in sorted(positions)[: room - len(things)]:
                    positions.remove(position)
                    things.append(replace(self.log[position], detour=True))
        return things

    def _due(self, everything: bool) -> list[Thing]:
        """Give what may come out of the parking lot: a failed head alone, or the followers of a head that is gone."""
        held = {thing.position for thing in self.inside.values() if thing.parked}
        held |= {thing.position for thing in self.log if thing.topic in self.held}
        due = [p for p in sorted(self.outside) if p not in held]
        for line, parked in self.parking.items():
            run = sorted(parked) if line[0] not in self.held else []
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
        return replace(old, line=None if position in self.outside else old.line, parked=True)

    def ready(self, gated: bool = False) -> None:
        blocked = self.blocked
        gates = {topic: self.chance.choice(list(self.module.Gate)) for topic in TOPICS} if gated else {}
        asked: list[Thing] = []

        def gate(thing: Thing) -> Any:
            asked.append(thing)
            return gates[thing.topic]

        expected = self._expected_ready(blocked, gates)
        given = self.window.ready(blocked, gate if gated else None)
        order = list(self.inside)
        assert asked == sorted(asked, key=lambda thing: order.index(id(thing)))
        going = [thing for _, thing in given]
        if self.convoys is None:
            assert going == expected
        else:  # more may wait than has to, but never for nothing
            assert going == [thing for thing in expected if thing in going]
            assert going or self.flights or not expected
        tickets = [ticket for ticket, _ in given]
        assert tickets == sorted(set(tickets))
        self.calls += 1
        self._check_order(going, blocked)
        for ticket, thing in given:
            self.answers.pop(id(thing), None)
            self.flights[ticket] = Flight(thing, self.calls, PUBLISHED)
        for flights in self._by_line([self.flights[ticket] for ticket in tickets]):
            self._decide(flights)
        self.used_tickets += tickets

    def _expected_ready(self, blocked: set[Line], gates: dict[str, Any]) -> list[Thing]:
        shut, one = self.module.Gate.SHUT, self.module.Gate.ONE
        flying = {id(flight.thing) for flight in self.flights.values()}
        busy = {flight.thing.line for flight in self.flights.values()}
        expected: list[Thing] = []
        for line in {thing.line for thing in self.inside.values()}:
            mine = [t for t in self.inside.values() if t.line == line and not self._is_delayed(t)]
            mine = [t for t in mine if id(t) not in self.gone]
            mine = [t for t in mine if not self._holds_nobody_back(self.answers.get(id(t)))]
            if line is None:
                mine = [t for t in mine if id(t) not in flying and id(t) not in self.answers]
                expected += [t for t in mine if gates.get(t.topic) is not shut]
                continue
            queue = [t for t in mine if t.parked] or [t for t in mine if not t.parked]
            if line in busy or not queue or id(queue[0]) in self.answers:
                continue
            if (queue[0].parked or line not in blocked) and gates.get(line[0]) is not shut:
                together = self.prefix_safe and line[2] and gates.get(line[0]) is not one
                expected += queue if together else queue[:1]
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

    def settle(self, everything: bool = False, at_least: int = 0) -> None:
        tickets = list(self.flights)
        self.chance.shuffle(tickets)
        if not everything:
            some = tickets[: self.chance.randint(0, len(tickets))]
            tickets = [ticket for ticket in tickets if ticket in some or ticket == at_least]
        verdicts = []
        for ticket in tickets:
            flight = self.flights.pop(ticket)
            verdicts.append((ticket, flight.verdict))
            if id(flight.thing) in self.recalled and flight.verdict is not PUBLISHED:
                self.gone.add(id(flight.thing))
                continue
            if flight.verdict is not UNTOUCHED:
                self.answers[id(flight.thing)] = flight.verdict
            if self._holds_nobody_back(flight.verdict):
                self.over.add(flight.thing.position)
        stale = [t for t in self.used_tickets if t not in self.flights and t not in tickets] + self.old_tickets
        nonsense: list[tuple[int, Verdict]] = [(t, Dead("nonsense")) for t in [0, 10**9, *tickets, *stale]]
        before = self.blocked
        if self.convoys is None or self.chance.random() < 0.3:
            settlements = [*self.window.settle([*verdicts, *nonsense], before)]
        else:
            settlements = [*self.window.settle(verdicts, before), *self.window.settle(nonsense, before)]
            late = self.chance.sample(self.old_tickets, self.chance.randint(0, len(self.old_tickets)))
            settlements += self.window.settle([(ticket, PUBLISHED) for ticket in late], before)
        self._record(settlements, before)
        # What a failure has blocked just now, a convoy learns at the next settling: nothing of it goes before that.
        self._check_nothing_is_kept(self.blocked if self.convoys is None else before)

    def hold(self) -> None:
        """A topic fails: what is here of it goes back, and the source gives out no more. Then answers come."""
        topic = self.chance.choice(TOPICS)
        self.held.add(topic)
        tried = self._refused(topic)
        flying = {id(flight.thing) for flight in self.flights.values()}
        going, first = [], True
        for key, thing in self.inside.items():
            answer = self.answers.get(key)
            passed = answer is PUBLISHED or (thing.line is not None and self._holds_nobody_back(answer))
            if thing.topic != topic or passed or key in self.gone:
                continue
            if tried and self.flights[tried].thing is thing and first:
                continue
            first = False
            self.recalled.add(key)
            self.answers.pop(key, None)
            if key not in flying:
                self.gone.add(key)
                if thing.parked:
                    going.append(thing)
        settlements = self.window.recall(lambda thing: thing.topic == topic, tried)
        assert [thing for thing, _ in settlements] == going
        self._record(settlements, self.blocked)
        self.settle(at_least=tried)

    def _refused(self, topic: str) -> int:
        """Choose the one that was tried, if one was: its answer is known already, and counts."""
        tickets = [ticket for ticket, flight in self.flights.items() if flight.thing.topic == topic]
        tickets = [ticket for ticket in tickets if id(self.flights[ticket].thing) not in self.recalled]
        if len(tickets) != 1 or self.chance.random() < 0.3:
            return 0
        refusals: list[Verdict] = [RetryAt(LATER, "refused"), Dead("no", True), Dead("no", False)]
        self.flights[tickets[0]].verdict = self.chance.choice(refusals)
        return tickets[0]

    def open(self) -> None:
        """A topic is tried again, once everything that was called back is settled."""
        self.held &= {thing.topic for thing in self.inside.values() if id(thing) in self.recalled}

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
        log = [thing for thing in self.inside.values() if not thing.parked]
        for thing in log:
            if thing.detour:
                self.detours[thing.topic].add(thing.position)
        self.read = min((thing.position for thing in log if not thing.detour), default=self.read)
        for positions in self.detours.values():  # a detour goes no further than the main line
            positions -= set(range(self.read, len(self.log)))
        self.held.clear()
        self.recalled.clear()
        self.gone.clear()
        self.inside.clear()
        self.answers.clear()
        self.flights.clear()
        self.old_tickets += self.used_tickets
        self.used_tickets = []

    def _record(self, settlements: list[Any], before: set[Line]) -> None:
        failed_now: set[Line | None] = set()
        flying = {id(flight.thing) for flight in self.flights.values()}
        for thing, verdict in settlements:
            assert id(thing) not in flying
            if not thing.parked:  # exactly in order
                assert thing is next(inside for inside in self.inside.values() if not inside.parked)
            assert self.inside.pop(id(thing)) is thing  # entered, and settled for the first time
            answer = self.answers.pop(id(thing), None)
            self.recalled.discard(id(thing))
            if id(thing) in self.gone:
                self.gone.remove(id(thing))
                self._take_back(thing, verdict)
                continue
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
            self._park(thing, verdict)

    def _take_back(self, thing: Thing, verdict: Any) -> None:
        """Do what a store does with an item that goes back: it comes out again, uncounted."""
        if not thing.parked:
            assert verdict == self.module.DETOURED
            self.detours[thing.topic].add(thing.position)
        elif thing.line is None:
            assert verdict.__class__ is self.module.Delayed
            assert verdict.until < NOW
        else:
            assert verdict == self.module.BLOCKED
            if thing.position in self.parking[thing.line]:  # and not dropped meanwhile
                self.parking[thing.line][thing.position] = "blocked"

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

    def _check_nothing_is_kept(self, blocked: set[Line]) -> None:
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
            assert id(first) not in self.gone
            assert first.line not in blocked or id(first) in flying

    def _check_room(self, room: int) -> None:
        held = sum(thing.size for thing in self.inside.values())
        assert len(self.window) == len(self.inside)
        assert self.window.flying == len(self.flights)
        assert room == (0 if held >= self.max_bytes else self.size - len(self.inside))
        for ticket, flight in self.flights.items():
            assert self.window.item(ticket) is flight.thing

    @property
    def _ended(self) -> bool:
        """Everything was given out."""
        return self.read == len(self.log) and not any(self.detours.values())

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
            self.chance.choices(
                [*acts, lambda: self.ready(gated=True), self.hold, self.open, self.drop, self.forget],
                [6, 5, 6, 1, 1, 2, 2, 0.3] if self.topics_fail else [6, 6, 6, 0, 0, 0, 2, 0.3],
            )[0]()
        for _ in range(6 * len(self.log) + 10):
            if self._ended and not self.inside and not self.blocked and not self.outside:
                break
            self.open()
            self.enter(everything=True)
            self.ready()
            for flight in self.flights.values():
                flight.verdict = PUBLISHED
            self.settle(everything=True)
        self._check_room(self.window.room)
        assert not self.inside
        assert not self.blocked
        assert self._ended
        assert self.over == set(range(len(self.log)))


@given(st.randoms(use_true_random=False), st.integers(0, 60), st.booleans())
def test_the_window_does_what_the_model_says(chance: Random, steps: int, topics_fail: bool) -> None:
    World(chance, topics_fail=topics_fail).live(steps)


def test_the_unbroken_window_passes_the_runs_that_find_the_broken_ones() -> None:
    for seed in range(300):
        for topics_fail in (False, True):
            World(Random(seed), topics_fail=topics_fail).live(60)


@given(st.randoms(use_true_random=False), st.integers(0, 60), st.booleans())
def test_a_window_with_convoys_does_what_the_model_says(chance: Random, steps: int, topics_fail: bool) -> None:
    World(chance, topics_fail=topics_fail, convoys=real_convoys).live(steps)


def test_the_unbroken_convoys_pass_the_runs_that_find_the_broken_ones() -> None:
    for seed in range(600):
        for topics_fail in (False, True):
            World(Random(seed), topics_fail=topics_fail, convoys=real_convoys).live(60)


CONVOY_MUTANTS = {
    "a convoy goes before what came before it": ("if not self._slots and not self._meets", "if not self._meets"),
    "a convoy goes while another is in flight": ("and not going and not self.flying:", "and not going:"),
    "a convoy waits for what does not move": (
        "            self._break_up()  # what is",
        "            break  # what is",
    ),
    "a blocked line goes with its convoy": ("if not self._slots and not self._meets(blocked):", "if not self._slots:"),
    "a convoy holds a blocked item back from settling": ("and not self._log and self._meets(blocked):", "and False:"),
    "a gate lets a convoy pass": ("if gate is not None:\n            self._break_up_all()", "pass"),
    "what is parked or waits for its time goes in a convoy": ("or not self._are_plain(items)", ""),
    "a small chunk passes the convoys before it": (
        "self._break_up_all()\n            super().enter(items, now)",
        "super().enter(items, now)",
    ),
    "a convoy is settled though one failed": (" if answer[1] is PUBLISHED]", "]"),
    "a convoy is settled by the answers of another": (
        "and min(arrived) == convoy.first and max(arrived) == convoy.first + count - 1",
        "",
    ),
    "a convoy that is broken up in flight goes again": (
        "super().ready(frozenset())  # all of it, for there is nothing else",
        "pass",
    ),
    "a convoy that is broken up gets new tickets": (
        "self._next_ticket, convoy.first",
        "self._next_ticket, self._next_ticket",
    ),
    "tickets come again": ("self._next_ticket = next_ticket\n", "pass\n"),
    "a convoy's bytes are counted twice": (
        "self._bytes -= convoy.bytes\n        next_ticket",
        "next_ticket",
    ),
    "the bytes of a convoy that left still count": (
        "self._bytes -= convoy.bytes\n        return Arrived",
        "return Arrived",
    ),
    "a convoy is not called back": ("self._break_up_all()\n        return super().recall", "return super().recall"),
    "a convoy outlives forgetting": (
        "self._convoys: deque[_Convoy[I]] = deque()  # behind everything else",
        "self._convoys: deque[_Convoy[I]] = getattr(self, '_convoys', deque())",
    ),
    "a convoy in flight outlives forgetting": (
        "self._leads = False  # the first convoy is in flight",
        "self._leads = getattr(self, '_leads', False)  # the first convoy is in flight",
    ),
    "a convoy takes no room": ("+ sum(len(convoy.items) for convoy in self._convoys)", ""),
    "an answer for a part is not heard": (
        "elif any(self.item(ticket) is not None for ticket, _ in verdicts):",
        "elif False:",
    ),
}


@pytest.mark.parametrize("name", CONVOY_MUTANTS)
def test_the_model_finds_convoys_in_which(name: str) -> None:
    module = _mutant(real_convoys, *CONVOY_MUTANTS[name])
    for seed in range(4000):
        try:
            World(Random(seed // 2), topics_fail=seed % 2 == 1, convoys=module).live(60)
        except Exception:  # noqa: BLE001  whatever broken convoys do, it is found
            return
    pytest.fail(f"4,000 runs did not notice that {name}")


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
    "the bytes of what left still count": ("self._bytes -= self._size_of(slot.item)", "pass"),
    "the bytes are not counted": ("self._bytes += sum(map(self._size_of, items))", "pass"),
    "what left the window is kept": ("del self._slots[slot.ticket]", "pass"),
    "a line is lost that others still wait in": ("if not (line.parked or line.log) and", "if not line.parked and"),
    "a line stays closed when its head leaves": (
        "self._open[line] = None\n            if not (",
        "pass\n            if not (",
    ),
    "what is in flight stays when its topic goes back": (
        "slot.recalled, first = True, False",
        "slot.recalled, first = not slot.flying, False",
    ),
    "what is in flight goes back before it is answered": (
        "slot.recalled, first = True, False\n            if not slot.flying:",
        "slot.recalled, first = True, False\n            if True:",
    ),
    "what was tried goes back uncounted": ("if first and slot.ticket == tried:", "if False:"),
    "what was tried stays although one before it goes back": (
        "if first and slot.ticket == tried:",
        "if slot.ticket == tried:",
    ),
    "a recalled item holds its line": (
        "(out_of_the_lot if slot.item.parked else DETOURED), True",
        "(out_of_the_lot if slot.item.parked else DETOURED), False",
    ),
    "a failure after the recall is counted": (
        "if slot.recalled and verdict.__class__ is not Published:",
        "if slot.recalled and verdict.__class__ is Untouched:",
    ),
    "an untouched one stays after the recall": (
        "if slot.recalled and verdict.__class__ is not Published:",
        "if slot.recalled and verdict.__class__ not in (Published, Untouched):",
    ),
    "what was published after the recall goes back": (
        "if slot.recalled and verdict.__class__ is not Published:",
        "if slot.recalled:",
    ),
    "what was published before the recall goes back": (
        "if slot.verdict.__class__ is Published:\n                continue",
        "if False:\n                continue",
    ),
    "a failure before the recall is counted": (
        "if not slot.done and which(slot.item)]",
        "if not slot.done and slot.verdict is None and which(slot.item)]",
    ),
    "what has no line is sent after it went back": (
        "self._free = [slot for slot in self._free if not slot.recalled]",
        "pass",
    ),
    "the parking lot waits for what went back to it": (
        "settled.append(self._leave(slot, slot.verdict))\n        self._free",
        "pass\n        self._free",
    ),
    "what came out of the parking lot is detoured": (
        "(out_of_the_lot if slot.item.parked else DETOURED)",
        "DETOURED",
    ),
    "a shut gate lets a line pass": ("elif through is not Gate.SHUT:", "else:"),
    "a shut gate lets pass what has no line": ("if through is Gate.SHUT else free_ones", "if False else free_ones"),
    "a shut gate loses what has no line": ("(self._free if through is Gate.SHUT", "([] if through is Gate.SHUT"),
    "the gate is asked in another order": ("sorted(heads, key=lambda head: head[0].ticket)", "reversed(heads)"),
    "a gate for one lets a whole line pass": ("if through is Gate.ONE:", "if False:"),
    "items go out of order": ("going.sort(key=_ticket)", "going.sort(key=_ticket, reverse=True)"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_finds_a_window_in_which(name: str) -> None:
    module = _mutant(real, *MUTANTS[name])
    for seed in range(8000):
        try:
            World(Random(FIRST + seed // 2), module, topics_fail=seed % 2 == 1).live(60)
        except Exception:  # noqa: BLE001  whatever a broken window does, it is found
            return
    pytest.fail(f"8,000 runs did not notice that {name}")


def _mutant(original: types.ModuleType, old: str, new: str) -> types.ModuleType:
    source = inspect.getsource(original)
    assert source.count(old) == 1, f"the source changed: {old!r} is there {source.count(old)} times"
    module = types.ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant", "exec"), module.__dict__)
    return module
