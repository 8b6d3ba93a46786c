"""Taskiq's own worker on a real broker."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

taskiq = pytest.importorskip("taskiq")

from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends  # noqa: E402
from taskiq.api import run_receiver_task  # noqa: E402
from taskiq.exceptions import SendTaskError  # noqa: E402

from stentor.errors import InvalidArgument  # noqa: E402
from stentor.integrations.taskiq import TableResults, TaskiqBroker  # noqa: E402

CONTEXT = TaskiqDepends()

APPLICATION = """
from stentor.integrations.taskiq import TaskiqBroker

broker = TaskiqBroker(os.environ["URL"], queue=os.environ["QUEUE"], settings={"lease_s": 1})

@broker.task(task_name="work")
def work(number):
    note(f"begin-{number}")
    if number == 0:
        wait_for_go()
    note(f"end-{number}")
"""

DEADLY = """
from stentor.integrations.taskiq import TaskiqBroker

SETTINGS = {"lease_s": 1, "max_attempts": 2, "retry_delay_ms": 10}
broker = TaskiqBroker(os.environ["URL"], queue=os.environ["QUEUE"], settings=SETTINGS)

@broker.task(task_name="work")
def work(number):
    note(f"begin-{number}")
    if number == 0:
        os.killpg(os.getpgrp(), 9)  # taskiq's main process would start another worker
    note(f"end-{number}")
"""


@asynccontextmanager
async def working(broker, **options):
    """A worker of Taskiq beside whoever enters."""
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker, max_async_tasks=10, **options))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await broker.shutdown()


@pytest.fixture
def broker(shared, name):
    results = TableResults(shared.url, table=f"{name}.results", ttl=60)
    return TaskiqBroker(shared.url, queue=name).with_result_backend(results)


def test_a_task_runs_once_and_its_result_comes_back(broker, client, name, wait_until):
    ran = []

    @broker.task
    async def add(first: int, second: int) -> int:
        ran.append((first, second))
        return first + second

    async def work():
        async with working(broker):
            sent = [await add.kiq(number, 1) for number in range(20)]
            return [(await each.wait_result(timeout=10, check_interval=0.01)).return_value for each in sent]

    assert asyncio.run(work()) == [number + 1 for number in range(20)]
    assert sorted(ran) == [(number, 1) for number in range(20)]
    info = client.queue(name).describe()
    assert (info.waiting, info.held, info.finished, info.died) == (0, 0, 20, 0)


def test_a_failed_task_is_retried_as_its_middleware_says(broker, client, name):
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    tried = []

    @broker.task(retry_on_error=True, max_retries=3)
    async def fail() -> None:
        tried.append(1)
        raise ValueError("no good")

    async def work():
        async with working(broker):
            task = await fail.kiq()
            return await task.wait_result(timeout=10, check_interval=0.01)

    result = asyncio.run(work())
    assert len(tried) == 3
    assert result.is_err
    assert "no good" in str(result.error)
    assert client.queue(name).describe().died == 0


def test_labels_delay_a_task_and_put_it_before_others(broker, wait_until):
    ran = []
    all_ran = asyncio.Event()

    @broker.task
    async def note(what: str) -> None:
        ran.append((what, time.monotonic()))
        if len(ran) == 3:
            all_ran.set()

    async def work():
        await broker.startup()
        sent = time.monotonic()
        await note.kicker().with_labels(delay=0.5).kiq("late")
        await note.kiq("usual")
        await note.kicker().with_labels(priority=9).kiq("urgent")
        async with working(broker), asyncio.timeout(10):
            await all_ran.wait()
        return sent

    sent = asyncio.run(work())
    assert [what for what, _ in ran] == ["urgent", "usual", "late"]
    assert ran[-1][1] - sent >= 0.5


def test_a_task_acknowledges_by_itself_if_it_wants_to(broker, client, name):
    seen = []

    @broker.task(ack_type="manual")
    async def own(context: Context = CONTEXT) -> None:
        seen.append(client.queue(name).describe().finished)
        await context.ack()

    async def work():
        async with working(broker):
            await (await own.kiq()).wait_result(timeout=10, check_interval=0.01)

    asyncio.run(work())
    assert (seen, client.queue(name).describe().finished) == ([0], 1)


def test_progress_is_kept_beside_results(broker):
    from taskiq.depends.progress_tracker import TaskProgress, TaskState

    async def work():
        await broker.startup()
        results = broker.result_backend
        assert await results.get_progress("one") is None
        await results.set_progress("one", TaskProgress(state=TaskState.STARTED, meta={"done": 3}))
        found = await results.get_progress("one")
        await broker.shutdown()
        return found

    assert asyncio.run(work()).meta == {"done": 3}


def test_what_is_wrong_with_a_task_is_said(broker):
    @broker.task
    async def nothing() -> None: ...

    async def work():
        with pytest.raises(SendTaskError) as early:
            await nothing.kiq()
        await broker.startup()
        with pytest.raises(SendTaskError) as negative:
            await nothing.kicker().with_labels(delay=-1).kiq()
        await broker.shutdown()
        return early.value.__cause__, negative.value.__cause__

    early, negative = asyncio.run(work())
    assert isinstance(early, InvalidArgument)
    assert "startup" in str(early)
    assert isinstance(negative, InvalidArgument)
    assert "delay" in str(negative)


def test_a_killed_worker_loses_nothing(workplace, monkeypatch, client, name, wait_until):
    workplace.write(APPLICATION)
    app = workplace.load(monkeypatch)

    async def send():
        await app.broker.startup()
        for number in range(20):
            await app.work.kiq(number)
        await app.broker.shutdown()

    asyncio.run(send())
    first = workplace.start(
        "taskiq", "worker", f"{workplace.module}:broker", "--workers", "1", "--no-configure-logging"
    )
    wait_until(lambda: "begin-0" in workplace.notes(), "the first worker begins", seconds=30)
    workplace.stop(first)
    assert "end-0" not in workplace.notes()
    workplace.go()
    workplace.start("taskiq", "worker", f"{workplace.module}:broker", "--workers", "1", "--no-configure-logging")
    everything = {f"end-{number}" for number in range(20)}
    wait_until(lambda: everything <= set(workplace.notes()), "the second worker finishes", seconds=30)
    wait_until(lambda: client.queue(name).describe().finished == 20, "all are acknowledged")


def test_what_a_dying_worker_only_held_is_no_attempt(workplace, monkeypatch, client, name, letters):
    """A task that kills its worker at once dies after its attempts; those that wait behind it do not."""
    workplace.write(DEADLY)
    app = workplace.load(monkeypatch)

    async def send():
        await app.broker.startup()
        for number in range(6):
            await app.work.kiq(number)
        await app.broker.shutdown()

    asyncio.run(send())

    def done():
        ended = {f"end-{number}" for number in range(1, 6)} <= set(workplace.notes())
        return ended and client.queue(name).describe().died == 1

    one = ("--workers", "1", "--max-async-tasks", "1", "--max-prefetch", "10", "--no-configure-logging")
    died = workplace.start_until(done, "taskiq", "worker", f"{workplace.module}:broker", *one)
    (letter,) = letters(name)
    assert dict(letter.headers)["stentor-dead-attempts"] == b"2"
    assert died == workplace.notes().count("begin-0") == 4  # twice it began before the head knew, then twice surely


def test_a_task_that_nobody_knows_is_dropped(broker, client, name, wait_until):
    async def work():
        async with working(broker):
            await broker._queue.put(b"no task")

            @broker.task
            async def gone() -> None: ...

            await gone.kiq()
            del broker.local_task_registry[gone.task_name]
            await asyncio.to_thread(wait_until, lambda: client.queue(name).describe().finished == 2, "both are dropped")
            assert not broker._held

    asyncio.run(work())


def test_a_broker_that_is_shut_down_listens_no_more(broker):
    async def work():
        await broker.startup()
        listening = broker.listen()
        first = asyncio.ensure_future(anext(listening, None))
        await asyncio.wait([first], timeout=0.05)
        await broker.shutdown()
        return await asyncio.wait_for(first, 10)

    assert asyncio.run(work()) is None
