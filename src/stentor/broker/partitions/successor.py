"""What a partition sends to the next member of its chain: batches, how far it is, and the state before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.broker.partitions.chain_feed import ChainFeed
from stentor.broker.partitions.state_pieces import StatePieces
from stentor.core import replica_events as r
from stentor.core.chain_messages import Down, Linked

if TYPE_CHECKING:
    from stentor.broker.partitions.chain_feed import Fed
    from stentor.broker.partitions.chain_work import ChainWork
    from stentor.core.chain_messages import PartitionMessage


class Successor:
    """The way down the chain, whoever is there."""

    def __init__(self, partition: Fed) -> None:
        self._partition = partition
        self._feed: ChainFeed | None = None
        self._pieces = StatePieces(partition)

    @property
    def is_fed(self) -> bool:
        """Whether it gets the same batches."""
        return self._feed is not None

    def is_below(self, offset: int) -> bool:
        """Whether it is being fed, and was not sent all below an offset yet."""
        return self._feed is not None and self._feed.position < offset

    def perform(self, chain: ChainWork, effect: r.StartFeed | r.StopFeed | r.GiveState) -> None:
        """Do what the machine says."""
        match effect:
            case r.StartFeed():
                self._start(chain, effect)
            case r.StopFeed():
                self.stop()
            case r.GiveState():
                key = self._partition.key
                self._pieces.give(effect, lambda to, piece: chain.tell(to, key, piece))

    def _start(self, chain: ChainWork, effect: r.StartFeed) -> None:
        self.stop()
        self._pieces.forget()
        link = chain.data_link(effect.to)
        if link is not None:
            self._feed = ChainFeed(self._partition, link, effect)
            self._feed.wake()

    def wake(self) -> None:
        """Something was appended."""
        if self._feed is not None:
            self._feed.wake()

    def stop(self) -> None:
        """Nothing more is sent to it."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def epoch_ends(self) -> None:
        """Who comes next is open."""
        self._pieces.forget()

    def tell(self, chain: ChainWork, to: str, message: PartitionMessage) -> None:
        """Tell another broker; what the batches say too goes with them."""
        partition = self._partition
        if isinstance(message, Down) and self._feed is not None and self._feed.link.name == to:
            self._feed.tell(message)
            return
        if isinstance(message, Linked) and message.reset and not message.in_pieces:
            message = msgspec.structs.replace(message, snapshot=partition.log.start_snapshot())
        chain.tell(to, partition.key, message)
