"""One broker's share in the cluster: hears the others, may become the controller, and then changes chains.

This ties the membership and controller machines together and is pure as they are: `step` takes what happened
and returns what must be done (`core.cluster_events`). Chains themselves run in `core.replica`, and do not need this
to go on: with the store or the controller gone, messages flow on the chains as they are (C27).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.core import cluster_events as e
from stentor.core.controller import Controller
from stentor.core.membership import Membership
from stentor.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.core.cluster_events import ClusterEffect, ClusterEvent
    from stentor.core.membership import ControllerKey

_REPORT_US = int(limits.REPORT_S * 1_000_000)


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

    # --- events ---------------------------------------------------------------------------------

    def step(self, event: ClusterEvent, now_us: int) -> list[ClusterEffect]:  # noqa: C901, PLR0911, PLR0912 - one line per event
        """Take an event, return what must be done."""
        match event:
            case e.Ticked():
                return self._tick(event, now_us)
            case e.Beaten():
                return self._beaten(event, now_us)
            case e.Refused(broker):
                return self._refused(broker, now_us)
            case e.Registered():
                return self._registered(event, now_us)
            case e.LivenessSeen(broker, alive):
                self.membership.liveness(broker, alive=alive)
                return []
            case e.StoreAsked(answers):
                self.membership.store_answers(answers, now_us)
                return []
            case e.ControllerSeen(key, revision) | e.TookOver(key, revision):
                return self._controller_is(key, revision, took_over=isinstance(event, e.TookOver))
            case e.TakeoverFailed():
                self._taking_over = False
                self.membership.took_over_in_vain(now_us)
                return []
            case e.Loaded():
                return self._loaded(event, now_us)
            case e.MembersSaid() | e.Reported() | e.ReportedChanges() | e.PlannedOn():
                return [] if self.controller is None else self._reported(self.controller, event, now_us)
            case e.Proposed():
                return [] if self.controller is None else self._proposed(self.controller, event, now_us)
            case e.ActiveSeen() | e.TopicsSeen() | e.RecordsSeen():
                if self.controller is not None:
                    self._seen(self.controller, event)
                return []
        raise InternalError(f"Unknown event {event!r}.")

    def _tick(self, event: e.Ticked, now_us: int) -> list[ClusterEffect]:
        membership = self.membership
        membership.load, membership.busy, membership.pace = event.load, event.busy, event.pace
        membership.disk_writes(event.writes, now_us)
        membership.tick(now_us)
        self._consider_resigning(now_us)
        effects: list[ClusterEffect] = [e.Beat(membership.heartbeat(now_us))]
        effects.extend(self._consider_takeover(now_us))
        if now_us - self._reported_us >= _REPORT_US:
            self._reported_us = now_us
            effects.append(e.ReportReplicas())
        effects.extend(self._plan(now_us))
        return effects

    def _beaten(self, event: e.Beaten, now_us: int) -> list[ClusterEffect]:
        news = self.membership.heard(event.heartbeat, now_us)
        if not self.membership.is_controller:
            self.controller = None  # a peer knows of a newer one, and this broker does not reach the store (C29)
        effects = self._consider_takeover(now_us)
        if news and event.heartbeat.broker == self.controller_broker:
            effects.append(e.ReportReplicas())
        if news:
            effects.extend(self._plan(now_us))
            if self.controller is not None:  # it may have missed what was pushed meanwhile
                effects.append(e.Push(list(self.controller.records.items()), complete=True))
        return effects

    def _refused(self, broker: str, now_us: int) -> list[ClusterEffect]:
        """No process is there any more. Say so at once: the others wait for a second voice."""
        if not self.membership.refused(broker):
            return []
        effects: list[ClusterEffect] = [e.Beat(self.membership.heartbeat(now_us))]
        effects.extend(self._consider_takeover(now_us))
        effects.extend(self._plan(now_us))
        return effects

    def _registered(self, event: e.Registered, now_us: int) -> list[ClusterEffect]:
        self.membership.register(event.brokers, now_us)
        if self.controller is not None:
            for record in event.brokers.values():
                if self.controller.brokers.get(record.id) != record:
                    self.controller.heard_broker(record)
            for gone in set(self.controller.brokers) - set(event.brokers):
                self.controller.forgot_broker(gone)
        return self._plan(now_us)

    # --- the controller -------------------------------------------------------------------------

    def _consider_takeover(self, now_us: int) -> list[ClusterEffect]:
        if self._taking_over or not self.membership.should_take_over(now_us):
            return []
        self._taking_over = True
        return [e.TakeOver(self.membership.controller_revision)]

    def _consider_resigning(self, now_us: int) -> None:
        """C29: a controller that cannot reach the store leaves the office to one that can."""
        if self.controller is not None and self.membership.should_resign(now_us):
            self.membership.resigned = True
            self.controller = None
            self.resignations += 1

    def _controller_is(self, key: ControllerKey | None, revision: int, *, took_over: bool) -> list[ClusterEffect]:
        """The store says who the controller is."""
        if took_over:
            self._taking_over = False
        if revision <= self.membership.controller_revision and key is not None and not self.membership.hinted:
            return []
        self.membership.controller_is(key, revision)
        if not self.membership.is_controller:
            self.controller = None
            return [e.ReportReplicas()]
        self.takeovers += 1
        self.office_revision = revision
        self.controller = Controller(self._new_id)
        self.controller.awaited = self.cautious
        return [e.LoadAll(), e.ReportReplicas()]

    def _loaded(self, event: e.Loaded, now_us: int) -> list[ClusterEffect]:
        if self.controller is None:
            return []
        self.controller.set_active(event.active)
        self.controller.load(event.brokers, event.topics, event.records)
        self.membership.register(event.brokers, now_us)
        return [*self._plan(now_us), e.Push(list(event.records.items()), complete=True)]

    def _reported(
        self,
        controller: Controller,
        event: e.MembersSaid | e.Reported | e.ReportedChanges | e.PlannedOn,
        now_us: int,
    ) -> list[ClusterEffect]:
        """Brokers say what they hold, members of chains how their neighbours are."""
        match event:
            case e.MembersSaid(said):
                for key, message in said:
                    controller.heard_member(key, message)
            case e.Reported(broker, incarnation, reports, number):
                controller.heard_reports(broker, incarnation, reports, number)
            case e.ReportedChanges(broker, incarnation, reports, gone, number):
                if not controller.heard_changes(broker, incarnation, reports, gone, number):
                    return [e.AskReports(broker)]
        return self._plan(now_us)

    def _seen(self, controller: Controller, event: e.ActiveSeen | e.TopicsSeen | e.RecordsSeen) -> None:
        """The store says more of what the controller plans with."""
        match event:
            case e.ActiveSeen(broker):
                controller.set_active(broker)
            case e.TopicsSeen(plans):
                for topic_id, plan in plans.items():
                    controller.topic(topic_id, plan)
            case e.RecordsSeen(records):
                for key, held in records.items():
                    controller.heard_record(key, held)

    def _proposed(self, controller: Controller, event: e.Proposed, now_us: int) -> list[ClusterEffect]:
        """A swap succeeded, or not: then everything is read again (C17)."""
        done = controller.proposed(event.propose, event.revision)
        if event.revision is None:
            return [e.LoadAll()]
        return [e.Push(done), *self._plan(now_us)]

    def _plan(self, now_us: int) -> list[ClusterEffect]:
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
            },
            membership.heard_lately(now_us),
        )
        controller.heard_disks(*membership.writers(now_us))
        controller.overloaded = membership.overloaded()
        controller.heard_paces(membership.paces(now_us))
        controller.heard_somewhere = membership.heard_by_any(now_us)
        controller.heard_suspicions(membership.suspicions(now_us))
        effects: list[ClusterEffect] = [*controller.plan(now_us)]
        if controller.has_more:
            effects.append(e.PlanOn())
        return effects
