"""The window: order per line, pure, the same for log, queue, WAL and inbox.

Items enter in order. `ready()` gives those that may go now; `settle()` takes verdicts and gives back what is settled.

A *line* is what must stay in order: an aggregate in its topic, or a whole topic. Of one line an item goes only when
nothing before it is unanswered; if the other side is prefix-safe (of one call the accepted ones form a prefix), all
that wait in the line go in one call. Items without a line go at once.

Items from the log settle as a *prefix*: the position can only move over what is settled, so a verdict waits here until
everything before it has one. Items from the parking lot (`parked`) are outside the log and settle at once.

A line is *blocked* while something of it is parked. Whether it is blocked is asked when an item could go and again
when the prefix reaches it, never when it is read: in between, the parked head may have been retried or dropped.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, NamedTuple, Protocol, TypeVar

from pillarbox.core.retry import Dead, Published, RetryAt, Untouched, Verdict
from pillarbox.core.routing import Line


@dataclass(frozen=True, slots=True)
class Blocked:
    """It waits behind a parked one of its line: park it there. Nothing counted."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """Its time has not come: park it outside the order until then."""

    until: datetime


BLOCKED = Blocked()
Settled = Published | RetryAt | Dead | Blocked | Delayed


class Item(Protocol):
    """What a window needs to know of the things that pass through it."""

    @property
    def parked(self) -> bool: ...
    @property
    def available_at(self) -> datetime | None: ...


I = TypeVar("I", bound=Item)  # noqa: E741


class Settlement(NamedTuple, Generic[I]):
    """One item and what has become of it."""

    item: I
    verdict: Settled


class _Slot(Generic[I]):
    __slots__ = ("flying", "item", "line", "size", "ticket", "verdict")

    def __init__(self, ticket: int, item: I, size: int) -> None:
        self.ticket, self.item, self.size = ticket, item, size
        self.line: _Line[I] | None = None
        self.flying = False
        self.verdict: Settled | None = None


class _Line(Generic[I]):
    """The unsettled items of one line: those out of the parking lot go before those out of the log."""

    __slots__ = ("alone", "flying", "key", "log", "parked", "stopped")

    def __init__(self, key: Line) -> None:
        self.key = key
        self.alone = not key[1]  # a whole topic: no broker keeps the order of several keys in one call
        self.parked: deque[_Slot[I]] = deque()
        self.log: deque[_Slot[I]] = deque()
        self.flying = 0
        self.stopped = False  # a head out of the parking lot failed: its followers stay parked too


class Window(Generic[I]):
    """Holds at most `size` items and about `max_bytes` of them."""

    def __init__(
        self,
        size: int,
        line_of: Callable[[I], Line | None],
        *,
        prefix_safe: bool,
        size_of: Callable[[I], int] = lambda _: 0,
        max_bytes: int = 64 << 20,
    ) -> None:
        self._size, self._max_bytes, self._prefix_safe = size, max_bytes, prefix_safe
        self._line_of, self._size_of = line_of, size_of
        self._next_ticket = 1
        self.forget()

    def forget(self) -> None:
        """Drop everything; verdicts for what was in flight are ignored from now on."""
        self._slots: dict[int, _Slot[I]] = {}
        self._log: deque[_Slot[I]] = deque()
        self._free: list[_Slot[I]] = []
        self._lines: dict[Line, _Line[I]] = {}
        self._open: dict[Line, _Line[I]] = {}  # lines that may have something to send
        self._bytes = 0
        self.flying = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def room(self) -> int:
        """How many more may enter."""
        return 0 if self._bytes >= self._max_bytes else self._size - len(self._slots)

    def enter(self, items: Iterable[I], now: datetime) -> None:
        """Take items in, in their order."""
        for item in items:
            slot: _Slot[I] = _Slot(self._next_ticket, item, self._size_of(item))
            self._next_ticket += 1
            self._slots[slot.ticket] = slot
            self._bytes += slot.size
            if not item.parked:
                self._log.append(slot)
                if item.available_at is not None and item.available_at > now:
                    slot.verdict = Delayed(item.available_at)
                    continue
            key = self._line_of(item)
            if key is None:
                self._free.append(slot)
                continue
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = _Line(key)
            slot.line = line
            (line.parked if item.parked else line.log).append(slot)
            self._open[key] = line

    def ready(self, blocked: Container[Line]) -> list[tuple[int, I]]:
        """Give the items that may go now, with their tickets, in order; they count as in flight."""
        going = self._free
        self._free = []
        for line in list(self._open.values()):
            queue = line.parked or line.log
            if line.flying or not queue or queue[0].verdict is not None:
                del self._open[line.key]  # comes back when it is answered, settled or entered
            elif queue is line.parked or line.key not in blocked:
                del self._open[line.key]
                next_ones = queue if self._prefix_safe and not line.alone else (queue[0],)
                line.flying = len(next_ones)
                going.extend(next_ones)
        for slot in going:
            slot.flying = True
        self.flying += len(going)
        going.sort(key=_ticket)
        return [(slot.ticket, slot.item) for slot in going]

    def settle(self, verdicts: Iterable[tuple[int, Verdict]], blocked: Container[Line]) -> list[Settlement[I]]:
        """Take verdicts by ticket; give everything that is settled now: the log's prefix, and what was parked."""
        settled: list[Settlement[I]] = []
        for ticket, verdict in verdicts:
            slot = self._slots.get(ticket)
            if slot is None or not slot.flying:
                continue  # forgotten meanwhile: an answer from before the lanes were lost
            self._land(slot, verdict)
            if slot.item.parked:
                self._settle_parked(slot, settled)
        blocking: set[Line] = set()
        while self._log and (outcome := self._head(self._log[0], blocked, blocking)):
            slot = self._log.popleft()
            self._drop(slot)
            settled.append(Settlement(slot.item, outcome))
        return settled

    def _land(self, slot: "_Slot[I]", verdict: Verdict) -> None:
        """Note an answer: the slot is done, judged, or waits again."""
        slot.flying = False
        self.flying -= 1
        line = slot.line
        if verdict.__class__ is not Untouched:
            slot.verdict = verdict  # type: ignore[assignment]
        elif line is None:
            self._free.append(slot)
        if line is not None:
            if slot.verdict is not None and not _blocks(slot.verdict):
                _remove(line, slot)
            line.flying -= 1
            if not line.flying:
                self._open[line.key] = line

    def _settle_parked(self, slot: "_Slot[I]", settled: list[Settlement[I]]) -> None:
        """Settle an answered item out of the parking lot; if it fails, its followers stay parked behind it."""
        line, verdict = slot.line, slot.verdict
        if line is not None and line.stopped and verdict.__class__ is not Published:
            verdict = BLOCKED
        if verdict is None:
            return
        if line is not None and _blocks(verdict):
            line.stopped = True
        settled.append(Settlement(slot.item, verdict))
        self._drop(slot)
        if line is not None and line.stopped:
            for follower in [s for s in line.parked if not s.flying]:
                settled.append(Settlement(follower.item, BLOCKED))
                self._drop(follower)
            line.stopped = bool(line.parked)

    def _head(self, slot: "_Slot[I]", blocked: Container[Line], blocking: set[Line]) -> Settled | None:
        """Say how the first unsettled item of the log settles, if it does."""
        line = None if slot.line is None else slot.line.key
        behind = line is not None and (line in blocked or line in blocking)
        verdict = slot.verdict
        if verdict is None:
            return BLOCKED if behind and not slot.flying else None
        if _blocks(verdict) and line is not None:
            if behind:
                return BLOCKED
            blocking.add(line)
        return verdict

    def _drop(self, slot: "_Slot[I]") -> None:
        del self._slots[slot.ticket]
        self._bytes -= slot.size
        line = slot.line
        if line is None:
            return
        _remove(line, slot)
        if line.parked or line.log or line.flying:
            self._open[line.key] = line
        elif self._lines.get(line.key) is line:  # not a successor of the same key
            del self._lines[line.key]
            self._open.pop(line.key, None)


def _ticket(slot: "_Slot[I]") -> int:
    return slot.ticket


def _blocks(verdict: Settled) -> bool:
    kind = verdict.__class__
    return kind is RetryAt or (kind is Dead and verdict.blocks)  # type: ignore[union-attr]


def _remove(line: "_Line[I]", slot: "_Slot[I]") -> None:
    queue = line.parked if slot.item.parked else line.log
    if queue and queue[0] is slot:
        queue.popleft()
    elif slot.verdict is None or _blocks(slot.verdict):  # otherwise it left when it was answered
        queue.remove(slot)
