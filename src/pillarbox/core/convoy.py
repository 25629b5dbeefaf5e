"""Convoys: a large chunk of the log goes through the window as one, while nothing is the matter. Pure.

To know of each entry what waits for it costs more than publishing it. Where the other side is prefix-safe and a chunk
goes out whole, in order, and comes back published whole, nobody needs to know: it is let go, answered and settled as
one. As soon as something is the matter (an answer for a part of it, a failure, a blocked line, a topic that fails, a
small chunk behind it), the convoy is broken up, and the window goes on with its entries as with any others.

A convoy waits until everything before it is settled. That costs little: a chunk is large where there is a backlog, and
there the window would be full before long, whatever holds it up.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from operator import is_, itemgetter
from typing import Any, Generic, overload

from pillarbox.core.retry import PUBLISHED, Verdict
from pillarbox.core.routing import Line
from pillarbox.core.window import Gate, I, Settlement, Window


class Arrived(Sequence[Settlement[I]]):
    """The settlements of a convoy: each of its items is published. They are made for those who look at them one by one,
    which hardly anybody does."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[I]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Settlement[I]]:
        return map(_settlement, zip(self.items, repeat(PUBLISHED)))

    @overload
    def __getitem__(self, place: int) -> Settlement[I]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Settlement[I]]: ...
    def __getitem__(self, place: int | slice) -> Settlement[I] | Sequence[Settlement[I]]:
        if isinstance(place, slice):
            return Arrived(self.items[place])
        return Settlement(self.items[place], PUBLISHED)


class Ticketed(Sequence[tuple[int, I]]):
    """Items whose tickets are in a row. The pairs are made for those who look at one."""

    __slots__ = ("first", "items")

    def __init__(self, first: int, items: Sequence[I]) -> None:
        self.first, self.items = first, items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[tuple[int, I]]:
        return enumerate(self.items, self.first)

    @overload
    def __getitem__(self, place: int) -> tuple[int, I]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[tuple[int, I]]: ...
    def __getitem__(self, place: int | slice) -> tuple[int, I] | Sequence[tuple[int, I]]:
        tickets = range(self.first, self.first + len(self.items))
        if isinstance(place, slice):
            return list(zip(tickets[place], self.items[place], strict=True))
        return tickets[place], self.items[place]


class _Convoy(Generic[I]):
    __slots__ = ("bytes", "first", "items")

    def __init__(self, first: int, items: Sequence[I], bytes: int) -> None:
        self.first, self.items, self.bytes = first, items, bytes


class ConvoyWindow(Window[I]):
    """A window for a prefix-safe publisher. Every line must be one of which several items may go in one call.

    Fewer items than `smallest` do not go as one: one that hangs must not hold up the few of a quiet hour. `are_plain`
    says of many items whether none is parked or may have to wait for its time, `size_of_all` how large they are.
    """

    def __init__(
        self,
        size: int,
        line_of: Callable[[I], Line | None],
        *,
        smallest: int,
        are_plain: Callable[[Sequence[I]], bool],
        size_of_all: Callable[[Sequence[I]], int],
        **more: Any,
    ) -> None:
        self._smallest, self._are_plain, self._size_of_all = smallest, are_plain, size_of_all
        super().__init__(size, line_of, prefix_safe=True, **more)

    def forget(self) -> None:
        super().forget()
        self._convoys: deque[_Convoy[I]] = deque()  # behind everything else
        self._leads = False  # the first convoy is in flight; then there is nothing else but those behind it

    def __len__(self) -> int:
        return len(self._slots) + sum(len(convoy.items) for convoy in self._convoys)

    def item(self, ticket: int) -> I | None:
        if not self._leads:
            return super().item(ticket)
        convoy = self._convoys[0]
        place = ticket - convoy.first
        return convoy.items[place] if 0 <= place < len(convoy.items) else None

    def enter(self, items: Sequence[I], now: datetime) -> None:
        if not items:
            return
        if len(items) < self._smallest or not self._are_plain(items):
            self._break_up_all()
            super().enter(items, now)
            return
        bytes = self._size_of_all(items)
        self._convoys.append(_Convoy(self._next_ticket, items, bytes))
        self._next_ticket += len(items)
        self._bytes += bytes

    def ready(self, blocked: Container[Line], gate: Callable[[I], Gate] | None = None) -> Sequence[tuple[int, I]]:
        if gate is not None:
            self._break_up_all()
        going = super().ready(blocked, gate)
        while self._convoys and not going and not self.flying:
            if not self._slots and not self._meets(blocked):
                return self._lead()
            self._break_up()  # what is before it does not move by itself, or it must not go as one
            going = super().ready(blocked)
        return going

    def _lead(self) -> Ticketed[I]:
        convoy = self._convoys[0]
        self._leads, self.flying = True, len(convoy.items)
        return Ticketed(convoy.first, convoy.items)

    def upcoming(self) -> Sequence[tuple[int, I]]:
        """Give what goes next as one, unless something comes between."""
        if len(self._convoys) <= self._leads:
            return []
        convoy = self._convoys[self._leads]
        return Ticketed(convoy.first, convoy.items)

    def settle(self, verdicts: Sequence[tuple[int, Verdict]], blocked: Container[Line]) -> Sequence[Settlement[I]]:
        arrived: Sequence[Settlement[I]] = ()
        if self._leads:
            if self._have_all_arrived(verdicts):
                arrived, verdicts = self._let_go(), ()
            elif any(self.item(ticket) is not None for ticket, _ in verdicts):
                self._break_up()
        if self._convoys and not self._leads and self._fails(verdicts):
            self._break_up_all()  # it may do so for long, and those behind it are not to blame
        if self._leads:
            return ()
        settled = [*super().settle(verdicts, blocked)]
        while self._convoys and not self._log and self._meets(blocked):
            self._break_up()
            settled += super().settle((), blocked)
        return [*arrived, *settled] if settled else arrived

    def recall(self, which: Callable[[I], bool], tried: int = 0) -> list[Settlement[I]]:
        self._break_up_all()
        return super().recall(which, tried)

    def waiting(self) -> tuple[list[I], list[I]]:
        published, others = super().waiting()
        return published, [*others, *(item for convoy in self._convoys for item in convoy.items)]

    def _have_all_arrived(self, verdicts: Sequence[tuple[int, Verdict]]) -> bool:
        """Say whether these are the answers to the convoy in flight, and all of them say that it is published."""
        convoy = self._convoys[0]
        count = len(convoy.items)
        if len(verdicts) < count:
            return False
        if not all(map(_is_published, map(_verdict, verdicts))):
            verdicts = [answer for answer in verdicts if answer[1] is PUBLISHED]
        arrived = set(map(_ticket, verdicts))
        return len(arrived) == count and min(arrived) == convoy.first and max(arrived) == convoy.first + count - 1

    def _fails(self, verdicts: Sequence[tuple[int, Verdict]]) -> bool:
        """Say whether something that is in flight is not published."""
        return any(verdict is not PUBLISHED and self.item(ticket) is not None for ticket, verdict in verdicts)

    def _let_go(self) -> Arrived[I]:
        convoy = self._convoys.popleft()
        self._leads, self.flying = False, 0
        self._bytes -= convoy.bytes
        return Arrived(convoy.items)

    def _meets(self, blocked: Container[Line]) -> bool:
        """Say whether the first convoy has something of a blocked line."""
        return bool(blocked) and any(self._line_of(item) in blocked for item in self._convoys[0].items)

    def _break_up_all(self) -> None:
        while self._convoys:
            self._break_up()

    def _break_up(self) -> None:
        """Let the window know each entry of the first convoy, under the ticket that it has."""
        convoy = self._convoys.popleft()
        flies, self._leads = self._leads, False
        self._bytes -= convoy.bytes
        next_ticket, self._next_ticket = self._next_ticket, convoy.first
        super().enter(convoy.items, _WHENEVER)
        self._next_ticket = next_ticket
        if flies:
            self.flying = 0
            super().ready(frozenset())  # all of it, for there is nothing else


_WHENEVER = datetime(1970, 1, 1, tzinfo=UTC)  # nothing in a convoy waits for its time
_is_published = partial(is_, PUBLISHED)
_ticket, _verdict = itemgetter(0), itemgetter(1)
_settlement: Callable[[tuple[Any, Any]], Settlement[Any]] = partial(tuple.__new__, Settlement)
"""What Settlement() calls in the end: the way there takes longer than the rest."""
