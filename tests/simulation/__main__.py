"""Repeat a simulated run: python -m tests.simulation --seed 17"""

import argparse

from tests.simulation.run import run_one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    result = run_one(parser.parse_args().seed)
    print(result)
    return 1 if result.faults else 0


raise SystemExit(main())
