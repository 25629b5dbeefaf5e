"""The link: a connection with one channel, as a unit. The only file that knows the client library, aiormq.

The library makes a task and several futures for each message. Here whole batches are written at once, as frames, and
what the server says goes straight to a listener; the library does the rest: handshake, TLS, heartbeats, reading.
"""

import asyncio
import logging
from typing import Any, Protocol

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.frames import CHANNEL
from pillarbox.errors import BrokerUnavailable, MissingExtra

try:
    import aiormq
    from aiormq.abc import ChannelFrame
    from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
    from aiormq.exceptions import (
        AMQPChannelError,
        AMQPError,
        AuthenticationError,
        ChannelAccessRefused,
        ChannelInvalidStateError,
        ChannelNotFoundEntity,
        InvalidFrameError,
        ProbableAuthenticationError,
    )
    from pamqp import commands
    from pamqp.header import ContentHeader
except ImportError as error:
    raise MissingExtra("rabbitmq", "RabbitMQ") from error

GOODBYE = 2.0
"""Seconds that a server has to say goodbye."""
ERRORS = (AMQPError, ChannelInvalidStateError, OSError, EOFError)
"""What the client raises when the server is not there, or goes."""
NOT_FOUND, NOT_ALLOWED = ChannelNotFoundEntity, ChannelAccessRefused
"""How the server closes a channel because of what was asked."""


class Listener(Protocol):
    """Who hears what the server says, on the loop; must not raise."""

    def confirmed(self, tag: int, multiple: bool, accepted: bool) -> None:
        """The server has a message, or all up to it; or will not have it."""

    def returned(self, message_id: str, topic: str, words: str) -> None:
        """No queue takes a message."""

    def delivered(self, tag: int, redelivered: bool, topic: str, properties: Any, body: bytes) -> None:
        """A message has come."""

    def lost(self, link: "Link", error: BaseException | None) -> None:
        """The link is of no more use."""


class _Channel(aiormq.Channel):
    """A channel that tells its listener, in place of a future or a task for each message."""

    listener: Listener

    async def _on_confirm_frame(self, frame: Any) -> None:
        self.listener.confirmed(frame.delivery_tag, frame.multiple, isinstance(frame, commands.Basic.Ack))

    async def _on_return_frame(self, frame: Any) -> None:
        message = await self._read_content(frame, await self._content_header())
        words = f"{frame.reply_code} {frame.reply_text}"
        self.listener.returned(message.header.properties.message_id or "", frame.routing_key, words)

    async def _on_deliver_frame(self, frame: Any) -> None:
        message = await self._read_content(frame, await self._content_header())
        self.listener.delivered(
            frame.delivery_tag, frame.redelivered, frame.routing_key, message.header.properties, message.body
        )

    async def _content_header(self) -> ContentHeader:
        header = await self._get_frame()
        if not isinstance(header, ContentHeader):
            raise AMQPError(f"a content header was due, and {header!r} came")
        return header


class _Transport(TransportFactory):
    """Keeps hold of the streams: the client itself can neither be asked whether they live nor break them off."""

    def __init__(self, tls: bool) -> None:
        self._factory = TLSTransportFactory() if tls else TCPTransportFactory()
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.streams = await self._factory.create(url, **options)
        return self.streams

    @property
    def alive(self) -> bool:
        if self.streams is None:
            return False
        reader, writer = self.streams
        return not (writer.is_closing() or reader.at_eof() or reader.exception() is not None)

    def abort(self) -> None:
        if self.streams is not None:
            self.streams[1].transport.abort()


class Link:
    """A connection and its channel. Once one of them is lost, so is the link."""

    def __init__(self, address: Address, listener: Listener, *, confirms: bool) -> None:
        _hush()
        self._listener, self._confirms = listener, confirms
        self._transport = _Transport(address.url.startswith("amqps:"))
        self._connection = aiormq.Connection(address.url, transport_factory=self._transport)
        self._channel: _Channel | None = None

    async def open(self) -> None:
        """Connect and open the channel. Raises one of ERRORS; the link is of no use then."""
        try:
            await self._connection.connect()
            channel = _Channel(self._connection, CHANNEL, publisher_confirms=self._confirms)
            channel.listener = self._listener
            self._connection.channels[CHANNEL] = channel
            await channel.open()
        except BaseException:
            await self.close()
            raise
        self._channel = channel
        channel.closing.add_done_callback(self._tell)

    @property
    def channel(self) -> aiormq.Channel:
        """The channel, for what is asked once in a while."""
        if self._channel is None:
            raise ChannelInvalidStateError("the channel is not open")
        return self._channel

    @property
    def frame_max(self) -> int:
        """How many bytes a frame may have."""
        return self._connection.connection_tune.frame_max or 1 << 20

    @property
    def version(self) -> str:
        """The server's version."""
        return str(self._connection.server_properties.get("version", ""))

    @property
    def alive(self) -> bool:
        """Nothing is known to be broken."""
        return self._channel is not None and not self._channel.is_closed and self._transport.alive

    @property
    def blocked(self) -> bool:
        """The server has said that it reads nothing from us until there is memory and disk again."""
        waiting = self._connection.ready()
        try:
            waiting.send(None)
        except StopIteration:
            return False
        waiting.close()
        return True

    async def write(self, frames: bytes) -> None:
        """Hand frames to the socket and wait while it is full. Raises one of ERRORS."""
        if not self.alive:
            raise ChannelInvalidStateError("the connection is closed")
        taken = self.channel.create_future()  # it fails with the channel
        await self._connection.write_queue.put(ChannelFrame(frames, should_close=False, drain_future=taken))
        try:
            await taken
        except asyncio.CancelledError:
            if taken.cancelled():
                raise
            # Nobody has cancelled us: so the client says that the server was silent for too long.
            raise ChannelInvalidStateError("the connection was stuck") from None

    async def close(self) -> None:
        """Say goodbye, and wait no longer than GOODBYE for an answer."""
        if self._channel is None or not self._transport.alive:
            self._transport.abort()
        try:
            async with asyncio.timeout(GOODBYE):
                await self._connection.close()
        except (TimeoutError, AttributeError, *ERRORS):
            pass  # it was not quite open, or is gone already: there is nobody to say goodbye to
        finally:
            self._transport.abort()

    def abort(self) -> None:
        """Break it off as a process that dies does."""
        self._transport.abort()

    def _tell(self, closing: "asyncio.Future[Any]") -> None:
        self._listener.lost(self, None if closing.cancelled() else closing.exception())


def away(place: str, error: BaseException | None) -> BrokerUnavailable:
    """Say that the server is away, in its own or the system's words, or that it does not let us in."""
    if isinstance(error, AuthenticationError | ProbableAuthenticationError):
        cure = "mend user and password there, or in the broker's URL, which is read at the start"
        told = f"does not let us in: {words_of(error)}; {cure}"
    else:
        told = f"is away: {words_of(error)}"
    failure = BrokerUnavailable(f"RabbitMQ at {place} {told}")
    failure.__cause__ = error
    return failure


def words_of(error: BaseException | None) -> str:
    """Give the words in which the server or the system put it."""
    if error is None:
        return "the connection was closed"
    if isinstance(error, InvalidFrameError) and "Connection.Close" in str(error):
        # The client drops what the server said, which at this point is always the same.
        return "it closed the connection at once: there is no such virtual host, or the user may not use it"
    if isinstance(error, AMQPError) and (words := [arg for arg in error.args if isinstance(arg, str)]):
        return " ".join(words)
    return str(error) or type(error).__name__


def is_refusal(error: BaseException | None) -> bool:
    """Tell whether the server closed the channel because of what was asked, and is there itself."""
    return isinstance(error, AMQPChannelError)


def concerns_all(error: BaseException | None) -> bool:
    """Tell whether a refusal is about the exchange, so that all messages share it."""
    return isinstance(error, NOT_FOUND | NOT_ALLOWED)


def _hush() -> None:
    """Keep the client from logging every loss with a traceback, unless somebody wants that: it is told as an outage."""
    for name in ("aiormq.connection", "aiormq.channel"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and logging.getLogger("aiormq").level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
