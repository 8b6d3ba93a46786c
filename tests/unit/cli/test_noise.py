"""Java's notes are hidden, what a person can use is shown, and what comes at the end is not."""

from __future__ import annotations

import os
import subprocess
import sys

from stentor.cli.noise import Filter

TALKS = """
import sys
for line in sys.stdin:
    print(line, end="", file=sys.stderr, flush=True)
"""


def lines_from(descriptor, count):
    found = b""
    while found.count(b"\n") < count:
        found += os.read(descriptor, 1000)
    return found.decode().splitlines()


def test_notes_of_java_are_hidden_and_errors_shown():
    reading, writing = os.pipe()
    kept = os.dup(2)
    os.dup2(writing, 2)
    try:
        noise = Filter()
        with noise.starting():
            program = subprocess.Popen([sys.executable, "-c", TALKS], stdin=subprocess.PIPE, text=True)
        for line in ("WARNING: Using incubator modules", "NOTE: Picked up", "12:00:00 ERROR Executor: full", "and why"):
            print(line, file=program.stdin, flush=True)
        assert lines_from(reading, 2) == ["12:00:00 ERROR Executor: full", "and why"]
        noise.end()
        print("Traceback (most recent call last):", file=program.stdin, flush=True)
        program.stdin.close()
        program.wait()
        os.write(2, b"ours\n")
        assert lines_from(reading, 1) == ["ours"]
    finally:
        os.dup2(kept, 2)
        for descriptor in (reading, writing, kept):
            os.close(descriptor)
