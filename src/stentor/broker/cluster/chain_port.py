"""What the copies on this broker ask of the cluster: the one way from partitions to other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.cluster.control import Control
    from stentor.broker.cluster.disk_health import DiskHealth
    from stentor.broker.cluster.hearsay import Hearsay
    from stentor.broker.cluster.interfaces import LocalCopy
    from stentor.broker.cluster.peer_input import PeerInput
    from stentor.broker.cluster.peer_links import PeerLink, Peers
    from stentor.broker.cluster.store_follower import StoreFollower
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import Key


class ChainPort:
    """Speaks to peers, controller and store for the partitions of this broker."""

    def __init__(
        self,
        *,
        control: Control,
        peers: Peers,
        peer_input: PeerInput,
        hearsay: Hearsay,
        follower: StoreFollower,
        disk: DiskHealth,
    ) -> None:
        self._control = control
        self._peers = peers
        self._hearsay = hearsay
        self._disk = disk
        self.tell = peer_input.tell
        self.look_again = follower.look_again

    def report(self, key: Key, message: PartitionMessage) -> None:
        """Tell the controller something about a partition."""
        self._control.report(key, message)

    def report_soon(self, key: Key | None = None) -> None:
        """Tell the controller what this broker holds of a partition, or of all that changed."""
        if self._control.joined:
            self._control.reporting.soon(key)

    def data_link(self, to: str) -> PeerLink | None:
        """The connection that batches go to another broker on."""
        return self._peers.data_link(to)

    def when_confirmed(self, copy: LocalCopy, work: Callable[[], None]) -> None:
        """C28: do what cannot be undone once the store has named this member's predecessor."""
        self._hearsay.when_confirmed(copy, work)

    def disk_is_full(self) -> None:
        """An append found no room: the others should know soon (C31)."""
        self._disk.found_full()
