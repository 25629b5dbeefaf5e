"""A TCP proxy that does to connections what networks do: late, slow, cut, reset, half-open, with answers lost."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from servers.fault_link import Conditions, Direction, Fault, Link
from servers.process import AddressInUse, start_on_free_port

__all__ = ["Direction", "FaultProxy"]

Answer = TypeVar("Answer")


class FaultProxy:
    """Stand between clients and the server on port `target`, with one fault at a time.

    A fault is in force when its method returns; a new `target` holds for the connections that come after it.
    The proxy works in a thread of its own.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._conditions = Conditions()
        self._links: dict[asyncio.Task[None], Link] = {}
        self._failures: list[BaseException] = []
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)

    def heal(self) -> None:
        """Let everything pass, first what was held back; a connection that has lost bytes is reset."""
        self._set(Fault())

    def latency(self, seconds: float) -> None:
        """Deliver each byte later, in both directions; as many as before are on their way."""
        self._set(Fault(latency=seconds))

    def slow(self, bytes_per_second: float) -> None:
        """Let only so many bytes through, per connection and direction."""
        self._set(Fault(bytes_per_second=bytes_per_second))

    def half_open(self, *directions: Direction) -> None:
        """Accept connections and keep them open, but hold back all bytes and endings, of one direction or of both."""
        self._set(Fault(held=frozenset(directions or Direction)))

    def lose_answers(self) -> None:
        """Bring requests to the server, and throw its answers away: the client waits."""
        self._set(Fault(lost=frozenset({Direction.ANSWERS})))

    def drop_after(self, count: int, direction: Direction = Direction.REQUESTS) -> None:
        """Close each connection when `count` more of its bytes have passed in one direction: the rest never arrives."""
        self._set(Fault(closes_after=(direction, count)))

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self._set(Fault(refuses=True))

    def reset(self) -> None:
        """Reset all connections, and each new one as soon as it is there."""
        self._set(Fault(resets=True))

    @property
    def connections(self) -> int:
        """Count the connections that are open."""

        async def count() -> int:
            return len(self._links)

        return self._call(count())

    def start(self) -> None:
        """Listen on a free port."""
        self._thread.start()
        start_on_free_port(lambda port: self._call(self._listen(port)))

    def close(self) -> None:
        """End all connections and the proxy, and raise what went wrong inside it."""
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._failures:
            raise BaseExceptionGroup("the fault proxy itself failed", self._failures)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _set(self, fault: Fault) -> None:
        self._call(self._change(fault))

    def _call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _change(self, fault: Fault) -> None:
        self._conditions.change(fault)
        if fault.refuses and self._listener is not None:
            await stop_listening(self._listener)
            self._listener = None
        elif not fault.refuses and self._listener is None:
            await self._listen(self.port)
        for link in self._links.values():
            link.passed = dict.fromkeys(Direction, 0)
        await self._break_off([task for task, link in self._links.items() if ends_under(fault, link)])

    async def _listen(self, port: int) -> None:
        try:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", port)
        except OSError as error:
            raise AddressInUse(f"the fault proxy cannot listen on port {port}: {error}") from error
        self.port = port

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self.target, self._conditions, reader, writer)
        fault = self._conditions.fault
        if fault.refuses or fault.resets:
            link.break_off(reset=fault.resets)
            return
        task = self._loop.create_task(link.run())
        self._links[task] = link
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._links[task]
        if not task.cancelled() and (failure := task.exception()):
            self._failures.append(failure)

    async def _break_off(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            self._links[task].break_off(reset=not self._conditions.fault.refuses)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # what failed is in self._failures
        await asyncio.sleep(0)  # the sockets close in the loop's next round


async def stop_listening(listener: asyncio.Server) -> None:
    """Close a listener once everybody whom it has accepted is known: asyncio forgets who comes as it closes."""
    loop = asyncio.get_running_loop()
    for one in listener.sockets:
        loop.remove_reader(one.fileno())
    for _ in range(3):  # from accepted to handed over
        await asyncio.sleep(0)
    listener.close()


def ends_under(fault: Fault, link: Link) -> bool:
    """Tell whether a fault ends a connection, as does healing if the connection misses bytes."""
    return fault.refuses or fault.resets or (link.has_lost and not fault.lost)
