"""A few ten thousand of the cases that `make fuzz` runs a million of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stentor import limits

ROOT = Path(__file__).resolve().parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "tests.hostile.fuzz", *options]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mutated_frames_batches_and_messages_meet_typed_refusals_only():
    done = run("--cases", "10000", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["cases"] == sum(report["outcomes"].values()) == 10_000
    for target in ("batches", "frames", "messages"):
        assert sum(times for name, times in report["outcomes"].items() if name.startswith(target)) > 1_500
    assert report["outcomes"]["batches: accepted"] > 0
    assert report["arrow_bytes"] < 4 * limits.BATCH_EXPANDED_BYTES_MAX
    assert report["resident_bytes"] < 512 << 20


@pytest.mark.long
def test_a_case_is_the_same_every_time():
    one, other = (json.loads(run("--cases", "100", "--seed", "7").stdout.splitlines()[-1]) for _ in range(2))
    assert one["outcomes"] == other["outcomes"]
