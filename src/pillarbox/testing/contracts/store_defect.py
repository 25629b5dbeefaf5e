"""What a store that is broken on purpose is: a class whose name says what it does wrong, and the rules that notice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pillarbox.testing.memory_records import MemoryStore

B = TypeVar("B", bound=type[MemoryStore])


class Broken(Exception):
    """What a defect raises where a sound store would not."""


@dataclass(frozen=True, slots=True)
class StoreDefect:
    """A broken store, and the names of the rules that it breaks."""

    name: str
    store: type[MemoryStore]
    rules: tuple[str, ...]


def into(defects: list[StoreDefect]) -> Callable[..., Callable[[B], B]]:
    """Make the decorator that writes a broken store and the rules it breaks into a list."""

    def breaks(*rules: str) -> Callable[[B], B]:
        def register(broken: B) -> B:
            words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in broken.__name__)
            defects.append(StoreDefect(words.strip(), broken, rules))
            return broken

        return register

    return breaks
