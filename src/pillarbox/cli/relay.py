"""`pillarbox relay`: the daemon, and one turn of it."""

import asyncio
import logging
import select
import sys
from datetime import timedelta
from typing import TextIO

import typer

from pillarbox.admin.wording import command, resume_command
from pillarbox.cli.options import Json, admin_of, check_ends, with_settings
from pillarbox.cli.output import print_done, say
from pillarbox.cli.topics import told
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Stats
from pillarbox.settings import Settings
from pillarbox.settings.durations import write_duration
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.telemetry.logging import By, LogMoments, log_to, logger
from pillarbox.wiring import Relay, Watch

app = typer.Typer(help="Carry events from the outbox to the broker.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
@with_settings("database", "broker")
def run(*, settings: Settings, json: Json = False) -> None:
    """Relay until stopped.

    Logs to stderr, with --json as JSON lines. SIGTERM hands over, a second one stops at once.
    """
    check_ends(settings)
    gone: list[object] = []

    def end_without_reader(moment: Moment, facts: Facts) -> None:
        """Stop when our own output has gone: unlike another broker, it never comes back."""
        if moment is Moment.BROKER_AWAY and (settings.broker or "").startswith("stdout:") and not _is_open(sys.stdout):
            gone.append(facts.get("error"))
            relay.stop()

    relay = Relay(settings, hooks=Hooks(LogMoments(), end_without_reader))
    log_to(as_json=json, by=By("relay", relay.name))
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
@with_settings("database", "broker")
def once(*, settings: Settings, json: Json = False) -> None:
    """Relay until the outbox is empty.

    For cron jobs and tests. Says what was left: topics that are paused, and events that failed, wait behind one, or are
    delayed.
    """
    check_ends(settings)

    def say_who_is_awaited(moment: Moment, facts: Facts) -> None:
        """Say why nothing happens for a while: somebody else is at work."""
        relays, patience = facts.get("relays"), facts.get("patience")
        if moment is Moment.LANES_AWAITED and isinstance(relays, tuple) and isinstance(patience, timedelta):
            others = ", ".join(f"relay {name}" for name in relays if name != relay.name) or "another relay"
            say(f"waits up to {write_duration(patience)} for {others}, now at work on this outbox")

    relay = Relay(settings, hooks=Hooks(LogMoments(), say_who_is_awaited))
    log_to(as_json=json, level=logging.WARNING, by=By("relay", relay.name))
    print_done("published", asyncio.run(relay.run_once()), json)
    stats = asyncio.run(_stats(settings))
    for pause in stats.pauses:
        if stats.pending_by_topic.get(pause.topic) or stats.overdue_by_topic.get(pause.topic):
            cure = f"`{resume_command(pause.topic, settings)}` lets it flow again"
            logger.warning("topic %s is paused by %s: its events were left; %s", pause.topic, told(pause), cure)
    counts = {
        "dead": stats.dead,
        "blocked": stats.blocked,
        "to be tried again": stats.retrying,
        "delayed": stats.delayed - stats.copies,
        "to be replayed": stats.copies,
    }
    if left := ", ".join(f"{count} {what}" for what, count in counts.items() if count):
        logger.warning("left: %s; `%s` says why", left, command("status", settings))


@app.command()
@with_settings("database")
def watch(*, settings: Settings, json: Json = False) -> None:
    """Keep status and retention while Debezium carries the events.

    Or whoever reads the replication slot that `pillarbox source slot` has named. Publishes nothing. Logs to stderr,
    with --json as JSON lines. PostgreSQL only.
    """
    watch = Watch(settings)
    log_to(as_json=json, by=By("relay", watch.name))
    watch.run_forever()
    logger.info("stopped")


async def _stats(settings: Settings) -> Stats:
    async with admin_of(settings) as admin:
        return await admin.stats()
