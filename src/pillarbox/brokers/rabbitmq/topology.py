"""The topology that a consumer needs: its queues, bound to the exchange. What is there already is left as it is."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pillarbox.brokers.rabbitmq.address import SHORT, Address
from pillarbox.brokers.rabbitmq.link import NOT_ALLOWED, NOT_FOUND, Link
from pillarbox.errors import ConfigError


def queue_of(address: Address, consumer: str, topic: str) -> str:
    """Name a consumer's queue for a topic; without an exchange it is the topic's own, which all consumers share."""
    name = f"{consumer}.{topic}" if address.exchange else topic
    if len(name.encode()) > SHORT:
        raise ConfigError(f"topics: the queue {name[:40]!r}… would have a name longer than {SHORT} bytes")
    return name


def arguments(version: str) -> dict[str, Any]:
    """Say what kind of queue it is: replicated, and with one active consumer at a time, as order needs it."""
    wanted: dict[str, Any] = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    major = version.partition(".")[0]
    if major.isdigit() and int(major) >= 4:
        wanted["x-delivery-limit"] = -1  # since then a message is thrown away after 20 deliveries
    return wanted


async def make(address: Address, queues: Mapping[str, str]) -> None:
    """Make the exchange, the queues and their bindings where they are missing. Raises what the link raises."""
    desk = Desk(address)
    try:
        for topic, queue in queues.items():
            await _make(desk, address.exchange, topic, queue)
    finally:
        await desk.close()


async def _make(desk: "Desk", exchange: str, topic: str, queue: str) -> None:
    if not await desk.asks(lambda link: link.channel.queue_declare(queue, passive=True), NOT_FOUND):
        await desk.asks(lambda link: link.channel.queue_declare(queue, durable=True, arguments=arguments(link.version)))
    if not exchange:
        return
    if not await desk.asks(lambda link: link.channel.exchange_declare(exchange, passive=True), NOT_FOUND):
        await desk.asks(lambda link: link.channel.exchange_declare(exchange, exchange_type="topic", durable=True))
    # Whoever may not bind has somebody who did.
    await desk.asks(lambda link: link.channel.queue_bind(queue, exchange, topic), NOT_ALLOWED)


class Desk:
    """Asks the server, over a link that is opened anew when a question has closed it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._link: Link | None = None

    async def asks(self, question: Callable[[Link], Awaitable[Any]], no: type[BaseException] | None = None) -> bool:
        """Ask; False if the answer is the error `no`."""
        if self._link is None:
            link = Link(self._address, self, confirms=False)
            await link.open()
            self._link = link
        try:
            await question(self._link)
        except BaseException as error:
            await self.close()
            if no is not None and isinstance(error, no):
                return False
            raise
        return True

    async def close(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    def confirmed(self, tag: int, multiple: bool, accepted: bool) -> None:
        """Nothing is published here."""

    def returned(self, message_id: str, topic: str, words: str) -> None:
        """Nothing is published here."""

    def delivered(self, tag: int, redelivered: bool, topic: str, properties: Any, body: bytes) -> None:
        """Nothing is consumed here."""

    def lost(self, link: Link, error: BaseException | None) -> None:
        """Whoever asks hears of it."""
