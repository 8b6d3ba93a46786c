"""This broker and the controller: performs what the cluster machine says, and passes to it what it must hear.

    heartbeats, reports, complaints ──► cluster machine ──► takeover, proposals ──► store ──► pushed to all

The machine (`core.cluster`) decides; it is there from the moment this broker joins its cluster.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from stentor import limits
from stentor.broker.cluster.active_passive import ActivePassive
from stentor.broker.cluster.controlling import Controlling
from stentor.broker.cluster.reporting import Reporting
from stentor.core import cluster_events as e
from stentor.core.cluster import ClusterMember
from stentor.core.controller import Propose
from stentor.errors import NotReady
from stentor.wire import peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.background import Background
    from stentor.broker.catalogue import News
    from stentor.broker.cluster.interfaces import LocalCopy
    from stentor.broker.cluster.peer_links import Peers
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import HeldRecord, Key


class Control:
    """The cluster machine of this broker, and what it wants done."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        *,
        followed: FollowedStore,
        peers: Peers,
        copies: Mapping[Key, LocalCopy],
        background: Background,
    ) -> None:
        self._environment = environment
        self._identity = identity
        self._catalogue, self._rollback, self._follower = followed.catalogue, followed.rollback, followed.follower
        self._peers = peers
        self._background = background
        self.member: ClusterMember | None = None  # from when this broker joins
        self.reporting = Reporting(environment, identity, copies, peers, self)
        self._controlling = Controlling(identity, followed, self)
        self._active = ActivePassive(followed, background, self)
        self._planning_on = False
        self._member_messages: list[tuple[Key, PartitionMessage]] = []

    @property
    def machine(self) -> ClusterMember:
        if self.member is None:
            raise NotReady("This broker has not joined its cluster yet.", hint="Try again in a moment.")
        return self.member

    @property
    def joined(self) -> bool:
        """Whether it takes part in the cluster yet."""
        return self.member is not None

    @property
    def closed(self) -> bool:
        """Whether this broker stops."""
        return self._background.closed

    def now_us(self) -> int:
        return self._environment.monotonic_us()

    def join(self) -> None:
        """The machine's time begins."""
        who = self._identity
        self.member = ClusterMember(who.broker_id, who.incarnation, self.now_us(), lambda: secrets.randbits(62) + 1)
        self.member.cautious = self._rollback.accepted

    def step(self, event: e.ClusterEvent) -> None:
        """Tell the machine, do what it says."""
        self._do(self.machine.step(event, self.now_us()))

    def tick(self, event: e.Ticked) -> None:
        """A beat of the cluster."""
        self.step(event)
        self._active.choose()
        self._rollback.tell_behind(self.machine.controller, self._catalogue.by_id)

    def view(self, name: str) -> str:
        """How this broker sees another one."""
        return self.machine.membership.view(name, self.now_us())

    def alive(self) -> dict[str, int]:
        """Brokers that are there, with their incarnations."""
        membership, now_us = self.machine.membership, self.now_us()
        return {
            record.id: membership.incarnation_of(record.id) or record.incarnation
            for record in self._catalogue.brokers.values()
            if membership.view(record.id, now_us) == "heard"
        }

    # --- effects --------------------------------------------------------------------------------

    def _do(self, wanted: list[e.ClusterEffect]) -> None:
        """Perform what the cluster machine says."""
        for effect in wanted:
            match effect:
                case e.Beat(heartbeat):
                    self._peers.send_all(heartbeat)
                case e.TakeOver(revision):
                    self._background.spawn(self._controlling.take_over(revision))
                case e.LoadAll():
                    self._background.spawn(self._controlling.load())
                case e.Push(records, complete):
                    self.push(dict(records), complete=complete)
                case e.ReportReplicas():
                    self.reporting.soon()
                case e.AskReports(broker):
                    self._ask_reports(broker)
                case e.PlanOn() if not self._planning_on:
                    self._planning_on = True
                    self._environment.loop.call_soon(self._plan_on)
                case Propose():
                    self._background.spawn(self._controlling.propose(effect))

    def push(self, records: dict[Key, HeldRecord], *, complete: bool = False) -> None:
        """Everyone hears of new records at once; the watch is for who missed it."""
        if records:
            rows = [(*key, held.record, held.revision) for key, held in records.items()]
            for start in range(0, len(rows), limits.PUSHED_RECORDS_MAX):
                part = rows[start : start + limits.PUSHED_RECORDS_MAX]
                last = start + limits.PUSHED_RECORDS_MAX >= len(rows)
                self._peers.send_all(peer.Pushed(part, complete and last))
            self._follower.heard(records, confirmed=True)

    def _ask_reports(self, broker: str) -> None:
        if broker == self._identity.broker_id:
            self.reporting.everything()
        else:
            self._peers.send(broker, peer.ReportAgain())

    def _plan_on(self) -> None:
        self._planning_on = False
        if not self.closed:
            self.step(e.PlannedOn())

    # --- what the machine must hear -------------------------------------------------------------

    def take_news(self, news: News) -> None:
        """What the store says."""
        if news.controller is not None:
            self.step(e.ControllerSeen(*news.controller))
        if news.brokers:
            self.step(e.Registered(self._catalogue.brokers))
        if news.active:
            self.step(e.ActiveSeen(self._catalogue.active))
        if news.topics:
            plans = {topic_id: None if topic is None else topic.plan for topic_id, topic in news.topics.items()}
            self.step(e.TopicsSeen(plans))
        if news.chains:
            self.step(e.RecordsSeen(news.chains))

    def heard_reports(self, said: peer.Reports) -> None:
        """What a broker holds, or what changed of it."""
        found = {(topic_id, partition): report for topic_id, partition, report in said.reports}
        if said.partial:
            self.step(e.ReportedChanges(said.broker, said.incarnation, found, said.gone, said.number))
        else:
            self.step(e.Reported(said.broker, said.incarnation, found, said.number))

    def heard_member(self, key: Key, message: PartitionMessage) -> None:
        """What members say within a moment is looked at together: many chains change in one transaction."""
        if not self._member_messages:
            self._environment.loop.call_later(limits.GATHER_S, self._take_member_messages)
        self._member_messages.append((key, message))

    def _take_member_messages(self) -> None:
        gathered, self._member_messages = self._member_messages, []
        if not self.closed:
            self.step(e.MembersSaid(gathered))

    # --- the way to the controller --------------------------------------------------------------

    def report(self, key: Key, message: PartitionMessage) -> None:
        """Tell the controller something about a partition."""
        to, pass_on = self.way_to_controller()
        if to == self._identity.broker_id:
            self.heard_member(key, message)
        elif to:
            self._peers.send(to, peer.ForPartition(*key, message, pass_on))

    def way_to_controller(self) -> tuple[str, bool]:
        """Whom to tell, and whether that one must pass it on."""
        to = self.machine.membership.way_to_controller(self.now_us())
        return to, to != self.machine.controller_broker
