"""The window's rules, one example each; test_window_model.py has the whole."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from pillarbox.core.retry import PUBLISHED, Dead, RetryAt, Untouched, Verdict
from pillarbox.core.routing import Line
from pillarbox.core.window import BLOCKED, DETOURED, Delayed, Gate, Settlement, Window

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=2)
RETRY = RetryAt(LATER, "refused")
AWAY = Untouched("away")


@dataclass(frozen=True)
class Thing:
    name: str
    line: Line | None
    parked: bool = False
    available_at: datetime | None = None


def things(names: str, *, parked: bool = False) -> list[Thing]:
    """Make things of the lines that the letters say: "a1 a2 b1"; "-" is free, "G" a whole topic."""
    lines: dict[str, Line | None] = {"-": None, "G": ("t", "", "")}
    return [Thing(name, lines.get(name[0], ("t", "x", name[0])), parked) for name in names.split()]


class Played:
    """A window with the tickets remembered by name."""

    def __init__(self, *, size: int = 100, prefix_safe: bool = False) -> None:
        self.window: Window[Thing] = Window(size, lambda thing: thing.line, prefix_safe=prefix_safe)
        self.tickets: dict[str, int] = {}
        self.blocked: set[Line] = set()

    def enter(self, names: str, *, parked: bool = False) -> None:
        self.window.enter(things(names, parked=parked), NOW)

    def ready(self, gate: Callable[[Thing], Gate] | None = None) -> str:
        given = self.window.ready(self.blocked, gate)
        self.tickets |= {thing.name: ticket for ticket, thing in given}
        return " ".join(thing.name for _, thing in given)

    def settle(self, **verdicts: Verdict) -> list[tuple[str, object]]:
        settled = self.window.settle([(self.tickets[n], v) for n, v in verdicts.items()], self.blocked)
        return [(thing.name, verdict) for thing, verdict in settled]

    def recall(self, letters: str, tried: str = "") -> list[tuple[str, object]]:
        """Let the lines go back that the letters say."""
        settled = self.window.recall(lambda thing: thing.name[0] in letters, self.tickets.get(tried, 0))
        return [(thing.name, verdict) for thing, verdict in settled]


@pytest.fixture
def one() -> Played:
    """One of a line at a time."""
    return Played()


@pytest.fixture
def together() -> Played:
    """The other side is prefix-safe."""
    return Played(prefix_safe=True)


def test_the_next_of_a_line_goes_when_the_one_before_is_answered(one: Played) -> None:
    one.enter("a1 a2 b1")
    assert one.ready() == "a1 b1"
    assert one.ready() == ""
    assert one.settle(a1=PUBLISHED) == [("a1", PUBLISHED)]
    assert one.ready() == "a2"


def test_items_without_a_line_go_at_once(one: Played) -> None:
    one.enter("-1 -2")
    assert one.ready() == "-1 -2"


def test_a_prefix_safe_side_gets_a_whole_line_in_one_call_and_the_rest_in_the_next(together: Played) -> None:
    together.enter("a1 a2")
    assert together.ready() == "a1 a2"
    together.enter("a3")
    together.settle(a1=PUBLISHED)
    assert together.ready() == ""
    together.settle(a2=PUBLISHED)
    assert together.ready() == "a3"


def test_a_whole_topic_goes_one_by_one_even_if_the_other_side_is_prefix_safe(together: Played) -> None:
    together.enter("G1 G2")
    assert together.ready() == "G1"


def test_an_aggregate_without_a_type_is_not_taken_for_a_whole_topic() -> None:
    window: Window[Thing] = Window(10, lambda thing: thing.line, prefix_safe=True)
    window.enter([Thing("1", ("t", "", "7")), Thing("2", ("t", "", "7"))], NOW)
    assert len(window.ready(set())) == 2


def test_a_verdict_waits_until_everything_before_it_in_the_log_has_one(one: Played) -> None:
    one.enter("a1 b1 c1")
    one.ready()
    assert one.settle(c1=PUBLISHED, b1=RETRY) == []
    assert one.settle(a1=PUBLISHED) == [("a1", PUBLISHED), ("b1", RETRY), ("c1", PUBLISHED)]


def test_a_failed_item_holds_back_its_line_and_nobody_else(one: Played) -> None:
    one.enter("a1 a2 b1 b2")
    one.ready()
    assert one.settle(a1=RETRY) == [("a1", RETRY), ("a2", BLOCKED)]
    one.blocked = {("t", "x", "a")}
    one.enter("a3")
    one.settle(b1=PUBLISHED)
    assert one.ready() == "b2"
    assert one.settle(b2=PUBLISHED) == [("b2", PUBLISHED), ("a3", BLOCKED)]


def test_a_line_goes_on_when_it_is_no_longer_blocked(one: Played) -> None:
    one.blocked = {("t", "x", "a")}
    one.enter("b1 a1")
    assert one.ready() == "b1"
    one.blocked = set()
    assert one.ready() == "a1"


def test_a_dead_item_that_is_passed_over_holds_nobody_back(one: Played) -> None:
    one.enter("a1 a2")
    one.ready()
    dead = Dead("refused", blocks=False)
    assert one.settle(a1=dead) == [("a1", dead)]
    assert one.ready() == "a2"


def test_an_untouched_item_goes_again_and_nothing_is_counted(one: Played) -> None:
    one.enter("a1 -1")
    assert one.ready() == "a1 -1"
    assert one.settle(**{"a1": AWAY, "-1": AWAY}) == []
    assert one.ready() == "a1 -1"
    assert one.window.flying == 2


def test_a_failure_behind_an_untouched_item_is_not_counted_but_goes_again(together: Played) -> None:
    together.enter("a1 a2")
    together.ready()
    assert together.settle(a1=AWAY, a2=RETRY) == []
    assert together.ready() == "a1 a2"
    assert together.settle(a1=PUBLISHED) == [("a1", PUBLISHED)]
    assert together.settle(a2=PUBLISHED) == [("a2", PUBLISHED)]
    assert len(together.window) == together.window.flying == 0


def test_answers_in_the_wrong_order_do_not_leave_a_line_stuck(together: Played) -> None:
    together.enter("a1 a2", parked=True)
    together.ready()
    together.enter("a3")
    assert together.settle(a2=PUBLISHED) == [("a2", PUBLISHED)]
    assert together.settle(a1=PUBLISHED) == [("a1", PUBLISHED)]
    assert together.ready() == "a3"


def test_the_parking_lot_goes_before_the_log(one: Played) -> None:
    one.blocked = {("t", "x", "a")}
    one.enter("a2")
    one.enter("a1", parked=True)
    assert one.ready() == "a1"


def test_the_followers_of_a_failed_parked_head_stay_parked_behind_it(one: Played) -> None:
    one.enter("a1 a2 a3", parked=True)
    assert one.ready() == "a1"
    assert one.settle(a1=RETRY) == [("a1", RETRY), ("a2", BLOCKED), ("a3", BLOCKED)]
    assert len(one.window) == 0


def test_a_parked_follower_that_fails_first_waits_for_the_answer_to_its_head(together: Played) -> None:
    together.enter("a1 a2", parked=True)
    together.ready()
    assert together.settle(a2=RETRY) == []
    assert together.settle(a1=RETRY) == [("a1", RETRY), ("a2", BLOCKED)]


def test_a_parked_follower_that_fails_behind_an_untouched_head_goes_again_with_it(together: Played) -> None:
    together.enter("a1 a2", parked=True)
    together.ready()
    assert together.settle(a1=AWAY, a2=RETRY) == []
    assert together.ready() == "a1 a2"


def test_followers_that_are_answered_after_their_parked_head_failed_are_blocked_or_published(together: Played) -> None:
    together.enter("a1 a2 a3", parked=True)
    together.ready()
    assert together.settle(a1=RETRY) == [("a1", RETRY)]
    assert together.settle(a3=AWAY) == [("a3", BLOCKED)]
    assert together.settle(a2=RETRY) == [("a2", BLOCKED)]
    assert len(together.window) == 0


def test_a_parked_item_outside_the_order_settles_at_once(one: Played) -> None:
    one.enter("-1", parked=True)
    one.ready()
    assert one.settle(**{"-1": RETRY}) == [("-1", RETRY)]


def test_a_delayed_item_of_the_log_is_parked_until_its_time(one: Played) -> None:
    thing = Thing("d", ("t", "x", "a"), available_at=LATER)
    one.window.enter([thing], NOW)
    assert one.ready() == ""
    assert one.window.settle([], set()) == [Settlement(thing, Delayed(LATER))]


def test_a_delayed_item_goes_once_it_comes_out_of_the_parking_lot(one: Played) -> None:
    one.window.enter([Thing("d", None, parked=True, available_at=LATER)], NOW)
    assert one.ready() == "d"


def test_an_item_of_the_log_whose_time_has_come_goes_in_its_order(one: Played) -> None:
    one.enter("a1")
    one.window.enter([Thing("a2", ("t", "x", "a"), available_at=NOW)], NOW)
    assert one.ready() == "a1"


def test_answers_that_nobody_waits_for_are_passed_over(one: Played) -> None:
    one.enter("a1")
    one.ready()
    assert one.window.settle([(0, PUBLISHED), (99, PUBLISHED)], set()) == []
    assert one.settle(a1=PUBLISHED) == [("a1", PUBLISHED)]
    assert one.settle(a1=RETRY) == []


def test_what_was_in_flight_is_forgotten(one: Played) -> None:
    one.enter("a1")
    one.ready()
    one.window.forget()
    assert (len(one.window), one.window.flying, one.window.room) == (0, 0, 100)
    one.enter("a2")
    before = dict(one.tickets)
    assert one.ready() == "a2"
    assert one.window.settle([(before["a1"], PUBLISHED)], set()) == []
    assert one.window.item(before["a1"]) is None
    assert one.window.item(one.tickets["a2"]) == things("a2")[0]


def test_the_room_is_bounded_by_number_and_by_bytes() -> None:
    window: Window[Thing] = Window(5, lambda thing: thing.line, prefix_safe=False, size_of=lambda _: 10, max_bytes=25)
    window.enter(things("a1 a2"), NOW)
    assert window.room == 3
    window.enter(things("a3"), NOW)
    assert window.room == 0
    ticket = window.ready(set())[0][0]
    window.settle([(ticket, PUBLISHED)], set())
    assert window.room == 3


def test_a_thousand_answers_in_reverse_settle_a_prefix_safe_line() -> None:
    window: Window[Thing] = Window(1000, lambda thing: thing.line, prefix_safe=True)
    window.enter([Thing(str(n), ("t", "x", "a")) for n in range(1000)], NOW)
    tickets = [ticket for ticket, _ in window.ready(set())]
    settled = [s for ticket in reversed(tickets) for s in window.settle([(ticket, PUBLISHED)], set())]
    assert [settlement.item.name for settlement in settled] == [str(n) for n in range(1000)]


def test_what_waits_goes_back_and_the_position_moves_over_it(one: Played) -> None:
    one.enter("b1 a1 a2 -1 b2")
    assert one.ready() == "b1 a1 -1"
    one.settle(**{"a1": AWAY, "-1": AWAY})
    assert one.recall("a-") == []
    assert one.settle(b1=PUBLISHED) == [("b1", PUBLISHED), ("a1", DETOURED), ("a2", DETOURED), ("-1", DETOURED)]
    assert one.ready() == "b2"


def test_nothing_that_went_back_is_sent(one: Played) -> None:
    one.enter("b1 a1 -1")
    one.recall("a-")
    assert one.ready() == "b1"


def test_what_is_in_flight_goes_back_when_it_was_not_published(together: Played) -> None:
    together.enter("a1 a2 a3 -1")
    together.ready()
    together.recall("a-")
    assert together.window.flying == 4
    assert together.settle(a1=PUBLISHED, a2=RETRY) == [("a1", PUBLISHED), ("a2", DETOURED)]
    answers: dict[str, Verdict] = {"a3": AWAY, "-1": Dead("no")}
    assert together.settle(**answers) == [("a3", DETOURED), ("-1", DETOURED)]
    assert len(together.window) == together.window.flying == 0


def test_a_failure_that_was_not_settled_yet_goes_back_uncounted(one: Played) -> None:
    one.enter("b1 a1")
    one.ready()
    one.settle(a1=RETRY)
    one.recall("a")
    assert one.settle(b1=PUBLISHED) == [("b1", PUBLISHED), ("a1", DETOURED)]


def test_what_was_published_stays_so_when_its_topic_goes_back(one: Played) -> None:
    one.enter("b1 a1 -1")
    one.ready()
    one.settle(**{"a1": PUBLISHED, "-1": PUBLISHED})
    one.recall("a-")
    assert one.settle(b1=PUBLISHED) == [("b1", PUBLISHED), ("a1", PUBLISHED), ("-1", PUBLISHED)]


def test_what_comes_later_of_a_line_waits_for_what_is_in_flight_and_was_called_back(one: Played) -> None:
    one.enter("a1")
    one.ready()
    one.recall("a")
    one.enter("a2")
    assert one.ready() == ""
    assert one.settle(a1=AWAY) == [("a1", DETOURED)]
    assert one.ready() == "a2"


def test_a_line_goes_on_after_what_went_back(one: Played) -> None:
    one.enter("b1 a1")
    one.recall("a")
    one.enter("a2")
    assert one.ready() == "b1 a2"
    assert one.settle(a2=PUBLISHED) == []
    assert one.settle(b1=PUBLISHED) == [("b1", PUBLISHED), ("a1", DETOURED), ("a2", PUBLISHED)]


def test_a_delayed_item_goes_back_as_the_others(one: Played) -> None:
    thing = Thing("d", None, available_at=LATER)
    one.window.enter([thing], NOW)
    one.recall("d")
    assert one.window.settle([], set()) == [Settlement(thing, DETOURED)]


def test_what_came_out_of_the_parking_lot_goes_back_there_at_once(one: Played) -> None:
    one.enter("a1 a2 -1", parked=True)
    names = one.recall("a-")
    assert names[:2] == [("a1", BLOCKED), ("a2", BLOCKED)]
    name, verdict = names[2]
    assert name == "-1"
    assert isinstance(verdict, Delayed)
    assert verdict.until < NOW
    assert len(one.window) == 0
    assert one.ready() == ""


def test_what_came_out_of_the_parking_lot_and_is_in_flight_goes_back_when_it_was_not_published(
    together: Played,
) -> None:
    together.enter("a1 a2 a3", parked=True)
    together.ready()
    assert together.recall("a") == []
    assert together.settle(a2=RETRY) == [("a2", BLOCKED)]
    assert together.settle(a1=PUBLISHED) == [("a1", PUBLISHED)]
    assert together.settle(a3=Dead("no")) == [("a3", BLOCKED)]
    assert len(together.window) == together.window.flying == 0


def test_a_shut_gate_keeps_a_line_and_what_has_none_until_it_opens(one: Played) -> None:
    one.enter("a1 a2 -1 b1")
    assert one.ready(lambda thing: Gate.SHUT if thing.name[0] in "a-" else Gate.OPEN) == "b1"
    assert one.ready(lambda thing: Gate.SHUT) == ""
    assert one.ready(lambda thing: Gate.OPEN) == "a1 -1"


def test_a_gate_for_one_lets_one_of_a_line_pass(together: Played) -> None:
    together.enter("a1 a2 b1 b2")
    assert together.ready(lambda thing: Gate.ONE if thing.name[0] == "a" else Gate.OPEN) == "a1 b1 b2"


def test_the_gate_is_asked_only_of_what_could_go(one: Played) -> None:
    asked = []

    def gate(thing: Thing) -> Gate:
        asked.append(thing.name)
        return Gate.SHUT

    one.blocked = {("t", "x", "b")}
    one.enter("a1 a2 b1 -1")
    one.ready(gate)
    assert sorted(asked) == ["-1", "a1"]


def test_the_gate_is_asked_in_the_order_of_entering(one: Played) -> None:
    asked = []

    def gate(thing: Thing) -> Gate:
        asked.append(thing.name)
        return Gate.SHUT

    one.enter("a1 -1 b1 -2 c1")
    one.ready(gate)
    assert asked == ["a1", "-1", "b1", "-2", "c1"]


def test_what_was_tried_is_judged_while_the_others_go_back(one: Played) -> None:
    one.enter("a1 a2 b1")
    assert one.ready(lambda thing: Gate.ONE if thing.name == "a1" else Gate.SHUT) == "a1"
    one.recall("ab", tried="a1")
    assert one.settle(a1=RETRY) == [("a1", RETRY), ("a2", DETOURED), ("b1", DETOURED)]


def test_what_was_tried_goes_back_too_if_one_before_it_does(one: Played) -> None:
    """The detour begins before the first that goes back, so the other would come out again, although it is parked."""
    one.enter("a1 b1")
    assert one.ready(lambda thing: Gate.ONE if thing.name == "b1" else Gate.SHUT) == "b1"
    one.recall("ab", tried="b1")
    assert one.settle(b1=RETRY) == [("a1", DETOURED), ("b1", DETOURED)]


def test_what_was_called_back_is_known_until_it_is_settled(one: Played) -> None:
    one.enter("a1 b1")
    one.ready()
    one.recall("a")
    assert one.window.called_back() == things("a1")
    one.settle(a1=AWAY)
    assert one.window.called_back() == []
