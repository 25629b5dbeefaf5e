"""A member of a group: the thread that has the consumer, and what it shares with the loop.

Every call of the client is made by this thread: a second one that calls it waits for ever while the first polls.
A partition is given back only when everything that was given out of it is acknowledged, or after HANDOVER seconds.
Nothing is committed for a partition once it is given back.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import count

from pillarbox.brokers.kafka.client import (
    TAKEN_OVER,
    Consumer,
    Journal,
    KafkaError,
    KafkaException,
    Record,
    TopicPartition,
    error_of,
    make_consumer,
)
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.brokers.kafka.partition import OPEN, Name, Partition, Place, name_of
from pillarbox.brokers.kafka.reading import Reading
from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable

_logger = logging.getLogger("pillarbox.brokers.kafka")

IDLE, BUSY = 0.02, 0.003
"""For how many seconds we poll when nothing is given out, and while an acknowledgement may come."""
BATCH = 100
HANDOVER = 30.0
PROBE_EVERY = 0.5
PATIENCE = 5.0
NEVER = float("inf")


class Member:
    """One member. `news` is called from the thread when there is something to take, or something is wrong."""

    _epochs = count()

    def __init__(self, options: KafkaOptions, group: str, topics: Sequence[str], news: Callable[[], None]) -> None:
        self._options, self._group, self._topics, self._news = options, group, list(topics), news
        self._lock = threading.Condition()
        self._held: dict[Name, Partition] = {}
        self._reading = Reading()
        self._promises: list[Future[None]] = []
        self._subscribed = self._stopping = self._vanishing = False
        self._expelled = self._wanted = False
        self._missed: set[str] = set()
        self._journal = Journal()
        self._consumer: Consumer | None = self._make()
        self._probe_at, self._again_at = 0.0, NEVER
        self.joined = False
        """It was told which partitions are its own."""
        self.away: str | None = None
        """Why nothing comes; None while all is well."""

    def take(self, room: int) -> list[Delivery]:
        """Give out at most so many records that were read; called on the loop. Raises BrokerUnavailable while nothing
        comes: who asks in vain asks all the same, for a member that was expelled comes back only if somebody asks."""
        found: list[Delivery] = []
        with self._lock:
            self._wanted = True
            if self.away is not None:
                raise BrokerUnavailable(self.away)
            while len(found) < room and (record := self._reading.first()) is not None:
                partition = self._held[name_of(record)]
                if partition.is_full:
                    break
                self._reading.take_first()
                found.append(partition.give(record))
        return found

    def acknowledge(self, places: Iterable[Place]) -> "Future[None]":
        """Note acknowledgements of what is still ours; done when Kafka has them. Called on the loop."""
        promise: Future[None] = Future()
        with self._lock:
            for name, offset, epoch in places:
                partition = self._held.get(name)
                if partition is not None and partition.held.epoch == epoch:
                    partition.held.acknowledge(offset)
            self._promises.append(promise)
            self._lock.notify_all()
        return promise

    def stop(self, *, without_a_word: bool = False) -> None:
        """Let the thread end soon; called on the loop."""
        with self._lock:
            self._vanishing, self._stopping = without_a_word, True
            self._lock.notify_all()

    def run(self) -> None:
        """Poll until stopped; then leave the group, so that others take over at once. As all below, in the thread."""
        while not self._stopping:
            try:
                self._turn()
            except KafkaException as error:
                self._complain(error_of(error))
        if not self._vanishing and self._consumer is not None:
            try:
                self._consumer.close()
            except (KafkaException, RuntimeError):
                pass  # the group finds out by itself that we are gone
        self._consumer = None
        self._break_promises("this subscriber is closed: make a new one")

    def _turn(self) -> None:
        if self._expelled and not self._comes_back():
            return
        consumer = self._ready()
        with self._lock:
            busy = self._reading.paused or any(len(partition.held) for partition in self._held.values())
        first = consumer.poll(BUSY if busy else IDLE)  # the callbacks of a rebalance run in here
        if first is not None:
            self._keep([first, *consumer.consume(BATCH, 0)])
        self._commit_what_moved(consumer)
        with self._lock:
            self._reading.keep_in_bounds(consumer, self._held)
        if self._journal.errors or self.away is not None:
            self._probe(consumer)

    def _ready(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self._make()
        if not self._subscribed:
            self._consumer.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            self._subscribed = True
        return self._consumer

    def _comes_back(self) -> bool:
        """Stay away from the group, which took us for dead, until somebody asks for records: he may hang."""
        if self._consumer is not None and self._subscribed:
            self._consumer.unsubscribe()
            self._subscribed = False
        with self._lock:
            if not self._wanted and not self._promises:
                self._lock.wait(IDLE)
            self._expelled = not self._wanted
        if self._consumer is not None:
            self._commit_what_moved(self._consumer)
        return not self._expelled

    def _make(self) -> Consumer:
        self._journal = Journal()
        return make_consumer(self._options, self._group, self._journal)

    def _keep(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                error = record.error()
                if error is not None:
                    self._complain(error)
                elif name_of(record) in self._held:
                    self._reading.add(record)
                    self.away = None
        self._news()

    def _commit_what_moved(self, consumer: Consumer) -> None:
        """Tell Kafka how far we are, if somebody waits for it, or if it did not listen the last time."""
        with self._lock:
            if not self._promises and time.monotonic() < self._again_at:
                return
            promises, self._promises = self._promises, []
            moved = [p for p in self._held.values() if p.held.position > p.committed]
            marks = [(partition, mark) for partition in moved if (mark := partition.mark()) is not None]
        failure = None
        try:
            taken = self._commit(consumer, [mark for _, mark in marks])
            for partition, mark in marks:
                if partition.name in taken:
                    partition.committed = mark.offset - 1
            self._again_at = time.monotonic() + PROBE_EVERY if len(taken) < len(marks) else NEVER
        except BrokerUnavailable as error:
            failure = error
        self._keep_promises(failure, promises)

    def _keep_promises(self, failure: BrokerUnavailable | None, promises: list["Future[None]"]) -> None:
        for promise in promises:
            if not promise.set_running_or_notify_cancel():
                continue
            if failure is None:
                promise.set_result(None)
            else:
                promise.set_exception(failure)

    def _break_promises(self, words: str) -> None:
        """Tell those who wait for Kafka that there is nothing to wait for."""
        with self._lock:
            promises, self._promises = self._promises, []
        self._keep_promises(BrokerUnavailable(words), promises)

    def _commit(self, consumer: Consumer, marks: list[TopicPartition]) -> set[Name]:
        """Tell Kafka where we are; give the partitions of which it took our word. In the midst of a rebalance it takes
        none, also of those that we keep."""
        if not marks:
            return set()
        try:
            done = consumer.commit(offsets=marks, asynchronous=False) or []
            refused = {(mark.topic, mark.partition): mark.error for mark in done if mark.error is not None}
        except KafkaException as failure:
            refused = {(mark.topic, mark.partition): error_of(failure) for mark in marks}
        for error in refused.values():
            if error.code() not in TAKEN_OVER:  # what another member has taken over is passed over in silence
                raise BrokerUnavailable(f"Kafka at {self._options.servers} takes no acknowledgement: {error.str()}")
        return {(mark.topic, mark.partition) for mark in marks} - refused.keys()

    def _complain(self, error: KafkaError) -> None:
        """Note an error that came instead of records."""
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # it may come to be, and is found then
            self._miss(error.str())
            return
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            return  # we join anew
        self.away = f"Kafka at {self._options.servers} says: {error.str()}"
        self._probe_at = time.monotonic() + PROBE_EVERY
        if error.fatal():
            with self._lock:
                self._consumer, self._subscribed = None, False
                self._held.clear()
                self._reading = Reading()
        self._news()

    def _miss(self, words: str) -> None:
        """Tell once that a topic is not there: a name that is misspelt would be waited for in silence."""
        if words not in self._missed:
            self._missed.add(words)
            _logger.warning("%s; create the topic, or mend its name: it is waited for", words)

    def _probe(self, consumer: Consumer) -> None:
        """Something went wrong: ask whether anybody is there."""
        if time.monotonic() < self._probe_at:
            return
        words = self._journal.last_words()
        self._journal.errors.clear()
        try:
            consumer.list_topics(self._topics[0], timeout=1.0)
            self.away = None
        except KafkaException as error:
            self.away = f"Kafka at {self._options.servers} does not answer: {words or error_of(error).str()}"
            self._probe_at = time.monotonic() + PROBE_EVERY
            self._break_promises(self.away)
        self._news()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Take partitions, and leave word in Kafka that somebody works on them."""
        ours = [Partition(one, str(next(self._epochs))) for one in self._looked_up(consumer, partitions)]
        self.joined = True
        with self._lock:
            self._held |= {partition.name: partition for partition in ours}
        try:
            self._commit(consumer, [mark for partition in ours if (mark := partition.mark(OPEN)) is not None])
            self.away = None
        except BrokerUnavailable as error:
            self.away = str(error)

    def _looked_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Look up where the group is in these partitions; where it never was, it begins at the oldest record."""
        try:
            committed = consumer.committed(partitions, timeout=PATIENCE)
            for one in committed:
                if one.offset < 0 and self._options.begins_at_the_oldest:
                    one.offset = consumer.get_watermark_offsets(one, timeout=PATIENCE)[0]
            return committed
        except KafkaException:
            return [TopicPartition(one.topic, one.partition, metadata=OPEN) for one in partitions]

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Give partitions back when all that was given out of them is acknowledged, with a last word in Kafka."""
        names = {(partition.topic, partition.partition) for partition in partitions}
        deadline = time.monotonic() + HANDOVER
        done = False
        while not done:
            with self._lock:
                self._reading.drop(names)
                done = self._stopping or self._all_acknowledged(names) or time.monotonic() > deadline
                if not done and not self._promises:
                    self._lock.wait(PROBE_EVERY)
            self._commit_what_moved(consumer)
        with self._lock:
            ended = [partition for name in names if (partition := self._held.pop(name, None))]
        if self.away is None and not self._vanishing:
            try:
                self._commit(consumer, [mark for partition in ended if (mark := partition.last_mark()) is not None])
            except BrokerUnavailable as error:
                self.away = str(error)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Others took us for dead and have our partitions: forget them."""
        names = {(partition.topic, partition.partition) for partition in partitions}
        with self._lock:
            self._reading.drop(names)
            for name in names:
                self._held.pop(name, None)
            self._expelled, self._wanted = True, False

    def _all_acknowledged(self, names: set[Name]) -> bool:
        return all(not len(self._held[name].held) for name in names if name in self._held)
