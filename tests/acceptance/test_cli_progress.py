"""`pillarbox replay` and `prune` on a real terminal: a bar shows how far they are, and is gone in the end."""

from typing import TYPE_CHECKING

import pytest

from pillarbox import Event
from tests.acceptance.pseudo_terminal import Terminal

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

COMMANDS = {
    "replay --all --yes": ("replaying", "events", "replayed 5 events, as replay "),
    "prune --yes --set retention.published=none": ("pruning", "rows", "pruned "),
}


@pytest.fixture
def settled(migrated: "Shop") -> "Shop":
    migrated.add(*(Event("OrderPlaced", {"order": n}, aggregate=("order", n)) for n in range(5)))
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")
    return migrated


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bar_shows_how_far_it_is(settled: "Shop", command: str) -> None:
    doing, noun, done = COMMANDS[command]
    words = [*command.split(), "--database", settled.database]
    with Terminal(words, settled.directory, settled.environment) as terminal:
        assert terminal.end() == 0
        assert doing in terminal.text
        assert f" {noun} " in terminal.text
        assert "left:" in terminal.text
        assert "━" in terminal.text
        assert terminal.shown.rpartition(done)[1] == done
        assert "\x1b[2K" in terminal.shown, "the bar is taken away"


@pytest.mark.parametrize("command", COMMANDS)
def test_off_a_terminal_there_is_no_bar(settled: "Shop", command: str) -> None:
    doing, _, done = COMMANDS[command]
    ended = settled.type(f"pillarbox {command} --database {settled.database}")
    assert done in ended.stdout
    assert doing not in ended.stdout + ended.stderr
