"""Which events: the flags that narrow a command down, and the query they make."""

from datetime import UTC, datetime
from typing import Annotated, cast, get_args

import typer

from pillarbox.cli.options import check_given_topic
from pillarbox.errors import ConfigError
from pillarbox.ports import Query, Side, Status
from pillarbox.settings.durations import parse_duration


def _named(name: str | None) -> str | None:
    """Refuse an empty name, mostly a variable that was not set: nothing is called so."""
    if name == "":
        raise typer.BadParameter("nothing has an empty name: leave it out, or give one")
    return name


EventId = Annotated[str, typer.Argument(metavar="ID", help="The event's id.")]
Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        show_default="every one",
        help=f"Only events in this status (repeatable): {', '.join(get_args(Status))}.",
    ),
]
Type = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", show_default="every one", help="Only events of this type.", callback=_named),
]
OfTopic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        show_default="every one",
        help="Only events of this topic.",
        callback=check_given_topic,
    ),
]
Aggregate = Annotated[
    str | None,
    typer.Option("--aggregate", metavar="TYPE:ID", show_default="every one", help="Only this aggregate's events."),
]
Inbox = Annotated[bool, typer.Option("--inbox", show_default="off", help="What was received, not what was added.")]
Consumer = Annotated[
    str | None,
    typer.Option(
        "--consumer",
        metavar="NAME",
        show_default="every one",
        help="Only this consumer's, with --inbox.",
        callback=_named,
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", show_default="the beginning", help="2026-01-31T12:00Z, or '2 h' ago."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", show_default="now", help="2026-01-31T12:00Z, or '2 h' ago.")
]
Error = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", show_default="every one", help="Only events whose error has this in it."),
]
MOST = 1_000_000_000
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MOST, help="How many at most.")]


def select(
    *,
    ids: list[str] | None = None,
    status: list[str] | None = None,
    type: str | None = None,
    topic: str | None = None,
    aggregate: str | None = None,
    inbox: bool = False,
    consumer: str | None = None,
    since: str | None = None,
    until: str | None = None,
    error: str | None = None,
    oldest_first: bool = False,
    limit: int = 100,
) -> Query:
    """Make the query that the flags say."""
    return Query(
        side=_side(inbox, consumer),
        ids=tuple(ids or ()),
        status=tuple(_status(name) for name in status or ()),
        type=type,
        topic=topic,
        aggregate=None if aggregate is None else _aggregate(aggregate),
        consumer=consumer,
        since=None if since is None else _instant("--since", since),
        until=None if until is None else _instant("--until", until),
        error=None if error is None else _error(error),
        newest_first=not oldest_first,
        limit=limit,
    )


def _side(inbox: bool, consumer: str | None) -> Side:
    if consumer is not None and not inbox:
        raise typer.BadParameter("only the inbox has consumers: add --inbox", param_hint="'--consumer'")
    return "inbox" if inbox else "outbox"


def _status(name: str) -> Status:
    if name not in get_args(Status):
        raise typer.BadParameter(f"{name!r} is none of {', '.join(get_args(Status))}", param_hint="'--status'")
    return cast(Status, name)


def _aggregate(text: str) -> tuple[str, str]:
    kind, colon, id = text.partition(":")
    if not colon:
        raise typer.BadParameter(f"{text!r} is not TYPE:ID, such as order:7", param_hint="'--aggregate'")
    return kind, id


def _error(text: str) -> str:
    if not text:
        raise typer.BadParameter("an empty text is in every error: leave it out", param_hint="'--error'")
    return text


def _instant(flag: str, text: str) -> datetime:
    try:
        return _read_instant(text)
    except ConfigError as error:
        raise typer.BadParameter(
            f"{text!r} is neither a time such as 2026-01-31T12:00Z nor a duration such as '2 h'",
            param_hint=f"'{flag}'",
        ) from error
    except OverflowError as error:
        raise typer.BadParameter(f"{text!r} is before the year 1 or after 9999", param_hint=f"'{flag}'") from error


def _read_instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC) - parse_duration(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def refuse_everything(*given: object) -> None:
    """Refuse to act where nothing was given that says on what."""
    if not any(given):
        raise typer.BadParameter("name events by their ids, narrow them down, or say --all", param_hint="'[ID]...'")
