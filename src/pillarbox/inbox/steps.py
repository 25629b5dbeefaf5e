"""Programs: what receiving does in the database, written once. Sans-IO, as `core/insert.py` is.

A program is a generator. It yields a Statement (the door runs it and sends the rows back) or a Call (the door calls
the handler inside the same transaction and sends back what it returned); an error of either is thrown into it. The
door commits when the program returns, and rolls back when it raises.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, TypeVar

from pillarbox.core.event import Event
from pillarbox.core.insert import Rows, Statement
from pillarbox.core.retry import place_of, words_of
from pillarbox.errors import HandlerFailed

R = TypeVar("R")


class ClosedByHandler(HandlerFailed):
    """A handler closed the connection that it was given."""

    def __init__(self) -> None:
        super().__init__("it closed the connection it was given: leave it open")


class EndedByHandler(HandlerFailed):
    """A handler ended the transaction that its event shares with others."""

    def __init__(self) -> None:
        super().__init__("it ended the transaction that its event shares with others: leave that to the inbox")


class Call(NamedTuple):
    """The step in which the handler runs, inside the transaction; an async one is cancelled after `timeout` seconds. If
    others share the transaction, it must be open afterwards."""

    handler: Callable[..., Any]
    is_async: bool
    given: Event[Any] | Sequence[Event[Any]]
    timeout: float | None = None
    shared: bool = False


Step = Statement | Call
Program = Generator[Step, Any, R]


def drive(
    program: Generator[Any, Any, R],
    run: Callable[[Statement], Rows],
    call: Callable[[Call], object] | None = None,
    answer: Rows | None = None,
) -> R:
    """Run a program to its end with functions that do each kind of step; give what it returns. If there is an `answer`,
    it is that of the first step, which somebody has done already."""
    try:
        step = program.send(answer)
        while True:
            try:
                given = run(step) if isinstance(step, Statement) else call(step)  # type: ignore[misc]
            except BaseException as error:  # noqa: BLE001 - the program decides
                step = program.throw(error)
            else:
                step = program.send(given)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def drive_async(
    program: Generator[Any, Any, R],
    run: Callable[[Statement], Awaitable[Rows]],
    call: Callable[[Call], Awaitable[object]] | None = None,
) -> R:
    """Do the same with functions that are awaited."""
    try:
        step = next(program)
        while True:
            try:
                answer = await (run(step) if isinstance(step, Statement) else call(step))  # type: ignore[misc]
            except BaseException as error:  # noqa: BLE001 - the program decides
                step = program.throw(error)
            else:
                step = program.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def call_async(call: Call, transaction: object) -> object:
    """Await an async handler, at most until its time is over; a cancellation that nobody asked for is its failure."""
    limit = asyncio.timeout(call.timeout)
    try:
        async with limit:
            return await call.handler(transaction, call.given)
    except TimeoutError as error:
        if limit.expired():
            raise HandlerFailed(f"it was cancelled after {call.timeout:g} s, the handlers' timeout") from error
        raise
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - raised again, in other words
        _raise_failure(error, call)


def call_sync(call: Call, transaction: object) -> object:
    """Call a plain handler; a GeneratorExit is its failure too, since nobody closes a plain function."""
    try:
        return call.handler(transaction, call.given)
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except GeneratorExit as error:
        raise HandlerFailed("it raised GeneratorExit") from error
    except BaseException as error:  # noqa: BLE001 - raised again, in other words
        _raise_failure(error, call)


def is_open(driver: Any) -> bool:
    """Say whether a transaction is open on a driver's connection, and sound: by what the server said last."""
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    if hasattr(driver, "in_transaction"):  # sqlite3
        return bool(driver.in_transaction)
    return int(driver.info.transaction_status) == _IN_TRANSACTION


_IN_TRANSACTION = 2  # libpq's PQTRANS_INTRANS


@contextmanager
def guarded(driver: Any, call: Call) -> Iterator[None]:
    """Let a handler not end the transaction of a sqlite3 connection that its events share with others: their rows are
    written. PostgreSQL refuses that by itself."""
    guard = call.shared and hasattr(driver, "set_authorizer")
    if guard:
        driver.set_authorizer(refuse_ends)
    try:
        yield
    finally:
        if guard:
            driver.set_authorizer(None)


def refuse_ends(action: int, *_: object) -> int:
    """Tell SQLite, which asks before it compiles a statement, that COMMIT and ROLLBACK are not allowed."""
    return _SQLITE_DENY if action == _SQLITE_TRANSACTION else _SQLITE_OK


_SQLITE_OK, _SQLITE_DENY, _SQLITE_TRANSACTION = 0, 1, 22


@contextmanager
def commit_failures(*broken: type[Exception]) -> Iterator[None]:
    """Turn a constraint that waits for the commit, and is `broken`, into the handler's failure."""
    try:
        yield
    except broken as error:
        raise refused_at_commit(error) from error


def refused_at_commit(error: Exception) -> HandlerFailed:
    """A constraint that waits for the commit is broken."""
    refused = "what it wrote was refused at the commit"
    return HandlerFailed(f"{refused}: {words_of(error)}", f"{refused}: {type(error).__name__}")


def _raise_failure(error: BaseException, call: Call) -> NoReturn:
    """Raise as the handler's failure what would end a worker of the consumer, and what nobody asked for."""
    if not isinstance(error, asyncio.CancelledError):
        raised = f"it raised {type(error).__name__}"
        raise HandlerFailed(f"{raised}: {words_of(error)}", f"{raised}{place_of(error, call.handler)}") from error
    if _cancelled():
        raise error
    raise HandlerFailed("it raised CancelledError, although nobody cancelled it") from error


def _cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread of its own: there is nothing to cancel
        return False
    return task is not None and task.cancelling() > 0
