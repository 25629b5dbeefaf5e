"""Retry: what an answer means for an event."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.retry import PUBLISHED, Dead, Published, RetryAt, RetryPolicy, Untouched, place_of, told, words_of
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RetryPolicy()


def test_no_error_means_published() -> None:
    assert POLICY.judge(None, 3, NOW, 0.5) is PUBLISHED
    assert Published() == PUBLISHED


@pytest.mark.parametrize("attempts", [0, 5, 10_000])
def test_a_broker_that_is_away_counts_nothing_however_long(attempts: int) -> None:
    assert POLICY.judge(BrokerUnavailable("away"), attempts, NOW, 0.5) == Untouched("away")


@pytest.mark.parametrize("blocks", [True, False])
def test_a_refusal_is_dead_at_once(blocks: bool) -> None:
    assert POLICY.judge(PublishRejected("too big"), 0, NOW, 0.5, blocks=blocks) == Dead("too big", blocks)


def test_a_failure_is_tried_again_after_1_2_4_8_and_16_seconds_and_then_dead() -> None:
    error = PublishTimeout("slow")
    waits = [1, 2, 4, 8, 16]
    verdicts = [POLICY.judge(error, attempts, NOW, 0.5) for attempts in range(7)]
    assert verdicts[:5] == [RetryAt(NOW + timedelta(seconds=wait), "slow") for wait in waits]
    assert verdicts[5:] == [Dead("slow"), Dead("slow")]


@pytest.mark.parametrize(
    ("kind", "attempts"), [(BrokerUnavailable, 0), (PublishRejected, 0), (PublishError, 0), (PublishError, 5)]
)
def test_a_verdict_has_all_of_an_errors_words_and_tells_its_brief(kind: type[PublishError], attempts: int) -> None:
    said = [kind("400: card 4111", brief="it answered 400; password=hunter2"), kind("400: card 4111")]
    for error, brief in zip(said, ("it answered 400; password=***", "400: card 4111"), strict=True):
        verdict = POLICY.judge(error, attempts, NOW, 0.5)
        assert not isinstance(verdict, Published)
        assert (verdict.error, told(verdict)) == ("400: card 4111", brief)


def test_the_place_of_an_exception_is_where_it_was_raised_and_none_of_its_words() -> None:
    error = ValueError("card 4111")
    assert place_of(error) == ""
    with pytest.raises(ValueError, match="card") as raised:
        raise error
    assert place_of(raised.value).startswith(" at test_retry.py, line ")
    assert "4111" not in place_of(raised.value)


class Written:
    def __call__(self) -> None:
        json.loads("{")


@pytest.mark.parametrize(
    "function", [Written(), partial(Written()), Written.__call__], ids=["object", "partial", "def"]
)
def test_the_place_of_an_exception_in_a_library_is_the_functions_own_line(function: object) -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        Written()()
    assert place_of(raised.value).startswith(" at decoder.py, line ")
    line = Written.__call__.__code__.co_firstlineno + 1
    assert place_of(raised.value, function) == f" at test_retry.py, line {line}; its words are kept with the event"


def test_the_place_of_an_exception_that_did_not_pass_through_a_function_is_where_it_was_raised() -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        Written()()
    assert place_of(raised.value, len).startswith(" at decoder.py, line ")


def test_a_dead_event_blocks_its_line_unless_told_otherwise() -> None:
    assert Dead("x").blocks
    assert POLICY.failed("x", 5, NOW, 0.5, blocks=False) == Dead("x", blocks=False)
    assert RetryAt(NOW, "x").blocks


def test_an_error_without_words_is_named_by_its_class() -> None:
    assert POLICY.judge(PublishError(), 0, NOW, 0.5) == RetryAt(NOW + timedelta(seconds=1), "PublishError")


def test_no_retries_means_dead_at_the_first_failure() -> None:
    assert RetryPolicy(retries=0).failed("x", 0, NOW, 0.5) == Dead("x")


def test_a_long_first_wait_does_not_overflow() -> None:
    policy = RetryPolicy(retries=10**6, first=timedelta(days=1), longest=timedelta(days=2))
    assert policy.delay(10**5, 0.5) == timedelta(days=2)


durations = st.timedeltas(timedelta(milliseconds=1), timedelta(hours=1))
chances = st.floats(0, 1, exclude_max=True)


@given(durations, durations, st.integers(0, 10**6), chances, st.floats(0, 1))
def test_the_wait_stays_within_its_bounds(
    first: timedelta, longest: timedelta, attempts: int, chance: float, jitter: float
) -> None:
    policy = RetryPolicy(first=first, longest=longest, jitter=jitter)
    middle = min(first.total_seconds() * 2 ** min(attempts, 40), longest.total_seconds())
    wait = policy.delay(attempts, chance).total_seconds()
    assert middle * (1 - jitter) - 1e-5 <= wait <= middle * (1 + jitter) + 1e-5
    assert policy.delay(attempts + 1, chance) >= policy.delay(attempts, chance)


@given(st.integers(0, 50), st.integers(0, 50), chances)
def test_an_event_is_tried_once_and_then_as_often_as_there_are_retries(
    retries: int, attempts: int, chance: float
) -> None:
    verdict = RetryPolicy(retries=retries).judge(PublishTimeout("slow"), attempts, NOW, chance)
    assert isinstance(verdict, RetryAt) == (attempts < retries)
    if isinstance(verdict, RetryAt):
        assert verdict.at > NOW


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("plain"), "plain"),
        (ValueError(), "ValueError"),
        (Wordless(), "Wordless"),
        (ValueError("half \ud800"), "half \\ud800"),
        (ValueError("a\0b"), "a\\x00b"),
        (ValueError("x" * 50_000), "x" * 10_000),
    ],
    ids=["plain", "empty", "broken", "surrogate", "NUL", "long"],
)
def test_the_words_of_an_error_can_be_kept_anywhere(error: Exception, words: str) -> None:
    assert words_of(error) == words


@given(st.text(st.characters()))
def test_the_words_of_any_error_are_text_in_utf_8_without_nul(text: str) -> None:
    assert "\0" not in words_of(ValueError(text)).encode().decode()


def test_a_verdict_carries_such_words() -> None:
    verdict = POLICY.judge(PublishRejected("half \ud800"), 0, NOW, 0.5)
    assert verdict == Dead("half \\ud800")
