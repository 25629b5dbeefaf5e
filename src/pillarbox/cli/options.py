"""The flags that many commands share, and how they become settings."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from pillarbox.admin import wording
from pillarbox.admin.admin import Admin
from pillarbox.core.routing import LONGEST
from pillarbox.errors import ConfigError, SchemaMismatch
from pillarbox.settings import Settings
from pillarbox.settings.kinds import known_keys
from pillarbox.settings.urls import parse_url
from pillarbox.torture.directory import unusable
from pillarbox.wiring import check_kinds, open_admin

_MIGRATE = re.compile(r"`pillarbox migrate up[^`]*`|pillarbox migrate up(?: --(?:database|set) [^\s`,;]+)*")


def _url(flag: str, help: str) -> Any:
    return typer.Option(
        f"--{flag}",
        envvar=f"PILLARBOX_{flag.upper()}",
        metavar="URL",
        show_default="as in the settings file",
        help=help,
    )


Database = Annotated[str | None, _url("database", "Where the outbox is, such as sqlite:///shop.db.")]
Broker = Annotated[str | None, _url("broker", "Where events go, such as sqlite:///stream.db.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="PILLARBOX_CONFIG",
        metavar="FILE",
        show_default="pillarbox.toml, if it is there",
        help="The settings file.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        allow_from_autoenv=False,
        metavar="KEY=VALUE",
        show_default="as in the settings file",
        help="Any setting, such as relay.batch=500 (repeatable). [env var: PILLARBOX_RELAY_BATCH and its like]",
    ),
]
_FLAGS: Mapping[str, Any] = {"database": Database, "broker": Broker, "config": Config, "set": Set}
Json = Annotated[
    bool,
    typer.Option("--json", envvar="PILLARBOX_JSON", show_default="off", help="Print JSON, with stable keys."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", show_default="off", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", show_default="off", help="Only say how many.")]


def with_settings(
    *urls: Literal["database", "broker"], refused: Callable[..., NoReturn] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command its `settings`: in that parameter's place it takes the flags that they are loaded by.

    Settings that cannot be used end the command; `refused` says so in the command's own way.
    """
    flags = {name: _FLAGS[name] for name in (*urls, "config", "set")}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(ctx: typer.Context, **given: Any) -> None:
            flagged = {name: given.pop(name) for name in flags}
            try:
                settings = _load(ctx, **flagged)
                check_kinds(settings, *urls)
            except ConfigError as error:
                if refused is None:
                    raise
                refused(error, **given)
            if "database" not in urls:  # an inbox has a database of its own, which the error has named
                command(settings=settings, **given)
                return
            with _cures_that_run(settings):
                command(settings=settings, **given)

        # What the command line offers is read from the signature.
        run.__signature__ = Signature(list(_with_flags(command, flags)))  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def _cures_that_run(settings: Settings) -> Iterator[None]:
    """Let an error that names the command for the tables name it with the flags of this one."""
    try:
        yield
    except SchemaMismatch as error:
        migrate = f"`{wording.command('migrate up', settings)}`"
        raise SchemaMismatch(_MIGRATE.sub(lambda _: migrate, str(error))) from error


def _with_flags(command: Callable[..., None], flags: Mapping[str, Any]) -> Iterator[Parameter]:
    yield Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    for parameter in signature(command).parameters.values():
        if parameter.name != "settings":
            yield parameter
            continue
        for name, flag in flags.items():
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=flag)


def _load(
    ctx: typer.Context,
    *,
    config: Path | None,
    set: Sequence[str] | None,
    database: str | None = None,
    broker: str | None = None,
) -> Settings:
    """Load the settings; what stands in the environment is read by the settings, so that its origin is known."""
    flags: dict[str, object] = dict(_split(text) for text in set or ())
    flags |= {
        name: value
        for name, value in (("database", database), ("broker", broker))
        if _typed(ctx, name) and value is not None
    }
    return Settings.load(config, flags=flags)


def _typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        what = repr(text) if text in known_keys() else "what was given"
        raise typer.BadParameter(f"{what} is not KEY=VALUE, such as relay.batch=500", param_hint="'--set'")
    return key.strip(), value.strip()


def check_topic(topic: str) -> str:
    """Refuse what no topic can be called."""
    if not topic:
        raise typer.BadParameter("a topic's name cannot be empty")
    if len(topic) > LONGEST:
        raise typer.BadParameter(f"a topic's name has at most {LONGEST} characters, this one has {len(topic):,}")
    return topic


def check_given_topic(topic: str | None) -> str | None:
    """Refuse what no topic can be called, where one need not be named."""
    return None if topic is None else check_topic(topic)


def empty_directory(keep: Path | None) -> Path | None:
    """Make the directory that is to keep the files of a run."""
    if keep is not None and (problem := unusable(keep)):
        raise typer.BadParameter(problem, param_hint="'--keep'")
    return keep


def refuse_memory(settings: Settings) -> None:
    """Refuse the broker in this process's memory: nobody else is in this process, and it is gone with it."""
    if settings.broker is not None and parse_url("broker", settings.broker).scheme == "memory":
        raise ConfigError(
            "broker: memory: lives in one process and ends with it, so every event would be thrown away:"
            " use sqlite:///stream.db here, and MemoryBroker() in tests"
        )


def check_ends(settings: Settings) -> None:
    """Refuse a relay that nobody told where to carry events from or to."""
    if settings.database is None and settings.broker is None:
        raise ConfigError(
            "database, broker: are not set: `pillarbox init` writes a pillarbox.toml with both; or give"
            " --database sqlite:///shop.db --broker sqlite:///stream.db, or PILLARBOX_DATABASE and PILLARBOX_BROKER"
        )
    refuse_memory(settings)


@asynccontextmanager
async def admin_of(settings: Settings) -> AsyncIterator[Admin]:
    """Open the outbox for a command that needs its tables."""
    async with open_admin(settings) as admin:
        await admin.check()
        yield admin
