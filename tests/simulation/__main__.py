"""Repeat a simulated run: python -m tests.simulation --seed 17"""

import argparse

from tests.simulation.run import run_one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steady-topics", action="store_true", help="no topic fails on its own")
    arguments = parser.parse_args()
    result = run_one(arguments.seed, topics_fail=not arguments.steady_topics)
    print(result)
    return 1 if result.faults else 0


raise SystemExit(main())
