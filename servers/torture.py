"""`python -m servers.torture`: torture on servers that are started for it, to which everything may be done.

Relays and consumers reach PostgreSQL through a pooler and a fault proxy, and the broker through a fault proxy; writers,
the tap and the judge go straight to them. In a run of three minutes or more a standby takes over once; consumers then
have a PostgreSQL of their own, because what an asynchronous standby lacks of a ledger nobody could tell from a loss.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from secrets import randbelow

from pillarbox.torture.directory import open_place, unusable
from pillarbox.torture.faults import GROUPS, groups_of
from pillarbox.torture.processes import sigterm_interrupts
from pillarbox.torture.program import chosen, torture
from pillarbox.torture.stage import GivenServers, Stage
from servers.torture_stage import BROKERS, OwnServers

LONG = 3.0
"""From so many minutes on, a standby takes over."""
EMBEDDED = "embedded"
BUILD = Path(__file__).parents[1] / "build"
"""Where the evidence of a run that failed is kept: `torture-BROKER-SEED-…`."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m servers.torture", description=__doc__)
    parser.add_argument("--broker", choices=[*BROKERS, EMBEDDED], default="redis")
    parser.add_argument("--postgres", choices=["15", "17", "18"], default="15")
    parser.add_argument("--minutes", type=float, default=LONG)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", default=",".join(GROUPS), help="kinds of faults, with commas between; or none")
    parser.add_argument("--failover", action="store_true", help="let a standby take over in a short run too")
    parser.add_argument("--keep", type=Path, default=None, help="an empty directory for the evidence")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        groups = groups_of(given.faults)
    except ValueError as error:
        parser.error(str(error))
    if given.keep is not None and (problem := unusable(given.keep)):
        parser.error(problem)
    seed = randbelow(1_000_000) if given.seed is None else given.seed
    words = [f"--broker {given.broker} --postgres {given.postgres} --minutes {given.minutes:g} --seed {seed}"]
    words += [*chosen(groups), *(["--failover"] if given.failover else [])]
    with sigterm_interrupts(), ExitStack() as servers:
        place = servers.enter_context(open_place(given.keep, f"torture-{given.broker}-{seed}", BUILD))
        stage: Stage = (
            GivenServers(None, None, place.path)
            if given.broker == EMBEDDED
            else OwnServers(servers, given.broker, given.postgres, failover=given.failover or given.minutes >= LONG)
        )
        return torture(
            stage, place, given.minutes, seed, groups, " ".join(["python -m servers.torture", *words]),
            as_json=given.json,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
