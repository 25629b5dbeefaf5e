"""Circuits: when a topic is held, and when it is tried again."""

from pillarbox.core.circuit import FIRST, IN_A_ROW, LONGEST, RECENT, Circuits
from pillarbox.core.window import Gate


def refused(circuits: Circuits, times: int, topic: str = "orders", now: float = 0.0) -> list[bool]:
    return [circuits.failed(topic, "no", now, answered=True) for _ in range(times)]


def opened() -> Circuits:
    circuits = Circuits()
    refused(circuits, IN_A_ROW)
    return circuits


def test_a_topic_that_never_failed_is_not_watched() -> None:
    circuits = Circuits()
    assert not circuits.published("orders")
    assert not circuits
    assert not circuits.watching
    assert circuits.next_try() is None
    assert circuits.gate("orders", 0.0) is Gate.OPEN


def test_it_opens_at_the_twentieth_failure_in_a_row() -> None:
    circuits = Circuits()
    assert refused(circuits, IN_A_ROW) == [False] * (IN_A_ROW - 1) + [True]
    assert circuits.held(0.0) == {"orders"}
    assert circuits.errors() == [("orders", "no")]


def test_a_success_between_begins_the_row_anew() -> None:
    circuits = Circuits()
    refused(circuits, IN_A_ROW - 1)
    assert not circuits.published("orders")
    assert not any(refused(circuits, IN_A_ROW - 1))


def test_it_opens_when_more_than_half_of_the_last_thousand_failed() -> None:
    circuits = Circuits()
    for _ in range(RECENT // 4):
        assert not any(refused(circuits, 2))
        circuits.published("orders")
        circuits.published("orders")
    assert not circuits, "half is not more than half"
    assert refused(circuits, 3) == [False, False, True], "the first two push out two failures"


def test_old_failures_are_forgotten() -> None:
    circuits = Circuits()
    for _ in range(RECENT):
        refused(circuits, 1)
        circuits.published("orders")
        circuits.published("orders")
    assert not circuits
    circuits.published("orders", RECENT)
    assert not circuits.watching


def test_that_nobody_answers_counts_only_if_others_went() -> None:
    circuits = Circuits()
    assert not any(circuits.failed("orders", "away", 0.0, answered=False) for _ in range(3 * IN_A_ROW))
    circuits.published("invoices")
    assert circuits.failed("orders", "away", 0.0, answered=False)


def test_that_others_went_before_the_first_failure_does_not_count() -> None:
    circuits = Circuits()
    circuits.published("invoices")
    assert not any(circuits.failed("orders", "away", 0.0, answered=False) for _ in range(3 * IN_A_ROW))


def test_the_first_silence_counts_of_a_topic_that_is_in_the_way_of_another() -> None:
    circuits = Circuits()
    assert circuits.failed("orders", "away", 0.0, answered=False, in_the_way=True)
    assert circuits.next_try() == FIRST


def test_one_message_is_tried_after_a_second_and_no_other_before_its_answer() -> None:
    circuits = opened()
    assert circuits.next_try() == FIRST
    assert circuits.gate("orders", FIRST / 2) is Gate.SHUT
    assert circuits.held(FIRST) == frozenset()
    assert circuits.gate("orders", FIRST) is Gate.ONE
    assert circuits.gate("orders", FIRST) is Gate.SHUT


def test_a_try_that_fails_doubles_the_wait_up_to_half_a_minute() -> None:
    circuits, now, waits = opened(), 0.0, []
    for _ in range(7):
        at = circuits.next_try()
        assert at is not None
        waits.append(at - now)
        now = at
        assert circuits.gate("orders", now) is Gate.ONE
        assert refused(circuits, 1, now=now) == [False]
    assert waits == [1, 2, 4, 8, 16, LONGEST, LONGEST]


def test_an_old_answer_does_not_end_the_wait() -> None:
    circuits = opened()
    refused(circuits, 5, now=0.5)
    assert circuits.next_try() == FIRST


def test_a_try_that_goes_closes_it() -> None:
    circuits = opened()
    circuits.gate("orders", FIRST)
    assert circuits.published("orders")
    assert not circuits
    assert circuits.gate("orders", FIRST) is Gate.OPEN


def test_a_try_that_was_forgotten_is_made_again() -> None:
    circuits = opened()
    circuits.gate("orders", FIRST)
    circuits.forget()
    assert circuits.gate("orders", FIRST) is Gate.ONE


def test_topics_are_held_on_their_own() -> None:
    circuits = opened()
    assert not any(refused(circuits, IN_A_ROW - 1, "invoices"))
    assert circuits.held(0.0) == {"orders"}
    assert circuits.gate("invoices", 0.0) is Gate.OPEN


def test_what_was_under_way_when_a_circuit_opened_does_not_close_it() -> None:
    circuits = Circuits()
    for _ in range(IN_A_ROW):
        circuits.failed("orders", "too large", 0.0, answered=True)
    assert not circuits.published("orders")
    assert circuits.is_open("orders")
    assert circuits.gate("orders", 1.0) is Gate.ONE
    assert circuits.published("orders")


def test_a_topic_that_others_held_is_tried_with_one_message_before_more_of_it_goes() -> None:
    circuits = Circuits()
    circuits.suspect("orders", 5.0)
    assert circuits.errors() == []  # nobody has seen it fail
    assert [circuits.gate("orders", 5.0), circuits.gate("orders", 5.0)] == [Gate.ONE, Gate.SHUT]
    assert circuits.published("orders")
    assert circuits.gate("orders", 5.0) is Gate.OPEN


def test_a_topic_that_others_held_and_that_still_fails_is_held_and_told_of_once() -> None:
    circuits = Circuits()
    circuits.suspect("orders", 5.0)
    circuits.gate("orders", 5.0)
    assert circuits.failed("orders", "no leader", 5.0, answered=False)
    assert circuits.errors() == [("orders", "no leader")]
    assert circuits.held(5.9) == {"orders"}
    assert circuits.gate("orders", 6.0) is Gate.ONE
    assert not circuits.failed("orders", "no leader", 6.0, answered=False)
    assert circuits.held(7.9) == {"orders"}


def test_a_topic_that_is_held_already_is_not_tried_sooner_because_others_held_it_too() -> None:
    circuits = opened()
    circuits.suspect("orders", 0.5)
    assert circuits.held(0.5) == {"orders"}
    assert circuits.errors() == [("orders", "no")]
