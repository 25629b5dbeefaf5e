"""A small HTTP server for probes and metrics: GET of a few known paths, one answer a connection, nothing else."""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

logger = logging.getLogger("pillarbox")

PATIENCE = 5.0
"""Seconds that a client may take to ask, and a page to be made."""
LONGEST = 8_192
"""Bytes of a request's head at most."""
MOST = 64
"""Connections at once; further ones are closed, so that nobody can fill a daemon's memory."""
AGAIN = 5.0
"""How often a place that is taken is tried again, in seconds: its holder may be a daemon that is about to end."""


class Answer(NamedTuple):
    """What a page says."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Page = Callable[[], Awaitable[Answer]]


def said(status: HTTPStatus, text: str) -> Answer:
    """Make an answer of one line."""
    return Answer(status, f"{text}\n".encode())


class HttpServer:
    """Serves pages as long as the block lasts. A place that is taken is told of and tried again: nobody fails by it."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self._host, self._port, self._pages = host, port, pages
        self._server: asyncio.Server | None = None
        self._trying: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens now; None while the place is taken."""
        if self._server is None:
            return None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def __aenter__(self) -> Self:
        try:
            await self._listen()
        except OSError as error:
            logger.warning(
                "health and metrics are not served: %s; goes on without, and tries again", _why(error, self._place)
            )
            self._trying = asyncio.create_task(self._try_again(), name="health")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = [*self._connections, *([] if self._trying is None else [self._trying])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _place(self) -> str:
        return _written(self._host, self._port)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, self._host, self._port, limit=LONGEST)
        address = self.address
        assert address is not None
        logger.info("serves %s at http://%s", " ".join(self._pages), _written(*address))

    async def _try_again(self) -> None:
        while self._server is None:
            await asyncio.sleep(AGAIN)
            with suppress(OSError):  # it was told of
                await self._listen()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MOST:
                async with asyncio.timeout(3 * PATIENCE):
                    await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone or takes too long: it is its own loss
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
        method, answer = await self._answer(head)
        writer.write(_head(answer) + (b"" if method == "HEAD" else answer.body))
        await writer.drain()

    async def _answer(self, head: bytes) -> tuple[str, Answer]:
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "", said(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
        method, path = words[0], words[1].partition("?")[0]
        page = self._pages.get(path)
        if page is None:
            return method, said(HTTPStatus.NOT_FOUND, f"there is only {' '.join(self._pages)}")
        if method not in ("GET", "HEAD"):
            return method, said(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        return method, await _made(path, page)


async def _made(path: str, page: Page) -> Answer:
    try:
        async with asyncio.timeout(PATIENCE):
            return await page()
    except TimeoutError:
        return said(HTTPStatus.SERVICE_UNAVAILABLE, f"took longer than {PATIENCE:.0f} s")
    except Exception as error:  # noqa: BLE001 - a page must not end the daemon
        # Its words are told nowhere: they may hold what nobody should see.
        where = traceback.extract_tb(error.__traceback__)[-1]
        logger.error("%s could not be made: %s in %s:%s", path, type(error).__name__, where.filename, where.lineno)
        return said(HTTPStatus.INTERNAL_SERVER_ERROR, "the log says why")


def _head(answer: Answer) -> bytes:
    return (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(error: OSError, place: str) -> str:
    words = (error.strerror or str(error)).partition(": ")
    return f"{place}: {words[2] or words[0]}"
