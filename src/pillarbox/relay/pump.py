"""The pump: entries from the source through the window to the publisher, verdicts back to the source.

Reading and answers go on in the background, one task each for any number of events; a turn waits until one of them
has something. Nothing is settled before its answer, and nothing is sent once the lease has run out.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from pillarbox.core.chunk import are_plain, size_of
from pillarbox.core.convoy import Arrived, ConvoyWindow
from pillarbox.core.entry import Entry
from pillarbox.core.retry import Dead, Published, RetryAt, Verdict, told, words_of
from pillarbox.core.window import Settlement, Window
from pillarbox.errors import BrokerUnavailable, StoreUnavailable
from pillarbox.ports import Away, Clock, Outcome, Publisher, Source
from pillarbox.relay.encoding import Encoding
from pillarbox.relay.judge import Judge, Rules
from pillarbox.relay.reading import ReadAhead
from pillarbox.telemetry.hooks import Hooks, Moment

Settlements = Sequence[Settlement[Entry]]


class Pump:
    """Carries entries for the lanes that are held, until drained. `fence` raises LaneLost when the lease is over."""

    def __init__(
        self, source: Source, publisher: Publisher, rules: Rules, clock: Clock, hooks: Hooks, fence: Callable[[], None]
    ) -> None:
        self._source, self._publisher, self._rules = source, publisher, rules
        self._clock, self._hooks, self._fence = clock, hooks, fence
        self._window = _window_for(publisher, rules)
        self._reading = ReadAhead(source, rules.batch, rules.idle(), hooks)
        self._answering: asyncio.Task[Sequence[Outcome]] | None = None
        self._judge = Judge(self._window, rules, clock, hooks)
        self._encoding = Encoding(rules.topics, self._judge.not_sent)
        self._held = frozenset[str]()
        self._draining = False
        self._settling = False  # the window has let go of what is being recorded
        self.published = self.failed = 0

    async def run(self, *, once: bool = False) -> None:
        """Carry entries until drained; with `once`, until the source is empty."""
        window, source = self._window, self._source
        self._reading.empty = False  # that was another run
        while True:
            back = self._enter(self._reading.take())
            if self._finished(once):
                return
            self._reading.go_on(lambda: window.room, lambda: len(window) + self._settling)
            self._send()
            await self._news()
            verdicts = self._verdicts()
            back += self._hold()
            settled = window.settle(verdicts, source.blocked)
            await self._settle([*back, *settled] if back else settled)
            if once and self._judge.away:
                raise BrokerUnavailable(
                    f"the broker is away: {self._judge.away.error}; nothing is lost, run again later"
                )

    def suspect(self, topics: Iterable[str]) -> None:
        """Go carefully about topics that others had to hold."""
        self._judge.suspect(topics)

    def ring(self) -> None:
        """Look at once whether there is something new."""
        self._reading.ring()

    def drain(self) -> None:
        """Read nothing more; `run` returns once what was read is settled, or cannot be settled now."""
        self._draining = self._reading.held = True
        self.ring()

    async def holds_still(self, seconds: float) -> bool:
        """Read nothing until `go_on`; tell whether everything that was read is settled within `seconds`."""
        self._reading.held = True
        self.ring()
        deadline = asyncio.get_running_loop().time() + seconds
        while self._window or self._settling or self._reading.task is not None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def go_on(self) -> None:
        """Read again after holding still."""
        self._reading.held = self._draining

    def forget(self) -> None:
        """Drop everything in memory; the next `run` starts from what the source has stored."""
        self._window.forget()
        self._reading.forget()
        self._judge.forget()
        self._source.hold(frozenset())
        self._held = frozenset()
        self._encoding.forget()

    async def close(self) -> None:
        """End the background tasks."""
        tasks = [task for task in (self._reading.task, self._answering) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def trouble(self) -> Away | None:
        """What people should know: the broker is away, or topics fail while others do not."""
        return self._judge.trouble

    def _finished(self, once: bool) -> bool:
        if self._reading.task is not None:
            return False
        if self._draining:
            return not self._window or (self._judge.away is not None and not self._window.flying)
        return once and self._reading.empty and not self._window

    def _enter(self, entries: Sequence[Entry]) -> list[Settlement[Entry]]:
        """Take entries in. What was being read when its topic was held goes back, as what was here did."""
        self._window.enter(entries, self._clock.now())
        if not self._held or not any(entry.topic in self._held for entry in entries):
            return []
        return self._window.recall(lambda entry: entry.topic in self._held)

    def _hold(self) -> list[Settlement[Entry]]:
        """Let the source read around the topics that fail, and give back what is here of them; those whose turn has
        come are read again, to be tried: not before all that was called back is settled, or what comes next of a line
        would be read first."""
        held = self._judge.held()
        if self._held - held:
            held |= self._held & {entry.topic for entry in self._window.called_back()}
        if held == self._held:
            return []
        news, self._held = held - self._held, held
        self._source.hold(held)
        return [settlement for topic in sorted(news) for settlement in self._recall(topic)]

    def _recall(self, topic: str) -> list[Settlement[Entry]]:
        """Give back what is here of a topic, but for what was tried and refused: one that nobody will ever accept
        would otherwise be tried again and again, and the topic be held for ever."""
        return self._window.recall(lambda entry: entry.topic == topic, self._judge.refused.pop(topic, 0))

    def _send(self) -> None:
        """Hand over what may go now."""
        if self._judge.is_pausing:
            return
        if ready := self._window.ready(self._source.blocked, self._judge.gate):
            self._fence()
            self._hooks.reach(Moment.BEFORE_SEND, count=len(ready))
            if messages := self._encoding.messages(ready):
                self._publisher.send(messages)
            self._hooks.reach(Moment.SENT, count=len(ready))
        self._encoding.make_ahead(self._window.upcoming())

    async def _news(self) -> None:
        """Wait until something was read or answered, or a pause is over."""
        if self._encoding.unsendable:
            return
        if self._window.flying and self._answering is None:
            self._answering = asyncio.create_task(self._answer(), name="answers")
        pause = self._judge.pause
        waiting = [task for task in (self._reading.task, self._answering) if task is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        else:  # held still, or full while the broker is away
            await asyncio.sleep(0.01 if pause is None else min(pause, 0.1))

    async def _answer(self) -> Sequence[Outcome]:
        return await self._publisher.outcomes()

    def _verdicts(self) -> list[tuple[int, Verdict]]:
        """Judge what has been answered, and what could not be sent."""
        verdicts, self._encoding.unsendable = self._encoding.unsendable, []
        if self._answering is not None and self._answering.done():
            answering, self._answering = self._answering, None
            verdicts += self._judge.verdicts(answering.result())
        return verdicts

    async def _settle(self, settlements: Settlements) -> None:
        """Record what is settled; while the store is away nothing more is sent, and nothing is forgotten. A convoy that
        has arrived blocks nobody, so the next one need not wait until that is recorded."""
        if not settlements:
            return
        if isinstance(settlements, Arrived):
            self._send()
        self._settling = True
        try:
            await self._record(settlements)
        finally:
            self._settling = False
        self._hooks.reach(Moment.SETTLED, count=len(settlements))
        self._count(settlements)

    async def _record(self, settlements: Settlements) -> None:
        patience = self._rules.patience()
        while True:
            try:
                await self._source.settle(settlements)
                return
            except StoreUnavailable as error:
                self._hooks.reach(Moment.STORE_AWAY, error=words_of(error), unsettled=len(settlements))
                await asyncio.sleep(patience.quiet())
                self._fence()

    def _count(self, settlements: Settlements) -> None:
        if isinstance(settlements, Arrived):
            self.published += len(settlements)
            return
        for entry, verdict in settlements:
            if verdict.__class__ is Published:
                self.published += 1
            elif isinstance(verdict, RetryAt):
                self.failed += 1
                self._hooks.reach(Moment.EVENT_RETRYING, entry=entry, error=told(verdict), at=verdict.at)
            elif isinstance(verdict, Dead):
                self.failed += 1
                self._hooks.reach(Moment.EVENT_DEAD, entry=entry, error=told(verdict))


def _window_for(publisher: Publisher, rules: Rules) -> Window[Entry]:
    """Make room for two batches: the next one is read while this one is published. They go as convoys where the
    publisher is prefix-safe, unless there are topics of which one event goes at a time."""
    size, line_of = 2 * rules.batch, rules.topics.line_of
    if publisher.prefix_safe and not rules.topics.whole:
        smallest = max(2, rules.batch // 8)
        return ConvoyWindow(size, line_of, smallest=smallest, are_plain=are_plain, size_of_all=size_of, size_of=_size)
    return Window(size, line_of, prefix_safe=publisher.prefix_safe, size_of=_size)


def _size(entry: Entry) -> int:
    return entry.size
