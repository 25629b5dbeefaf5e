"""The pytest plugin: the `outbox` fixture. Loaded by every pytest of an environment with Pillarbox, so it is tiny."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pillarbox.testing.added import AddedEvents


@pytest.fixture
def outbox() -> "AddedEvents":
    """What the code under test added to the outbox, seen inside the test's own, never committed transaction."""
    from pillarbox.testing.added import AddedEvents

    return AddedEvents()
