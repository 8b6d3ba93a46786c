"""``python -m tests.virtual --seeds 100 --from 1``: the product's own brokers and clients in virtual time.

One seed again, with what everyone logs: ``--from 34 --seeds 1 --log``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from contextlib import nullcontext

from tests.virtual.mutations import MUTATIONS, mutated
from tests.virtual.runner import FailedError, Run
from tests.virtual.world import SECOND


class _Log(logging.Handler):
    """In virtual time, and by process."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._world = run.world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        who = world.current.name if world.current is not None else "-"
        print(f"{world.now / SECOND:.4f} {who} {record.levelname[0]} {record.name} {record.getMessage()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of them")
    parser.add_argument("--log", action="store_true", help="show what everyone logs, in virtual time")
    parser.add_argument("--mutation", choices=[*MUTATIONS], help="switch a rule off, and stop when a run notices")
    wishes = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # else sets of names are walked in another order each time
        again = [sys.executable, "-m", "tests.virtual", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.unraisablehook = lambda _: None  # coroutines of dead processes complain when they are thrown away
    warnings.simplefilter("ignore")  # for the same reason
    logging.getLogger().setLevel(logging.INFO if wishes.log else logging.CRITICAL + 1)
    with mutated(wishes.mutation) if wishes.mutation else nullcontext():
        return run_all(wishes)


def run_all(wishes: argparse.Namespace) -> int:
    began, failed, sent = time.perf_counter(), 0, 0
    for seed in range(wishes.first, wishes.first + wishes.seeds):
        run = Run(seed)
        logging.getLogger().handlers[:] = [_Log(run)] if wishes.log else [logging.NullHandler()]
        try:
            run.run()
        except FailedError as error:
            failed += 1
            print(error, flush=True)
        sent += run.load.sent
        if wishes.mutation and failed:
            break
    took = time.perf_counter() - began
    print(f"{wishes.seeds} seeds, {failed} failed, {sent} messages, {took:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
