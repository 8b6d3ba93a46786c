"""The product's own brokers and clients in virtual time: always the same seeds; `make simulate` is for others."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOME = 8
FEW = 3
TWO = 2


def virtual(*arguments):
    """In a process of its own, where sets of names are walked in the same order every time."""
    command = [sys.executable, "-m", "tests.virtual", *map(str, arguments)]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_some_seeds_find_nothing():
    done = virtual("--from", 1, "--seeds", SOME, "--processes", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{SOME} seeds, 0 failed", done.stdout), done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_some_seeds_with_all_that_is_derived_from_logs_find_nothing():
    done = virtual("--cursors", "--expiry", "--compaction", "--from", 1, "--seeds", FEW, "--processes", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{FEW} seeds, 0 failed", done.stdout), done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "first"), [("groups", 1), ("transactions", 1), ("requests", 1), ("queues", 1), ("memory", 3)]
)
def test_some_seeds_with_more_at_work_find_nothing(what, first):
    done = virtual(f"--{what}", "--from", first, "--seeds", TWO, "--processes", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{TWO} seeds, 0 failed", done.stdout), done.stdout + done.stderr


def test_a_seed_is_the_same_run_every_time():
    first, second = (re.sub(r"stentor-virtual-\w+", "", virtual(5, "--log").stdout).splitlines() for _ in range(2))
    assert first == second
    assert len(first) > 50


@pytest.mark.long
def test_a_seed_is_the_same_run_after_another_one():
    alone, after = virtual(3).stdout.splitlines(), virtual(2, 3).stdout.splitlines()
    assert alone[-1] == after[-1]
    assert alone[-1].startswith("seed 3: trace ")
