"""The product's own brokers and clients in virtual time: some seeds, and rules that are switched off."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.virtual.mutations import MUTATIONS, SEEDS

ROOT = Path(__file__).resolve().parents[2]
SOME = 12
MORE = 20  # seeds that are tried when the remembered one has gone stale


def virtual(*arguments):
    """In a process of its own, where sets of names are walked in the same order every time."""
    command = [sys.executable, "-m", "tests.virtual", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )
    assert re.search(r"\d+ seeds, \d+ failed", done.stdout), done.stdout + done.stderr
    return done


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_some_seeds_find_nothing():
    """Always the same: `make simulate-product` is for others."""
    done = virtual("--from", 1, "--seeds", SOME)
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_of_the_driver_that_is_switched_off_is_noticed(name):
    done = virtual("--mutation", name, "--from", SEEDS[name], "--seeds", MORE)
    assert done.returncode == 1, f"nobody noticed: {done.stdout}"


def test_a_seed_is_the_same_run_every_time():
    first, second = (
        re.sub(r"stentor-virtual-\w+", "", virtual("--from", 5, "--seeds", 1, "--log").stdout) for _ in range(2)
    )
    assert first.splitlines()[:-1] == second.splitlines()[:-1]
    assert len(first.splitlines()) > 50
