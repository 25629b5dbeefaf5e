"""The inbox's pure half: which handlers are taken, which names, which ids; and what its programs ask of a door."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from pillarbox.core.insert import Statement
from pillarbox.core.insert_texts import Dialect
from pillarbox.core.message import Delivery, Message
from pillarbox.core.routing import Topic, Topics
from pillarbox.errors import ConfigError, HandlerMissing
from pillarbox.inbox import programs
from pillarbox.inbox.inbox import Handlers, message_key
from pillarbox.inbox.received import receive, synthetic_key
from pillarbox.inbox.statements import texts_of
from pillarbox.inbox.steps import drive


def plain(transaction: object, event: object) -> None:
    """A handler."""


async def coroutine(transaction: object, event: object) -> None:
    """An async handler."""


def generator(transaction: object, event: object) -> Iterator[int]:
    yield 1


async def async_generator(transaction: object, event: object) -> Any:
    yield 1


class Callables:
    def __call__(self, transaction: object, event: object) -> None: ...

    async def method(self, transaction: object, event: object) -> None: ...


class AsyncCallable:
    async def __call__(self, transaction: object, event: object) -> None: ...


def handlers(*, takes_async: bool = False) -> Handlers:
    return Handlers("billing", takes_async=takes_async)


def register(function: Any, *, takes_async: bool = False) -> bool:
    """Register a handler; tell whether it was taken for an async one."""
    chosen = handlers(takes_async=takes_async)
    chosen.register("Ping", function)
    return chosen["Ping"].is_async


def test_a_second_handler_for_a_type_is_refused_by_both_names() -> None:
    chosen = handlers()
    chosen.register("Ping", plain)
    with pytest.raises(ConfigError, match=r"'Ping' is handled by plain already.*give Callables"):
        chosen.register("Ping", Callables())
    assert chosen["Ping"].function is plain


@pytest.mark.parametrize("function", [coroutine, partial(coroutine), Callables().method, AsyncCallable()])
def test_an_async_handler_needs_an_async_inbox(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="take AsyncInbox, or make it a plain function"):
        register(function)
    assert register(function, takes_async=True) is True


@pytest.mark.parametrize("function", [plain, partial(plain), Callables(), lambda transaction, event: None])
def test_a_plain_function_is_taken_by_both(function: Callable[..., Any]) -> None:
    assert register(function) is False
    assert register(function, takes_async=True) is False


@pytest.mark.parametrize("function", [generator, async_generator, partial(generator)])
@pytest.mark.parametrize("takes_async", [True, False])
def test_a_handler_with_a_yield_is_refused(function: Callable[..., Any], takes_async: bool) -> None:
    with pytest.raises(ConfigError, match="remove the yield"):
        register(function, takes_async=takes_async)


@pytest.mark.parametrize("function", [None, "bill", 7])
def test_what_cannot_be_called_is_refused(function: object) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        register(function)


@pytest.mark.parametrize("name", ["", " ", "a\nb", " billing", "x" * 256, None, 7])
def test_a_consumer_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="consumer"):
        Handlers(name, takes_async=False)


@pytest.mark.parametrize("type", ["", None, lambda transaction, event: None], ids=["empty", "none", "no parentheses"])
def test_what_is_no_type_of_event_is_refused(type: Any) -> None:
    with pytest.raises(ConfigError, match=r"no type of event: write @inbox\.handler\('OrderPlaced'\)"):
        Handlers("billing", takes_async=False).registrar(type)


def test_a_handler_registered_without_parentheses_is_told_how_to_write_it() -> None:
    def bill(transaction: object, event: object) -> None: ...

    with pytest.raises(
        ConfigError, match=r"^handler: bill is no type of event: write @inbox\.handler\('OrderPlaced'\)"
    ):
        handlers().registrar(bill)


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda event: None, lambda a, b, c: None, lambda a, b, *, c: None],
    ids=["0", "1", "3", "c"],
)
def test_a_handler_that_cannot_take_a_transaction_and_an_event_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="two arguments, the transaction and the event"):
        Handlers("billing", takes_async=False).register("OrderPlaced", function)


def test_a_type_without_a_handler_is_named() -> None:
    with pytest.raises(HandlerMissing, match="no handler for type 'Ping' in the inbox 'billing'"):
        handlers()["Ping"]
    assert "Ping" not in handlers()


@pytest.mark.parametrize(
    ("id", "key"),
    [
        ("0190A6A1-0000-7000-8000-0000000000FF", "0190a6a1-0000-7000-8000-0000000000ff"),
        ("0190a6a10000700080000000000000ff", "0190a6a10000700080000000000000ff"),
        ("1_200000000000000000000000000000", "1_200000000000000000000000000000"),
        ("order-7/paid", "order-7/paid"),
    ],
)
def test_a_key_is_written_in_one_way(id: str, key: str) -> None:
    assert message_key(id) == key


def test_a_synthetic_key_follows_from_every_part_of_a_message() -> None:
    message = Message("t", "k", {"a": "1", "b": "2"}, b"body")
    others = [
        message._replace(topic="u"),
        message._replace(key=None),
        message._replace(headers={"a": "1"}),
        message._replace(body=b"bodz"),
    ]
    keys = {synthetic_key(one) for one in (message, *others)}
    assert len(keys) == 5
    assert synthetic_key(message._replace(headers={"b": "2", "a": "1"})) == synthetic_key(message)


@pytest.mark.parametrize(
    ("order", "aggregate", "line"),
    [
        ("aggregate", True, ("t", "order", "7")),
        ("aggregate", False, None),
        ("global", True, ("t", "", "")),
        ("global", False, ("t", "", "")),
        ("none", True, None),
    ],
)
def test_the_line_follows_the_topics_order(order: Any, aggregate: bool, line: Any) -> None:
    chosen = handlers()
    chosen.register("Ping", plain)
    headers = {"id": "a", "type": "Ping"} | ({"aggregate_type": "order", "aggregate_id": "7"} if aggregate else {})
    received = receive(Delivery(Message("t", None, headers, b"{}")), chosen, Topics({"t": Topic(order=order)}))
    assert received.line == line


def test_a_first_delivery_costs_three_statements() -> None:
    """The inbox row, and a mark around the handler; nothing of the parking lot, nothing that counts."""
    chosen = handlers()
    chosen.register("Ping", plain)
    texts = texts_of("billing", "sqlite", "?", "pillarbox_")
    headers = {"id": "0190a6a1-0000-7000-8000-0000000000ff", "type": "Ping"}
    received = receive(Delivery(Message("t", None, headers, b"{}")), chosen, Topics())
    statements: list[str] = []

    def run(statement: Statement) -> list[tuple[int]]:
        statements.append(statement.sql)
        return [(1,)] if len(statements) == 1 else []

    means = programs.Means(chosen, datetime.now(UTC), None, False, lambda *_: None, lambda *_: None)
    program = programs.receive(texts, received, means)
    assert drive(program, run, lambda call: None) is programs.Reception.HANDLED
    assert statements == [texts.texts[name].sql for name in ("receive", "mark", "unmark")]


@pytest.mark.parametrize(("dialect", "place"), [("sqlite", "shop_"), ("postgres", "acme.shop_")])
def test_the_place_is_in_every_statement(dialect: Dialect, place: str) -> None:
    texts = texts_of("billing", dialect, "%s", place).texts
    assert [name for name, text in texts.items() if place not in text.sql] in ([], ["unmark", "names_cluster"])
    assert not any("pillarbox_" in text.sql for text in texts.values())


def test_each_parameter_is_given_once_and_goes_wherever_it_is_wanted() -> None:
    key = ("billing", "1", None)
    assert texts_of("billing", "postgres", "$", "p_")("receive", *key).parameters == key
    assert texts_of("billing", "sqlite", "?", "p_")("receive", *key).parameters == ("billing", "1") * 2 + (
        "billing",
        None,
    )


def test_a_long_traceback_keeps_its_end() -> None:
    trace = programs.trace_of("x" * 20_000 + "the end")
    assert len(trace) == programs.LONGEST_TRACE + 1
    assert trace.endswith("the end")
