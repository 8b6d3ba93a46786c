import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def ask():
    """Asks a process of its own, where sets of names are walked in the same order every time."""
    command = [sys.executable, "-m", "tests.virtual.noticed", "--serve"]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:

        def ask(*question):
            print(*question, file=one.stdin, flush=True)
            return json.loads(one.stdout.readline())

        yield ask
        one.stdin.close()
