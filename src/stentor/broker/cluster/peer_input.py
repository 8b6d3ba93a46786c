"""What other brokers say, on its way to the machine that must hear it.

    PEER       heartbeats and reports ──► control      about a partition ──► its copy here      records ──► catalogue

Batches do not come this way: `partitions.replicas` takes them.

Every message is judged first (`senders`); what concerns chains is a hint until the store says so (`hearsay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.broker.cluster.senders import passed_on
from stentor.core.chain_messages import Adopt, Complaint, Confirm, Confirmed, Held, JoinerReady
from stentor.core.cluster_events import Beaten
from stentor.core.membership import Heartbeat
from stentor.core.records import HeldRecord
from stentor.core.replica_events import Received
from stentor.wire import peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.broker.background import Background
    from stentor.broker.cluster.control import Control
    from stentor.broker.cluster.hearsay import Hearsay
    from stentor.broker.cluster.interfaces import LocalCopy
    from stentor.broker.cluster.peer_links import Peers
    from stentor.broker.cluster.senders import Senders
    from stentor.broker.cluster.store_follower import StoreFollower
    from stentor.broker.cluster.store_look import StoreLook
    from stentor.broker.environment import Environment
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import Key


class PeerInput:
    """Hands on what other brokers say."""

    def __init__(
        self,
        environment: Environment,
        copies: Mapping[Key, LocalCopy],
        *,
        control: Control,
        peers: Peers,
        senders: Senders,
        hearsay: Hearsay,
        follower: StoreFollower,
        look: StoreLook,
        background: Background,
    ) -> None:
        self._loop = environment.loop
        self._copies = copies
        self._control = control
        self._peers = peers
        self._senders = senders
        self._hearsay = hearsay
        self._follower = follower
        self._look = look
        self._background = background
        self.on_cursors: Callable[[str, peer.CursorAsked | peer.CursorAnswered], None] = lambda *_: None
        self.on_responders: Callable[[str, peer.Responders], None] = lambda *_: None
        self.on_complete: Callable[[], None] = lambda: None  # the controller has told all records there are (C25)

    def heard(self, sender: str, body: memoryview) -> None:
        """Control messages of another broker."""
        if not self._control.joined:
            return  # this broker says nothing either
        for message in peer.decode(body):
            if self._senders.may_say(sender, message):
                self._heard(sender, message)

    def _heard(self, sender: str, message: peer.PeerMessage) -> None:
        control = self._control
        machine = control.machine
        match message:
            case Heartbeat():
                control.step(Beaten(message))
            case peer.ForPartition(pass_on=True) | peer.Reports(pass_on=True) if machine.controller is None:
                self._peers.send(machine.controller_broker, passed_on(message, sender))
            case peer.ForPartition(topic_id, partition, about):
                self._heard_about((topic_id, partition), sender, about)
            case peer.Pushed(records, complete):
                said = {(t, p): HeldRecord(record, revision) for t, p, record, revision in records}
                self._follower.heard(self._hearsay.believed(said), confirmed=False)
                if complete:
                    self.on_complete()
            case peer.Reports():
                control.heard_reports(message)
            case peer.ReportAgain() if sender == machine.controller_broker:
                control.reporting.everything()
            case peer.TopicsChanged():
                self._topics_changed(message)
            case peer.CursorAsked() | peer.CursorAnswered() | peer.Responders():
                self._pass_on(sender, message)

    def _pass_on(self, sender: str, message: peer.CursorAsked | peer.CursorAnswered | peer.Responders) -> None:
        """For parts of the broker that are no part of the cluster."""
        if isinstance(message, peer.Responders):
            self.on_responders(sender, message)
        else:
            self.on_cursors(sender, message)

    def _topics_changed(self, changed: peer.TopicsChanged) -> None:
        if changed.name:
            self._background.spawn(self._hearsay.learn_topic(changed.name))
        self._look.soon(changed.revision)

    def _heard_about(self, key: Key, sender: str, message: PartitionMessage) -> None:
        if isinstance(message, JoinerReady | Complaint):
            self._control.heard_member(key, message)
            return
        if isinstance(message, Adopt):
            believed = self._hearsay.believed({key: HeldRecord(message.record, message.revision)})
            self._follower.heard(believed, confirmed=False)
            if not believed:
                return
        if (copy := self._copies.get(key)) is not None:
            copy.step(Received(sender, message))

    def tell(self, to: str, key: Key, message: PartitionMessage) -> None:
        """Say something about a partition to another broker, if it understands that."""
        if not isinstance(message, Held | Confirm | Confirmed) or self._peers.knows(to, "confirm"):
            self._peers.tell(to, key, message)
        elif isinstance(message, Confirm) and self._peers.lacks(to, "confirm"):
            # An older broker: it is believed to be where it was, as it used to be.
            self._loop.call_soon(self._heard_about, key, to, Confirmed(message.epoch, message.nonce, 0, sure=True))
