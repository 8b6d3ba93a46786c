"""A simulated broker's share in the cluster: heartbeats, the controller, the store."""

from tests.simulation.store import CONTROLLER

from stentor.core import cluster_events as c
from stentor.core import replica_events as r
from stentor.core.chain_messages import Adopt
from stentor.core.controller import BrokerRecord, Propose
from stentor.core.membership import ControllerKey
from stentor.core.records import HeldRecord


class MemberSide:
    """What a broker says to others and hears from them."""

    def me(self):
        return ControllerKey(self.name, self.disk.incarnation)

    # --- messages -------------------------------------------------------------------------------

    def tell(self, to, what, *arguments):
        if to == self.name:
            self.world.at(0, self.guard(self.hear), what, *arguments)
        elif to:
            self.network.send(self.name, to, what, *arguments)

    def hear(self, what, *arguments):
        if self.up:
            HEAR[what](self, *arguments)

    def hear_heartbeat(self, heartbeat):
        self.do(self.cluster.step(c.Beaten(heartbeat), self.clock()))

    def hear_partition(self, key, sender, message):
        if isinstance(message, Adopt):
            held = HeldRecord(message.record, message.revision)
            if not self.believes(key, held):
                return
            self.know(key, held)
        self.step(key, r.Received(sender, message))

    # --- what was only heard (C28) --------------------------------------------------------------

    def believes(self, key, held):
        """Whether a peer's record may be followed at once; else the store is asked."""
        replica = self.replicas.get(key)
        if replica is None or self.keeps(replica, held.record):
            return True
        if held.revision > replica.revision:
            self.step(key, r.Doubted(held.revision))
            self.store.read(self.name, self.guard(self.looked_up))
        return False

    def keeps(self, replica, record):
        if replica.me in record.members:
            return True
        has_part = replica.position.index is not None or replica.position.joins
        return not has_part and all(member.broker != self.name for member in record.members)

    def looked_up(self, entries):
        self.take_entries(entries)
        for key, replica in list(self.replicas.items()):
            held = self.confirmed.get(key)
            if replica.doubted and held is not None and held.revision == replica.revision:
                self.step(key, r.Trusted())

    def when_confirmed(self, key, work, *arguments):
        """What cannot be undone waits for the store's word on this member's predecessor."""
        replica = self.replicas.get(key)
        if replica is None:
            return
        if self.is_confirmed(key, replica):
            work(*arguments)
        else:
            self.store.read(self.name, self.guard(lambda entries: self.asked_store(entries, key, work, *arguments)))

    def asked_store(self, entries, key, work, *arguments):
        self.take_entries(entries)
        if self.up:
            self.when_confirmed(key, work, *arguments)

    def is_confirmed(self, key, replica):
        held = self.confirmed.get(key)
        if held is None:
            return False
        return held.revision >= replica.revision or held.record.before(replica.me) == replica.position.predecessor

    def hear_offered(self, key, offered, run):
        self.take(key, offered, run)

    def tell_controller(self, what, *arguments):
        """By way of another broker, where the controller does not hear this one."""
        to = self.cluster.membership.way_to_controller(self.clock())
        if to == self.cluster.controller_broker:
            self.tell(to, what, *arguments)
        else:
            self.tell(to, "pass_on", what, *arguments)

    def hear_pass_on(self, what, *arguments):
        self.tell(self.cluster.controller_broker, what, *arguments)

    def hear_member(self, key, message):
        self.do(self.cluster.step(c.MembersSaid([(key, message)]), self.clock()))

    def hear_reports(self, sender, incarnation, reports, number):
        self.do(self.cluster.step(c.Reported(sender, incarnation, reports, number), self.clock()))

    def hear_changes(self, sender, incarnation, changed, gone, number):
        self.do(self.cluster.step(c.ReportedChanges(sender, incarnation, changed, gone, number), self.clock()))

    def hear_push(self, records):
        for key, held in records:
            if self.believes(key, held):
                self.know(key, held)

    def know(self, key, held):
        if held.revision > self.known.get(key, 0):  # an older record must not take a newer log away
            self.known[key] = held.revision
            self.ensure_log(key, held.record)
        self.step(key, r.Configure(held.record, held.revision))

    # --- effects --------------------------------------------------------------------------------

    def do(self, effects):
        for effect in effects:
            if self.up:
                DO[type(effect)](self, effect)

    def to_all(self, *what):
        for other in self.network.brokers:
            if other != self.name:
                self.tell(other, *what)

    def beat(self, effect):
        self.to_all("heartbeat", effect.heartbeat)

    def push(self, effect):
        for key, held in effect.records:
            self.confirm(key, held)
        self.tell(self.name, "push", effect.records)
        self.to_all("push", effect.records)

    def report_replicas(self, _=None):
        """Everything once, then what changed; everything too where it goes by way of another broker."""
        reports = {key: replica.report() for key, replica in self.replicas.items()}
        membership = self.cluster.membership
        controller = self.cluster.controller_broker
        direct = membership.way_to_controller(self.clock()) == controller
        told_to = (controller, membership.controller_revision) if direct else None
        before, self.told = self.told, (told_to, reports)
        self.report_number += 1
        if told_to is not None and before is not None and before[0] == told_to:
            changed = {key: report for key, report in reports.items() if before[1].get(key) != report}
            gone = [key for key in before[1] if key not in reports]
            self.tell_controller("changes", self.name, self.disk.incarnation, changed, gone, self.report_number)
        else:
            self.tell_controller("reports", self.name, self.disk.incarnation, reports, self.report_number)

    def ask_reports(self, effect):
        self.tell(effect.broker, "report_again")

    def hear_report_again(self):
        self.told = None
        self.report_replicas()

    def plan_on(self, _):
        self.world.at(100, self.guard(lambda: self.do(self.cluster.step(c.PlannedOn(), self.clock()))))

    def take_over(self, effect):
        self.store.swap(self.me(), {CONTROLLER: effect.revision}, {CONTROLLER: self.me()}, self.guard(self.took_over))

    def load_all(self, _):
        self.store.read(self.name, self.guard(self.loaded_store))

    def took_over(self, revision):
        if isinstance(revision, int):
            self.do(self.cluster.step(c.TookOver(self.me(), revision), self.clock()))
        else:
            self.cluster.step(c.TakeoverFailed(), self.clock())
            self.load_all(None)

    def propose(self, propose):
        expect = {("chains", change.key): change.revision for change in propose.changes}
        expect |= self.controller_compared()
        put = {("chains", change.key): change.record for change in propose.changes}
        self.store.swap(self.me(), expect, put, self.guard(lambda outcome: self.proposed(propose, outcome)))

    def controller_compared(self):
        """C16: a controller that was replaced changes nothing any more."""
        return {CONTROLLER: self.cluster.office_revision}

    def proposed(self, propose, outcome):
        """C17: only a known success counts; all else is read from the store."""
        self.do(self.cluster.step(c.Proposed(propose, outcome if isinstance(outcome, int) else None), self.clock()))

    # --- the store ------------------------------------------------------------------------------

    def register(self):
        before, revision = self.store.entries.get(("brokers", self.name), (None, 0))
        record = BrokerRecord(self.name, self.disk.incarnation, draining=before is not None and before.draining)
        put = {("brokers", self.name): record}
        self.store.swap(self.me(), {("brokers", self.name): revision}, put, self.guard(self.registered))

    def registered(self, revision):
        if isinstance(revision, int):
            self.store.renew(self.name)
        else:
            self.world.at(20_000, self.guard(self.register))

    def watched(self, entries):
        self.world.detail("watch", self.name, entries)
        self.when_awake(self.take_entries, entries)

    def take_entries(self, entries):
        for key, (value, revision) in entries.items():
            if self.up and revision >= self.seen.get(key, 0):
                if key[0] != "chains":  # the machines must refuse old records by themselves
                    self.seen[key] = revision
                ENTRIES[key[0]](self, key, value, revision)

    def entry_controller(self, _, value, revision):
        self.do(self.cluster.step(c.ControllerSeen(value, revision), self.clock()))

    def entry_broker(self, _, value, __):
        self.brokers[value.id] = value
        self.do(self.cluster.step(c.Registered(self.brokers), self.clock()))

    def entry_topic(self, key, value, _):
        self.topics[key[1]] = value
        if self.cluster.controller is not None:
            self.cluster.controller.topic(key[1], value)

    def confirm(self, key, held):
        if key not in self.confirmed or self.confirmed[key].revision < held.revision:
            self.confirmed[key] = held

    def entry_chain(self, key, value, revision):
        self.confirm(key[1], HeldRecord(value, revision))
        self.cluster.step(c.RecordsSeen({key[1]: HeldRecord(value, revision)}), self.clock())
        self.know(key[1], HeldRecord(value, revision))

    def entry_alive(self, key, value, _):
        self.cluster.step(c.LivenessSeen(key[1], value), self.clock())

    def loaded_store(self, entries):
        self.take_entries(entries)
        if self.up and self.cluster.controller is not None:
            records = {k[1]: HeldRecord(*v) for k, v in entries.items() if k[0] == "chains"}
            self.do(self.cluster.step(c.Loaded(self.brokers, self.topics, records), self.clock()))


HEAR = {
    "heartbeat": MemberSide.hear_heartbeat,
    "partition": MemberSide.hear_partition,
    "offered": MemberSide.hear_offered,
    "member": MemberSide.hear_member,
    "reports": MemberSide.hear_reports,
    "changes": MemberSide.hear_changes,
    "report_again": MemberSide.hear_report_again,
    "push": MemberSide.hear_push,
    "pass_on": MemberSide.hear_pass_on,
}

DO = {
    c.Beat: MemberSide.beat,
    c.TakeOver: MemberSide.take_over,
    c.LoadAll: MemberSide.load_all,
    c.Push: MemberSide.push,
    c.ReportReplicas: MemberSide.report_replicas,
    c.AskReports: MemberSide.ask_reports,
    c.PlanOn: MemberSide.plan_on,
    c.PlanOn: lambda self, _: self.do(self.cluster.step(c.PlannedOn(), self.clock())),
    Propose: lambda self, effect: self.propose(effect),
}

ENTRIES = {
    "controller": MemberSide.entry_controller,
    "brokers": MemberSide.entry_broker,
    "topics": MemberSide.entry_topic,
    "chains": MemberSide.entry_chain,
    "alive": MemberSide.entry_alive,
}
