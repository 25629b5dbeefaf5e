"""Words that messages need in several places."""

import pytest

from pillarbox.core.event import Event
from pillarbox.core.wording import a_kind_of


@pytest.mark.parametrize(
    ("value", "said"),
    [(5, "a builtins.int"), (Event("X", 1), "a pillarbox.core.event.Event"), (OSError(), "a builtins.OSError")],
)
def test_what_something_is_is_said_by_the_full_name_of_its_class(value: object, said: str) -> None:
    assert a_kind_of(value) == said
