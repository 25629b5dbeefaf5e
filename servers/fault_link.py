"""One connection through the fault proxy, and the faults that may befall it."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

HANG_UP = 1.0
"""Seconds that the two sides have to end a connection that is broken off after so many bytes."""
CHUNK = 65536
ON_THE_WAY = 1 << 20
"""Bytes that one direction of a connection may hold; a sender with more has to wait, as with any full pipe."""


class Direction(Enum):
    REQUESTS = "from the client to the server"
    ANSWERS = "from the server to the client"


@dataclass(frozen=True)
class Fault:
    """What happens to a connection; with all at their defaults, its bytes just pass."""

    latency: float = 0
    bytes_per_second: float | None = None
    held: frozenset[Direction] = frozenset()
    lost: frozenset[Direction] = frozenset()
    closes_after: tuple[Direction, int] | None = None
    refuses: bool = False
    resets: bool = False


class Conditions:
    """The fault in force, and the moment it changes."""

    def __init__(self) -> None:
        self.fault = Fault()
        self._changed = asyncio.Event()

    def change(self, fault: Fault) -> None:
        self.fault = fault
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, seconds: float | None = None) -> None:
        """Wait until another fault is in force, at most so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass  # nothing has changed, which is what the caller looks at next


class Ending(Enum):
    """How a side has ended what it sends."""

    CLOSED = "closed"
    RESET = "reset"


class CountReached(Exception):
    """The connection has passed all the bytes it may."""


class Pipe:
    """What is on its way in one direction, with the time it came."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[tuple[float, bytes | Ending]] = asyncio.Queue()
        self._size = 0
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, piece: bytes | Ending) -> None:
        await self._room.wait()
        self._pieces.put_nowait((asyncio.get_running_loop().time(), piece))
        self._resize(+length(piece))

    async def get(self) -> tuple[float, bytes | Ending]:
        came, piece = await self._pieces.get()
        self._resize(-length(piece))
        return came, piece

    def _resize(self, by: int) -> None:
        self._size += by
        if self._size < ON_THE_WAY:
            self._room.set()
        else:
            self._room.clear()


class Link:
    """Carry one client's bytes to the server and back, as the conditions allow."""

    def __init__(
        self, target: int, conditions: Conditions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._target = target
        self._conditions = conditions
        self._client = reader, writer
        self._writers, self._readers = [writer], [reader]
        self.passed = dict.fromkeys(Direction, 0)
        self.has_lost = False

    async def run(self) -> None:
        """Connect to the server and carry until both sides have ended."""
        try:
            await self._until_due(Direction.REQUESTS, came=0)
            server = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.append(server[1])
            self._readers.append(server[0])
            async with asyncio.TaskGroup() as group:
                self._carry(group, Direction.REQUESTS, self._client[0], server[1])
                self._carry(group, Direction.ANSWERS, server[0], self._client[1])
        except* ConnectionError:
            self.break_off(reset=True)  # one side was reset, or never there: so is the other
        except* CountReached:
            await self._hang_up()
        finally:
            await self._close()

    def break_off(self, *, reset: bool) -> None:
        """End the connection at once, with a reset or as if the process had ended."""
        for writer in self._writers:
            if reset and not writer.transport.is_closing():
                wait_for_nothing = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, wait_for_nothing)
            writer.transport.abort()

    async def _hang_up(self) -> None:
        """Say that nothing more comes, and take what is still on its way: who closes with that unread sends a reset,
        which may overtake what has passed."""
        for writer in self._writers:
            end(writer)
        ended = asyncio.gather(*(reader.read() for reader in self._readers), return_exceptions=True)
        await asyncio.wait({ended}, timeout=HANG_UP)
        ended.cancel()

    async def _close(self) -> None:
        for writer in self._writers:
            writer.close()
        # Whether the last bytes arrived is the two sides' own affair.
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def _carry(
        self,
        group: asyncio.TaskGroup,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        pipe = Pipe()
        group.create_task(receive(reader, pipe))
        group.create_task(self._deliver(direction, pipe, writer))

    async def _deliver(self, direction: Direction, pipe: Pipe, writer: asyncio.StreamWriter) -> None:
        while True:
            came, piece = await pipe.get()
            await self._until_due(direction, came)
            if isinstance(piece, bytes):
                await self._send(direction, piece, writer)
            elif direction in self._conditions.fault.lost:
                await self._stay_open()
            elif piece is Ending.RESET:
                raise ConnectionResetError(f"reset on the way {direction.value}")
            else:
                return end(writer)

    async def _send(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data:
            await self._until_due(direction, came=0)
            fault = self._conditions.fault
            if direction in fault.lost:
                self.has_lost = True
                return
            piece = data[: self._allowance(direction, fault)]
            data = data[len(piece) :]
            writer.write(piece)
            await writer.drain()
            self.passed[direction] += len(piece)
            if fault.closes_after is not None and self._allowance(direction, fault) == 0:
                raise CountReached
            if fault.bytes_per_second is not None:
                await self._conditions.wait_for_change(len(piece) / fault.bytes_per_second)

    def _allowance(self, direction: Direction, fault: Fault) -> int:
        """Give how many bytes may pass before the fault is looked at again."""
        if fault.closes_after is not None and fault.closes_after[0] is direction:
            return max(0, fault.closes_after[1] - self.passed[direction])
        if fault.bytes_per_second is not None:
            return max(1, int(fault.bytes_per_second / 20))
        return CHUNK

    async def _until_due(self, direction: Direction, came: float) -> None:
        """Wait while the direction is held, and until what came then is no longer early."""
        while True:
            fault = self._conditions.fault
            early = came + fault.latency - asyncio.get_running_loop().time()
            if direction in fault.held:
                await self._conditions.wait_for_change()
            elif early > 0:
                await self._conditions.wait_for_change(early)
            else:
                return

    async def _stay_open(self) -> NoReturn:
        """Lose an ending too; the proxy resets us when answers come through again."""
        self.has_lost = True
        while True:
            await self._conditions.wait_for_change()


async def receive(reader: asyncio.StreamReader, pipe: Pipe) -> None:
    """Put what one side sends into the pipe, up to its ending."""
    try:
        while data := await reader.read(CHUNK):
            await pipe.put(data)
    except ConnectionError:
        await pipe.put(Ending.RESET)
    else:
        await pipe.put(Ending.CLOSED)


def end(writer: asyncio.StreamWriter) -> None:
    """Pass an ending on; a side that was reset meanwhile says that it is not connected, which is no ConnectionError."""
    try:
        writer.write_eof()
    except OSError as error:
        raise ConnectionResetError(f"reset before the ending arrived: {error}") from error


def length(piece: bytes | Ending) -> int:
    return len(piece) if isinstance(piece, bytes) else 0
