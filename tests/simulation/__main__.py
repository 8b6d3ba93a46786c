"""`python -m tests.simulation SEED [SEED …]`: replay seeds; `--seeds N [--from S]`: run a range."""

import argparse
import sys
import time
import traceback

from tests.simulation.cluster import Cluster


def run_seed(seed, **options):
    """One seed; returns (trace, acknowledgements, steps)."""
    cluster = Cluster(seed, **options)
    trace = cluster.run()
    return trace, cluster.acknowledgements, cluster.world.steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    seeds = options.seed or range(options.first, options.first + options.seeds)
    failed, began, total = [], time.monotonic(), 0
    for seed in seeds:
        try:
            trace, acknowledged, steps = run_seed(seed, show=print if options.trace else None)
            total += acknowledged
            if options.verbose:
                print(f"seed {seed}: trace {trace:08x}, {acknowledged} acknowledged, {steps} steps")
        except Exception as error:  # noqa: BLE001 - a crash of a machine is a finding too
            failed.append(seed)
            if len(failed) <= 3:
                traceback.print_exc(limit=-4) if options.seed else None
            print(f"seed {seed} fails: {type(error).__name__}: {str(error)[: 5000 if options.seed else 300]}")
            print(f"    replay it with: python -m tests.simulation {seed}")
    print(f"{len(seeds)} seeds, {len(failed)} failed, {total} acknowledged, {time.monotonic() - began:.1f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
