"""What a broker may say, and for whom: every message's claimed sender is the one whose connection it came on (S6).

A report or a complaint may be passed on to the controller by another broker, once. Then it names its origin, which
must be registered; that whoever passes it on is honest is what its proof stands for.

That a broker was restarted is believed when the store says so (C28). If the store does not answer, the word of a
broker that has proved who it is will do: it would be taken for dead otherwise.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from stentor import limits
from stentor.core.chain_messages import Complaint, JoinerReady, Link
from stentor.core.membership import Heartbeat
from stentor.errors import ProtocolError, StentorError
from stentor.wire import peer

if TYPE_CHECKING:
    from stentor.broker.background import Background
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import Key
    from stentor.ports import Clock

logger = logging.getLogger(__name__)


class Proofs(Protocol):
    """Whether brokers must prove who they are."""

    @property
    def all_prove(self) -> bool: ...


class TakingPart(Protocol):
    """Whether this broker takes part in its cluster yet."""

    @property
    def joined(self) -> bool: ...


class Senders:
    """Judges messages before any machine hears them."""

    def __init__(
        self,
        clock: Clock,
        *,
        followed: FollowedStore,
        trust: Proofs,
        background: Background,
        control: TakingPart,
    ) -> None:
        self._clock = clock
        self._catalogue, self._rollback, self._follower = followed.catalogue, followed.rollback, followed.follower
        self._trust = trust
        self._background = background
        self._control = control
        self._looked_at = -limits.PEER_LOOK_S
        self._looking = False
        self._believed: dict[str, int] = {}  # incarnations, told by proven brokers while the store did not answer

    def may_say(self, sender: str, message: peer.PeerMessage) -> bool:
        """Whether a message counts; ProtocolError if it speaks for somebody else than its sender may."""
        match message:
            case Heartbeat(broker=broker, incarnation=incarnation):
                _check(broker == sender, sender, broker)
                return self._knows_life(broker, incarnation)
            case peer.Reports(broker=broker, pass_on=pass_on):
                _check(broker == sender or not pass_on, sender, broker)
                strange = next((r.member.broker for _, _, r in message.reports if r.member.broker != broker), None)
                _check(strange is None, sender, strange)
                return self._is_registered(broker)
            case peer.ForPartition(topic_id=topic_id, partition=partition, message=about, origin=origin):
                return self._may_say_about((topic_id, partition), sender, message, about, origin)
        return True

    def _may_say_about(
        self, key: Key, sender: str, message: peer.ForPartition, about: PartitionMessage, origin: str
    ) -> bool:
        if not isinstance(about, JoinerReady | Complaint):
            _check(not origin and not message.pass_on, sender, origin or "another broker")
            if isinstance(about, Link):
                _check(about.member.broker == sender, sender, about.member.broker)
            return True
        _check(not (origin and message.pass_on), sender, origin)
        if message.pass_on or not self._trust.all_prove:  # older versions do not name the origin
            return True
        held = self._catalogue.chains.get(key)
        members = () if held is None else held.record.members
        return any(member.broker == (origin or sender) for member in members)

    def _is_registered(self, name: str) -> bool:
        return name in self._catalogue.brokers

    def _knows_life(self, name: str, incarnation: int) -> bool:
        """C28: a life of a broker that the store has not told of is looked up, not believed."""
        record = self._catalogue.brokers.get(name)
        if record is None:
            return False
        if incarnation <= max(record.incarnation, self._believed.get(name, 0)):
            return True
        self.look(name, incarnation)
        return False

    def look(self, name: str = "", incarnation: int = 0) -> None:
        """Read the store, but not all the time: strangers may cause this."""
        now = self._clock.monotonic()
        if self._looking or now - self._looked_at < limits.PEER_LOOK_S or not self._control.joined:
            return
        self._looked_at, self._looking = now, True
        self._background.spawn(self._look(name, incarnation))

    async def _look(self, name: str, incarnation: int) -> None:
        try:
            await self._follower.look_again()
            answered = not self._rollback.noticed
        except StentorError as error:
            logger.info("could not ask the coordination store about brokers: %s", error)
            answered = False
        finally:
            self._looking = False
        if name and not answered and self._trust.all_prove:
            self._believed[name] = incarnation


def passed_on(message: peer.ForPartition | peer.Reports, sender: str) -> peer.ForPartition | peer.Reports:
    """As it goes to the controller: once, and no further, because two brokers may each take the other one for it."""
    if isinstance(message, peer.Reports):
        return msgspec.structs.replace(message, pass_on=False)  # it names its origin by itself
    return msgspec.structs.replace(message, pass_on=False, origin=sender)


def _check(holds: bool, sender: str, claimed: str | None) -> None:
    if not holds:
        raise ProtocolError(f"Broker {sender} speaks for {claimed}.")
