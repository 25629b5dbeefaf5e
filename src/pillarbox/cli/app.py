"""The whole command: every theme's commands under one name, and the one place where an error becomes a line."""

import os
import sys
from typing import Annotated

import typer

from pillarbox import __version__
from pillarbox.cli import config, consume, dead, demo, events, migrate, relay, status, topics
from pillarbox.cli.output import say
from pillarbox.errors import PillarboxError

app = typer.Typer(
    name="pillarbox",
    help="The transactional outbox and inbox for Python.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"auto_envvar_prefix": "PILLARBOX", "help_option_names": ["--help", "-h"]},
)
app.command("demo")(demo.demo)
app.command("init")(config.init)
app.add_typer(migrate.app, name="migrate")
app.command("status")(status.status)
app.add_typer(relay.app, name="relay")
app.command("pause")(topics.pause)
app.command("resume")(topics.resume)
app.command("consume")(consume.consume)
app.add_typer(events.app, name="events")
app.add_typer(dead.app, name="dead")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pillarbox {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="PILLARBOX_DEBUG", show_default="off", help="Show where an error arose.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            allow_from_autoenv=False,
            show_default="off",
            help="Print the version and stop.",
        ),
    ] = False,
) -> None:
    """The transactional outbox and inbox for Python."""
    if debug:
        os.environ["PILLARBOX_DEBUG"] = "1"


def run() -> None:
    """Run the command line; an error that we raise on purpose becomes one line and exit code 1."""
    try:
        app(prog_name="pillarbox")
    except PillarboxError as error:
        if os.environ.get("PILLARBOX_DEBUG"):
            raise
        say(f"pillarbox: {error}")
        sys.exit(1)
