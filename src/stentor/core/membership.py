"""Who is there, and who is the controller: the pure machine in every broker (C15, C16).

Brokers send each other heartbeats: who I am, whom I do not hear, whether I hear the controller. From these
each broker has the same few facts:

    refused   the connection broke and a new one was refused: no process is there. Dead now.
    silent    nothing heard for PEER_SILENCE_S. Dead when a second observer says so too.

Heartbeats also say whether their sender reaches the coordination store (C29) and whether its disk takes writes
(C31). A controller that does not reach the store while another broker does can change nothing: it resigns, which
counts as not being heard.

The controller's key has no lease. It is taken by compare-and-swap by a broker once a majority of the
registered brokers, itself included, does not hear the controller; candidates wait by rank, so that usually only one
tries. Timeouts decide when to act, never what is true: a wrong guess costs an election, not a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from stentor import limits
from stentor.core.slowness import SyncPace
from stentor.core.statistics import MembershipStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable

View = Literal["heard", "silent", "refused"]

_SILENCE_US = int(limits.PEER_SILENCE_S * 1_000_000)
_CONTROLLER_SILENCE_US = int(limits.CONTROLLER_SILENCE_S * 1_000_000)
_STAGGER_US = int(limits.ELECTION_STAGGER_S * 1_000_000)
_RENEWAL_US = int(limits.LEASE_S / 2 * 1_000_000)  # whoever is there has renewed its liveness key by then
_REMOVALS_US = int(limits.REMOVALS_S * 1_000_000)
_RESIGN_US = int(limits.RESIGN_S * 1_000_000)
_STEADY_US = int(3 * limits.PEER_HEARTBEAT_S * 1_000_000)  # said in several heartbeats, not in one
_UNABLE_US = int(limits.UNABLE_S * 1_000_000)
_LAG_US = int(limits.PEER_HEARTBEAT_S * 3 * 1_000_000)


class Heartbeat(msgspec.Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """What a broker says to every other one, ten times a second."""

    broker: str
    incarnation: int
    suspects: dict[str, str] = {}  # broker -> "silent" or "refused"
    controller_revision: int = 0  # of the controller key it knows
    hears_controller: bool = True
    load: int = 0  # connections; for whoever chooses between brokers
    hears_majority: bool = True
    reaches_store: bool = True
    writes: bool = True  # its disk takes writes (C31)
    busy: bool = (
        False  # its disk finishes syncs, and has more to do than it can: who waits for it waits for all of them
    )
    sync_us: int = 0  # how long its syncs took lately (C14)
    slow: bool = False  # each of them for a while, longer than a second
    waits_us: int = 0  # for how long a write has waited for its disk
    stalls: bool = False  # it takes no writes only because of that
    resigned: bool = False  # it is the controller by `controller_revision`, and gives that up (C29)
    controller: str = ""  # who the controller is, for a receiver that does not reach the store
    controller_incarnation: int = 0


class ControllerKey(msgspec.Struct, frozen=True):
    """Who may change chains; and the revision that every change must compare."""

    broker: str
    incarnation: int


class _Peer(msgspec.Struct):
    incarnation: int = 0
    heard_us: int = 0
    since_us: int = 0  # since when it is heard, in this life and without a pause
    refused: bool = False
    opinion: Heartbeat | None = None
    opinion_us: int = 0
    deaf_since_us: int | None = None  # since when it says that it does not hear us
    store_since_us: int | None = None  # since when it says that it reaches the store
    unable_since_us: int | None = None  # since when it says that its disk takes no writes


def _since(before_us: int | None, now_us: int, holds: bool) -> int | None:
    """Since when something holds; None while it does not."""
    if not holds:
        return None
    return now_us if before_us is None else before_us


class Membership:
    """Whom this broker hears, what the others say, and whether it should become the controller."""

    def __init__(self, me: str, incarnation: int, now_us: int) -> None:
        self.me = me
        self.incarnation = incarnation
        self.registered: set[str] = {me}
        self.controller: ControllerKey | None = None
        self.controller_revision = 0
        self._peers: dict[str, _Peer] = {}
        self._ticked_us = now_us
        self._deaf_since_us: int | None = None
        self._expired: set[str] = set()  # brokers whose liveness key is gone
        self._lapsed_us = -_RENEWAL_US  # when our own key was last seen to be gone: others' say nothing then (C15)
        self._given_up: dict[str, int] = {}  # brokers that were silent for too long -> since when they count as dead
        self.lags = 0  # how often this broker's own loop stood still
        self.awake_since_us = now_us  # since when it has not
        self.load = 0
        self._unable_since_us: int | None = None  # since when this broker's own disk takes no writes (C31)
        self.busy = False  # this broker's disk has more to do than it can
        self.pace = SyncPace()  # of this broker's syncs
        self.resigned = False
        self.hinted = False  # the controller is known from a peer alone (C28)
        self.reaches_store = True
        self._store_us = now_us  # when the store last answered this broker

    # --- what is heard --------------------------------------------------------------------------

    def register(self, brokers: Iterable[str], now_us: int) -> None:
        """All brokers of the cluster, from the store."""
        self.registered = {*brokers, self.me}
        for broker in self.registered - {self.me} - set(self._peers):
            self._peers[broker] = _Peer(heard_us=now_us)
        for broker in set(self._peers) - self.registered:
            del self._peers[broker]

    def heard(self, heartbeat: Heartbeat, now_us: int) -> bool:
        """A heartbeat came; whether it is news that the broker is there."""
        peer = self._peers.get(heartbeat.broker)
        if peer is None:
            self.registered.add(heartbeat.broker)
            peer = self._peers[heartbeat.broker] = _Peer()
        if heartbeat.incarnation < peer.incarnation:
            return False  # an echo of an earlier life
        news = self._view(peer, now_us) != "heard" or peer.incarnation != heartbeat.incarnation
        if news:
            peer.since_us = now_us
        peer.incarnation, peer.heard_us, peer.refused = heartbeat.incarnation, now_us, False
        peer.opinion, peer.opinion_us = heartbeat, now_us
        peer.deaf_since_us = _since(peer.deaf_since_us, now_us, self.me in heartbeat.suspects)
        peer.store_since_us = _since(peer.store_since_us, now_us, heartbeat.reaches_store)
        peer.unable_since_us = _since(peer.unable_since_us, now_us, not heartbeat.writes)
        self._take_hint(heartbeat)
        return news

    def _take_hint(self, heartbeat: Heartbeat) -> None:
        """Who does not reach the store believes a peer about the controller, until the store says (C28, C29)."""
        newer = heartbeat.controller_revision > self.controller_revision
        if newer and not self.reaches_store and heartbeat.controller not in ("", self.me):
            key = ControllerKey(heartbeat.controller, heartbeat.controller_incarnation)
            self.controller_is(key, heartbeat.controller_revision)
            self.hinted = True

    def refused(self, broker: str) -> bool:
        """The connection is gone and a new one was refused; whether that is news."""
        peer = self._peers.get(broker)
        if peer is None or peer.refused:
            return False
        peer.refused = True
        return True

    def liveness(self, broker: str, *, alive: bool) -> None:
        """The broker's liveness key in the store came or went: a slow second observer (E1)."""
        if alive:
            self._expired.discard(broker)
        else:
            self._expired.add(broker)

    def tick(self, now_us: int) -> None:
        """An observer that stood still itself knows nothing about the silence of others (C15)."""
        if now_us - self._ticked_us > _LAG_US:
            self.lags += 1
            self.awake_since_us = now_us
            for peer in self._peers.values():
                peer.heard_us = max(peer.heard_us, now_us)
                peer.opinion_us = max(peer.opinion_us, now_us)
            self._deaf_since_us = None
        self._ticked_us = now_us
        if self.me in self._expired:
            self._lapsed_us = now_us

    def view(self, broker: str, now_us: int) -> View:
        if broker == self.me:
            return "heard"
        peer = self._peers.get(broker)
        return "silent" if peer is None else self._view(peer, now_us)

    def _view(self, peer: _Peer, now_us: int) -> View:
        if peer.refused:
            return "refused"
        return "silent" if now_us - peer.heard_us > _SILENCE_US else "heard"

    def incarnation_of(self, broker: str) -> int:
        """Which life of a broker was heard last; 0: none yet."""
        if broker == self.me:
            return self.incarnation
        peer = self._peers.get(broker)
        return 0 if peer is None else peer.incarnation

    def load_of(self, broker: str) -> int:
        """What a broker last said of its load."""
        peer = self._peers.get(broker)
        return 0 if peer is None or peer.opinion is None else peer.opinion.load

    def heartbeat(self, now_us: int) -> Heartbeat:
        suspects: dict[str, str] = {
            broker: view for broker, peer in self._peers.items() if (view := self._view(peer, now_us)) != "heard"
        }
        controller = self.controller
        return Heartbeat(
            self.me,
            self.incarnation,
            suspects,
            self.controller_revision,
            self.hears_controller(now_us),
            self.load,
            self.hears_majority(now_us),
            reaches_store=self.reaches_store,
            writes=self.writes,
            busy=self.busy,
            sync_us=self.pace.mean_us,
            slow=self.pace.slow,
            waits_us=self.pace.waits_us,
            stalls=self.pace.stalls,
            resigned=self.resigned,
            controller="" if controller is None else controller.broker,
            controller_incarnation=0 if controller is None else controller.incarnation,
        )

    # --- the store and the disk (C29, C31) ------------------------------------------------------

    def store_answers(self, answers: bool, now_us: int) -> None:
        """Whether the coordination store answered this broker just now."""
        self.reaches_store = answers
        if answers:
            self._store_us = now_us

    def should_resign(self, now_us: int) -> bool:
        """C29: the controller cannot change anything, and somebody else could."""
        if not self.is_controller or self.reaches_store or now_us - self._store_us < _RESIGN_US:
            return False
        return any(
            peer.store_since_us is not None
            and now_us - peer.store_since_us >= _STEADY_US
            and self._view(peer, now_us) == "heard"
            for peer in self._peers.values()
        )

    @property
    def writes(self) -> bool:
        return self._unable_since_us is None

    def disk_writes(self, writes: bool, now_us: int) -> None:
        """Whether this broker's own disk takes writes."""
        self._unable_since_us = _since(self._unable_since_us, now_us, not writes)

    def writers(self, now_us: int) -> tuple[frozenset[str], frozenset[str]]:
        """Who says that its disk takes writes, and who has said for a while that it does not.

        For a while, because disks may fill up together: then it is soon nobody who can take over (C31).
        """
        since = {self.me: self._unable_since_us}
        for name, peer in self._peers.items():
            if peer.opinion is not None and self._view(peer, now_us) == "heard":
                since[name] = peer.unable_since_us
        able = frozenset(name for name, at in since.items() if at is None)
        return able, frozenset(name for name, at in since.items() if at is not None and now_us - at >= _UNABLE_US)

    def overloaded(self) -> frozenset[str]:
        """Whose disks have more to do than they can, by their own words."""
        peers = (name for name, peer in self._peers.items() if peer.opinion is not None and peer.opinion.busy)
        return frozenset([*peers, *([self.me] if self.busy else [])])

    def paces(self, now_us: int) -> dict[str, SyncPace]:
        """How long the syncs of each broker take, by the words of those that are heard."""
        found = {self.me: self.pace}
        for name, peer in self._peers.items():
            if peer.opinion is not None and self._view(peer, now_us) == "heard":
                said = peer.opinion
                found[name] = SyncPace(said.sync_us, said.slow, said.waits_us, said.stalls)
        return found

    def suspicions(self, now_us: int) -> dict[str, frozenset[str]]:
        """Whom each broker does not hear, by its own word."""
        found = {self.me: frozenset(name for name in self._peers if self.view(name, now_us) != "heard")}
        for name, peer in self._peers.items():
            if peer.opinion is not None and peer.opinion.suspects and self._view(peer, now_us) == "heard":
                found[name] = frozenset(peer.opinion.suspects)
        return found

    # --- judgements -----------------------------------------------------------------------------

    def hears_majority(self, now_us: int) -> bool:
        """Of all registered brokers but those whose liveness key is gone too: they cannot be on another side."""
        return self._is_majority(self.hearing(now_us), now_us)

    def hearing(self, now_us: int) -> set[str]:
        """Whom this broker hears, itself included."""
        return {broker for broker in self.registered if self.view(broker, now_us) == "heard"}

    def heard_lately(self, now_us: int) -> frozenset[str]:
        """Who is heard again since a moment ago only: it may be gone for long, and this the last that it had sent.

        The same of all others when this broker itself stood still.
        """
        return frozenset(
            broker
            for broker, peer in self._peers.items()
            if now_us - max(peer.since_us, self.awake_since_us) < _STEADY_US
        )

    def heard_by_any(self, now_us: int) -> set[str]:
        """Who is heard by this broker, or by another one that it hears."""
        heard = self.hearing(now_us)
        opinions = [self._peers[name].opinion for name in heard if name != self.me]
        return heard | {b for b in self.registered if any(o is not None and b not in o.suspects for o in opinions)}

    def _is_majority(self, heard: set[str], now_us: int) -> bool:
        gone = self._expired if now_us - self._lapsed_us > _RENEWAL_US else set()
        return 2 * len(heard) > len(heard | (self.registered - gone))

    def is_confirmed(self, now_us: int) -> bool:
        """C6: someone who could replace us would have told us."""
        deaf = {name for name, peer in self._peers.items() if self._is_deaf(peer, now_us)}
        if self._is_majority(self.hearing(now_us) - deaf, now_us):
            return True
        return not self.is_controller and self.hears_controller(now_us) and self._controller_confirms(now_us)

    def _controller_confirms(self, now_us: int) -> bool:
        """A controller on the minority's side confirms nobody, and one that does not hear us not us."""
        peer = self._peers.get(self.controller.broker) if self.controller is not None else None
        if peer is None or peer.opinion is None or self._is_deaf(peer, now_us):
            return False
        return peer.opinion.hears_majority

    def _is_deaf(self, peer: _Peer, now_us: int) -> bool:
        """A network may let through what comes and not what goes: such a peer is heard, and takes us for dead. One that
        has heard nothing since we were started will soon.
        """
        return peer.deaf_since_us is not None and now_us - peer.deaf_since_us >= _SILENCE_US

    def unreached(self, now_us: int) -> frozenset[str]:
        """Who does not hear this broker, or is not heard by it: nothing gets through to them and back."""
        return frozenset(
            name
            for name, peer in self._peers.items()
            if self._view(peer, now_us) != "heard" or self._is_deaf(peer, now_us)
        )

    def dead(self, now_us: int) -> set[str]:
        """The controller's judgement of all (C15). Who is silent is given up only with few others in a short time:
        where many seem to fall silent one after the other, the network or this broker is the likelier cause.
        """
        dead = {broker for broker in self.registered if self.is_dead(broker, now_us)}
        silent = sorted(broker for broker in dead if self.view(broker, now_us) == "silent")
        given_up = {b: at for b, at in self._given_up.items() if b in silent or now_us - at <= _REMOVALS_US}
        for broker in silent:
            recent = sum(now_us - at <= _REMOVALS_US for at in given_up.values())
            if broker not in given_up and recent < max(1, (len(self.registered) - 1) // 2):
                given_up[broker] = now_us
        self._given_up = given_up
        return dead - (set(silent) - set(given_up))

    def is_dead(self, broker: str, now_us: int) -> bool:
        """Whether a broker is refused, or silent for two observers."""
        view = self.view(broker, now_us)
        if view == "heard":
            return False
        if view == "refused":
            return True
        return self._second_observer(broker, now_us)

    def _second_observer(self, broker: str, now_us: int) -> bool:
        return broker in self._expired or any(
            peer.opinion is not None
            and broker in peer.opinion.suspects
            and now_us - peer.opinion_us <= _SILENCE_US
            and name != broker
            for name, peer in self._peers.items()
        )

    # --- election -------------------------------------------------------------------------------

    def controller_is(self, key: ControllerKey | None, revision: int) -> None:
        if revision > self.controller_revision or key is None or self.hinted:
            self.controller, self.controller_revision = key, revision
            self._deaf_since_us = None
            self.resigned = self.hinted = False

    @property
    def is_controller(self) -> bool:
        return self.controller == ControllerKey(self.me, self.incarnation) and not self.resigned

    def hears_controller(self, now_us: int) -> bool:
        controller = self.controller
        if controller is None:
            return False
        if controller.broker == self.me:
            return self.is_controller
        peer = self._peers.get(controller.broker)
        return (
            peer is not None
            and not peer.refused
            and peer.incarnation <= controller.incarnation
            and now_us - peer.heard_us <= _CONTROLLER_SILENCE_US
            and not self._has_resigned(peer)
        )

    def _has_resigned(self, peer: _Peer) -> bool:
        opinion = peer.opinion
        return opinion is not None and opinion.resigned and opinion.controller_revision == self.controller_revision

    def way_to_controller(self, now_us: int) -> str:
        """Whom to tell what the controller should know: itself, or someone it hears where it does not hear us (C15)."""
        controller = "" if self.controller is None else self.controller.broker
        peer = self._peers.get(controller)
        if peer is None or (self._view(peer, now_us) == "heard" and peer.deaf_since_us is None):
            return controller
        between = sorted(self.hearing(now_us) - {self.me, controller})
        return next((broker for broker in between if self._passes_on(self._peers[broker])), controller)

    def _passes_on(self, peer: _Peer) -> bool:
        """Whether a broker hears us and the controller that we mean."""
        opinion = peer.opinion
        if opinion is None or peer.deaf_since_us is not None:
            return False
        return opinion.hears_controller and opinion.controller_revision == self.controller_revision

    def should_take_over(self, now_us: int) -> bool:
        """C16: a majority does not hear the controller, and nobody ranked before us has acted."""
        if not self.reaches_store or self.hears_controller(now_us) or not self._may_replace(now_us):
            self._deaf_since_us = None
            return False
        if self._deaf_since_us is None:
            self._deaf_since_us = now_us
        candidates = sorted(broker for broker in self.hearing(now_us) if self._is_electable(broker))
        return now_us - self._deaf_since_us >= candidates.index(self.me) * _STAGGER_US

    def _is_electable(self, broker: str) -> bool:
        """C29: who does not reach the store is no candidate."""
        peer = self._peers.get(broker)
        return peer is None or peer.opinion is None or peer.opinion.reaches_store

    def _may_replace(self, now_us: int) -> bool:
        if self.controller is None or self.controller.broker == self.me:
            return True
        if self.controller.broker in self._expired:
            return True
        deaf = 1 + sum(
            peer.opinion is not None
            and not peer.opinion.hears_controller
            and peer.opinion.controller_revision <= self.controller_revision
            and now_us - peer.opinion_us <= _SILENCE_US
            for name, peer in self._peers.items()
            if name != self.controller.broker or self._has_resigned(peer)
        )
        return 2 * deaf > len(self.registered)

    def took_over_in_vain(self, now_us: int) -> None:
        """Someone else was first, or the store did not answer: wait a full turn again."""
        self._deaf_since_us = now_us + _STAGGER_US

    def statistics(self, now_us: int) -> MembershipStatistics:
        return MembershipStatistics(
            controller=self.controller.broker if self.controller is not None else "",
            peers={broker: self._view(peer, now_us) for broker, peer in self._peers.items()},
            lags=self.lags,
            reaches_store=self.reaches_store,
            writes=self.writes,
        )
