"""A connection to NATS that comes back by itself, for ever; whoever needs it waits, or hears why it is not there."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.core.retry import words_of
from pillarbox.errors import BrokerUnavailable, ConfigError, MissingExtra

try:
    from nats import errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
except ImportError as error:  # pragma: no cover - the extra is installed where the tests run
    raise MissingExtra("nats", "a NATS broker") from error

__all__ = ["Client", "Connection", "Msg", "Subscription", "errors"]

AGAIN_AFTER = 0.25
"""Seconds between two attempts to connect."""
CONNECTING = 2
ASKING = 5.0
"""Seconds in which JetStream must answer a question."""
PING_EVERY = 5
"""Seconds; a server that misses two is taken for gone."""


class Connection:
    """One connection. `on_lost` hears that it broke, and `on_words` what the server says of its own accord."""

    def __init__(
        self, options: NatsOptions, name: str, on_lost: Callable[[str], None], on_words: Callable[[str], None]
    ) -> None:
        if (options.credentials or options.nkey) and find_spec("nkeys") is None:
            name = "credentials" if options.credentials else "nkey"
            raise ConfigError(f"nats.{name}: needs the library nkeys, which signs for us: pip install nkeys")
        self._options, self._name, self._tls = options, name, options.tls()
        self._on_lost, self._on_words = on_lost, on_words
        self._client: Client | None = None
        self._opening: asyncio.Task[None] | None = None
        self._set_up: Callable[[Client], Awaitable[None]] | None = None
        self._waiting: dict[asyncio.Future[Client], int] = {}
        self._last_words = "no connection yet"
        self._closed = False
        self._broken = asyncio.Event()

    def on_open(self, set_up: Callable[[Client], Awaitable[None]]) -> None:
        """Call this with each new client, before anybody else has it; a client that reconnects stays the same."""
        self._set_up = set_up

    @property
    def last_words(self) -> str:
        """What went wrong last."""
        return self._last_words

    @property
    def connected(self) -> Client | None:
        """The client, if it is connected right now."""
        client = self._client
        return client if client is not None and client.is_connected and self._opening is None else None

    async def ready(self, deadline: float) -> Client:
        """Give the connected client; wait while it is on its way, at most until an attempt has failed at every server.
        Raises BrokerUnavailable with the reason."""
        if self._closed:
            raise BrokerUnavailable("closed: make a new one")
        if client := self.connected:
            return client
        if self._client is None:
            self._open()
        waiter: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # One attempt more than there are servers: the one that is under way began before we asked.
        self._waiting[waiter] = len(self._options.servers) + 1
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except TimeoutError:
            raise BrokerUnavailable(f"NATS cannot be reached: {self._last_words}") from None
        finally:
            self._waiting.pop(waiter, None)

    async def ask(self, client: Client, subject: str, question: object) -> dict[str, Any]:
        """Ask JetStream something; BrokerUnavailable if nobody answers. An error in the answer is given as it is."""
        try:
            answer = await client.request(subject, json.dumps(question).encode(), timeout=ASKING)
            found: dict[str, Any] = json.loads(answer.data)
        except errors.NoRespondersError as error:
            raise BrokerUnavailable("JetStream does not answer: is it enabled on the server?") from error
        except (errors.Error, OSError, TimeoutError, ValueError) as error:
            raise BrokerUnavailable(
                f"JetStream did not answer {subject}: {words_of(error)}; the last that was heard: {self._last_words}"
            ) from error
        return found

    async def flush(self, client: Client) -> None:
        """Wait until the server has read all that was sent so far. Raises BrokerUnavailable if it does not say so."""
        self._broken.clear()
        flushed = asyncio.create_task(client.flush(CONNECTING))
        broken = asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait([flushed, broken], return_when=asyncio.FIRST_COMPLETED)
            if not flushed.done():
                raise BrokerUnavailable(f"NATS is away: {self._last_words}")
            flushed.result()
        finally:
            broken.cancel()
            flushed.cancel()

    async def close(self) -> None:
        """Disconnect at once; safe to call twice."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            await ended(opening)
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    def _open(self) -> None:
        client = self._client = Client()
        self._opening = asyncio.create_task(self._connect(client), name=f"connect to {self._name}")

    async def _connect(self, client: Client) -> None:
        options = self._options
        given: dict[str, Any] = {
            "servers": list(options.servers),
            "name": self._name,
            "error_cb": self._failed,
            "disconnected_cb": self._lost,
            "reconnected_cb": self._back,
            "closed_cb": self._ended,
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": AGAIN_AFTER,
            "connect_timeout": CONNECTING,
            "ping_interval": PING_EVERY,
            # What is sent while the connection is gone must fail at once: its answer would come to nobody.
            "pending_size": 0,
            "inbox_prefix": options.inbox_prefix,
            "tls": self._tls,
            # A token given as well is meant instead.
            "user": options.user if options.token is None else None,
            "password": options.password if options.token is None else None,
            "token": options.token,
            "user_credentials": options.credentials,
            "nkeys_seed": options.nkey,
        }
        try:
            await client.connect(**given)
            self._check_encrypted()
            if self._set_up is not None:
                await self._set_up(client)
        except Exception as error:  # noqa: BLE001 - whatever the library raises, those who wait must hear of it
            self._client, self._opening = None, None
            await self._failed(error)
            self._give_up()
            await _close(client)
            return
        self._opening = None
        self._hand_over(client)

    def _check_encrypted(self) -> None:
        if self._options.encrypted and self._tls is not None:
            if not self._tls.used:
                raise OSError("the server does not ask for TLS, and tls:// demands it")
            self._tls.used = False  # every connection must prove it anew

    def _hand_over(self, client: Client) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(client)

    def _give_up(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(BrokerUnavailable(f"NATS cannot be reached: {self._last_words}"))

    async def _failed(self, error: Exception) -> None:
        """Hear of an error: an attempt to connect that failed, or words of the server."""
        self._last_words = words_of(error)
        if self.connected is not None:
            self._on_words(_as_written(self.connected, self._last_words))
            return
        for waiter, left in list(self._waiting.items()):
            self._waiting[waiter] = left - 1
            if left <= 1 and not waiter.done():
                waiter.set_exception(BrokerUnavailable(f"NATS cannot be reached: {self._last_words}"))

    async def _lost(self) -> None:
        self._broken.set()
        self._on_lost(f"the connection to NATS was lost: {self._last_words}")

    async def _back(self) -> None:
        if (client := self._client) is None:
            return
        try:
            self._check_encrypted()
        except OSError as error:
            self._last_words = words_of(error)
            await client.close()
            return
        self._hand_over(client)

    async def _ended(self) -> None:
        """Hear that the client has given up for good, as it does when the server says something it does not expect."""
        if not self._closed:
            self._client = None
            self._broken.set()
            self._on_lost(f"NATS closed the connection: {self._last_words}")
            self._give_up()


async def ended(task: "asyncio.Task[Any]") -> None:
    """Cancel a task until it has ended. Once is not enough: a wait inside of it that ends in the same moment may lose
    the cancellation (until Python 3.12), and the library would go on trying to connect for ever."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


async def _close(client: Client) -> None:
    # One that failed before it asked any server has nothing to close, and the library finds no better word for that.
    with suppress(AssertionError):
        await client.close()
    # One that we have cancelled while it closed itself takes itself for closed, and would leave its socket open.
    transport: Any = client._transport
    if transport:
        transport.close()


def _as_written(client: Client, words: str) -> str:
    """Give words of the server in its own letters: the library makes them small, and subjects may differ in that only.

    It still has the line that it is about; should it have none some day, the words stay as they are.
    """
    line = bytes(getattr(getattr(client, "_ps", None), "buf", b"")).partition(b"\r\n")[0].decode(errors="replace")
    small = words.removeprefix("nats: ")
    at = line.lower().find(small)
    return words if at < 0 else line[at : at + len(small)]
