"""A proxy for NATS that throws single acknowledgements of JetStream away, after the stream has stored the message."""

import asyncio
from collections.abc import Iterable
from typing import Self


class NatsAckLoser:
    """Stand between a publisher and the NATS on port `target`, on the loop of whoever starts it.

    It reads the server's messages. The acknowledgements that were chosen to be lost are left out; all else passes.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.lost = 0
        self._to_lose: set[int] = set()
        self._seen = 0
        self._listener: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self._clients: list[asyncio.StreamWriter] = []

    def lose(self, which: Iterable[int]) -> None:
        """Lose these of the acknowledgements that come from now on, counted from 0."""
        self._to_lose = {self._seen + number for number in which}

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._listener is not None:
            self._listener.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        for writer in self._clients:  # also of one that was cancelled before it began
            writer.transport.abort()
        await asyncio.sleep(0.01)  # sockets are closed in the loop's next turns

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        while line := await reader.readline():
            verb, *words = line.split()
            payload = b""
            if verb in (b"MSG", b"HMSG"):
                payload = await reader.readexactly(int(words[-1]) + 2)
            if not (payload.startswith(b'{"stream":') and self._loses()):
                writer.write(line + payload)
                await writer.drain()

    def _loses(self) -> bool:
        number, self._seen = self._seen, self._seen + 1
        self.lost += number in self._to_lose
        return number in self._to_lose


async def requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry what the client sends."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
