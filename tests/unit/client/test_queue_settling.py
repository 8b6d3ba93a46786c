"""How jobs ended, told to the head of their partition."""

import asyncio
from types import SimpleNamespace

import pytest

from stentor.client.job import Job
from stentor.client.queue_settling import JobSettling
from stentor.wire import queue_messages as m

HOLDER = b"h" * 16


class Port:
    """A partition whose head takes everything."""

    def __init__(self):
        self.holder, self.partition, self.where = HOLDER, 0, {"topic_id": 1, "partition": 0}
        self.held = {}
        self.asked = []

    def freed(self): ...

    async def ask(self, request):
        self.asked.append(request)
        return m.SettledJobs()

    def hold(self, offset, attempt):
        job = self.held[offset] = Job(SimpleNamespace(offset=offset), attempt, self, HOLDER)
        return job


def consumer():
    """One that has begun nothing, and whose jobs do not die."""
    return SimpleNamespace(
        core=SimpleNamespace(loop=asyncio.get_running_loop()),
        note_begun=lambda: None,
        undertaker=SimpleNamespace(expects=lambda _: False),
    )


@pytest.mark.parametrize("done", [True, False])
def test_what_is_said_of_an_attempt_does_not_let_go_of_a_later_one(done):
    """The head took the first one back, since it took too long, and gave the same job to the same consumer again."""

    async def settle():
        port = Port()
        settling = JobSettling(port, consumer())
        first, other = port.hold(3, 1), port.hold(4, 1)
        again = port.hold(3, 2)
        for job in (first, other):
            if done:
                settling.finish(job)
            else:
                settling.give_back(m.JobReturn(offset=job.message.offset, attempt=job.attempt))
        settling.end()
        await settling.loop()
        assert port.held == {3: again}
        assert len(port.asked) == 1

    asyncio.run(settle())
