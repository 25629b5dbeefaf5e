"""When a look that took long and found little may be repeated."""

from pillarbox.stores.walks import LONG, SHARE, Walks


def test_a_look_that_took_long_and_found_little_is_not_repeated_at_once() -> None:
    walks = Walks()
    assert walks.may_go(100)
    walks.went(100, 101, enough=False)
    assert not walks.may_go(101 + SHARE - 0.01)
    assert walks.may_go(101 + SHARE)


def test_a_look_that_found_enough_or_was_quick_may_be_repeated_at_once() -> None:
    walks = Walks()
    walks.went(100, 101, enough=True)
    assert walks.may_go(101)
    walks.went(101, 101 + LONG / 2, enough=False)
    assert walks.may_go(101 + LONG / 2)


def test_it_is_looked_at_once_when_something_has_changed() -> None:
    walks = Walks()
    walks.went(100, 101, enough=False)
    walks.forget()
    assert walks.may_go(101)
