"""The checker's judgement: a correct history passes, and every fault that is planted is found and named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.torture.checker import History, Report, Seen, check


def seen(*ids: str) -> list[Seen]:
    return [Seen(id, f"contents of {id}") for id in ids]


CORRECT = History(
    committed={"order/1": seen("a", "b", "c"), "order/2": seen("x", "y")},
    rolled_back=seen("r"),
    wire=seen("a", "x", "b", "c", "y"),
    applied=seen("x", "a", "y", "b", "c"),
)


def test_a_correct_history_passes() -> None:
    assert check(CORRECT) == Report(
        committed=5,
        rolled_back=1,
        published=5,
        copies=0,
        applied=5,
        lost=0,
        phantom=0,
        applied_twice=0,
        out_of_order=0,
    )


def test_copies_on_the_wire_are_counted_and_allowed() -> None:
    report = check(replace(CORRECT, wire=seen("a", "x", "b", "a", "b", "c", "y", "a")))
    assert report.ok
    assert (report.published, report.copies) == (5, 3)


def test_a_history_without_a_consumer_is_judged_by_the_wire() -> None:
    assert check(replace(CORRECT, applied=None)).ok


@pytest.mark.parametrize(
    ("fault", "count", "finding"),
    [
        (replace(CORRECT, wire=seen("a", "x", "c", "y")), "lost", "lost: b of order/1 was committed, but is not on"),
        (
            replace(CORRECT, applied=seen("a", "b", "c", "x")),
            "lost",
            "lost: y of order/2 was committed, but is not app",
        ),
        (
            replace(CORRECT, wire=[*CORRECT.wire, *seen("r")]),
            "phantom",
            "phantom: r is on the wire, but was never comm",
        ),
        (
            replace(CORRECT, wire=[*CORRECT.wire, *seen("?")]),
            "phantom",
            "phantom: ? is on the wire, but was never comm",
        ),
        (
            replace(CORRECT, applied=seen("x", "a", "y", "b", "c", "r")),
            "phantom",
            "phantom: r is applied, but was never",
        ),
        (
            replace(CORRECT, wire=[*CORRECT.wire, Seen("a", "nonsense")]),
            "phantom",
            "phantom: a of order/1 is on the wire with other contents: it says nonsense, and contents of a was",
        ),
        (
            replace(CORRECT, applied=seen("x", "a", "y", "b", "b", "c")),
            "applied_twice",
            "applied twice: b of order/1 was applied 2 times",
        ),
        (
            replace(CORRECT, wire=seen("a", "c", "x", "b", "c", "y")),
            "out_of_order",
            "out of order: c of order/1 was first on the wire before b, which was committed earlier",
        ),
        (
            replace(CORRECT, applied=seen("y", "x", "a", "b", "c")),
            "out_of_order",
            "out of order: y of order/2 was first applied before x, which was committed earlier",
        ),
    ],
)
def test_a_planted_fault_is_counted_and_named(fault: History, count: str, finding: str) -> None:
    report = check(fault)
    faults = ("lost", "phantom", "applied_twice", "out_of_order")
    assert {name: getattr(report, name) for name in faults} == {name: int(name == count) for name in faults}
    assert [sentence[: len(finding)] for sentence in report.findings] == [finding]


def test_an_event_that_is_lost_on_the_wire_and_unapplied_counts_once() -> None:
    report = check(replace(CORRECT, wire=seen("a", "x", "c", "y"), applied=seen("x", "a", "y", "c")))
    assert report.lost == 1


def test_an_event_with_other_contents_in_all_its_copies_is_lost_too() -> None:
    report = check(replace(CORRECT, wire=[*seen("a", "x", "b", "c"), Seen("y", "nonsense")]))
    assert (report.lost, report.phantom) == (1, 1)


@pytest.mark.parametrize("wire", [seen("u"), []])
def test_an_event_of_unknown_outcome_may_be_seen_and_need_not_be(wire: list[Seen]) -> None:
    assert check(replace(CORRECT, unknown=seen("u"), wire=[*CORRECT.wire, *wire])).ok


def test_an_event_of_unknown_outcome_that_is_applied_without_being_on_the_wire_is_a_phantom() -> None:
    report = check(replace(CORRECT, unknown=seen("u"), applied=[*(CORRECT.applied or ()), *seen("u")]))
    assert report.findings == ["phantom: u was applied, but was never on the wire"]


def test_an_event_that_was_written_down_twice_is_no_evidence() -> None:
    report = check(replace(CORRECT, rolled_back=seen("a")))
    assert report.findings == ["the evidence contradicts itself: the event a was written down 2 times"]


def test_unsound_evidence_fails_the_check() -> None:
    assert not check(replace(CORRECT, unsound=["a line is missing"])).ok


@st.composite
def correct_histories(draw: st.DrawFn) -> History:
    """Random aggregates, a random interleaving that keeps each one's order, and random later copies."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    committed = {f"order/{line}": seen(*(f"{line}.{n}" for n in range(size))) for line, size in enumerate(sizes)}
    chance = Random(draw(st.integers(0, 2**32)))
    wire = interleave(list(committed.values()), chance)
    for _ in range(draw(st.integers(0, 8))):
        original = chance.randrange(len(wire))
        wire.insert(chance.randint(original + 1, len(wire)), wire[original])
    applied = interleave(list(committed.values()), chance)
    return History(committed=committed, rolled_back=seen("r0", "r1"), wire=wire, applied=applied)


def interleave(lines: Sequence[Sequence[Seen]], chance: Random) -> list[Seen]:
    turns = [line for line, events in enumerate(lines) for _ in events]
    chance.shuffle(turns)
    rest = [iter(events) for events in lines]
    return [next(rest[line]) for line in turns]


Mutation = Callable[[History, Random], History | None]


def events_of(history: History) -> list[Seen]:
    return [event for events in history.committed.values() for event in events]


def lose_on_the_wire(history: History, chance: Random) -> History:
    victim = chance.choice(events_of(history))
    return replace(history, wire=[event for event in history.wire if event.id != victim.id])


def lose_an_effect(history: History, chance: Random) -> History:
    victim = chance.choice(events_of(history))
    return replace(history, applied=[event for event in history.applied or () if event.id != victim.id])


def publish_what_was_rolled_back(history: History, chance: Random) -> History:
    place = chance.randint(0, len(history.wire))
    return replace(history, wire=[*history.wire[:place], *seen("r1"), *history.wire[place:]])


def apply_what_was_never_committed(history: History, chance: Random) -> History:
    return replace(history, applied=[*(history.applied or ()), *seen(chance.choice(["r0", "made up"]))])


def apply_twice(history: History, chance: Random) -> History:
    return replace(history, applied=[*(history.applied or ()), chance.choice(events_of(history))])


def garble_a_copy(history: History, chance: Random) -> History:
    place = chance.randrange(len(history.wire))
    garbled = Seen(history.wire[place].id, "something else")
    return replace(history, wire=[*history.wire[:place], garbled, *history.wire[place + 1 :]])


def overtake(seen_before: Sequence[Seen], history: History, chance: Random) -> list[Seen] | None:
    """Put the first copy of a later event of an aggregate before the first one of an earlier event."""
    lines = [events for events in history.committed.values() if len(events) > 1]
    if not lines:
        return None
    events = chance.choice(lines)
    later = chance.randrange(1, len(events))
    place = seen_before.index(events[chance.randrange(later)])
    return [*seen_before[:place], events[later], *seen_before[place:]]


def overtake_on_the_wire(history: History, chance: Random) -> History | None:
    wire = overtake(history.wire, history, chance)
    return None if wire is None else replace(history, wire=wire)


def overtake_when_applying(history: History, chance: Random) -> History | None:
    applied = overtake(history.applied or (), history, chance)
    if applied is None:
        return None
    return replace(history, applied=list(dict.fromkeys(applied)))


MUTATIONS: dict[Mutation, str] = {
    lose_on_the_wire: "lost",
    lose_an_effect: "lost",
    publish_what_was_rolled_back: "phantom",
    apply_what_was_never_committed: "phantom",
    apply_twice: "applied_twice",
    garble_a_copy: "phantom",
    overtake_on_the_wire: "out_of_order",
    overtake_when_applying: "out_of_order",
}


@given(correct_histories())
def test_any_correct_history_passes(history: History) -> None:
    assert check(history).findings == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@given(history=correct_histories(), seed=st.integers(0, 2**32))
def test_any_single_mutation_of_a_correct_history_is_found(mutation: Mutation, history: History, seed: int) -> None:
    mutant = mutation(history, Random(seed))
    if mutant is None:
        assert all(len(events) == 1 for events in history.committed.values()), "one event alone cannot be out of order"
        return
    report = check(mutant)
    assert getattr(report, MUTATIONS[mutation]) > 0
    assert report.findings
