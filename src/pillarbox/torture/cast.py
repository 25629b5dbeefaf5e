"""The cast: relays and consumers, real programs in processes of their own, started again when they end."""

import signal
import time
from collections.abc import Callable, Sequence

from pillarbox.torture.processes import Process, ProcessFailed

FEW = 10
"""So often may one end by itself before it is taken for broken."""


class Member:
    """One relay or consumer, whoever plays it at the moment."""

    def __init__(self, start: Callable[[], Process]) -> None:
        self._start = start
        self.process = start()
        self.frozen = False
        self._leaving = False
        self.died: list[tuple[float, str]] = []
        """When it was killed, or killed itself, and which process that was."""
        self.killed_itself_at = 0.0

    @property
    def deaths(self) -> int:
        return len(self.died)

    def kill(self) -> None:
        """kill -9; it is started again by `look`."""
        self.thaw()
        self.process.kill()
        self.died.append((time.time(), self.process.name))

    def stop(self) -> None:
        """SIGTERM: it drains, hands over, and ends by itself."""
        self.thaw()
        self._leaving = True
        self.process.terminate()

    def freeze(self) -> None:
        if self.process.lives and not self.frozen:  # nobody would tell of a second time
            self.process.freeze()
            self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.process.thaw()
            self.frozen = False

    def look(self) -> str | None:
        """Start it again if it has ended; say so if that was nobody's doing."""
        if self.process.lives:
            return None
        code, expected = self.process.code, self._leaving
        words = None
        if code == -signal.SIGKILL:
            if not self.process.killed:
                self.killed_itself_at = time.time()
                self.died.append((self.killed_itself_at, self.process.name))
        elif not (expected and code in (0, -signal.SIGTERM)):  # it may not have been ready for the signal yet
            words = f"the {self.process.name} ended with {code}: {self.process.last_words()}"
        self._leaving = False
        self.process.kill()
        self.process = self._start()
        return words


class Cast:
    """Everybody who can be struck."""

    def __init__(self, relays: Sequence[Callable[[], Process]], consumers: Sequence[Callable[[], Process]]) -> None:
        self.relays = [Member(start) for start in relays]
        self.consumers = [Member(start) for start in consumers]
        self.words: list[str] = []

    def look(self) -> None:
        """Start again who has ended; raise if somebody ends by himself time and again."""
        for member in [*self.relays, *self.consumers]:
            if words := member.look():
                self.words.append(words)
                if len(self.words) > FEW:
                    raise ProcessFailed(f"relays or consumers end by themselves time and again:\n{words}")

    def thaw(self) -> None:
        """Let everybody go on."""
        for member in [*self.relays, *self.consumers]:
            member.thaw()

    @property
    def killed_itself_at(self) -> float:
        """When somebody last did; 0 if nobody has."""
        return max(member.killed_itself_at for member in [*self.relays, *self.consumers])

    @property
    def relays_died(self) -> list[tuple[float, str]]:
        return sorted(death for member in self.relays for death in member.died)
