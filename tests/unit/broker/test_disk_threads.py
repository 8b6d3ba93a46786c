"""Threads for the disk: results and errors come back into the loop, whatever happened."""

import asyncio
import threading

from stentor.broker.disk_threads import DiskThreads
from stentor.errors import DiskFull, InternalError


def outcomes(*works, threads=2):
    """What each piece of work came to: (result, error, the thread that was told)."""

    async def story():
        loop = asyncio.get_running_loop()
        disk = DiskThreads(loop, threads=threads, name="test")
        told, done = [], asyncio.Event()

        def note(result, error):
            told.append((result, error, threading.current_thread()))
            if len(told) == len(works):
                done.set()

        for work in works:
            disk.submit(work, note)
        await asyncio.wait_for(done.wait(), 15)
        await asyncio.to_thread(disk.close)
        return told

    return asyncio.run(story())


def test_results_come_back_in_the_loops_own_thread():
    ((result, error, thread),) = outcomes(lambda: threading.current_thread().name)
    assert result.startswith("stentor-test-")
    assert error is None
    assert thread is threading.main_thread()


def test_our_own_errors_come_back_as_they_are():
    def fails():
        raise DiskFull("There is no room.")

    ((result, error, _),) = outcomes(fails)
    assert result is None
    assert isinstance(error, DiskFull)


def test_any_other_error_is_an_internal_one_and_the_thread_lives_on():
    def breaks():
        raise ZeroDivisionError("oops")

    told = outcomes(breaks, lambda: 7, threads=1)
    assert isinstance(told[0][1], InternalError)
    assert "oops" in str(told[0][1])
    assert told[1][:2] == (7, None)


def test_closing_finishes_what_is_queued():
    async def story():
        disk = DiskThreads(asyncio.get_running_loop(), threads=1, name="test")
        told = []
        for number in range(100):
            disk.submit(lambda number=number: number, lambda result, _: told.append(result))
        await asyncio.to_thread(disk.close)
        await asyncio.sleep(0)
        assert told == list(range(100))

    asyncio.run(story())


def test_work_that_ends_after_the_loop_is_nobodys_trouble():
    gate = threading.Event()
    kept = []

    async def story():
        disk = DiskThreads(asyncio.get_running_loop(), threads=1, name="test")
        kept.append(disk)
        disk.submit(lambda: gate.wait(10), lambda *_: None)

    asyncio.run(story())
    gate.set()
    for thread in kept[0]._threads:
        thread.join(10)
        assert not thread.is_alive()
