"""A member of a group whose process stood still begins nothing that others have finished by then (C36)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stentor.testing import broker

MEMBER = """
import json, sys, time
import stentor

def work(message):
    print(json.dumps(message.offset), flush=True)
    time.sleep(0.02)

if __name__ == "__main__":
    url, way = sys.argv[1:3]
    with stentor.connect(url, name="stopped") as client, client.group("g", "t", silence=3) as group:
        if way.startswith("run"):
            group.run("member:work", mode=way.removeprefix("run "))
        elif way == "iterate":
            for message in group:
                work(message)
        else:
            while True:
                work(group.get(timeout=60))
"""


class Member:
    """A member with processes of its own, and what these have begun."""

    def __init__(self, folder: Path, url: str, way: str) -> None:
        (folder / "member.py").write_text(MEMBER)
        self._process = subprocess.Popen(
            [sys.executable, "member.py", url, way],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.begun: list[int] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.begun.append(json.loads(line))

    def send(self, number: int) -> None:
        """To the process and its workers."""
        os.killpg(self._process.pid, number)

    def close(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait()
        self._reader.join(10)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["get", "iterate", "run thread", "run process"])
def test_a_woken_member_begins_nothing_that_another_has_finished(tmp_path, wait_until, way):
    with broker() as local, local.client() as client:
        client.create_topic("t", partitions=1)
        with client.producer("t") as producer:
            producer.send_many([str(number) for number in range(4_000)])
        stopped = Member(tmp_path, local.url, way)
        try:
            wait_until(lambda: len(stopped.begun) > 10, "the member is at work")
            stopped.send(signal.SIGSTOP)
            with local.client(name="other") as others, others.group("g", "t", silence=10) as other:
                first = other.get(timeout=30).offset
                for _ in range(500):
                    last = other.get(timeout=30).offset
                other.commit()
                before = len(stopped.begun)
                stopped.send(signal.SIGCONT)
            # It has left: the stopped member gets the partition back, behind what was committed.
            wait_until(lambda: any(offset > last for offset in stopped.begun), "the member is at work again")
        finally:
            stopped.close()
    assert [offset for offset in stopped.begun[before:] if first <= offset < last] == []
