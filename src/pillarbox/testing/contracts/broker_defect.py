"""What a broker that is broken on purpose is: a class whose name says what it does wrong, and the rules that notice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from pillarbox.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber

TIMEOUT = timedelta(seconds=0.5)
B = TypeVar("B", bound=type)


class Broken(Exception):
    """What a defect raises where a sound broker would not."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A broken broker, and the names of the rules that it breaks."""

    name: str
    broker: Callable[[], MemoryBroker]
    publisher_rules: tuple[str, ...] = ()
    subscriber_rules: tuple[str, ...] = ()


def into(defects: list[Defect]) -> Callable[..., Callable[[B], B]]:
    """Make the decorator that writes a broken broker, or a broken end of one, and the rules it breaks into a list."""

    def breaks(*rules: str, publisher: Sequence[str] = (), subscriber: Sequence[str] = ()) -> Callable[[B], B]:
        """Rules without a name belong to the end that the class is of."""

        def register(broken: B) -> B:
            words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in broken.__name__)
            of_publisher, of_subscriber = tuple(publisher), tuple(subscriber)
            if issubclass(broken, MemoryPublisher):
                of_publisher += rules
            elif issubclass(broken, MemorySubscriber):
                of_subscriber += rules
            defects.append(Defect(words.strip(), lambda: _broker(broken), of_publisher, of_subscriber))
            return broken

        return register

    return breaks


def _broker(broken: type) -> MemoryBroker:
    if issubclass(broken, MemoryBroker):
        return broken(publish_timeout=TIMEOUT)
    broker = MemoryBroker(publish_timeout=TIMEOUT)
    if issubclass(broken, MemoryPublisher):
        broker.publisher = lambda: broken(broker)  # type: ignore[method-assign]
    elif issubclass(broken, MemorySubscriber):
        broker.subscriber = lambda consumer, topics: broken(broker, consumer, topics)  # type: ignore[method-assign]
    return broker
