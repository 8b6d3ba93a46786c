"""The load of `stentor bench`: producers and subscribers, each a process, and what they saw.

A message carries who sent it, its number and when it was due:

    0         4           12          20
    ┌─────────┬───────────┬───────────┬──────────────┐
    │producer │ sequence  │ due (ns)  │ padding      │   little-endian; due is the monotonic clock,
    │  u32    │   u64     │   u64     │ random bytes │   which all processes of a machine share
    └─────────┴───────────┴───────────┴──────────────┘

With a rate, `due` is when the message should have been sent, not when it was: a broker that stalls is charged
for all the messages that had to wait (no coordinated omission). Subscribers check every message: from each
producer the numbers must be 0, 1, 2 …, so that loss, duplication and disorder all show.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time
from array import array
from typing import TYPE_CHECKING, Final

import msgspec

import stentor
from stentor.client.options import AckLevel, Compression
from stentor.wire import bodies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection

STAMP: Final = struct.Struct("<IQQ")
SIZE_MIN: Final = STAMP.size

SAMPLE_EVERY: Final = 16
"""At full speed every 16th message is timed; all are checked. With a rate, all are timed."""

TICK_S: Final = 0.001
"""With a rate: how often a producer looks what is due."""

STEP_BYTES_MAX: Final = 8 * 1024 * 1024
"""What a producer makes before it hands it over: a thousand messages of the greatest size would fill the memory."""

REPORT_EVERY_S: Final = 0.1
WATCH_EVERY_S: Final = 0.005


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers are told."""

    url: str | None
    topic: str
    partitions: int
    size: int
    batch: int
    producers: int
    subscribers: int
    rate: float  # messages per second of all producers together; 0 is as fast as it goes
    seconds: float
    ack: AckLevel
    compression: Compression | None
    one_by_one: bool  # each publish waits for its acknowledgement
    timeout: float


class Outcome(msgspec.Struct, kw_only=True):
    """What one worker saw."""

    messages: int = 0
    seconds: float = 0.0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    latencies_us: bytes = b""  # unsigned 32-bit microseconds, unsorted


class LoadControl:
    """A worker's wire to the parent: first "ready", then counts as they grow, last its outcome."""

    def __init__(self, wire: Connection) -> None:
        self._wire = wire
        self._reported_at = 0.0

    def ready(self) -> float:
        """Wait for the start; returns the moment at which to begin."""
        self._wire.send(("ready", None))
        return float(self._wire.recv())

    def count(self, messages: int) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._wire.send(("count", messages))

    def told(self, patience_s: float) -> list[int] | None:
        """How many messages each producer sent, once the parent knows."""
        return self._wire.recv() if self._wire.poll(patience_s) else None

    def done(self, outcome: Outcome) -> None:
        self._wire.send(("done", outcome))


def work(role: str, number: int, plan: LoadPlan, wire: Connection) -> None:
    """The main function of a worker process."""
    bodies.arrow()  # loaded now: what is measured is the speed that lasts
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    control = LoadControl(wire)
    try:
        with stentor.connect(plan.url, name=f"stentor bench {role} {number}", timeout=plan.timeout) as client:
            outcome = (_produce if role == "producer" else _consume)(client, number, plan, control)
        control.done(outcome)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        with contextlib.suppress(OSError):  # a parent that has gone wants no report
            wire.send(("failed", error if isinstance(error, stentor.StentorError) else repr(error)))


# --- producing ----------------------------------------------------------------------------------


def _produce(client: stentor.Client, number: int, plan: LoadPlan, control: LoadControl) -> Outcome:
    if plan.one_by_one:
        return _publish_one_by_one(client, number, plan, control)
    sent = 0
    partition = number % plan.partitions
    padding = os.urandom(plan.size - SIZE_MIN)
    with client.producer(plan.topic, ack=plan.ack, compression=plan.compression, batch_messages=plan.batch) as producer:
        begin = control.ready()
        _wait_until(begin)
        for due_times in _schedule(plan, begin):
            pack = STAMP.pack
            values = [pack(number, sequence, due) + padding for sequence, due in enumerate(due_times, sent)]
            producer.send_many(values, partition=partition)
            sent += len(values)
            control.count(sent)
        producer.flush(plan.timeout)
        seconds = time.monotonic() - begin
    return Outcome(messages=sent, seconds=seconds)


def _publish_one_by_one(client: stentor.Client, number: int, plan: LoadPlan, control: LoadControl) -> Outcome:
    """One message at a time, each waiting for its acknowledgement: the latency of `publish`."""
    sent = 0
    partition = number % plan.partitions
    padding = os.urandom(plan.size - SIZE_MIN)
    latencies = array("I")
    begin = control.ready()
    _wait_until(begin)
    for due_times in _schedule(plan, begin):
        for due in due_times:
            value = STAMP.pack(number, sent, due) + padding
            client.publish(plan.topic, value, partition=partition, ack=plan.ack)
            latencies.append((time.monotonic_ns() - due) // 1000)
            sent += 1
        control.count(sent)
    return Outcome(messages=sent, seconds=time.monotonic() - begin, latencies_us=latencies.tobytes())


def _schedule(plan: LoadPlan, begin: float) -> Iterator[list[int]]:
    """When each message is due, in the order of sending, as many at a time as are due now."""
    return _steady(plan, begin) if plan.rate else _flat_out(plan, begin)


def _step_max(plan: LoadPlan) -> int:
    """How many messages a producer makes at a time."""
    return max(1, STEP_BYTES_MAX // plan.size)


def _flat_out(plan: LoadPlan, begin: float) -> Iterator[list[int]]:
    step = 1 if plan.one_by_one else min(plan.batch, _step_max(plan))
    end = begin + plan.seconds
    while time.monotonic() < end:
        yield [time.monotonic_ns()] * step


def _steady(plan: LoadPlan, begin: float) -> Iterator[list[int]]:
    rate = plan.rate / plan.producers
    total = max(1, int(plan.seconds * rate))
    begin_ns = int(begin * 1e9)
    sent, step = 0, _step_max(plan)
    while sent < total:
        due = min(total, sent + step, int((time.monotonic() - begin) * rate) + 1)
        if due <= sent:
            time.sleep(max(TICK_S / 10, min(TICK_S, begin + sent / rate - time.monotonic())))
            continue
        yield [begin_ns + int(1e9 * number / rate) for number in range(sent, due)]
        sent = due


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


# --- consuming ----------------------------------------------------------------------------------


class Checker:
    """Checks the numbers of the messages of each producer."""

    def __init__(self, plan: LoadPlan) -> None:
        self._size = plan.size
        self._mask = 0 if plan.rate or plan.one_by_one else SAMPLE_EVERY - 1
        self._next = [0] * plan.producers
        self.outcome = Outcome()
        self.latencies = array("I")

    def take(self, messages: Iterable[stentor.Message]) -> None:
        """Check all of them; local names, since this runs for every message."""
        outcome, expected, size, mask = self.outcome, self._next, self._size, self._mask
        unpack, clock = STAMP.unpack_from, time.monotonic_ns
        for message in messages:
            value = message.value
            if value is None or len(value) != size:
                outcome.disordered += 1
                continue
            producer, sequence, due = unpack(value)
            outcome.messages += 1
            if sequence == expected[producer]:
                expected[producer] = sequence + 1
            else:
                self._explain(producer, sequence, expected[producer])
            if not sequence & mask:
                self.latencies.append(min(0xFFFF_FFFF, max(0, clock() - due) // 1000))

    def _explain(self, producer: int, sequence: int, expected: int) -> None:
        """A gap is loss until it is filled; what comes late or twice is counted as such."""
        if sequence > expected:
            self.outcome.lost += sequence - expected
            self._next[producer] = sequence + 1
        elif self.outcome.lost:
            self.outcome.lost -= 1
            self.outcome.disordered += 1
        else:
            self.outcome.doubled += 1

    def has_all(self, totals: list[int]) -> bool:
        return all(seen >= total for seen, total in zip(self._next, totals, strict=True))

    def close(self, totals: list[int]) -> None:
        """What never came is lost."""
        self.outcome.lost += sum(max(0, total - seen) for seen, total in zip(self._next, totals, strict=False))
        self.outcome.latencies_us = self.latencies.tobytes()


def _consume(client: stentor.Client, _number: int, plan: LoadPlan, control: LoadControl) -> Outcome:
    """Take messages at full speed in this thread, while another watches for the end."""
    checker = Checker(plan)
    with client.subscribe(plan.topic, start="earliest") as subscription:
        begin = control.ready()
        watch = threading.Thread(target=_watch, args=(checker, subscription, control, plan), daemon=True)
        watch.start()
        checker.take(subscription)
        seconds = time.monotonic() - begin
        watch.join()
    checker.outcome.seconds = seconds
    return checker.outcome


def _watch(checker: Checker, subscription: stentor.Subscription, control: LoadControl, plan: LoadPlan) -> None:
    """End the subscription when everything came, or when nothing has come for too long."""
    totals: list[int] | None = None
    seen, heard_at = 0, time.monotonic()
    while totals is None or not checker.has_all(totals):
        totals = totals or control.told(WATCH_EVERY_S)
        if totals is not None:
            time.sleep(WATCH_EVERY_S)
        control.count(checker.outcome.messages)
        if checker.outcome.messages > seen:
            seen, heard_at = checker.outcome.messages, time.monotonic()
        elif time.monotonic() - heard_at > plan.seconds + plan.timeout:
            break
    checker.close(totals or [])
    subscription.close()
