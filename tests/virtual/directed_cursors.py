"""Directed runs with named cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.virtual.runner import SMALL
from tests.virtual.scene import require, scene
from tests.virtual.workload import TOPIC

from stentor.broker.cursors import desk
from stentor.core.cursors import Moved
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.virtual.scene import Scene

    from stentor.errors import StentorError


def moved_in_vain() -> None:
    """C19: a head that is cut off appends a move that nobody gets. It comes back, its log is cut, and others have moved
    the cursor elsewhere: it has their cursors, and not its own.
    """
    with scene(8) as s, patch.object(desk, "SETTINGS", SMALL):
        s.ask(lambda client: client.move_cursor(TOPIC, "a", {0: 1}), 10)
        key = (next(iter(s.cluster.brokers.values())).parts.ground.catalogue.get(CURSORS_TOPIC).record.id, 0)
        head, *others = [member.broker for member in s.checker.record(key).chain]
        broker, process = s.broker(head), s.processes[head]
        end = broker.partitions[key].log.end
        s.cut(*((head, other) for other in others))
        vain = Moved(s.key[0], "vain", {0: 1})
        process.run(broker.parts.cursors.ask_partition(0, vain))
        s.go(0.1)
        require(broker.partitions[key].log.end > end, "the head took nothing", head)
        s.go(3)
        for name in ("b", "c"):
            s.ask(lambda client, name=name: client.move_cursor(TOPIC, name, {0: 1}), 20)
        s.network.heal()
        require(s.go(20, lambda: len(s.checker.record(key).chain) == len(s.disks)), "the head does not come back")
        s.ask(lambda client: client.move_cursor(TOPIC, "d", {0: 1}), 20)
        s.go(2)


def kept_at_a_paused_head() -> None:
    """C24, C30: a head is paused, replaced, and wakes up cut off. Others have read on meanwhile: where they are is not
    beyond the end, as far as this one can know.
    """
    for seed in range(25, 28):
        with scene(seed) as s, patch.object(desk, "SETTINGS", SMALL):
            s.ask(lambda client: client.move_cursor(TOPIC, "a", {0: 1}), 10)
            head, *others = s.chain
            refused: list[StentorError] = []

            async def keep(client: Any, s: Scene = s, refused: list[StentorError] = refused) -> None:
                try:
                    await client.move_cursor(TOPIC, "b", {0: s.load.history.ends()[0]}, timeout=1.0)
                except OffsetOutOfRange as error:
                    refused.append(error)

            s.faithful(head, keep)
            s.go(0.5)
            s.pause(head, 3)
            s.cut(*((head, other) for other in others))
            s.store.cut.add(head)
            s.go(5)
            require(s.record.epoch > 1, "the head was not replaced", s.record)
            require(not refused, "a position that was reached is refused as out of range", refused)


RUNS: dict[str, Callable[[], None]] = {run.__name__: run for run in (moved_in_vain, kept_at_a_paused_head)}
