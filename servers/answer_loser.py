"""A proxy that knows a protocol and loses single acknowledgements, after the server has stored the message."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

from servers.fault_proxy import stop_listening


class AnswerLoser(ABC):
    """Stand between a publisher and the server on port `target`, on the loop of whoever enters it."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.lost = self.accepted = 0
        """How many acknowledgements were lost, and how many connections came."""
        self.seen = 0
        """How many acknowledgements have come."""
        self.first_to_lose = 0
        self._to_lose: set[int] = set()
        self._listener: asyncio.Server | None = None
        self._carrying: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def lose(self, which: Iterable[int]) -> None:
        """Lose these of the acknowledgements that come from now on, counted from 0."""
        self._to_lose = {self.seen + number for number in which}
        self.first_to_lose = min(self._to_lose, default=0)

    @abstractmethod
    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry what the server sends, but for the acknowledgements that `loses` names."""

    def loses(self, number: int) -> bool:
        """Take note of the acknowledgement with this number; tell whether it is to be lost."""
        self.seen = max(self.seen, number + 1)
        self.lost += number in self._to_lose
        return number in self._to_lose

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._listener is not None
        await stop_listening(self._listener)
        carrying = dict(self._carrying)
        for task, writer in carrying.items():
            task.cancel()
            writer.transport.abort()  # also of one that is cancelled before it begins
        await asyncio.gather(*carrying, return_exceptions=True)
        await asyncio.sleep(0)  # sockets are closed in the loop's next turn

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._carrying[task] = writer
        task.add_done_callback(self._carrying.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            writers.append(forth)
            ways = [asyncio.ensure_future(requests(reader, forth)), asyncio.ensure_future(self.answers(back, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)  # however a side has ended, so does the other
        except OSError:
            pass  # the server is not there: nor are we
        finally:
            for one in writers:
                one.transport.abort()


async def requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry what the client sends."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
