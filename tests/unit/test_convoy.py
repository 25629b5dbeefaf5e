"""Convoys: the settlements of one are a sequence like any other, although nobody has made them yet."""

from pillarbox.core.convoy import Arrived
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.window import Settlement
from tests.unit.test_window import things


def test_the_settlements_of_a_convoy_are_a_sequence_of_the_published() -> None:
    items = things("a b c")
    arrived, made = Arrived(items), [Settlement(item, PUBLISHED) for item in items]
    assert list(arrived) == made
    assert [arrived[place] for place in range(len(arrived))] == made
    assert (arrived[-1], list(arrived[1:])) == (made[-1], made[1:])
