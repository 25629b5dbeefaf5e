"""Show where each event's microseconds go: in a relay from PostgreSQL to each broker, and in the broker's bare client.

    python -m benchmarks.brokers.profile            # all of them
    python -m benchmarks.brokers.profile kafka nats

Microseconds of processor time an event, of all threads; the servers' own beside them. Not a benchmark: looking costs.
"""

import argparse
import asyncio
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from time import perf_counter
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.brokers import stages
from benchmarks.brokers.drain import messages_of
from benchmarks.brokers.sampling import Sampler, used_by
from benchmarks.brokers.stages import Stage
from benchmarks.postgres import shop
from pillarbox.core.message import Message
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay
from servers.postgres import Postgres
from servers.process import process_ids, works_in

EVENTS = 50_000
PATIENCE = 300.0
MOST = 15
_spawn = multiprocessing.get_context("spawn")


class Cost(NamedTuple):
    """Microseconds an event: by part of the client, of the broker's process, of PostgreSQL's."""

    parts: dict[str, float]
    broker: float
    postgres: float
    per_second: float
    functions: dict[str, float] = {}
    """Of all samples, the share that found a function at work."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brokers.profile", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"one or more of {', '.join(stages.ALL)}")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--functions", action="store_true", help="show where in the relay's code, too")
    options = parser.parse_args()
    console = Console()
    with shop.durable_server() as server, shop.database(server) as url:
        shop.fill(url, options.events, 1000)
        messages = asyncio.run(messages_of(url, options.events))
        for kind in options.kinds or stages.ALL:
            with stages.ALL[kind]() as stage:
                stage.publish(messages[:5000])  # whoever is asked first would pay for the waking up
                stage.empty()
                bare = _of_client(stage, messages)
                stage.empty()
                shop.rewind(url)
                relay = _of_relay(server, url, stage, options.events)
                console.print(_table(stage, relay, bare))
                if options.functions:
                    console.print(*(f"{share:6.1%}  {name}" for name, share in relay.functions.items()), sep="\n")


def _of_client(stage: Stage, messages: Sequence[Message]) -> Cost:
    sampler, before = Sampler(), used_by([stage.pid])
    sampler.start()
    seconds = stage.publish(messages)
    parts = sampler.stop()
    return _cost(parts, used_by([stage.pid]) - before, 0.0, seconds, len(messages))


def _of_relay(server: Postgres, url: str, stage: Stage, count: int) -> Cost:
    """Run a relay in a process of its own, which looks at itself from its first lanes to its last event."""
    ours, theirs = _spawn.Pipe()
    relay = _spawn.Process(target=_relay, args=(url, stage.url, count, theirs), daemon=True)
    relay.start()
    try:
        if not ours.poll(PATIENCE):
            raise RuntimeError(f"the relay has said nothing for {PATIENCE:.0f} s")
        ours.recv()
        postgres = [pid for pid in process_ids() if works_in(pid, server.data)]
        before = used_by([stage.pid]), used_by(postgres)
        if not ours.poll(PATIENCE):
            raise RuntimeError(f"the relay was not through after {PATIENCE:.0f} s")
        parts, seconds, functions = ours.recv()
        cost = _cost(parts, used_by([stage.pid]) - before[0], used_by(postgres) - before[1], seconds, count)
        return cost._replace(functions=functions)
    finally:
        relay.kill()
        relay.join()


def _relay(url: str, broker: str, count: int, parent: "Connection[object, object]") -> None:
    sampler, settled, began = Sampler(), 0, 0.0

    def hear(moment: Moment, facts: Facts) -> None:
        nonlocal settled, began
        if moment is Moment.LANES_TAKEN and not began:
            began = perf_counter()
            sampler.start()
            parent.send("at work")
        elif moment is Moment.SETTLED:
            settled += int(str(facts["count"]))
            if settled >= count:
                took = perf_counter() - began
                parts, functions = sampler.stop(), sampler.functions
                parent.send((parts, took, {name: n / functions.total() for name, n in functions.most_common(MOST)}))

    Relay(database=url, broker=broker, hooks=Hooks(hear)).run_forever()


def _cost(parts: dict[str, float], broker: float, postgres: float, seconds: float, count: int) -> Cost:
    each = {part: micros / count for part, micros in parts.items()}
    return Cost(each, broker / count, postgres / count, count / seconds)


def _table(stage: Stage, relay: Cost, bare: Cost) -> Table:
    table = Table("µs an event", title=f"{stage.name}: {relay.per_second:,.0f} and {bare.per_second:,.0f} events/s")
    table.add_column("relay", justify="right")
    table.add_column(f"bare {stage.client}", justify="right")
    parts = sorted({*relay.parts, *bare.parts}, key=lambda part: -relay.parts.get(part, 0.0))
    for part in parts:
        if max(relay.parts.get(part, 0.0), bare.parts.get(part, 0.0)) >= 0.05:
            table.add_row(part, _figure(relay.parts.get(part)), _figure(bare.parts.get(part)))
    table.add_row("together", _figure(sum(relay.parts.values())), _figure(sum(bare.parts.values())), end_section=True)
    table.add_row(f"{stage.name}'s own process", _figure(relay.broker), _figure(bare.broker))
    table.add_row("PostgreSQL's processes", _figure(relay.postgres), "")
    return table


def _figure(micros: float | None) -> str:
    return "" if micros is None else f"{micros:.1f}"


if __name__ == "__main__":
    main()
