"""What a slow subscriber costs the fast ones beside it: their p99, without it and with it, under each policy.

One process publishes a hundred messages of 4 kB a second to a topic with the usual settings, so each is synced before
it is delivered. Two others hold a hundred subscriptions, each with a client of its own, and note when each message
came. Its latency runs from when it was due. A slow subscriber takes 50 ms for each message, so it falls behind for as
long as it is there: it reads the log from its beginning and never comes to its end (`catch_up`), jumps (`skip`), or
gives up and subscribes again (`raise`, which also tells the alerts topic, and `disconnect`).

A synced message waits for the disk, and while a disk stands still for 300 ms a hundred subscribers wait for thirty
messages. One such moment is the p99 of six seconds, whoever else is there. So

- times are short and many: a round has one of each kind, with nobody slow or with one of the policies, in orders that
  are fair to all kinds. In each round the p99 beside a policy is divided by that without it, and the median of these
  ratios counts: the machine is faster and slower from one minute to the next. The ratio of the p99s over all rounds is
  reported, too;
- a control looks at timer and disk meanwhile (`standstill`), and what was due while the machine stood still is left
  out, by one rule for all kinds. How much that was is reported for each kind, and may not be much more beside a policy:
  so what a slow subscriber does to the disk is not hidden. The ratio with everything counted is reported as well.
  Rounds in which the machine stood still for more than half of the time of any kind, or other programs took a part of
  its cores and went on when a time was begun again, are left out for all kinds.

A time counts only if every message reached every subscriber, the slow one was really behind, and its policy acted.
"""

from __future__ import annotations

import asyncio
import struct
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.model import BenchError
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.patterns.standstill import Others, undisturbed
from bench.patterns.updates import shared
from bench.processes import START_S_MAX
from bench.programs import run
from bench.systems.base import event_loop
from bench.systems.stentor import start_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.processes import Processes, Role, Server
    from bench.role import Harness

POLICIES = ("catch_up", "skip", "raise", "disconnect")
NOBODY = ""
KINDS = (NOBODY, *POLICIES)
MAX_LAG = 50
SLOW_S = 0.05
BEHIND_S_MIN = 0.3
"""Else it was not slow, and proves nothing."""
SETTLE_S = 1.0
"""How long it falls behind before its time begins; how long its end may have an effect on the next."""
CALM_MIN = 0.5
"""A machine that stood still for more of the time measures nothing."""
OTHERS_CORES_MAX = 0.3
"""What other programs may take; the processes of this work take about 0.7."""
TRIES = 4
"""A time that other programs disturb is begun again at once, so often; then its round does not count."""
LONGER_MAX = 1.6
"""Times that are begun again make the whole so many times longer at most; then there are fewer rounds."""
WAIT_S = 60.0
_SENT = struct.Struct("<d")
_FILL = bytes(4_000)


@dataclass(frozen=True, slots=True)
class Phase:
    """Some seconds with nobody slow, or with one that has a policy."""

    round: int
    policy: str
    began: float
    ended: float
    others_cores: float = 0.0
    """What programs that have nothing to do with it took meanwhile."""


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        shares = shared(plan.fast_subscribers, plan.copy_processes)
        files = [directory / f"came{number}.npy" for number in range(len(shares))]
        fast = [
            processes.role(
                "bench.patterns.slow:follow", told("stentor", broker.address, subscribers=share, file=str(file))
            )
            for share, file in zip(shares, files, strict=True)
        ]
        for each in fast:
            each.expect("ready", START_S_MAX + WAIT_S)
        phases, watched = _alternate(plan, broker, processes, directory)
        for each in fast:
            each.tell(end=True)
            each.expect("followed", WAIT_S)
        sent, late = np.concatenate([np.load(file) for file in files]).T
    check_complete(phases, sent, plan.fast_subscribers)
    say(f"slow: {plan.fast_subscribers} fast subscribers, {plan.slow_rate} messages a second")
    rows = compared(phases, sent, late, undisturbed(sent, watched["windows"]), say)
    add(rows, "slow", "machine", "ms", p99_of_a_timer=watched["late"], p99_of_a_sync=watched["sync"])
    return rows


def _alternate(plan: Plan, broker: Server, processes: Processes, directory: Path) -> tuple[list[Phase], dict[str, Any]]:
    """All the times, and what the control saw meanwhile."""
    slow = processes.role("bench.patterns.slow:lag", told("stentor", broker.address))
    slow.expect("ready", START_S_MAX)
    feed = processes.role("bench.patterns.slow:feed", told("stentor", broker.address, rate=plan.slow_rate))
    feed.expect("feeding", START_S_MAX)
    watch = processes.role("bench.patterns.standstill:watch", told("", "", file=str(directory / "control")))
    watch.expect("watching", START_S_MAX)
    time.sleep(SETTLE_S * 2)
    phases, others = [], Others(processes.pids)
    until = time.monotonic() + LONGER_MAX * plan.slow_rounds * len(KINDS) * (SETTLE_S + plan.slow_s)
    for number in range(plan.slow_rounds):
        if time.monotonic() > until:
            break
        for policy in order_of(number):
            _change(slow, policy)
            time.sleep(SETTLE_S)
            for _ in range(TRIES):
                others.cores()
                began = time.monotonic()
                time.sleep(plan.slow_s)
                phase = Phase(number, policy, began, time.monotonic(), others.cores())
                if phase.others_cores <= OTHERS_CORES_MAX:
                    break
            phases.append(phase)
    _change(slow, NOBODY)
    feed.process.kill()
    time.sleep(SETTLE_S)  # the last messages are on their way
    watch.tell(end=True)
    return phases, watch.expect("watched", WAIT_S)


def order_of(number: int) -> list[str]:
    """In ten rounds each kind is at each place twice, and follows each other kind twice within a round.

    What a time leaves behind for the next, and what the beginning of a round has of the end of the last, then is the
    same for all kinds (a Williams design). An order by chance is that only in the long run.
    """
    turn, backwards = number % len(KINDS), number // len(KINDS) % 2
    order = [KINDS[(place + turn) % len(KINDS)] for place in (0, 1, 4, 2, 3)]
    return order[::-1] if backwards else order


def _change(slow: Role, policy: str) -> None:
    """The slow subscriber gets another policy; it must have been slow, and have done something about it."""
    slow.tell(policy=policy)
    said = slow.expect("changed", WAIT_S)
    if said["policy"] != NOBODY and said["behind"] < BEHIND_S_MIN:
        raise BenchError(f"the slow subscriber was only {said['behind']:.2f} s behind under {said['policy']}")
    if said["policy"] not in {NOBODY, "catch_up"} and not said["acts"]:
        raise BenchError(f"the slow subscriber was never told so under {said['policy']}")


# --- what came out ----------------------------------------------------------------------------------


def check_complete(phases: Sequence[Phase], sent: NDArray[Any], subscribers: int) -> None:
    """A message that never came would not be late."""
    for phase in phases:
        inside = sent[(sent >= phase.began) & (sent < phase.ended)]
        messages = len(np.unique(inside))
        if not messages or len(inside) != messages * subscribers:
            raise BenchError(f"{messages} messages came {len(inside)} times to {subscribers} subscribers")


def compared(
    phases: Sequence[Phase], sent: NDArray[Any], late: NDArray[Any], calm: NDArray[np.bool_], say: Callable[[str], None]
) -> list[Row]:
    """Each figure has a sample from each round; what is about all rounds together has one."""
    rounds = sorted({phase.round for phase in phases})
    inside = {(phase.round, phase.policy): (sent >= phase.began) & (sent < phase.ended) for phase in phases}
    still = {each for each in rounds if any(np.mean(calm[inside[each, kind]]) < CALM_MIN for kind in KINDS)}
    busy = {phase.round for phase in phases if phase.others_cores > OTHERS_CORES_MAX}
    used = [each for each in rounds if each not in still | busy]
    say(f"slow: {len(used)} of {len(rounds)} rounds count; not {len(still)} in which the machine mostly stood still,")
    say(f"      nor {len(busy)} in which other programs took more than {OTHERS_CORES_MAX} of its cores")
    if len(used) * 2 <= len(rounds):
        raise BenchError("the machine stood still too often, or had too much else to do: measure again")
    rows: list[Row] = []
    for each in used:
        _add(rows, {kind: _p99s(late, inside[each, kind], calm) for kind in KINDS})
    whole = {kind: np.logical_or.reduce([inside[each, kind] for each in used]) for kind in KINDS}
    p99 = {kind: _p99s(late, which, calm) for kind, which in whole.items()}
    left_out = {
        kind: float(np.mean(~calm[np.logical_or.reduce([inside[each, kind] for each in rounds])])) for kind in KINDS
    }
    for phase in phases:
        add(rows, "slow", "machine", "cores", taken_by_other_programs=phase.others_cores)
    for kind in KINDS:
        add(rows, "slow", "machine", "%", **{f"time_left_out_{_where(kind)}": left_out[kind] * 100})
    for policy in POLICIES:
        ratio, more = p99[policy][0] / p99[NOBODY][0], left_out[policy] - left_out[NOBODY]
        add(rows, "slow", "stentor", "times", **{f"p99_ratio_of_{policy},_rounds_together": ratio})
        add(rows, "slow", "stentor", "points", **{f"more_time_left_out_{_where(policy)}": more * 100})
    return rows


def _p99s(late: NDArray[Any], which: NDArray[np.bool_], calm: NDArray[np.bool_]) -> tuple[float, float]:
    """While the machine went on, and always."""
    return float(np.percentile(late[which & calm], 99)), float(np.percentile(late[which], 99))


def _where(kind: str) -> str:
    return f"beside_{kind}" if kind else "without_it"


def _add(rows: list[Row], found: dict[str, tuple[float, float]]) -> None:
    without, without_always = found[NOBODY]
    for kind, (p99, always) in found.items():
        figures = {f"p99_{_where(kind)}": p99 * 1e3, f"p99_{_where(kind)},_everything_counted": always * 1e3}
        add(rows, "slow", "stentor", "ms", **figures)
        if kind:
            ratios = {
                f"p99_ratio_of_{kind}": p99 / without,
                f"p99_ratio_of_{kind},_everything_counted": always / without_always,
            }
            add(rows, "slow", "stentor", "times", **ratios)


# --- the process that publishes ---------------------------------------------------------------------


def feed(spec: Spec, harness: Harness) -> None:
    """Role: publishes at a steady rate, each message with the time at which it was due."""
    import stentor as library

    with library.connect(spec.address, timeout=WAIT_S) as client, client.producer(spec.topic) as producer:
        harness.say("feeding")
        due, step = time.monotonic(), 1 / spec.extra["rate"]
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            producer.send(_SENT.pack(due) + _FILL)
            due += step


# --- the processes that keep up ---------------------------------------------------------------------


def follow(spec: Spec, harness: Harness) -> None:
    """Role: some subscribers, each with a connection of its own."""
    event_loop(fast=True).run_until_complete(_follow(spec, harness))


async def _follow(spec: Spec, harness: Harness) -> None:
    import stentor as library

    seen = array("d")  # no objects: a collector of garbage that walks over millions of them makes everybody wait
    tasks = []
    for _ in range(spec.extra["subscribers"]):
        client = await library.connect_async(spec.address, timeout=WAIT_S)
        subscription = await client.subscribe(spec.topic).__aenter__()
        tasks.append(asyncio.create_task(_note(subscription, seen)))
    harness.say("ready")
    await asyncio.to_thread(harness.wait)
    for task in tasks:
        task.cancel()
    sent, came = np.array(seen).reshape(-1, 2).T
    np.save(spec.extra["file"], np.stack([sent, came - sent], axis=1))
    harness.say("followed")


async def _note(subscription: Any, seen: array[float]) -> None:
    async for message in subscription:
        (sent,) = _SENT.unpack_from(message.value)
        seen.extend((sent, time.monotonic()))


# --- the process that does not ----------------------------------------------------------------------


def lag(spec: Spec, harness: Harness) -> None:
    """Role: a subscriber that is too slow, under the policy it is told."""
    event_loop(fast=True).run_until_complete(_lag(spec, harness))


async def _lag(spec: Spec, harness: Harness) -> None:
    import stentor as library

    client = await library.connect_async(spec.address, timeout=WAIT_S)
    harness.say("ready")
    task: asyncio.Task[None] | None = None
    snail = Snail(NOBODY)
    while True:
        policy = (await asyncio.to_thread(harness.wait))["policy"]
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        harness.say("changed", policy=snail.policy, behind=snail.behind_s, acts=snail.acts)
        snail = Snail(policy)
        task = asyncio.create_task(snail.crawl(library, client, spec.topic)) if policy else None


class Snail:
    """A subscriber that is too slow, for a while."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.behind_s = 0.0  # how old a message was at most when it was done with it
        self.acts = 0  # how often the policy did something about it

    async def crawl(self, library: Any, client: Any, topic: str) -> None:
        options = {"start": "earliest"} if self.policy == "catch_up" else {"max_lag": MAX_LAG}
        while True:
            with suppress(library.SlowSubscriber):
                async with client.subscribe(topic, on_slow=self.policy, **options) as subscription:
                    async for message in subscription:
                        await asyncio.sleep(SLOW_S)
                        age_s = time.monotonic() - _SENT.unpack_from(message.value)[0]
                        self.behind_s = max(self.behind_s, age_s)
                        self.acts += len(subscription.events())
            self.acts += 1
