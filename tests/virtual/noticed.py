"""Who notices a mutation: a directed run, or seeds.

    python -m tests.virtual.noticed                        every mutation, by what noticed it before
    python -m tests.virtual.noticed NAME … --search 100    look for seeds that notice these, among so many
    python -m tests.virtual.noticed --serve                for tests: questions come in, answers go out, a line each

Prints a line for each, and ends with 1 if somebody was not noticed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.virtual.directed import RUNS
from tests.virtual.mutations import MUTATIONS, mutated
from tests.virtual.runner import Run, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTED = {
    "found": "poisoned_producer",
    "forget-epoch": "shorter_head",
    "halt": "restored_head",
    "damaged": "shortened_head",
    "retention": "early_retention",
    "read-back": "lost_proposal",
    "joint": "slow_joiner",
    "ready": "slow_joiner",
    "cut-together": "shortened_alone",
    "cut-alone": "torn_alone",
    "holes": "copy_with_a_hole",
    "controller-key": "replaced_controller",
    "confirmed": "isolated_head",
    "mutual": "mute_head",
    "told": "sidelined_head",
    "grey": "grey_member",
    "slow": "slow_member",
    "all-slow": "all_slow",
    "all-stall": "all_slow",
    "hangs-among": "hangs_among_slow",
    "passed-on": "unheard_complaint",
    "own-lag": "standstill",
    "second-observer": "lone_observer",
    "leases": "lapsed_leases",
    "wave": "wave_of_silence",
    "blame": "blame",
    "own-disk": "grey_member",
    "unable": "full_member",
    "able": "all_full",
    "link-cut": "neighbours_cut",
    "joint-stall": "joiner_hangs",
    "hearsay": "liar",
    "rollback": "restored_store",
    "resign": "storeless_controller",
    "confirm": "paused_head",
    "short-end": "one_of_three_returns",
    "cursor-cut": "moved_in_vain",
    "state": "state_in_pieces",
    "informed": "cut_off_watcher",
    "in-full": "led_again",
    "touch": "touched_in_vain",
    "expired-version": "put_on_its_way",
}
SEEDS: dict[str, list[int]] = {
    "epochs": [5],
    "old-records": [1, 2],
    "epoch-stored": [2, 3],
    "incarnations": [1, 2],
    "top-down": [2, 3],
    "commit-minimum": [2, 3],
    "deposed": [7, 8],
    "quorum": [2, 3],
    "minimum": [2, 3],
    "eligible": [2, 3],
    "reconcile": [1, 5],
    "continues": [1, 5],
    "death": [1, 2],
    "others-wait": [5, 9],
    "resend-level": [3],
    "dedupe": [3, 4],
    "derived": [1, 2],
    "conditions": [1, 2],
    "applied": [1, 2],
    "outcome": [3],
    "undo": [2, 4],
    "let-go": [5],
    "group-leases": [11],
    "ask-again": [1, 2],
    "stale-commit": [2, 26],
    "member-leases": [2],
    "work-position": [1],
    "memory-silence": [2, 4],
    "memory-offsets": [4, 6],
    "memory-copy": [1, 2],
    "queue-renewal": [14, 30],
    "queue-attempts": [1, 2],
    "queue-holder": [1, 2],
    "queue-commit": [4, 7],
    "queue-in-full": [3, 5],
    "transaction-heir": [1],
    "transaction-number": [3],
    "transaction-held": [1],
    "transaction-doubt": [1],
    "cursor-commit": [2, 3],
    "cursor-back": [1, 2],
    "latest": [1, 2],
    "below": [2, 3],
    "covered": [1],
    "renewed": [2, 3],
    "own-retention": [2, 3],
    "own-start": [2, 3],
    "no-sync": [1, 2],
    "no-store": [2, 3],
    "no-retire": [3, 10],
    "uncommitted": [1, 2],
    "skips": [1, 2],
}
"""Those that noticed a mutation when it was last searched."""
_PARTING = {"favour": ("head", "head_bounces", "pair", "split", "pause", "slow_disk"), "ack": "head", "factor": 3}
FAVOURED: dict[str, dict[str, Any]] = {
    "latest": {"compaction": True},
    "below": {"compaction": True},
    "covered": {"compaction": True},
    "let-go": {"groups": True, "retains": False},
    "group-leases": {"groups": True, "retains": False},
    "ask-again": {"requests": True},
    "stale-commit": {"groups": True, "retains": False},
    "member-leases": {"groups": True, "retains": False},
    "work-position": {"groups": True, "retains": False},
    "transaction-heir": {"transactions": True},
    "transaction-number": {"transactions": True},
    "transaction-held": {"transactions": True},
    "transaction-doubt": {"transactions": True},
    "memory-silence": {"memory": True, "retains": False, "factor": 1, "favour": ("isolate", "pause", "split")},
    "memory-offsets": {"memory": True, "retains": False},
    "memory-copy": {"memory": True, "retains": False},
    "queue-renewal": {"queues": True, "retains": False},
    "queue-attempts": {"queues": True, "retains": False},
    "queue-holder": {"queues": True, "retains": False},
    "queue-commit": {"queues": True, "retains": False},
    "queue-in-full": {"queues": True, "retains": False},
    "cursor-commit": {"cursors": True},
    "cursor-back": {"cursors": True},
    "reconcile": _PARTING,
    "continues": _PARTING,
    "derived": _PARTING,
    "quorum": {"ack": "quorum", "factor": 3},
    "conditions": {"table": True},
    "applied": {"table": True},
    "outcome": {"table": True},
    "undo": {**_PARTING, "table": True},
    "others-wait": {"favour": ("kill", "head", "tail"), "factor": 2},
    "own-retention": {"retains": True},
    "own-start": {"retains": True},
    "no-retire": {"favour": ("kill", "pause"), "factor": 3, "retains": True},
}
"""Faults and clusters that bring about the situation that a rule is for, where that is rare."""


def caught_by(name: str, run: Callable[..., Any], *arguments: Any) -> str:
    """What a run says about a mutation; empty when it notices nothing."""
    with mutated(name):
        try:
            run(*arguments)
        except Exception as error:  # noqa: BLE001 - a crash of the product is a finding too
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def plain(run: Callable[[], None]) -> str:
    """What a run finds while every rule is kept: nothing."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}"
    return ""


def one_seed(name: str, seed: int) -> None:
    Run(seed, **FAVOURED.get(name, {})).run()


def caught(name: str, more: int = 0) -> str:
    """Who notices a mutation: its directed run, a remembered seed, or one of some more; empty if nobody does."""
    if name in DIRECTED:
        found = caught_by(name, RUNS[DIRECTED[name]])
        return found and f"{DIRECTED[name]}: {found}"
    for seed in (*SEEDS.get(name, ()), *range(1, more + 1)):
        if found := caught_by(name, one_seed, name, seed):
            return found
    return ""


def search(name: str, seeds: range, enough: int) -> list[int]:
    """Seeds that notice a mutation, and find nothing without it."""
    noticing: list[int] = []
    for seed in seeds:
        found = caught_by(name, one_seed, name, seed)
        if found and not plain(lambda seed=seed: one_seed(name, seed)):
            print(f"    {seed}: {found[:200]}", flush=True)
            noticing.append(seed)
            if len(noticing) == enough:
                break
    print(f"{name}: {noticing} of {seed - seeds.start + 1}", flush=True)
    return noticing


def serve() -> None:
    """`run NAME`: what a directed run finds. `mutation NAME SEEDS`: who notices it, after so many more seeds."""
    for line in sys.stdin:
        what, name, *more = line.split()
        found = plain(RUNS[name]) if what == "run" else caught(name, int(more[0]))
        print(json.dumps(found), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them if none is named")
    parser.add_argument("--search", type=int, default=0, metavar="SEEDS", help="try so many seeds")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of them")
    parser.add_argument("--enough", type=int, default=2, help="stop after so many that notice")
    parser.add_argument("--serve", action="store_true", help="answer what comes in, a line at a time")
    wishes = parser.parse_args()
    prepare("tests.virtual.noticed")
    if wishes.serve:
        serve()
        return 0
    missed = []
    for name in wishes.names or MUTATIONS:
        if wishes.search:
            search(name, range(wishes.first, wishes.first + wishes.search), wishes.enough)
            continue
        began = time.perf_counter()
        by = caught(name)
        took = time.perf_counter() - began
        print(f"{name:16} {took:5.1f} s  {(by or 'NOT NOTICED')[:150]}", flush=True)
        missed += [] if by else [name]
    print(f"not noticed: {', '.join(missed) or 'none'}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
