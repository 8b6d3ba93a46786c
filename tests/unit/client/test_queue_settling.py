"""How jobs ended, told to the head of their partition."""

import asyncio
from types import SimpleNamespace

import pytest

from stentor.client.job import Job
from stentor.client.queue_settling import JobSettling
from stentor.errors import LeaseLost
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


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("is_refused", [True, False])
def test_what_was_on_its_way_as_the_lease_ended_is_answered_with_the_truth(done, is_refused):
    """The process stood still before it could read the answer. The head knows from the log what became of it."""

    class SlowPort(Port):
        def __init__(self):
            super().__init__()
            self.answer = asyncio.get_running_loop().create_future()
            self.was_asked = asyncio.Event()

        def owns(self, holder, until=0.0):
            return holder == self.holder

        async def ask(self, request):
            self.asked.append(request)
            self.was_asked.set()
            return await self.answer

    async def settle():
        port, core = SlowPort(), SimpleNamespace(loop=asyncio.get_running_loop())
        settling = JobSettling(
            port, SimpleNamespace(name="jobs", core=core, note_begun=lambda: None, note_lost=lambda _: None)
        )
        working = asyncio.create_task(settling.loop())
        job = port.hold(3, 1)
        if done:
            settling.finish(job)
        else:
            settling.give_back(m.JobReturn(offset=3, attempt=1))
        waiting = asyncio.create_task(settling.settled(job))
        await port.was_asked.wait()
        port.holder = b"n" * 16
        settling.begin_anew()
        await asyncio.sleep(0)
        assert not waiting.done()
        port.answer.set_result(m.SettledJobs(refused=[3, 1] if is_refused else []))
        if is_refused:
            with pytest.raises(LeaseLost):
                await waiting
        else:
            await waiting
        working.cancel()

    asyncio.run(settle())


def test_what_was_not_on_its_way_as_the_lease_ended_is_lost():
    class Lost(Port):
        def owns(self, holder, until=0.0):
            return holder == self.holder

    async def settle():
        port, core = Lost(), SimpleNamespace(loop=asyncio.get_running_loop())
        settling = JobSettling(port, SimpleNamespace(core=core, note_begun=lambda: None))
        job = Job(SimpleNamespace(offset=3, topic="jobs", partition=0), 1, port, HOLDER)
        settling.finish(job)
        waiting = asyncio.create_task(settling.settled(job))
        await asyncio.sleep(0)
        port.holder = b"n" * 16
        settling.begin_anew()
        with pytest.raises(LeaseLost):
            await waiting
        assert not port.asked

    asyncio.run(settle())
