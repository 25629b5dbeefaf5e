"""Reasons of an outage: each is told once."""

from pillarbox.core.reasons import MANY, Reasons


def test_each_reason_is_news_once_in_an_outage() -> None:
    reasons = Reasons()
    told = [reasons.is_news(words) for words in ("refused", "refused", "wrong password", "refused", "wrong password")]
    assert told == [True, False, True, False, False]
    reasons.forget()
    assert reasons.is_news("refused")


def test_numbers_and_ids_make_no_other_reason() -> None:
    reasons = Reasons()
    assert reasons.is_news("event 01a1-f5 was not answered for 3.2 s by 10.0.0.1:6379")
    assert not reasons.is_news("event 01a2-00 was not answered for 4.0 s by 10.0.0.2:6379")


def test_an_outage_of_ever_new_words_is_no_flood() -> None:
    reasons = Reasons()
    assert sum(reasons.is_news("x" * length) for length in range(1_000)) == MANY
