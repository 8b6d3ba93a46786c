"""One broker's share in the cluster: hears the others, may become the controller, and then changes chains.

This ties the membership and controller machines together and is pure as they are: methods take what happened
and return what must be done. Chains themselves run in `core.chain`, and do not need this to go on: with the
store or the controller gone, messages flow on the chains as they are (C27).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.core.controller import BrokerRecord, Controller, HeldRecord, Propose, TopicPlan
from stentor.core.membership import ControllerKey, Heartbeat, Membership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stentor.core.chain_messages import PartitionMessage, ReplicaReport
    from stentor.core.records import Key

_REPORT_US = int(limits.REPORT_S * 1_000_000)


class Beat(msgspec.Struct, frozen=True):
    """Send this heartbeat to every other broker."""

    heartbeat: Heartbeat


class TakeOver(msgspec.Struct, frozen=True):
    """Swap the controller key to this broker if it has this revision, then report `controller_is`."""

    revision: int


class LoadAll(msgspec.Struct, frozen=True):
    """Read everything from the store, then report `loaded`."""


class Push(msgspec.Struct, frozen=True):
    """Tell every broker about these records, which were swapped in."""

    records: list[tuple[Key, HeldRecord]]
    complete: bool = False  # these are all there are


class ReportReplicas(msgspec.Struct, frozen=True):
    """Tell the controller what this broker holds."""


class AskReports(msgspec.Struct, frozen=True):
    """Ask a broker for everything it holds: a report of it was missed."""

    broker: str


class PlanOn(msgspec.Struct, frozen=True):
    """There is more to plan: call `plan` again when others had their turn."""


ClusterEffect = Beat | TakeOver | LoadAll | Push | ReportReplicas | AskReports | PlanOn | Propose


class ClusterMember:
    """What a broker knows about the others, and what it does about it."""

    def __init__(self, me: str, incarnation: int, now_us: int, new_id: Callable[[], int]) -> None:
        self.membership = Membership(me, incarnation, now_us)
        self.controller: Controller | None = None
        self._new_id = new_id
        self._reported_us = now_us
        self._taking_over = False
        self.cautious = False  # the store was restored: nothing changes before all brokers have reported (C27)
        self.office_revision = 0  # of the controller's key as this broker took it: what all its changes compare (C16)
        self.takeovers = 0
        self.resignations = 0

    @property
    def controller_broker(self) -> str:
        """Who to report to; empty when there is no controller."""
        key = self.membership.controller
        return "" if key is None else key.broker

    # --- what happens ---------------------------------------------------------------------------

    def tick(self, now_us: int) -> list[ClusterEffect]:
        self.membership.tick(now_us)
        self._consider_resigning(now_us)
        effects: list[ClusterEffect] = [Beat(self.membership.heartbeat(now_us))]
        effects.extend(self._consider_takeover(now_us))
        if now_us - self._reported_us >= _REPORT_US:
            self._reported_us = now_us
            effects.append(ReportReplicas())
        effects.extend(self.plan(now_us))
        return effects

    def heard(self, heartbeat: Heartbeat, now_us: int) -> list[ClusterEffect]:
        news = self.membership.heard(heartbeat, now_us)
        if not self.membership.is_controller:
            self.controller = None  # a peer knows of a newer one, and this broker does not reach the store (C29)
        effects = self._consider_takeover(now_us)
        if news and heartbeat.broker == self.controller_broker:
            effects.append(ReportReplicas())
        if news:
            effects.extend(self.plan(now_us))
            if self.controller is not None:  # it may have missed what was pushed meanwhile
                effects.append(Push(list(self.controller.records.items()), complete=True))
        return effects

    def refused(self, broker: str, now_us: int) -> list[ClusterEffect]:
        """No process is there any more. Say so at once: the others wait for a second voice."""
        if not self.membership.refused(broker):
            return []
        effects: list[ClusterEffect] = [Beat(self.membership.heartbeat(now_us))]
        effects.extend(self._consider_takeover(now_us))
        effects.extend(self.plan(now_us))
        return effects

    def registered(self, brokers: Mapping[str, BrokerRecord], now_us: int) -> list[ClusterEffect]:
        """The registered brokers, from the store."""
        self.membership.register(brokers, now_us)
        if self.controller is not None:
            for record in brokers.values():
                if self.controller.brokers.get(record.id) != record:
                    self.controller.heard_broker(record)
            for gone in set(self.controller.brokers) - set(brokers):
                self.controller.forgot_broker(gone)
        return self.plan(now_us)

    # --- the controller -------------------------------------------------------------------------

    def _consider_takeover(self, now_us: int) -> list[ClusterEffect]:
        if self._taking_over or not self.membership.should_take_over(now_us):
            return []
        self._taking_over = True
        return [TakeOver(self.membership.controller_revision)]

    def _consider_resigning(self, now_us: int) -> None:
        """C29: a controller that cannot reach the store leaves the office to one that can."""
        if self.controller is not None and self.membership.should_resign(now_us):
            self.membership.resigned = True
            self.controller = None
            self.resignations += 1

    def took_over(self, key: ControllerKey, revision: int) -> list[ClusterEffect]:
        """The swap is through."""
        self._taking_over = False
        return self.controller_is(key, revision)

    def takeover_failed(self, now_us: int) -> None:
        """Someone else was first, or the store did not answer."""
        self._taking_over = False
        self.membership.took_over_in_vain(now_us)

    def controller_is(self, key: ControllerKey | None, revision: int) -> list[ClusterEffect]:
        """The store says who the controller is."""
        if revision <= self.membership.controller_revision and key is not None and not self.membership.hinted:
            return []
        self.membership.controller_is(key, revision)
        if not self.membership.is_controller:
            self.controller = None
            return [ReportReplicas()]
        self.takeovers += 1
        self.office_revision = revision
        self.controller = Controller(self._new_id)
        self.controller.awaited = self.cautious
        return [LoadAll(), ReportReplicas()]

    def loaded(
        self,
        brokers: Mapping[str, BrokerRecord],
        topics: Mapping[int, TopicPlan],
        records: Mapping[Key, HeldRecord],
        now_us: int,
    ) -> list[ClusterEffect]:
        if self.controller is None:
            return []
        self.controller.load(brokers, topics, records)
        self.membership.register(brokers, now_us)
        return [*self.plan(now_us), Push(list(records.items()), complete=True)]

    def plan(self, now_us: int) -> list[ClusterEffect]:
        """If this broker is the controller: the next changes."""
        controller = self.controller
        if controller is None:
            return []
        membership = self.membership
        controller.set_may_remove(membership.hears_majority(now_us))
        dead = membership.dead(now_us)
        controller.heard_alive(
            {
                broker: membership.incarnation_of(broker) or record.incarnation
                for broker, record in controller.brokers.items()
                if broker not in dead
            }
        )
        controller.heard_disks(*membership.writers(now_us))
        controller.overloaded = membership.overloaded()
        controller.heard_somewhere = membership.heard_by_any(now_us)
        controller.heard_suspicions(membership.suspicions(now_us))
        effects: list[ClusterEffect] = [*controller.plan(now_us)]
        if controller.has_more:
            effects.append(PlanOn())
        return effects

    def proposed(self, propose: Propose, revision: int | None, now_us: int) -> list[ClusterEffect]:
        """A swap succeeded at this revision, or not (None): then everything is read again (C17)."""
        if self.controller is None:
            return []
        done = self.controller.proposed(propose, revision)
        if revision is None:
            return [LoadAll()]
        return [Push(done), *self.plan(now_us)]

    def heard_members(self, said: Iterable[tuple[Key, PartitionMessage]], now_us: int) -> list[ClusterEffect]:
        """Members of chains say something; what came within a moment is planned together."""
        if self.controller is None:
            return []
        for key, message in said:
            self.controller.heard_member(key, message)
        return self.plan(now_us)

    def heard_reports(
        self, sender: str, incarnation: int, reports: Mapping[Key, ReplicaReport], now_us: int, number: int = 0
    ) -> list[ClusterEffect]:
        """A broker says what it holds."""
        if self.controller is None:
            return []
        self.controller.heard_reports(sender, incarnation, reports, number)
        return self.plan(now_us)

    def heard_changes(
        self,
        sender: str,
        incarnation: int,
        reports: Mapping[Key, ReplicaReport],
        gone: Iterable[Key],
        number: int,
        now_us: int,
    ) -> list[ClusterEffect]:
        """A broker says what changed of what it holds."""
        if self.controller is None:
            return []
        if not self.controller.heard_changes(sender, incarnation, reports, gone, number):
            return [AskReports(sender)]
        return self.plan(now_us)

    def heard_record(self, key: Key, held: HeldRecord | None) -> None:
        if self.controller is not None:
            self.controller.heard_record(key, held)
