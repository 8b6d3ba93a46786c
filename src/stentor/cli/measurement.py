"""Running the load of `stentor bench` and putting together what the workers saw."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
from array import array
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from stentor.cli.load import LoadPlan, Outcome, work
from stentor.errors import DeadlineExceeded, InternalError, StentorError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import SpawnProcess

START_DELAY_S: Final = 0.2
"""Between the last worker's "ready" and the common start, so that all of them hear of it."""

REPORT_S_MAX: Final = 5.0
"""How much later than its own deadline a worker may report that this has passed."""

START_S_MAX: Final = 60.0
"""Processes start one after the other on a busy machine."""


class Percentiles(msgspec.Struct, frozen=True):
    """Latencies in microseconds."""

    p50: int
    p90: int
    p99: int
    p99_9: int
    max: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.p50, self.p90, self.p99, self.p99_9, self.max))


class Result(msgspec.Struct, kw_only=True):
    """What came out of one measurement."""

    plan: LoadPlan
    published: int
    published_per_second: float
    delivered: int
    delivered_per_second: float
    lost: int
    doubled: int
    disordered: int
    verified: bool
    acknowledged_us: Percentiles | None
    latency_us: Percentiles | None


class Worker:
    """One process of the load."""

    def __init__(self, role: str, number: int, plan: LoadPlan) -> None:
        context = multiprocessing.get_context("spawn")
        self.role = role
        self.name = f"{role} {number}"
        self.wire, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=work, args=(role, number, plan, theirs), daemon=True)
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()
        self.is_ready = False
        self.messages = 0
        self.outcome: Outcome | None = None

    def hear(self) -> None:
        """Take in one report."""
        try:
            kind, content = self.wire.recv()
        except EOFError:
            raise InternalError(
                f"The {self.name} of the benchmark ended early.", hint="See its message above."
            ) from None
        if kind == "failed":
            raise content if isinstance(content, StentorError) else InternalError(f"The {self.name} failed: {content}.")
        if kind == "ready":
            self.is_ready = True
        elif kind == "count":
            self.messages = content
        else:
            self.outcome = content
            self.messages = content.messages

    def stop(self) -> None:
        self.wire.close()
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A process started in here inherits that Ctrl-C is not for it: we hear it, afterwards, and stop our workers.

    The same with SIGTERM, until the process has begun to work: half a start would print a traceback. The mask is
    for the process, whose it becomes; for us it is not enough, as another thread may catch what ours does not.
    """
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, lambda caught, _: heard.append(caught)) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for caught in heard[:1]:
            signal.raise_signal(caught)


def measure(plan: LoadPlan) -> Result:
    """Run the load and put the outcomes together."""
    with contextlib.ExitStack() as stack:
        stack.callback(_end_started)
        producers = [_start(stack, "producer", number, plan) for number in range(plan.producers)]
        subscribers = [_start(stack, "subscriber", number, plan) for number in range(plan.subscribers)]
        workers = producers + subscribers
        _hear_until(workers, lambda worker: worker.is_ready, START_S_MAX)
        begin = time.monotonic() + START_DELAY_S
        for worker in workers:
            worker.wire.send(begin)
        with LiveLine(plan, begin) as line:
            limit = plan.seconds + plan.timeout + REPORT_S_MAX
            _hear_until(workers, lambda worker: worker.role != "producer" or worker.outcome is not None, limit, line)
            totals = [worker.messages for worker in producers]
            for worker in subscribers:
                worker.wire.send(totals)
            _hear_until(workers, lambda worker: worker.outcome is not None, limit, line)
        return _result(plan, [w.outcome for w in producers if w.outcome], [w.outcome for w in subscribers if w.outcome])


def _end_started() -> None:
    """Also a worker that was being started when we were interrupted: it would make the topic anew."""
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


def _start(stack: contextlib.ExitStack, role: str, number: int, plan: LoadPlan) -> Worker:
    worker = Worker(role, number, plan)
    stack.callback(worker.stop)
    return worker


def _hear_until(workers: list[Worker], arrived: Any, limit: float, line: LiveLine | None = None) -> None:
    """Take in reports until every worker has arrived somewhere, or nothing was heard of new messages for too long."""
    deadline = time.monotonic() + limit
    while missing := [worker for worker in workers if not arrived(worker)]:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"The {missing[0].name} did not report in time.", hint="Look at the broker's log.")
        waiting: dict[Any, Worker] = {worker.wire: worker for worker in workers if worker.outcome is None}
        for wire in wait(list(waiting), timeout=0.1):
            before = waiting[wire].messages
            waiting[wire].hear()
            if waiting[wire].messages > before:
                deadline = time.monotonic() + limit
        if line is not None:
            line.show(workers)


def _result(plan: LoadPlan, producers: list[Outcome], subscribers: list[Outcome]) -> Result:
    published = sum(outcome.messages for outcome in producers)
    delivered = sum(outcome.messages for outcome in subscribers)
    lost, doubled, disordered = (
        sum(getattr(outcome, field) for outcome in subscribers) for field in ("lost", "doubled", "disordered")
    )
    return Result(
        plan=plan,
        published=published,
        published_per_second=published / max((outcome.seconds for outcome in producers), default=1),
        delivered=delivered,
        delivered_per_second=delivered / max((outcome.seconds for outcome in subscribers), default=1),
        lost=lost,
        doubled=doubled,
        disordered=disordered,
        verified=delivered == published * plan.subscribers and not (lost or doubled or disordered),
        acknowledged_us=percentiles(producers),
        latency_us=percentiles(subscribers),
    )


def percentiles(outcomes: list[Outcome]) -> Percentiles | None:
    """Over all samples of all workers; never an average of percentiles."""
    samples = array("I")
    for outcome in outcomes:
        samples.frombytes(outcome.latencies_us)
    if not samples:
        return None
    ordered = sorted(samples)
    p50, p90, p99, p99_9 = (
        ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.9, 0.99, 0.999)
    )
    return Percentiles(p50=p50, p90=p90, p99=p99, p99_9=p99_9, max=ordered[-1])


class LiveLine:
    """One line on the terminal that says how it goes; nothing in a pipe."""

    def __init__(self, plan: LoadPlan, begin: float) -> None:
        self._plan = plan
        self._begin = begin
        self._bar: Any = None
        self._task: Any = None

    def show(self, workers: list[Worker]) -> None:
        if self._bar is None:
            return
        elapsed = max(1e-3, time.monotonic() - self._begin)
        speeds = [
            f"{role} {sum(w.messages for w in workers if w.role == kind) / elapsed:,.0f}/s"
            for role, kind in (("published", "producer"), ("delivered", "subscriber"))
        ]
        self._bar.update(self._task, completed=min(elapsed, self._plan.seconds), speeds="  ".join(speeds))

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TimeElapsedColumn(), BarColumn(), TextColumn("{task.fields[speeds]}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("bench", total=self._plan.seconds, speeds="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
