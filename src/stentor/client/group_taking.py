"""What a group's member takes messages from: a subscription from which partitions are taken away at any time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from stentor.client.subscription import AsyncSubscription, Subscription

if TYPE_CHECKING:
    from stentor.client.at_hand import AtHand
    from stentor.client.group_progress import GroupProgress
    from stentor.client.reader import Delivery, Reader

    _Base = AtHand
else:
    _Base = object


class _Dropping(_Base):
    """A subscription from which partitions are taken away."""

    _progress: GroupProgress | None = None  # hears how far a partition was handed out that is taken away

    def use_up(self, reader: Reader) -> None:
        """Hand out nothing more of a partition. Called by the client's loop, whoever takes meanwhile."""
        current, handed = self._current, self._handed
        if handed is not None and handed.reader is reader:
            list(current)  # in one step: who takes from it finds it used up

    def source(self) -> Reader | None:
        """Which reader brought what was handed out last."""
        return None if self._handed is None else self._handed.reader

    def _is_due(self, delivery: Delivery) -> bool:
        return not delivery.reader.dropped and delivery.next_offset > delivery.reader.taken

    def _forget_dropped(self) -> None:
        if self._delivery is not None and self._delivery.reader.dropped:
            reader = self._delivery.reader
            self._batches, self._rows = iter(()), iter(())
            self._current, self._delivery = iter(()), None
            if self._progress is not None:
                self._progress.leave(reader)

    def _next_batch(self) -> bool:
        self._forget_dropped()
        return super()._next_batch()

    def _next_rows(self) -> Any:
        self._forget_dropped()
        return super()._next_rows()


class Taking(_Dropping, Subscription):
    """What a member takes from."""


class AsyncTaking(_Dropping, AsyncSubscription):
    """The same for `async` code."""


@cache
def traced() -> tuple[type[Taking], type[AsyncTaking]]:
    """The same with spans: made when a traced client joins its first group."""
    from stentor.client.traced import AsyncTracedSubscription, TracedSubscription

    sync = type("_TracedTaking", (_Dropping, TracedSubscription), {})
    return sync, type("_AsyncTracedTaking", (_Dropping, AsyncTracedSubscription), {})
