"""Repeat a simulated run: .venv/bin/python -m tests.simulation --seed 17"""

import argparse

from tests.simulation.edition import NEWEST, Edition
from tests.simulation.run import run_one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--edition", type=int, default=NEWEST, help="of a seed that failed in an older world")
    arguments = parser.parse_args()
    result = run_one(arguments.seed, edition=Edition(arguments.edition))
    print(result)
    return 1 if result.faults else 0


raise SystemExit(main())
