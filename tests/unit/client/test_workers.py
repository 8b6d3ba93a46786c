"""Workers over any source: threads, tasks and processes; order, failures, deaths, limits, and the end."""

import asyncio
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stentor.client.message import Block, Message
from stentor.client.workers import Workers
from stentor.client.workers_handler import load_handler, name_handler
from stentor.client.workers_pool import TaskPool, ThreadPool
from stentor.client.workers_process import ProcessPool, _ChildWorker
from stentor.client.workers_terms import WorkTerms
from stentor.client.workers_wire import (
    FINISHED_BITS,
    PAGE_BYTES,
    HandlerRaised,
    ParcelFinished,
    ParcelsRecalled,
    frame,
    pack,
    unpack,
)
from stentor.errors import InvalidArgument
from stentor.work_errors import HandlerError, HandlerTimeout, WorkerDied

HANDLERS = "worker_handlers"


@pytest.fixture(autouse=True)
def importable(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("NOTES", str(tmp_path))


class Source:
    """Messages of memory; what became of them."""

    def __init__(self, values, partitions=1, keys=5, fatal=True):
        blocks = [Block("jobs", partition, 0, 7, None) for partition in range(partitions)]
        self.waiting = [
            Message(f"k{number % keys}".encode(), str(value).encode(), number, blocks[number % partitions])
            for number, value in enumerate(values)
        ]
        self.all = list(self.waiting)
        self.fatal = fatal
        self.begun, self.finished, self.failures, self.returned = [], [], [], []
        self.ends = True  # when nothing is left
        self.settled = asyncio.Event()

    def _look(self):
        if len(self.finished) + len(self.failures) + len(self.returned) >= len(self.all):
            self.settled.set()

    async def take(self, limit):
        if not self.waiting:
            if self.ends:
                await self.settled.wait()
                return None
            await asyncio.Event().wait()
        partition = self.waiting[0].partition
        some = [message for message in self.waiting if message.partition == partition][:limit]
        self.waiting = [message for message in self.waiting if message not in some]
        return some

    def begin(self, messages):
        self.begun += messages
        return [message for message in messages if message.value != b"gone"]

    def certain_until(self, messages):
        return math.inf

    async def ask(self, messages):
        pass

    def recalled(self, messages):
        for message in messages:
            self.begun.remove(message)

    def done(self, messages):
        self.finished += messages
        self._look()

    async def failed(self, message, error):
        self.failures.append((message.offset, error))
        self._look()
        if self.fatal:
            raise error

    def back(self, messages):
        self.returned += messages

    def check_settled(self):
        """Every message exactly once."""
        settled = [message.offset for message in self.finished + self.returned]
        settled += [offset for offset, _ in self.failures] + [message.offset for message in self.waiting]
        assert sorted(settled) == [message.offset for message in self.all]


def run(source, handler, *, mode="thread", stop=None, **options):
    """Until the end, or until `stop` says so."""
    terms = WorkTerms(mode=mode if mode in ("thread", "process") else "async", fatal=source.fatal, **options)
    terms.check()
    batch, fatal = terms.batch is not None, terms.fatal
    if mode == "process":
        pool = ProcessPool(name_handler(handler), terms.workers, batch=batch, fatal=fatal)
    elif mode == "thread":
        pool = ThreadPool(handler, terms.workers, batch=batch, fatal=fatal)
    else:
        pool = TaskPool(handler, terms.workers, batch=batch, fatal=fatal, own_loop=mode == "own loop")

    async def work():
        workers = Workers(source, pool, terms)
        running = asyncio.create_task(workers.run())
        try:
            async with asyncio.timeout(40):
                while stop is not None and not running.done():
                    if stop(workers, pool):
                        workers.stop()
                        break
                    await asyncio.sleep(0.005)
                await running
        finally:
            running.cancel()
        return workers.statistics()

    return asyncio.run(work())


MODES = ["thread", "async"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ordered_by", ["key", "partition", None])
def test_everything_is_done_once_and_in_order(mode, ordered_by):
    source, seen, lock = Source(range(3000), partitions=3), [], threading.Lock()

    def handle(message):
        with lock:
            seen.append(message)

    counted = run(source, handle, mode=mode, workers=4, ordered_by=ordered_by)
    assert counted.done == 3000
    source.check_settled()
    assert sorted(message.offset for message in seen) == list(range(3000))
    order = {"key": lambda m: (m.partition, m.key), "partition": lambda m: m.partition, None: lambda m: m.offset}
    last = {}
    for message in seen:
        name = order[ordered_by](message)
        assert message.offset > last.get(name, -1)
        last[name] = message.offset


def test_what_is_not_the_sources_any_more_is_not_begun():
    source, seen = Source(["gone", 1, "gone", "gone", 2]), []
    source.ends = False
    counted = run(source, lambda message: seen.append(message.value), stop=lambda *_: len(source.finished) == 2)
    assert seen == [b"1", b"2"]
    assert (counted.done, counted.in_work, counted.waiting) == (2, 0, 0)


def test_handlers_run_beside_each_other():
    source, meeting = Source(range(4)), threading.Barrier(4, timeout=20)
    run(source, lambda _: meeting.wait(), workers=4, ordered_by=None)
    source.check_settled()


def test_async_handlers_run_beside_each_other():
    source, here, all_here = Source(range(8)), [], asyncio.Event()

    async def handle(message):
        here.append(message)
        if len(here) == 8:
            all_here.set()
        await all_here.wait()

    run(source, handle, mode="async", workers=8, ordered_by=None)
    assert len(source.finished) == 8


def test_messages_of_one_key_are_never_in_work_together():
    source, at_work, clashes, lock = Source(range(200), keys=3), set(), [], threading.Lock()

    def handle(message):
        with lock:
            clashes.extend([message] if message.key in at_work else [])
            at_work.add(message.key)
        threading.Event().wait(0.001)
        with lock:
            at_work.discard(message.key)

    run(source, handle, workers=4, ordered_by="key")
    assert clashes == []
    source.check_settled()


@pytest.mark.parametrize("mode", MODES)
def test_batches_are_lists(mode):
    source, sizes = Source(range(1000)), []
    run(source, lambda messages: sizes.append(len(messages)), mode=mode, batch=300)
    assert sum(sizes) == 1000
    assert max(sizes) <= 300
    source.check_settled()


@pytest.mark.parametrize("mode", MODES)
def test_the_first_error_ends_the_work_and_the_rest_goes_back(mode):
    source = Source(range(100))

    def handle(message):
        if message.offset == 10:
            raise KeyError("ten")

    with pytest.raises(KeyError, match="ten"):
        run(source, handle, mode=mode)
    source.check_settled()
    assert [message.offset for message in source.finished] == list(range(10))
    assert [offset for offset, _ in source.failures] == [10]


@pytest.mark.parametrize("mode", MODES)
def test_errors_that_are_taken_care_of_end_nothing(mode):
    source = Source(range(100), fatal=False)

    def handle(message):
        if message.offset % 10 == 0:
            raise KeyError(message.offset)

    run(source, handle, mode=mode, workers=2, ordered_by="key")
    source.check_settled()
    assert sorted(offset for offset, _ in source.failures) == list(range(0, 100, 10))


def test_a_slow_message_holds_up_nobody_else():
    """What its worker has not begun goes to the others."""
    source, release = Source(range(2000)), threading.Event()

    def handle(message):
        if message.offset == 1500:
            assert release.wait(30)

    def others_done(*_):
        if len(source.finished) >= 1999 - 1:
            release.set()
        return False

    run(source, handle, workers=2, ordered_by=None, stop=others_done)
    source.check_settled()
    assert len(source.finished) == 2000


def test_work_in_flight_is_bounded():
    source, release = Source(range(5000)), threading.Event()

    def look(*_):
        assert len(source.all) - len(source.waiting) - len(source.finished) <= 100
        if len(source.all) - len(source.waiting) >= 64:
            release.set()
        return False

    run(source, lambda _: release.wait(20), workers=2, ordered_by=None, ahead=100, stop=look)
    source.check_settled()


def test_stopping_finishes_what_is_in_work():
    source, begun, release = Source(range(50)), threading.Event(), threading.Event()
    source.ends = False

    def handle(_):
        begun.set()
        assert release.wait(20)

    def stop(*_):
        if begun.is_set():
            threading.Timer(0.05, release.set).start()
        return begun.is_set()

    run(source, handle, stop=stop)
    source.check_settled()
    assert [message.offset for message in source.finished] == [0]


def test_stopping_does_not_wait_for_ever():
    source, begun, release = Source(range(3)), threading.Event(), threading.Event()

    def handle(_):
        begun.set()
        release.wait(20)

    run(source, handle, stop=lambda *_: begun.is_set(), finish_s=0.05)
    release.set()
    assert source.finished == []
    assert [message.offset for message in source.returned][-3:] != []


@pytest.mark.parametrize("mode", [*MODES, "own loop"])
def test_a_handler_that_hangs_is_noticed(mode):
    """It cannot be ended in a thread: its message has failed, another worker takes its place."""
    source, release = Source(range(20), fatal=False), threading.Event()

    def handle(message):
        if message.offset == 3:
            release.wait(20)

    async def handle_later(message):
        if message.offset == 3:
            await asyncio.sleep(20)

    counted = run(
        source, handle if mode == "thread" else handle_later, mode=mode, ordered_by=None, time_limit_s=0.3, workers=2
    )
    release.set()
    source.check_settled()
    ((offset, error),) = source.failures
    assert offset == 3
    assert isinstance(error, HandlerTimeout)
    assert counted.died == 1


# --- processes ----------------------------------------------------------------------------------


def noted(folder):
    lines = [
        (path.name, line.split(" "))
        for path in folder.iterdir()
        if path.name.isdigit()
        for line in path.read_text().splitlines()
    ]
    return sorted(
        (int(at), pid, int(partition), int(offset), key.strip()) for pid, (at, partition, offset, key) in lines
    )


def test_processes_do_everything_once_and_in_order(tmp_path):
    source = Source(range(500), keys=7)
    run(source, f"{HANDLERS}:note", mode="process", workers=2, ordered_by="key")
    source.check_settled()
    found = noted(tmp_path)
    assert sorted(row[3] for row in found) == list(range(500))
    assert len({row[1] for row in found}) == 2
    for key in {row[4] for row in found}:
        ours = [row[3] for row in found if row[4] == key]
        assert ours == sorted(ours)


@pytest.mark.parametrize(("name", "batch"), [("note_batch", 50), ("note_later", None)])
def test_processes_take_batches_and_async_handlers(tmp_path, name, batch):
    source = Source(range(120))
    run(source, f"{HANDLERS}:{name}", mode="process", batch=batch)
    assert [row[3] for row in noted(tmp_path)] == list(range(120))
    source.check_settled()


def test_a_message_that_kills_its_process_once_is_tried_again(tmp_path):
    source = Source([*range(50), "die once", *range(50)])
    counted = run(source, f"{HANDLERS}:note", mode="process", workers=1)
    source.check_settled()
    found = [row[3] for row in noted(tmp_path)]
    assert found == list(range(101)), "nothing is lost, nothing is repeated, the order stays"
    assert counted.died == 1


def test_a_message_that_always_kills_has_failed(tmp_path):
    source = Source([0, 1, "die", 3], fatal=False)
    counted = run(source, f"{HANDLERS}:note", mode="process", workers=1, attempts=2)
    source.check_settled()
    ((offset, error),) = source.failures
    assert offset == 2
    assert isinstance(error, WorkerDied)
    assert "signal 9" in error.message
    assert counted.died == 2
    assert [row[3] for row in noted(tmp_path)] == [0, 1, 3]


def test_a_process_that_hangs_is_killed_and_its_message_tried_again(tmp_path):
    source = Source([0, "hang once", 2])
    run(source, f"{HANDLERS}:note", mode="process", time_limit_s=0.5)
    assert [row[3] for row in noted(tmp_path)] == [0, 1, 2]


class HandMadeProcesses(ProcessPool):
    """One process that says what a test says."""

    async def open(self, reports):
        self._reports = reports
        self.child = _ChildWorker(self)
        self.child.page = mmap.mmap(-1, PAGE_BYTES)
        self.workers.append(self.child)

    def _replace(self):
        return True

    async def close(self):
        self.child.page.close()


def test_what_is_raised_after_a_recall_is_not_taken_for_done():
    """The page says that a message is finished before the socket says that its handler raised."""
    source = Source(["bad"], fatal=False)
    pool = HandMadeProcesses(name_handler(f"{HANDLERS}:note"), 1, batch=False, fatal=False)

    async def told():
        running = asyncio.create_task(Workers(source, pool, WorkTerms(workers=1, mode="process", fatal=False)).run())
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        child = pool.child
        number = child.parcels[0].number
        child.page[:8] = ((number << FINISHED_BITS) + 1).to_bytes(8, sys.byteorder)
        pool.said(child, ParcelsRecalled({number: 0}, number << FINISHED_BITS))
        pool.said(child, HandlerRaised(number, 0, "ValueError", "bad", ""))
        pool.said(child, ParcelFinished(number, 0.1, 0))
        await asyncio.wait_for(running, 5)

    asyncio.run(told())
    assert [offset for offset, _ in source.failures] == [0]
    assert not source.finished


def test_what_a_process_said_before_it_died_is_heard_even_if_writing_to_it_failed():
    source = Source(["bad"], fatal=False)
    pool = HandMadeProcesses(name_handler(f"{HANDLERS}:note"), 1, batch=False, fatal=False)
    ours, theirs = socket.socketpair()
    ours.settimeout(0)

    async def told():
        running = asyncio.create_task(Workers(source, pool, WorkTerms(workers=1, mode="process", fatal=False)).run())
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        child = pool.child
        child.process, child.socket = subprocess.Popen(["true"]), ours  # noqa: ASYNC220 - it ends at once
        number = child.parcels[0].number
        theirs.send(frame(HandlerRaised(number, 0, "ValueError", "bad", "")))
        child.page[:8] = ((number << FINISHED_BITS) + 1).to_bytes(8, sys.byteorder)
        child.connection_lost(BrokenPipeError())
        await asyncio.wait_for(running, 5)

    with ours, theirs:
        asyncio.run(told())
    assert [type(error) for _, error in source.failures] == [HandlerError]
    assert not source.finished


def test_an_idle_process_that_is_killed_is_replaced(tmp_path):
    source, killed = Source(range(1)), []

    def look(_, pool):
        if source.finished and not killed:
            killed.append(pool.workers[0].process.pid)
            os.kill(killed[0], signal.SIGKILL)
        return bool(killed) and bool(pool.workers) and pool.workers[0].process.pid != killed[0]

    source.ends = False
    run(source, f"{HANDLERS}:note", mode="process", stop=look)
    assert killed
    assert [row[3] for row in noted(tmp_path)] == [0]


def test_an_error_of_a_process_tells_what_and_where():
    source = Source(["raise"])
    with pytest.raises(HandlerError, match="ValueError for jobs/0@0: a bad message") as caught:
        run(source, f"{HANDLERS}:note", mode="process")
    assert "worker_handlers.py" in caught.value.detail["traceback"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{HANDLERS}:missing", "cannot be imported: AttributeError"),
        ("no_such_module:handle", "cannot be imported: ModuleNotFoundError"),
        (f"{HANDLERS}:not_a_function", "cannot be called"),
        ("not a name", "does not name a handler"),
    ],
)
def test_handlers_that_cannot_be_found_are_refused(name, said):
    with pytest.raises(InvalidArgument, match=said):
        run(Source([1]), name, mode="process")


def test_functions_without_a_name_are_refused():
    with pytest.raises(InvalidArgument, match="cannot find"):
        name_handler(lambda message: message)
    assert load_handler(name_handler(noted.__globals__["name_handler"])) is name_handler


def test_a_handler_of_a_script_is_found(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("def handle(message): ...\nif __name__ == '__main__': raise SystemExit('not again')\n")

    class Main:
        __file__ = str(script)
        __spec__ = None

        def handle(self): ...

    Main.handle.__module__, Main.handle.__qualname__ = "__main__", "handle"
    monkeypatch.setitem(sys.modules, "__main__", Main)
    assert callable(load_handler(name_handler(Main.handle)))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("headers", [None, [("a", b"1")]])
def test_messages_cross_to_a_process_as_they_are(gaps, headers):
    offsets = [5, 6, 9] if gaps else [5, 6, 7]
    places = {offset - 5: headers for offset in offsets}
    block = Block("t", 2, 5, {place: 100 + place for place in places}, places if headers else None, 77)
    sent = [Message(b"k" if offset % 2 else None, b"v", offset, block) for offset in offsets]
    found = unpack(pack(1, sent))
    for one, other in zip(sent, found, strict=True):
        assert (one.key, one.value, one.offset) == (other.key, other.value, other.offset)
        assert (one.timestamp_us, one.headers, one.position) == (other.timestamp_us, other.headers, other.position)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": True},
        {"batch": 0},
        {"mode": "fibre"},
        {"ordered_by": "colour"},
        {"time_limit_s": 0},
        {"attempts": 0},
        {"finish_s": -1},
    ],
)
def test_impossible_terms_are_refused(options):
    with pytest.raises(InvalidArgument):
        WorkTerms(**options).check()
