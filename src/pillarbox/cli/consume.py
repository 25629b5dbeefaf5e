"""`pillarbox consume`: run the handlers of an inbox."""

import asyncio
import importlib
import logging
import sys
from typing import Annotated

import typer

from pillarbox.admin.wording import counted
from pillarbox.cli.options import Json, check_topic, refuse_memory, with_settings
from pillarbox.cli.output import print_json, say
from pillarbox.core.secrets import quiet_error, without_secrets
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.inbox.inbox import Handlers
from pillarbox.settings import Settings
from pillarbox.telemetry.logging import By, log_to, logger
from pillarbox.wiring import Consumer

_OF_DJANGO = "name Django's settings (DJANGO_SETTINGS_MODULE), and call django.setup() before models are imported"
_NAMED = 10
"""So many types are named that have no handler."""


@with_settings("broker")
def consume(
    *,
    inbox: Annotated[
        str, typer.Argument(metavar="MODULE:INBOX", help="Where the inbox is, such as shop.billing:inbox.")
    ],
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="What to receive (repeatable).",
            show_default="required",
            callback=lambda topics: [check_topic(one) for one in topics],
        ),
    ],
    once: Annotated[
        bool, typer.Option("--once", show_default="off", help="Stop when nothing is left, for cron jobs and tests.")
    ] = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Receive events and run their handlers.

    Until stopped; logs to stderr, with --json as JSON lines. SIGTERM hands over, a second one stops at once.
    """
    refuse_memory(settings)
    consumer = Consumer(find_inbox(inbox), topics=topic, settings=settings)
    if once:
        log_to(as_json=json, level=logging.WARNING, by=By("consumer", consumer.name))
        handled = asyncio.run(consumer.run_once())
        if json:
            print_json({"handled": handled, "passed_over": dict(consumer.passed_over), "left": dict(consumer.left)})
        else:
            say(f"handled {counted(handled, 'event')}{_passed_over(consumer)}")
        if left := ", ".join(f"{count} {status}" for status, count in consumer.left.items()):
            logger.warning("left: %s; `pillarbox events list %s` says why", left, consumer.flags)
        return
    log_to(as_json=json, by=By("consumer", consumer.name))
    logger.info("consumes %s from %s for %s", ", ".join(topic), without_secrets(settings.broker or ""), inbox)
    consumer.run_forever()
    logger.info("stopped%s", _passed_over(consumer))


def _passed_over(consumer: Consumer) -> str:
    """Say what had no handler here: a misspelt type would be missed in silence."""
    found = sorted(consumer.passed_over.items(), key=lambda one: (-one[1], one[0]))
    if not found:
        return ""
    named = ", ".join(f"{count:,} {type}" for type, count in found[:_NAMED])
    more = f", and of {len(found) - _NAMED:,} types more" if len(found) > _NAMED else ""
    return f"; passed over {counted(sum(consumer.passed_over.values()), 'event')} without a handler: {named}{more}"


def find_inbox(place: str) -> object:
    """Import what MODULE:INBOX names; the current directory counts, as for `python -m`."""
    module_name, colon, name = place.partition(":")
    if not (colon and all(module_name.split(".")) and name):
        raise typer.BadParameter(
            f"{place!r} is not MODULE:INBOX, such as shop.billing:inbox", param_hint="'MODULE:INBOX'"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(place, error) from error
        cure = f": write {place.replace('.py:', ':')}" if module_name.endswith(".py") else ""
        raise ConfigError(f"{place}: there is no module {error.name!r} here or on the path{cure}") from error
    except MissingExtra:
        raise
    except ConfigError as error:  # whose words say all
        raise ConfigError(f"{place}: {error}; --debug shows where") from error
    except Exception as error:
        raise _broken(place, error) from error
    if not hasattr(module, name):
        found = sorted(key for key, value in vars(module).items() if _is_inbox(value))
        has = f"; its inboxes are {', '.join(found)}" if found else ", and no inbox under another name"
        raise ConfigError(f"{place}: module {module_name!r} has no {name!r}{has}")
    return getattr(module, name)


def _is_inbox(value: object) -> bool:
    """Look without asking the object itself: an attribute of somebody else's may open a database."""
    return isinstance(getattr(value, "__dict__", {}).get("handlers"), Handlers)


def _broken(place: str, error: Exception) -> ConfigError:
    what = f"{type(error).__name__}: {quiet_error(str(error))}"
    cure = f"; {_OF_DJANGO}" if type(error).__name__ in ("AppRegistryNotReady", "ImproperlyConfigured") else ""
    return ConfigError(f"{place}: its module cannot be imported: {what}{cure}; --debug shows where")
