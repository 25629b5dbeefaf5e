"""The whole command: every theme's commands under one name, and the one place where an error becomes a line."""

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NoReturn, cast

import typer

from pillarbox import __version__
from pillarbox.cli import (
    adopt,
    audit,
    bench,
    config,
    connector,
    consume,
    dead,
    demo,
    doctor,
    events,
    health,
    migrate,
    prune,
    relay,
    replay,
    source,
    stats,
    status,
    top,
    topics,
    torture,
)
from pillarbox.cli.output import ExitCode, say
from pillarbox.core.secrets import quiet, quiet_error, without_secrets
from pillarbox.errors import ConfigError, MissingExtra, PillarboxError

# click's own exception, of which some releases of typer have a copy
_MISTYPED = cast(type[Exception], typer.BadParameter.__mro__[2])
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
app.command("torture")(torture.torture)
app.command("bench")(bench.bench)
app.command("init")(config.init)
app.add_typer(migrate.app, name="migrate")
app.command("status")(status.status)
app.command("health")(health.health)
app.command("stats")(stats.stats)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.add_typer(relay.app, name="relay")
app.add_typer(source.app, name="source")
app.command("pause")(topics.pause)
app.command("resume")(topics.resume)
app.command("consume")(consume.consume)
app.add_typer(events.app, name="events")
app.add_typer(dead.app, name="dead")
app.command("replay")(replay.replay)
app.add_typer(audit.app, name="audit")
app.command("prune")(prune.prune)
app.command("adopt")(adopt.adopt)
app.add_typer(connector.app, name="connector")
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
    """Run the command line; an error becomes one line and its exit code, its traceback is shown with --debug."""
    _replace_closed_streams()
    _refuse_what_is_not_text()
    try:
        sys.exit(app(prog_name="pillarbox", standalone_mode=False))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except typer.Abort:
        say("Aborted!")
        sys.exit(ExitCode.ERROR)
    except _MISTYPED as mistake:
        _show(mistake)
    except PillarboxError as error:
        _end(error, str(error), _code(error))
    except OSError as error:
        written = error.filename is None
        _end(error, f"the output cannot be written: {error.strerror or error}" if written else _unexpected(error))
    except Exception as error:  # noqa: BLE001 - the last resort: nobody should meet a traceback unasked
        _end(error, _unexpected(error))
    finally:
        _flush()


def _show(mistake: Any) -> NoReturn:
    """Say in one line what is wrong with what was typed, but not the secrets that stand in it."""
    if type(mistake).__name__ == "NoArgsIsHelpError":  # nothing is wrong: the help is what was asked for
        mistake.show()
        sys.exit(mistake.exit_code)
    mistake.message = _without_typed_secrets(mistake.message)
    line = " ".join(mistake.format_message().split())
    context = getattr(mistake, "ctx", None)
    path = "pillarbox" if context is None else context.command_path
    say(f"pillarbox: {line.removesuffix('.')}{_of_commands(mistake, context)}; `{path} --help` shows what there is")
    sys.exit(mistake.exit_code)


def _of_commands(mistake: Any, context: Any) -> str:
    """Say so if a flag stands before the command that it belongs to."""
    flag = getattr(mistake, "option_name", None)
    commands = getattr(getattr(context, "command", None), "commands", {})
    having = [name for name, command in _leaves(commands) if any(flag in option.opts for option in command.params)]
    if type(mistake).__name__ != "NoSuchOption" or not having:
        return ""
    meant = next((name for name in having if set(name.split()) <= set(sys.argv)), "COMMAND")
    return f"; it stands behind the command: {context.command_path} {meant} {flag} …"


def _leaves(commands: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command.commands, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _without_typed_secrets(text: str) -> str:
    for argument in sorted(sys.argv[1:], key=len, reverse=True):
        if "://" in argument:  # whole, because a password may hold blanks
            text = text.replace(argument, without_secrets(argument))
    return quiet(text)


def _replace_closed_streams() -> None:
    """Put something in the place of streams that were closed before we began, lest a database gets their number.

    Writing to the output fails then, as it should; talk goes nowhere.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - open until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the end


def _refuse_what_is_not_text() -> None:
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            say(f"pillarbox: the argument {without_secrets(argument)!a} is not UTF-8")
            sys.exit(ExitCode.USAGE)


def _code(error: PillarboxError) -> ExitCode:
    """Tell what was typed or set wrong from what went wrong; a library that is missing was not typed."""
    wrong = isinstance(error, ConfigError) and not isinstance(error, MissingExtra)
    return ExitCode.USAGE if wrong else ExitCode.ERROR


def _end(error: Exception, line: str, code: ExitCode = ExitCode.ERROR) -> NoReturn:
    if os.environ.get("PILLARBOX_DEBUG", "").lower() not in ("", "0", "f", "false", "n", "no", "off"):
        print(_without_typed_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    else:
        say(f"pillarbox: {_without_typed_secrets(line)}")
    sys.exit(code)


def _unexpected(error: Exception) -> str:
    text = quiet_error(" ".join(str(error).split()))
    return f"unexpected {type(error).__name__}: {text}; run again with --debug and report it"


def _flush() -> None:
    """Flush now: a reader that has gone is no news here, and Python would complain about it when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
