"""A mutant: a breakage of one rule on purpose, as a replacement of text, and the tests that have to notice it."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class DoesNotApply(Exception):
    """The text that a mutant replaces is not there any more: write it anew for what stands there now."""


class Mutant(NamedTuple):
    """What is broken, which loss that lets in, and who notices: tests that fail every time, not by chance."""

    name: str
    lets_in: str
    file: str
    """The path of what is changed, from the top of the repository."""
    edits: Mapping[str, str]
    """What stands there, and what comes into its place, wherever it stands."""
    caught_by: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Break the rule in a tree. Raises DoesNotApply."""
        (root / self.file).write_text(self.broken(root))

    def broken(self, root: Path) -> str:
        """Give the file with the rule broken. Raises DoesNotApply."""
        text = (root / self.file).read_text()
        for old, new in self.edits.items():
            if old not in text:
                raise DoesNotApply(f"{self.name}: {self.file} has nowhere {old!r}")
            text = text.replace(old, new)
        return text
