import os
import shlex
import subprocess
import sys

import pytest

PYTHON = shlex.quote(sys.executable)


@pytest.mark.parametrize(
    ("closed", "arguments"),
    [
        (">&-", "--version"),
        (">&-", "topic list"),
        (">&-", "read nothing.*"),
        ("<&-", "publish empty --quiet"),
        ("2>&-", "topic list --json"),
        ("<&- >&- 2>&-", "topic list"),
    ],
)
def test_closed_standard_streams_are_as_good_as_empty_ones(running_broker, closed, arguments):
    command = f"exec {PYTHON} -m stentor {arguments} {closed}"
    environment = {**os.environ, "STENTOR_URL": running_broker.url}
    done = subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert b"bug" not in done.stderr


def test_output_that_cannot_be_written_is_one_sentence_and_exit_code_1():
    command = f"{PYTHON} -m stentor --help >/dev/full"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr
