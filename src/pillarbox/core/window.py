"""The window: order per line, pure, the same for log, queue, WAL and inbox.

Items enter in order. `ready()` gives those that may go now; `settle()` takes verdicts and gives back what is settled.

A *line* is what must stay in order: an aggregate in its topic, or a whole topic. Of one line an item goes only when
nothing before it is unanswered; if the other side is prefix-safe (of one call the accepted ones form a prefix), all
that wait in the line go in one call. Items without a line go at once.

Items from the log settle as a *prefix*: the position can only move over what is settled, so a verdict waits here until
everything before it has one. Items from the parking lot (`parked`) are outside the log and settle at once.

A line is *blocked* while something of it is parked. Whether it is blocked is asked when an item could go and again
when the prefix reaches it, never when it is read: in between, the parked head may have been retried or dropped.
So what `settle` gave has to be recorded before `ready` is asked again: a failure blocks its line only from then on.

Answers come in any order. One that failed counts only once everything before it in its line is answered: before a
failed head, nothing is lost or held; behind one, nothing is counted (BLOCKED); behind an untouched one, it goes again.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
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


@dataclass(frozen=True, slots=True)
class Detoured:
    """Its topic is held: it comes out again when that is over, from a detour that begins at the first such one."""


BLOCKED = Blocked()
DETOURED = Detoured()
Settled = Published | RetryAt | Dead | Blocked | Delayed | Detoured


class Gate(Enum):
    """What may pass of a line now: all of it, one item, or nothing."""

    OPEN = "open"
    ONE = "one"
    SHUT = "shut"


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
    __slots__ = ("done", "flying", "item", "line", "queue", "recalled", "ticket", "verdict")

    def __init__(self, ticket: int, item: I, line: "_Line[I] | None", queue: "list[_Slot[I]]") -> None:
        self.ticket, self.item, self.line, self.queue = ticket, item, line, queue
        self.flying = self.recalled = False
        self.verdict: Settled | None = None  # never while it is flying
        self.done = False  # holds nobody back any more: published, passed over, or settled


class _Line(Generic[I]):
    """The items of one line that hold others back: those out of the parking lot go before those out of the log."""

    __slots__ = ("alone", "flying", "key", "log", "parked", "stopped")

    def __init__(self, key: Line) -> None:
        self.key = key
        self.alone = not key[2]  # a whole topic: no broker keeps the order of several keys in one call
        self.parked: list[_Slot[I]] = []  # neither queue begins with a slot that is done; lists, because most are short
        self.log: list[_Slot[I]] = []
        self.flying = 0
        self.stopped = False  # a head out of the parking lot failed while followers fly: they stay parked too


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
        self._open: dict[_Line[I], None] = {}  # lines that may have something to send
        self._bytes = 0
        self.flying = 0

    def __len__(self) -> int:
        return len(self._slots)

    def item(self, ticket: int) -> I | None:
        """Give the item that is in flight under this ticket."""
        slot = self._slots.get(ticket)
        return slot.item if slot is not None and slot.flying else None

    @property
    def room(self) -> int:
        """How many more may enter."""
        return 0 if self._bytes >= self._max_bytes else max(0, self._size - len(self))

    def enter(self, items: Sequence[I], now: datetime) -> None:
        """Take items in, in their order."""
        slots, log, lines, line_of = self._slots, self._log, self._lines, self._line_of
        for ticket, item in enumerate(items, self._next_ticket):
            key, parked = line_of(item), item.parked
            if not parked and item.available_at is not None and item.available_at > now:
                slot = slots[ticket] = _Slot(ticket, item, None, [])
                slot.verdict = Delayed(item.available_at)
                log.append(slot)
                continue
            if key is None:
                line, queue = None, self._free
            else:
                line = lines.get(key)
                if line is None:
                    line = lines[key] = _Line(key)
                queue = line.parked if parked else line.log
                self._open[line] = None
            slot = slots[ticket] = _Slot(ticket, item, line, queue)
            queue.append(slot)
            if not parked:
                log.append(slot)
        self._next_ticket += len(items)
        self._bytes += sum(map(self._size_of, items))

    def ready(self, blocked: Container[Line], gate: Callable[[I], "Gate"] | None = None) -> Sequence[tuple[int, I]]:
        """Give the items that may go now, with their tickets, in order; they count as in flight. The gate is asked
        last, of the first item of a line and of each item without one, in the order in which they entered."""
        going, self._free = self._free, []
        lines: dict[_Line[I], list[_Slot[I]]] = {}
        alone: set[_Line[I]] = set()
        for line in list(self._open):
            queue = line.parked or line.log
            if line.flying or not queue or queue[0].verdict is not None:
                del self._open[line]  # comes back when it is answered, settled or entered
            elif queue is line.parked or line.key not in blocked:
                lines[line] = queue
        if gate is not None:
            going, lines, alone = self._ask(gate, going, lines)
        for line, queue in lines.items():
            del self._open[line]
            together = self._prefix_safe and not line.alone and line not in alone
            next_ones = [slot for slot in queue if not slot.done] if together else [queue[0]]
            line.flying = len(next_ones)
            going += next_ones
        for slot in going:
            slot.flying = True
            slot.verdict = None  # one that failed behind an untouched one goes again
        self.flying += len(going)
        going.sort(key=_ticket)
        return [(slot.ticket, slot.item) for slot in going]

    def upcoming(self) -> Sequence[tuple[int, I]]:
        """Give what goes next, as far as that is known beforehand: here it is not."""
        return []

    def _ask(
        self, gate: Callable[[I], Gate], free: "list[_Slot[I]]", lines: "dict[_Line[I], list[_Slot[I]]]"
    ) -> "tuple[list[_Slot[I]], dict[_Line[I], list[_Slot[I]]], set[_Line[I]]]":
        """Ask the gate; give what may go of both, and the lines of which one item may go."""
        heads = [(slot, None) for slot in free] + [(queue[0], line) for line, queue in lines.items()]
        free_ones: list[_Slot[I]] = []
        through_lines: dict[_Line[I], list[_Slot[I]]] = {}
        alone: set[_Line[I]] = set()
        for slot, line in sorted(heads, key=lambda head: head[0].ticket):
            through = gate(slot.item)
            if line is None:
                (self._free if through is Gate.SHUT else free_ones).append(slot)
            elif through is not Gate.SHUT:
                through_lines[line] = lines[line]
                if through is Gate.ONE:
                    alone.add(line)
        return free_ones, through_lines, alone

    def settle(self, verdicts: Sequence[tuple[int, Verdict]], blocked: Container[Line]) -> Sequence[Settlement[I]]:
        """Take verdicts by ticket; give everything that is settled now: what was parked, and the log's prefix."""
        settled: list[Settlement[I]] = []
        answered: dict[_Line[I], None] = {}
        for ticket, verdict in verdicts:
            slot = self._slots.get(ticket)
            if slot is None or not slot.flying:
                continue  # forgotten meanwhile: an answer from before the lanes were lost
            self._land(slot, verdict)
            if slot.item.parked:
                if slot.verdict is not None and (slot.line is None or slot.done):
                    settled.append(self._leave(slot, slot.verdict))
                if slot.line is not None:
                    answered[slot.line] = None
        for line in answered:
            settled += self._stop(line)
        return settled + self._prefix(blocked)

    def recall(self, which: Callable[[I], bool], tried: int = 0) -> list[Settlement[I]]:
        """Let items go back: into a detour, or into the parking lot, uncounted. What is in flight goes back too, unless
        it is published: of one line, nothing that came later may go before what went back. The one with the ticket
        `tried` stays to be judged, if it is the first: what is parked must not come out of a detour again."""
        settled, first = [], True
        for slot in [slot for slot in self._slots.values() if not slot.done and which(slot.item)]:
            if slot.verdict.__class__ is Published:
                continue  # it has no line, and waits for its place in the prefix
            if first and slot.ticket == tried:
                continue
            slot.recalled, first = True, False
            if not slot.flying:
                self._go_back(slot)
                if slot.item.parked:
                    assert slot.verdict is not None
                    settled.append(self._leave(slot, slot.verdict))
        self._free = [slot for slot in self._free if not slot.recalled]
        return settled

    def called_back(self) -> list[I]:
        """Give the items that were called back and are still here."""
        return [slot.item for slot in self._slots.values() if slot.recalled]

    def waiting(self) -> tuple[list[I], list[I]]:
        """Give the items that are published and wait for those before them, and all others that are here."""
        published: list[I] = []
        others: list[I] = []
        for slot in self._slots.values():
            (published if slot.verdict.__class__ is Published else others).append(slot.item)
        return published, others

    def _go_back(self, slot: "_Slot[I]") -> None:
        """Note how a recalled item settles; it holds nobody back any more."""
        out_of_the_lot = BLOCKED if slot.line else Delayed(_LONG_AGO)
        slot.verdict, slot.done = (out_of_the_lot if slot.item.parked else DETOURED), True
        if slot.line is not None:
            _trim(slot.queue)
            self._open[slot.line] = None

    def _land(self, slot: "_Slot[I]", verdict: Verdict) -> None:
        """Note an answer: the slot is done, judged, or waits again."""
        slot.flying = False
        self.flying -= 1
        if slot.recalled and verdict.__class__ is not Published:
            self._go_back(slot)
        elif verdict.__class__ is not Untouched:
            slot.verdict = verdict  # type: ignore[assignment]
        line = slot.line
        if line is None:
            if slot.verdict is None:
                self._free.append(slot)
            return
        if verdict.__class__ is Published or (slot.verdict is not None and not _blocks(slot.verdict)):
            slot.done = True
            _trim(slot.queue)
        line.flying -= 1
        if not line.flying:
            self._open[line] = None

    def _stop(self, line: "_Line[I]") -> Iterator[Settlement[I]]:
        """If the head out of the parking lot failed, settle it; its followers stay parked behind it, uncounted."""
        if not line.stopped and line.parked and (verdict := line.parked[0].verdict) is not None:
            line.stopped = True
            yield self._leave(line.parked[0], verdict)
        if line.stopped:
            for slot in [slot for slot in line.parked if not (slot.flying or slot.done)]:
                yield self._leave(slot, BLOCKED)
            line.stopped = bool(line.parked)

    def _prefix(self, blocked: Container[Line]) -> list[Settlement[I]]:
        """Settle what begins the log and has a verdict."""
        settled: list[Settlement[I]] = []
        log, blocking = self._log, set[Line]()
        while log:
            slot = log[0]
            outcome = (
                slot.verdict if slot.done or slot.line is None else self._head(slot, slot.line.key, blocked, blocking)
            )
            if outcome is None:
                break
            log.popleft()
            settled.append(self._leave(slot, outcome))
        return settled

    def _head(self, slot: "_Slot[I]", line: Line, blocked: Container[Line], blocking: set[Line]) -> Settled | None:
        """Say how the first unsettled item of the log settles, if it does and may hold others back."""
        behind = line in blocked or line in blocking
        if slot.verdict is None:
            return BLOCKED if behind and not slot.flying else None
        if behind:
            return BLOCKED
        blocking.add(line)
        return slot.verdict

    def _leave(self, slot: "_Slot[I]", verdict: Settled) -> Settlement[I]:
        """Let a slot go; its line goes on without it."""
        del self._slots[slot.ticket]
        self._bytes -= self._size_of(slot.item)
        line = slot.line
        if line is not None:
            if not slot.done:
                slot.done = True
                _trim(slot.queue)
                self._open[line] = None
            if not (line.parked or line.log) and self._lines.get(line.key) is line:  # not a successor of the same key
                del self._lines[line.key]
                self._open.pop(line, None)
        return _new(Settlement, (slot.item, verdict))


_new = tuple.__new__  # what Settlement() calls in the end: the way there takes longer than the rest
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def _ticket(slot: "_Slot[I]") -> int:
    return slot.ticket


def _blocks(verdict: Settled) -> bool:
    kind = verdict.__class__
    return kind is RetryAt or (kind is Dead and verdict.blocks)  # type: ignore[union-attr]


def _trim(queue: "list[_Slot[I]]") -> None:
    while queue and queue[0].done:
        del queue[0]
