"""A proxy for RabbitMQ that throws single confirmations away, after the server has stored the message."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Self

_FRAME = struct.Struct(">BHI")
_CONFIRM = struct.Struct(">HHQB")
_METHOD, _BASIC, _ACK, _NACK = 1, 60, 80, 120


class ConfirmLoser:
    """Stand between a publisher and the RabbitMQ on port `target`, on the loop of whoever starts it.

    It reads the server's frames. A confirmation of several messages is passed on as one for each, and those that were
    chosen to be lost are left out; everything else passes as it is.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.lost = self.accepted = 0
        """How many confirmations were lost, and how many connections came."""
        self._to_lose: list[int] = []
        self._seen = 0
        self._listener: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self._clients: list[asyncio.StreamWriter] = []

    def lose(self, *which: int) -> None:
        """Lose these of the confirmations that come from now on, counted from 0."""
        self._to_lose = [self._seen + number for number in which]

    async def start(self) -> None:
        """Listen on a free port."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all connections."""
        if self._listener is not None:
            self._listener.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        for writer in self._clients:  # also of one that was cancelled before it began
            writer.transport.abort()
        await asyncio.sleep(0.01)  # sockets are closed in the loop's next turns

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._clients.append(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            writers.append(forth)
            ways = [asyncio.ensure_future(requests(reader, forth)), asyncio.ensure_future(self._answers(back, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)  # however a side has ended, so does the other
        except OSError:
            pass  # the server is not there: nor are we
        finally:
            for one in writers:
                one.transport.abort()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        confirmed, early = 0, set[int]()
        while True:
            head = await reader.readexactly(_FRAME.size)
            kind, _, size = _FRAME.unpack(head)
            rest = await reader.readexactly(size + 1)
            if kind == _METHOD and size == _CONFIRM.size:
                basic, method, tag, flags = _CONFIRM.unpack(rest[:-1])
                if basic == _BASIC and method in (_ACK, _NACK):
                    tags = [one for one in range(confirmed + 1, tag + 1) if one not in early] if flags & 1 else [tag]
                    confirmed, early = (tag, set()) if flags & 1 else (confirmed, early | {tag})
                    writer.writelines(self._passed(head, method, tags))
                    continue
            writer.write(head + rest)
            await writer.drain()

    def _passed(self, head: bytes, method: int, tags: Sequence[int]) -> list[bytes]:
        passed = []
        for tag in tags:
            if self._seen in self._to_lose:
                self.lost += 1
            else:
                passed.append(head + _CONFIRM.pack(_BASIC, method, tag, 0) + b"\xce")
            self._seen += 1
        return passed


async def requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry what the client sends."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
