"""Chunks: entries that were read together, by column. Pure.

To make an entry of each row takes time, and in a backlog hardly anybody looks at one: they are encoded, sent and
settled by the thousand, by column. So a source may give its rows as they are; an Entry is made for whoever looks at it.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, overload

from pillarbox.core.entry import Entry

_OF_THE_LOG = tuple(Entry._field_defaults.values())
_WIDTH = len(Entry._fields) - len(_OF_THE_LOG)
_POSITION, _DATA, _HEADERS, _AVAILABLE_AT = map(Entry._fields.index, ("position", "data", "headers", "available_at"))


class Chunk(Sequence[Entry]):
    """Entries out of the log, in its order, made of rows: the fields of an Entry that have no default, and perhaps
    something behind them. No text in them holds a NUL character or half a character: they come from a database that
    keeps neither."""

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._rows = rows

    @cached_property
    def columns(self) -> tuple[tuple[Any, ...], ...]:
        """The rows by column; as many columns where there are no rows."""
        return tuple(zip(*self._rows, strict=True)) or ((),) * _WIDTH

    @property
    def positions(self) -> tuple[int, ...]:
        return self.columns[_POSITION]

    @property
    def size(self) -> int:
        """How large contents and headers are together."""
        return sum(map(len, self.columns[_DATA])) + sum(map(len, filter(None, self.columns[_HEADERS])))

    @property
    def is_delayed(self) -> bool:
        """Something of it may have to wait for its time."""
        return self.columns[_AVAILABLE_AT].count(None) < len(self)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Entry]:
        return map(_entry_of, self._rows)

    @overload
    def __getitem__(self, place: int) -> Entry: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Entry]: ...
    def __getitem__(self, place: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(place, slice):
            return Chunk(self._rows[place])
        return _entry_of(self._rows[place])


def _entry_of(row: tuple[Any, ...]) -> Entry:
    return _new(Entry, row[:_WIDTH] + _OF_THE_LOG)


_new = tuple.__new__  # what Entry() calls in the end: the way there takes longer than the rest


def positions_of(entries: Sequence[Entry]) -> Sequence[int]:
    """Give the places of entries in the log."""
    return entries.positions if isinstance(entries, Chunk) else list(map(_position, entries))


def size_of(entries: Sequence[Entry]) -> int:
    """Say how large contents and headers of entries are together."""
    return entries.size if isinstance(entries, Chunk) else sum(map(_size, entries))


def are_plain(entries: Sequence[Entry]) -> bool:
    """Say whether entries are out of the log, and none has to wait for its time."""
    if isinstance(entries, Chunk):
        return not entries.is_delayed
    return not any(map(_is_parked, entries)) and not any(map(_available_at, entries))


_position, _is_parked, _available_at = attrgetter("position"), attrgetter("parked"), attrgetter("available_at")
_size = attrgetter("size")
