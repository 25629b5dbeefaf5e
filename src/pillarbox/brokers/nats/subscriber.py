"""The far end of NATS: one member of a consumer, with a seat at each of its topics."""

import asyncio
from collections.abc import Sequence

from pillarbox.brokers.nats.connection import CONNECTING, Client, Connection, Subscription, errors
from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.brokers.nats.seat import Seat
from pillarbox.core.message import Delivery
from pillarbox.core.retry import words_of
from pillarbox.errors import BrokerUnavailable

BEATS = 3
"""How often in a lease a member says that it is alive."""
SHORTEST_WAIT = 0.02


class NatsSubscriber:
    """Receives from durable pull consumers, one for each topic, and acknowledges each message by itself."""

    def __init__(self, options: NatsOptions, *, consumer: str, topics: Sequence[str]) -> None:
        self._lease = options.lease
        self._news = asyncio.Event()
        self._connection = Connection(options, f"pillarbox consumer {consumer}", self._lost, lambda words: None)
        self._connection.on_open(self._listen)
        self._seats = {
            topic: Seat(self._connection, consumer, topic, options.stream, options.lease, self._news)
            for topic in topics
        }
        self._turn = 0
        self._alive_at = 0.0
        self._beating: asyncio.Task[None] | None = None
        self._inboxes: list[Subscription] = []

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        if room <= 0:
            return []
        deadline = _now() + patience
        client = await self._ready(patience)
        try:
            while not (found := await self._next(client, room)):
                if _now() >= deadline:
                    await self._connection.flush(client)  # no answer is an answer only from a server that is there
                    return self._given(room)
                await self._wait(deadline)
                if self._connection.connected is not client:
                    raise BrokerUnavailable(f"NATS is away: {self._connection.last_words}")
        except (errors.Error, OSError) as error:
            raise BrokerUnavailable(f"NATS is away: {words_of(error)}") from error
        return found

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        client = await self._ready(0)
        done = [(self._seats[d.place.topic], d.place.sequence) for d in deliveries if self._has(d)]
        replies = [seat.held[sequence] for seat, sequence in done]
        for seat, sequence in done:
            seat.doubted.add(sequence)
        try:
            for reply in replies:
                await client.publish(reply, b"+ACK")
            await self._connection.flush(client)
        except (errors.Error, OSError) as error:
            raise BrokerUnavailable(f"NATS is away: {words_of(error)}") from error
        for seat, sequence in done:
            seat.let_go(sequence)

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        client = self._connection.connected
        if client is not None:
            try:
                await self._leave(client)
            except (BrokerUnavailable, errors.Error, OSError):
                pass  # what is in hand comes again to others all the same, only later
        await self._connection.close()

    async def _leave(self, client: Client) -> None:
        for inbox in self._inboxes:
            await inbox.unsubscribe()
        await self._connection.flush(client)
        self._forget_if_silent()
        for seat in self._seats.values():
            await seat.hand_back(client)
        await self._connection.flush(client)

    async def _listen(self, client: Client) -> None:
        self._inboxes = []
        for seat in self._seats.values():
            seat.inbox = client.new_inbox()
            self._inboxes.append(await client.subscribe(f"{seat.inbox}.*", cb=seat.hear))

    async def _ready(self, patience: float) -> Client:
        client = await self._connection.ready(_now() + max(patience, CONNECTING))
        self._forget_if_silent()
        if self._beating is None or self._beating.done():
            self._alive_at = _now()
            self._beating = asyncio.create_task(self._beat(), name="stay a member at NATS")
        return client

    async def _next(self, client: Client, room: int) -> list[Delivery]:
        self._news.clear()
        for seat in self._seats.values():
            await seat.join(client)
            await seat.ask_for(client, room)
            await seat.make_sure(client)
        return self._given(room)

    def _given(self, room: int) -> list[Delivery]:
        """Take what is ready, beginning with another topic each time."""
        seats = list(self._seats.values())
        self._turn = (self._turn + 1) % len(seats)
        found: list[Delivery] = []
        for seat in seats[self._turn :] + seats[: self._turn]:
            found += seat.give(room - len(found))
        return found

    async def _wait(self, deadline: float) -> None:
        again = [at for seat in self._seats.values() if (at := seat.check_again_at) is not None]
        until = max(min([deadline, *again]), _now() + SHORTEST_WAIT)
        try:
            async with asyncio.timeout_at(until):
                await self._news.wait()
        except TimeoutError:
            pass  # something may be due, which is what is looked at next

    async def _beat(self) -> None:
        """Say that we are alive, several times in a lease, whether or not somebody asks for deliveries."""
        while True:
            await asyncio.sleep(self._lease / BEATS)
            client = self._connection.connected
            if client is None:
                continue
            try:
                self._forget_if_silent()
                begun = _now()
                for seat in self._seats.values():
                    await seat.keep_alive(client)
                await self._connection.flush(client)
                self._alive_at = begun
            except (BrokerUnavailable, errors.Error, OSError):
                continue  # we are silent then, and judge ourselves by that

    def _forget_if_silent(self) -> None:
        """Count ourselves out if the others may have done so: what we had in hand is theirs."""
        if self._beating is not None and _now() - self._alive_at > self._lease:
            for seat in self._seats.values():
                seat.forget()
            self._alive_at = _now()

    def _has(self, delivery: Delivery) -> bool:
        seat = self._seats[delivery.place.topic]
        return bool(delivery.place.epoch == seat.epoch and delivery.place.sequence in seat.held)

    def _lost(self, words: str) -> None:
        for seat in self._seats.values():
            seat.lose_connection()
        self._news.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
