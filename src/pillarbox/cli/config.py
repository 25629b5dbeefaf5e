"""`pillarbox init` writes a settings file; `pillarbox config show` says what holds, and since where."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pillarbox.cli.options import Json, refuse_memory, with_settings
from pillarbox.cli.output import print_json, print_line, print_table
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError
from pillarbox.settings import Settings
from pillarbox.settings.template import template
from pillarbox.wiring import check_urls

app = typer.Typer(help="The settings.", no_args_is_help=True, rich_markup_mode=None)


def init(
    database: Annotated[
        str, typer.Option("--database", metavar="URL", help="Where the outbox is.")
    ] = "sqlite:///shop.db",
    broker: Annotated[str, typer.Option("--broker", metavar="URL", help="Where events go.")] = "sqlite:///stream.db",
    config: Annotated[
        Path, typer.Option("--config", envvar="PILLARBOX_CONFIG", metavar="FILE", help="The file to write.")
    ] = Path("pillarbox.toml"),
    force: Annotated[
        bool, typer.Option("--force", show_default="off", help="Write over a file that is there.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a settings file.

    It holds every setting, its default and what it is for.
    """
    given = Settings(database=database, broker=broker)
    check_urls(given)
    refuse_memory(given)
    text = template(database, broker)
    secret = any(without_secrets(url) != url for url in (database, broker))
    try:
        with open(config, "w" if force else "x", encoding="utf-8", opener=_private if secret else None) as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{config} is there already: --force writes over it") from error
    except OSError as error:
        raise ConfigError(f"{config} cannot be written: {error.strerror}") from error
    if json:
        print_json({"file": str(config)})
    else:
        print_line(f"wrote {config}; next: pillarbox migrate up, then pillarbox relay run")


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, also if it was there."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


@app.command()
@with_settings("database", "broker")
def show(*, settings: Settings, json: Json = False) -> None:
    """Show every setting and where it came from.

    Secrets are hidden.
    """
    shown = list(settings.shown())
    if json:
        print_json([one._asdict() for one in shown])
    else:
        print_table(("SETTING", "VALUE", "FROM"), shown)
