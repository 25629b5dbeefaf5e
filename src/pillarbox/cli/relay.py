"""`pillarbox relay`: the daemon, and one turn of it."""

import asyncio
import logging
import select
import sys
from typing import TextIO

import typer

from pillarbox.cli.options import Broker, Config, Database, Json, Set, load
from pillarbox.cli.output import print_json, say
from pillarbox.errors import BrokerUnavailable
from pillarbox.settings.urls import without_secrets
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.telemetry.logging import LogMoments, log_to, logger
from pillarbox.wiring import Relay

app = typer.Typer(help="Carry events from the outbox to the broker.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def run(
    ctx: typer.Context,
    database: Database = None,
    broker: Broker = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """Relay until stopped.

    Logs to stderr, with --json as JSON lines. SIGTERM hands over, a second one stops at once.
    """
    settings = load(ctx, config, set=set, database=database, broker=broker)
    gone: list[object] = []

    def end_without_reader(moment: Moment, facts: Facts) -> None:
        """Stop when our own output has gone: unlike another broker, it never comes back."""
        if moment is Moment.BROKER_AWAY and (settings.broker or "").startswith("stdout:") and not _is_open(sys.stdout):
            gone.append(facts.get("error"))
            relay.stop()

    relay = Relay(settings, hooks=Hooks(LogMoments(), end_without_reader))
    log_to(as_json=json)
    logger.info(
        "relays from %s to %s", without_secrets(settings.database or ""), without_secrets(settings.broker or "")
    )
    relay.run_forever()
    if gone:
        raise BrokerUnavailable(f"stopped, because nobody reads its output any more: {gone[0]}")
    logger.info("stopped")


def _is_open(stream: TextIO) -> bool:
    """Say whether a stream can be written to, now or later."""
    if not stream.writable():
        return False
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return not poll.poll(0)


@app.command()
def once(
    ctx: typer.Context,
    database: Database = None,
    broker: Broker = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """Relay until the outbox is empty.

    For cron jobs and tests.
    """
    relay = Relay(load(ctx, config, set=set, database=database, broker=broker))
    log_to(as_json=json, level=logging.WARNING)
    published = asyncio.run(relay.run_once())
    if json:
        print_json({"published": published})
    else:
        say(f"published {published:,} event{'' if published == 1 else 's'}")
