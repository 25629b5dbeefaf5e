"""The inbox's pure half: its name, its handlers, and how a message is recognised. Every door's Inbox is built on it."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from pillarbox.core.canary import CANARY
from pillarbox.core.event import Event
from pillarbox.core.insert import check_identifier
from pillarbox.core.message import Message, uuid_of
from pillarbox.errors import ConfigError, HandlerMissing, InvalidEvent

LONGEST = 255
H = TypeVar("H", bound=Callable[..., Any])
M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


class Handler(NamedTuple):
    """A user's function for one type of event."""

    type: str
    function: Callable[..., Any]
    is_async: bool
    model: Any = None
    replays: bool = False
    """A replay is handled again, although its event was handled before."""
    batch: bool = False
    """It takes a list of events, which share a transaction with others."""
    topic: str | None = None
    """It is for messages on this topic only, which are not ours: `id` and `aggregate` take these off a message."""
    id: Callable[[Message], Any] | None = None
    aggregate: Callable[[Message], Any] | None = None

    def model_for(self, type: str) -> Any:
        """Give the model that its payloads are read into."""
        return self.model

    @property
    def name(self) -> str:
        return getattr(_innermost(self.function), "__qualname__", repr(self.function))


class HandlerOptions(TypedDict, total=False):
    """What may be said of a handler, beside its type and its model."""

    replays: bool
    """It is also called for what `replay --again` sends."""
    topic: str
    """It is for messages on this topic that are not ours: those that say its type, or no type at all."""
    id: Callable[[Message], str | int | UUID]
    """Takes the id off such a message: what a copy of it is recognised by."""
    aggregate: Callable[[Message], tuple[str, str | int | UUID] | None]
    """Takes the aggregate off it: what is kept in order. Without it there is no order."""


_NONE: Mapping[str, Handler] = {}


class Handlers:
    """The handlers of one consumer, by type of event."""

    def __init__(self, consumer: str, prefix: str = "pillarbox_", *, takes_async: bool) -> None:
        self.consumer = check_consumer(consumer)
        self.prefix = check_identifier("prefix", prefix)
        self._takes_async = takes_async
        self._by_type: dict[str, Handler] = {}
        self._by_topic: dict[str, dict[str, Handler]] = {}
        self._canary = Handler(CANARY, _rejoice_async if takes_async else _rejoice, is_async=takes_async)

    def registrar(
        self, type: object, model: Any = None, *, batch: bool = False, **options: Unpack[HandlerOptions]
    ) -> Callable[[H], H]:
        """Give what registers a function for a type of event; there is one for each type."""
        if inspect.isroutine(type) or inspect.isclass(type):
            raise ConfigError(
                f"handler: {type.__name__} is no type of event: write @inbox.handler('OrderPlaced') above it,"
                " with the type that it is for"
            )
        if not isinstance(type, str) or not type:
            raise ConfigError(f"handler: {type!r:.60} is no type of event: write @inbox.handler('OrderPlaced')")
        name = type
        return lambda function: self.register(name, function, model, batch=batch, **options)

    def register(
        self, type: str, function: H, model: Any = None, *, batch: bool = False, **options: Unpack[HandlerOptions]
    ) -> H:
        """Take a handler for a type of event."""
        is_async = _check_function(type, function, self._takes_async)
        handler = Handler(type, function, is_async, model, batch=batch, **options)
        _check_foreign(handler)
        among = self._by_type if handler.topic is None else self._by_topic.setdefault(handler.topic, {})
        if type in among:
            raise ConfigError(
                f"handler: {type!r} is handled by {among[type].name} already, in the inbox {self.consumer!r}:"
                f" call both from one handler, or give {handler.name} an inbox with a name of its own"
            )
        among[type] = handler
        return function

    def __getitem__(self, type: str) -> Handler:
        """Give the handler of a type; raise HandlerMissing if there is none."""
        try:
            return self._by_type[type]
        except KeyError:
            raise HandlerMissing(f"no handler for type {type!r} in the inbox {self.consumer!r}") from None

    def get(self, type: str, topic: str) -> Handler | None:
        """Give the handler of a type on a topic; None if there is none."""
        if self._by_topic and type in (bound := self.on(topic)):
            return bound[type]
        return self._by_type.get(type) or (self._canary if type == CANARY else None)

    def on(self, topic: str) -> Mapping[str, Handler]:
        """Give the handlers, by type, that are for a topic whose messages are not ours."""
        return self._by_topic.get(topic, _NONE)

    def __contains__(self, type: object) -> bool:
        return type in self._by_type

    @property
    def types(self) -> frozenset[str]:
        """The types of event that are handled."""
        return frozenset(self._by_type).union(*self._by_topic.values())


class Once:
    """What every Inbox makes of its `first_time`."""

    @overload
    def once(self, function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Coroutine[Any, Any, bool]]: ...
    @overload
    def once(self, function: Callable[P, None]) -> Callable[P, bool]: ...
    def once(self, function: Any) -> Any:
        """Let a function run only the first time that a message comes, in the caller's own transaction; what it becomes
        says whether it ran. Its first arguments are those of `first_time`: the connection and the message's id."""
        first_time = cast("Any", self).first_time
        leading = len(inspect.signature(first_time).parameters)
        is_async = inspect.iscoroutinefunction(first_time)
        _check_once(function, is_async)

        async def run_async(*arguments: Any, **named: Any) -> bool:
            is_new: bool = await first_time(*arguments[:leading])
            if is_new:
                await function(*arguments, **named)
            return is_new

        def run(*arguments: Any, **named: Any) -> bool:
            is_new: bool = first_time(*arguments[:leading])
            if is_new:
                function(*arguments, **named)
            return is_new

        return wraps(function)(run_async if is_async else run)


class Registry(Once, Generic[T, V]):
    """The half of an Inbox that every door shares: its consumer and its handlers. `T` is what a handler writes with,
    `V` what it gives back: nothing, or something to await."""

    def __init__(self, consumer: str, prefix: str, *, takes_async: bool) -> None:
        self.consumer = consumer
        self.handlers = Handlers(consumer, prefix, takes_async=takes_async)

    @overload
    def handler(
        self, type: str, *, payload: type[M], batch: Literal[False] = False, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[T, Event[M]], V]], Callable[[T, Event[M]], V]]: ...
    @overload
    def handler(
        self, type: str, *, payload: None = None, batch: Literal[False] = False, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[T, Event[Any]], V]], Callable[[T, Event[Any]], V]]: ...
    @overload
    def handler(
        self, type: str, *, payload: type[M], batch: Literal[True], **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[T, list[Event[M]]], V]], Callable[[T, list[Event[M]]], V]]: ...
    @overload
    def handler(
        self, type: str, *, payload: None = None, batch: Literal[True], **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[T, list[Event[Any]]], V]], Callable[[T, list[Event[Any]]], V]]: ...
    def handler(self, type: str, *, payload: Any = None, batch: bool = False, **options: Unpack[HandlerOptions]) -> Any:
        """Register the function for a type of event; its payload is decoded into `payload`, if one is named. With
        `batch` it is called with a list of events, which share a transaction: faster, and if it fails, all is undone
        and done one by one."""
        return self.handlers.registrar(type, payload, batch=batch, **options)


def _rejoice(transaction: object, event: object) -> None:
    """Handle a canary: that it came, and that its row can be committed, is all that it is for."""


async def _rejoice_async(transaction: object, event: object) -> None:
    """Handle a canary where handlers are awaited."""


def check_consumer(consumer: object) -> str:
    """Refuse a consumer's name that could not be kept or read."""
    if not isinstance(consumer, str) or not consumer.strip():
        raise ConfigError(f"consumer: {consumer!r} is no name; name the consumer after what it does: 'billing'")
    if len(consumer) > LONGEST or not consumer.isprintable() or consumer != consumer.strip():
        raise ConfigError(
            f"consumer: {consumer[:40]!r} must be printable, without space at its ends, at most {LONGEST} characters"
        )
    return consumer


def message_key(message_id: object) -> str:
    """Write a message's id as the inbox keeps it: a UUID in its usual form, anything else as it is."""
    if isinstance(message_id, UUID):
        return str(message_id)
    if not isinstance(message_id, str) or not message_id or "\0" in message_id:
        raise InvalidEvent(f"message_id: {message_id!r:.60} is nothing to recognise a message by: give its id header")
    return uuid_of(message_id) or message_id


def _check_foreign(handler: Handler) -> None:
    """Refuse a handler for messages that are not ours if it does not say how a copy of one is recognised."""
    what, topic = f"handler of {handler.type!r}", handler.topic
    if topic is None:
        if handler.id is not None or handler.aggregate is not None:
            raise ConfigError(f"{what}: id and aggregate are for messages that are not ours: name their topic, topic=…")
        return
    if not (topic and isinstance(topic, str)):
        raise ConfigError(f"{what}: topic: {topic!r:.60} is no name of a topic")
    if not callable(handler.id):
        raise ConfigError(
            f"{what}: topic={topic!r} is for messages that are not ours, and without their id a copy could not"
            " be recognised: say where it is, for example id=lambda message: message.headers['message-id']"
        )
    if handler.aggregate is not None and not callable(handler.aggregate):
        raise ConfigError(f"{what}: aggregate: {handler.aggregate!r:.60} is no function of the message")


def _check_once(function: object, is_async: bool) -> None:
    """Refuse a function of which nothing would run when it is called as this Inbox calls it."""
    if not callable(function):
        raise ConfigError(f"once: {function!r:.60} cannot be called: write @inbox.once above a function")
    inner = _innermost(function)
    name = getattr(inner, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigError(f"once: {name} has a yield, so calling it would run nothing; remove the yield")
    if inspect.iscoroutinefunction(inner) != is_async:
        raise ConfigError(
            f"once: {name} is a plain function, and this Inbox is awaited: make it `async def`"
            if is_async
            else f"once: {name} is async and this Inbox is not: take one that is awaited, or make it a plain function"
        )


def _check_function(type: str, function: object, takes_async: bool) -> bool:
    """Say whether a handler is async; refuse what could never be called with success."""
    if not callable(function):
        raise ConfigError(f"handler of {type!r}: {function!r} cannot be called")
    inner = _innermost(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigError(f"handler of {type!r}: it has a yield, so calling it would run nothing; remove the yield")
    _check_parameters(type, function)
    is_async = inspect.iscoroutinefunction(inner)
    if is_async and not takes_async:
        raise ConfigError(
            f"handler of {type!r}: it is async and this Inbox is not: take AsyncInbox, or make it a plain function"
        )
    return is_async


def _check_parameters(type: str, function: Callable[..., Any]) -> None:
    """Refuse a handler that cannot be called with a transaction and an event."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions of C cannot tell
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"handler of {type!r}: it is called with two arguments, the transaction and the event,"
            f" and cannot be: {error}"
        ) from error


def _innermost(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    if not (inspect.isroutine(function) or inspect.isclass(function)) and hasattr(function, "__call__"):  # noqa: B004
        return function.__call__
    return function
