"""The controller: the pure machine on one elected broker that changes chains (C1, C8, C10–C17).

Theory of operation. The machine holds what the store says (records with revisions), who is alive, and what
members report. `plan` looks at each partition and finds the one next step, if any, from what is to what
should be:

    members that are dead            leave, if someone who answers stays (C10, C12)
    a member that was restarted      is named anew in its place, if its log is whole (C3, C13)
    a member that is reported leaves (C14, C15), if enough stay (C8) whose disks take writes (C31)
    a member whose disk takes no writes leaves, under the same conditions
    a member whose disk is slow while its neighbours' are not leaves for a while (`core.slowness`)
    all copies lost with their processes, of a memory topic: one of the brokers begins anew (`core.reservation`)
    too few members                  a joiner is named (C11), and becomes the tail when it is ready
    too many, or on a draining broker    leave, once their replacement is in
    heads piled up on one broker     a member that is better placed becomes the head

There is no memory of intentions: a new controller rereads everything and goes on. Each step is a swap on the
revision of the record and of the controller key, so a controller that was replaced changes nothing any more.
A proposal whose outcome is not known is settled by reading (C17); until then its partition is left alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from stentor import limits
from stentor.core.agenda import Agenda
from stentor.core.chain_messages import Complaint, JoinerReady, PartitionMessage, ReplicaReport
from stentor.core.held_off import HeldOff
from stentor.core.placement import Candidate, Load, Mode, Tally, better_head, next_member
from stentor.core.records import ChainRecord, HeldRecord, Key, Member
from stentor.core.reports import ReportBook
from stentor.core.reservation import all_lost, begun_anew, extended
from stentor.core.revival import renewed, revived
from stentor.core.slowness import SlowBrokers, SyncPace, is_as_slow_as_all, slowest
from stentor.core.statistics import ControllerStatistics
from stentor.core.witnesses import Witnesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_replace = msgspec.structs.replace
_COMPLAINT_US: Final = 1_500_000
"""Complaints are said with every tick while they hold; an older one is over."""


class BrokerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered broker."""

    id: str
    incarnation: int
    address: str = ""
    http_address: str = ""
    zone: str = ""
    draining: bool = False
    version: str = ""
    addresses: dict[str, str] = {}  # by the listener's name, of a broker that has several
    level: int = 0  # the highest feature level of a cluster that it knows (C27)


class TopicPlan(msgspec.Struct, frozen=True):
    """What the controller must know of a topic."""

    factor: int
    min_replicas: int
    mode: Mode = "spread"
    memory: bool = False  # its copies end with the processes of their brokers


class Change(msgspec.Struct, frozen=True):
    """One record to be swapped in, if its revision is still this one."""

    key: Key
    revision: int
    record: ChainRecord


class _Heard(msgspec.Struct, frozen=True):
    complaint: Complaint
    since_us: int  # since when it holds
    heard_us: int  # when it was said last


class Propose(msgspec.Struct, frozen=True):
    """Swap all of these, comparing the controller key too; then report `proposed`."""

    proposal: int
    changes: tuple[Change, ...]


class Controller:
    """Finds the next change of every chain."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        self._new_id = new_id
        self.brokers: dict[str, BrokerRecord] = {}
        self.alive: dict[str, int] = {}  # broker -> incarnation
        self.lately: frozenset[str] = frozenset()  # those that were heard again only a moment ago
        self.topics: dict[int, TopicPlan] = {}
        self.records: dict[Key, HeldRecord] = {}
        self.active = ""  # active-passive: the one that serves (C26)
        self.may_remove = True  # False on the minority's side: it judges nobody
        self._reports = ReportBook()
        self._ready: dict[Key, JoinerReady] = {}
        self._complaints: dict[Key, dict[Member, _Heard]] = {}
        self._witnesses = Witnesses()
        self.able: frozenset[str] = frozenset()  # brokers that said lately that their disks take writes (C31)
        self.unable: frozenset[str] = frozenset()  # those that said that theirs do not
        self.overloaded: frozenset[str] = frozenset()  # brokers whose disks have more to do than they can
        self.paces: Mapping[str, SyncPace] = {}  # how long the syncs of brokers take
        self._slow = SlowBrokers()
        self.heard_somewhere: set[str] = set()  # brokers that this one hears, or another one that it hears
        self.suspicions: Mapping[str, frozenset[str]] = {}  # whom each broker does not hear
        self._held_off = HeldOff()  # brokers that failed as joiners
        self._now_us = 0
        self.awaited = False  # whether nothing may change before everyone has said what it holds (C27)
        self._under_way: dict[Key, int] = {}  # key -> proposal
        self._proposals: set[int] = set()  # the same, each once
        self._tally = Tally()  # of all records as they will be once what is under way is through
        self._stale = Agenda()
        self._settled = True
        self._moves = 0
        self.behind: set[Key] = set()  # partitions of which the store knows an older epoch than their members
        self.removals = 0
        self.changes = 0

    # --- what is heard --------------------------------------------------------------------------

    def load(
        self, brokers: Mapping[str, BrokerRecord], topics: Mapping[int, TopicPlan], records: Mapping[Key, HeldRecord]
    ) -> None:
        """Everything anew from the store; nothing that was under way counts any more (C17)."""
        self.brokers, self.topics, self.records = dict(brokers), dict(topics), dict(records)
        self._under_way.clear()
        self._proposals.clear()
        self._tally = Tally()
        for key, held in records.items():
            self._tally.put(key, held.record)
        self._stale.update(records)

    def heard_record(self, key: Key, held: HeldRecord | None) -> None:
        """The store says this of a partition."""
        if held is None:
            self.records.pop(key, None)
            self._tally.put(key, None)
            self._stale.discard(key)
            self._witnesses.forget(key)
            self._slow.forget(key)
        elif key not in self.records or held.revision > self.records[key].revision:
            self.records[key] = held
            if key not in self._under_way:
                self._tally.put(key, held.record)
            self._stale.add(key)

    def heard_broker(self, record: BrokerRecord) -> None:
        self.brokers[record.id] = record
        self._look_at_everything()

    def forgot_broker(self, broker: str) -> None:
        """It is not registered any more."""
        del self.brokers[broker]
        self._look_at_everything()

    def set_active(self, broker: str) -> None:
        """The one that serves active-passive topics: their chains follow (C26)."""
        if broker != self.active:
            self.active = broker
            self._look_at_everything()

    def set_may_remove(self, may_remove: bool) -> None:
        """Whether this controller hears a majority: what it left alone without one is looked at again."""
        if may_remove != self.may_remove:
            self.may_remove = may_remove
            self._look_at_everything()

    def heard_alive(self, alive: Mapping[str, int], lately: frozenset[str] = frozenset()) -> None:
        """Who is there, with incarnations; everyone else counts as dead. Some may only seem to be back."""
        if (alive, lately) != (self.alive, self.lately):
            self.alive, self.lately = dict(alive), lately
            self._look_at_everything()

    def heard_suspicions(self, suspicions: Mapping[str, frozenset[str]]) -> None:
        """Whom each broker does not hear: nobody is filled by one that does not reach it."""
        if suspicions != self.suspicions:
            self.suspicions = suspicions
            self._look_at_everything()

    def heard_disks(self, able: frozenset[str], unable: frozenset[str]) -> None:
        """Whose disk takes writes, and whose does not, by their own words (C31)."""
        if (able, unable) != (self.able, self.unable):
            self.able, self.unable = able, unable
            self._look_at_everything()

    def heard_paces(self, paces: Mapping[str, SyncPace]) -> None:
        """How long the syncs of brokers take, by their own words (C14)."""
        slow_before = {broker for broker, pace in self.paces.items() if pace.slow}
        self.paces = paces
        if slow_before != {broker for broker, pace in paces.items() if pace.slow}:
            self._look_at_everything()

    def heard_member(self, key: Key, message: PartitionMessage) -> None:
        """A member reports."""
        match message:
            case JoinerReady():
                self._ready[key] = message
            case Complaint():
                others = self._complaints.get(key, {}).items()
                kept = {member: said for member, said in others if said.complaint.epoch == message.epoch}
                before = kept.get(message.member)
                goes_on = before is not None and self._now_us - before.heard_us <= _COMPLAINT_US
                since_us = before.since_us if before is not None and goes_on else self._now_us
                self._complaints[key] = {**kept, message.member: _Heard(message, since_us, self._now_us)}
                self._witnesses.note(message, self._now_us)
            case _:
                return
        self._stale.add(key)

    def heard_reports(
        self, sender: str, incarnation: int, reports: Mapping[Key, ReplicaReport], number: int = 0
    ) -> None:
        """Everything a broker holds."""
        anew = self._reports.lives.get(sender) != incarnation
        self._stale.update(self._reports.everything(sender, incarnation, reports, number) or ())
        if anew:
            self._look_at_everything()

    def heard_changes(
        self, sender: str, incarnation: int, reports: Mapping[Key, ReplicaReport], gone: Iterable[Key], number: int
    ) -> bool:
        """What changed since the report before; False if that one was not heard: then this one says too little."""
        news = self._reports.changes(sender, incarnation, reports, gone, number)
        self._stale.update(news or ())
        return news is not None

    def topic(self, topic_id: int, plan: TopicPlan | None) -> None:
        """A topic was made, changed or deleted."""
        if plan is None:
            self.topics.pop(topic_id, None)
            for key in [key for key in self.records if key[0] == topic_id]:
                self.heard_record(key, None)
        else:
            self.topics[topic_id] = plan
            self._stale.update(key for key in self.records if key[0] == topic_id)

    def _look_at_everything(self) -> None:
        self._stale.update(self.records)

    # --- proposals ------------------------------------------------------------------------------

    def plan(self, now_us: int) -> list[Propose]:
        """The next changes, in transactions of bounded size; of so many partitions, and then `has_more`."""
        self._now_us = now_us
        self._stale.recall(now_us)
        if not self.has_more:
            return []
        settled = not self._tally.unsettled
        if settled and not self._settled:
            self._look_at_everything()  # now heads may move
        self._settled = settled
        load = self._tally.load.copy()
        self._moves = self._tally.joining
        changes: list[Change] = []
        for key in self._stale.take():
            held = self.records.get(key)
            if held is None or key in self._under_way:
                continue  # it is looked at again when it is there, or through
            wanted = self.next_record(key, held.record, load)
            if wanted is not None and wanted != held.record:
                changes.append(Change(key, held.revision, _replace(wanted, proposal=self._new_id())))
        return [self._propose(part) for part in _parts(changes, limits.COORDINATION_SWAP_OPERATIONS_MAX - 1)]

    @property
    def has_more(self) -> bool:
        """Whether `plan` has not looked at everything yet, and may: not too much is under way."""
        return bool(self._stale) and len(self._proposals) < limits.PROPOSALS_MAX and not self.unheard

    @property
    def unheard(self) -> list[str]:
        """Who must say what it holds before anything changes: all brokers, where the store was restored (C27)."""
        if not self.awaited:
            return []
        return sorted(broker for broker in self.brokers if broker not in self._reports.lives)

    def _propose(self, changes: tuple[Change, ...]) -> Propose:
        proposal = self._new_id()
        self._proposals.add(proposal)
        for change in changes:
            self._under_way[change.key] = proposal
            self._tally.put(change.key, change.record)
        return Propose(proposal, changes)

    def proposed(self, propose: Propose, revision: int | None) -> list[tuple[Key, HeldRecord]]:
        """The swap came through at this revision; or not (None), and what is true must be read first."""
        done = []
        self._proposals.discard(propose.proposal)
        for change in propose.changes:
            if self._under_way.get(change.key) != propose.proposal:
                continue
            del self._under_way[change.key]
            if change.key in self.records:
                self._stale.add(change.key)
            if revision is not None:
                self.changes += 1
                self.heard_record(change.key, HeldRecord(change.record, revision))
                done.append((change.key, self.records[change.key]))
            elif change.key in self.records:
                self._tally.put(change.key, self.records[change.key].record)
        return done

    # --- one partition --------------------------------------------------------------------------

    def next_record(self, key: Key, record: ChainRecord, load: Load) -> ChainRecord | None:
        """The next step of one partition; None when there is nothing to do."""
        plan = self.topics.get(key[0])
        if plan is None or self._is_behind(key, record):
            return None
        record = _replace(record, committed=max(record.committed, self._known_committed(key, record)))
        if self._is_halted(key, record):
            return None
        staying = [self._staying(key, record, member) for member in record.chain]
        survivors = tuple(member for member in staying if member is not None)
        if not survivors:
            return revived(key, record, self._reports, self.alive) or self._begun_anew(key, record, plan)
        if not self._answers(survivors):
            return None
        survivors = self._without_reported(key, record, self._without_unable(key, record, survivors))
        survivors = self._without_slow(key, record, survivors)
        if survivors != record.chain:
            return self._shrunk(record, survivors)
        return (
            self._with_joiner(key, record, plan, load)
            or self._without_surplus(record, plan, load)
            or self._rebalanced(key, record, plan, load)
            or record.resettled(plan.factor, plan.min_replicas)
            or extended(key, record, self._reports)
            or self._moved(key, record, plan, load)
        )

    def _is_behind(self, key: Key, record: ChainRecord) -> bool:
        """C27: members are further than the store, which was restored from a backup: for an operator to judge."""
        behind = any(
            report.epoch > record.epoch
            for broker in self.alive
            if (report := self._reports.of(key, broker)) is not None
        )
        if behind:
            self.behind.add(key)
        else:
            self.behind.discard(key)
        return behind

    def _is_halted(self, key: Key, record: ChainRecord) -> bool:
        """C9: a member would lose what is committed if it followed its head: who is right is for an operator to say."""
        reports = (self._reports.of(key, member.broker) for member in record.chain)
        return any(
            report is not None
            and report.halted
            and report.member in record.chain
            and self.alive.get(report.member.broker) == report.member.incarnation
            for report in reports
        )

    def _known_committed(self, key: Key, record: ChainRecord) -> int:
        """What members of the chain, and only they, have reported to be committed."""
        return max(
            (
                report.committed
                for member in record.chain
                if (report := self._reports.of(key, member.broker)) is not None and report.member.same_log(member)
            ),
            default=0,
        )

    def _staying(self, key: Key, record: ChainRecord, member: Member) -> Member | None:
        """The member as it may stay: as it is, named anew after a restart, or not at all."""
        incarnation = self.alive.get(member.broker)
        if incarnation is None:
            return None if self.may_remove else member
        report = self._reports.of(key, member.broker)
        if incarnation == member.incarnation:
            failed = report is not None and report.member == member and report.failed
            return None if failed else member
        if self._reports.lives.get(member.broker) != incarnation:
            return member  # it has not said yet what it holds; it cannot act before it is named (C3)
        return None if report is None else renewed(record, member, report)

    def _begun_anew(self, key: Key, record: ChainRecord, plan: TopicPlan) -> ChainRecord | None:
        """A memory topic of which nobody can have a copy any more: a broker that had one begins another."""
        if not plan.memory or not all_lost(key, record, self._reports, self.alive, self.brokers):
            return None
        free = [member.broker for member in record.chain if member.broker in self.alive] or sorted(self._others(()))
        return begun_anew(record, Member(free[0], self._new_id(), self.alive[free[0]])) if free else None

    def _answers(self, survivors: tuple[Member, ...]) -> bool:
        """C8: nobody leaves unless one who stays has said what it holds, and is surely there. With a restart a disk may
        be lost, and a heartbeat that was held up on its way is no sign of life.
        """
        return any(
            self.alive.get(member.broker) == member.incarnation and member.broker not in self.lately
            for member in survivors
        )

    def _without_unable(self, key: Key, record: ChainRecord, survivors: tuple[Member, ...]) -> tuple[Member, ...]:
        """C31: members whose disks take no writes leave, if enough stay that can; when all disks are full, nobody.

        Others that could take their places count, too: until they have joined, nothing is committed (C8).
        """
        rest = tuple(member for member in survivors if not self._is_unable(key, member, survivors))
        spare = len(self._others(survivors) & self.able)
        return rest if self._may_go_on(record, rest, self.able, spare) else survivors

    def _is_unable(self, key: Key, member: Member, neighbours: tuple[Member, ...]) -> bool:
        """Return whether its disk takes no writes, and is not just as slow as those of its neighbours (C14)."""
        if member.broker not in self.unable:
            return False
        stalls = self.paces.get(member.broker, SyncPace()).stalls
        if not stalls or not is_as_slow_as_all(member, neighbours, self.paces):
            return True
        self._stale.later(key)  # it may hang, and nothing tells when that is plain
        return False

    def _may_go_on(self, record: ChainRecord, rest: tuple[Member, ...], able: frozenset[str], spare: int = 0) -> bool:
        """Whether these, with the spare ones, are enough to commit (C8), and said lately that they can write (C31)."""
        enough = self._answers(rest) and len(rest) + spare >= record.min_replicas
        return enough and self.may_remove and all(member.broker in able for member in rest)

    def _without_reported(self, key: Key, record: ChainRecord, survivors: tuple[Member, ...]) -> tuple[Member, ...]:
        """C14, C15: the member that is complained about leaves, if enough stay (C8); or whoever complains wrongly."""
        complaint = self._complaint(key, record)
        if complaint is None:
            return survivors
        blamed = self._blamed_by(key, complaint, survivors)
        rest = tuple(member for member in survivors if member != blamed)
        # One other that could take its place is enough here: what stands still commits nothing anyway.
        replaceable = self._answers(rest) and self.may_remove and bool(self._others((*rest, blamed)))
        # Who complains may be cut off from this broker, and heard by way of another one.
        able = self.able if complaint.by in self.unable else self.able | {complaint.by}
        if not replaceable and not self._may_go_on(record, rest, able):
            return survivors
        if rest != survivors:
            judged = self._witnesses.believed if blamed == complaint.member else self._witnesses.disbelieved
            judged(key, complaint, self._now_us)
        return rest

    def _without_slow(self, key: Key, record: ChainRecord, survivors: tuple[Member, ...]) -> tuple[Member, ...]:
        """C14: the slowest member leaves if its neighbours are much faster, if enough stay (C8), and one at a time."""
        if survivors != record.chain or not any(pace.slow for pace in self.paces.values()):
            return survivors
        slow = slowest(survivors, self.paces)
        if slow is None or self._slow.another_left(key, self._now_us):
            self._stale.later(key)  # how fast the others are is news that nobody tells
            return survivors
        rest = tuple(member for member in survivors if member != slow)
        if not self._may_go_on(record, rest, self.able):
            self._stale.later(key)
            return survivors
        self._slow.leaves(key, slow.broker, self._now_us)
        return rest

    def _blamed_by(self, key: Key, complaint: Complaint, survivors: tuple[Member, ...]) -> Member:
        """Who is complained about; or who complains, if more speaks against that one."""
        complainer = next((member for member in survivors if member.broker == complaint.by), None)
        if complainer is None or complaint.by in self.overloaded:
            return complaint.member
        return complainer if self._witnesses.speak_against(key, complaint, self._now_us) else complaint.member

    def _others(self, members: tuple[Member, ...]) -> set[str]:
        """Brokers beside these that could become members."""
        taken = {member.broker for member in members}
        return {broker.id for broker in self.brokers.values() if broker.id not in taken and self._is_candidate(broker)}

    def _shrunk(self, record: ChainRecord, survivors: tuple[Member, ...]) -> ChainRecord:
        """C8: whoever leaves by the change that crosses below the minimum may still lead later."""
        removed = tuple(m for m in record.chain if not any(m.same_log(s) for s in survivors))
        self.removals += len(removed)
        eligible: tuple[Member, ...] = ()
        if len(survivors) < record.min_replicas:
            eligible = (*record.eligible, *removed)
        joining = record.joining
        if joining is not None and self.alive.get(joining.broker) != joining.incarnation:
            joining = None
        return _replace(record, epoch=record.epoch + 1, chain=survivors, joining=joining, eligible=eligible)

    # --- joiners --------------------------------------------------------------------------------

    def _with_joiner(self, key: Key, record: ChainRecord, plan: TopicPlan, load: Load) -> ChainRecord | None:
        joining = record.joining
        if joining is not None:
            gone = self.alive.get(joining.broker) != joining.incarnation
            gone = gone or self._is_unable(key, joining, (*record.chain, joining))
            reported = self._is_reported(key, record, joining)
            if reported:
                self._held_off.hold(key, record.epoch, joining, self._now_us)
            if gone or reported:
                # Joint mode may be on: only a new epoch ends it (C11).
                return _replace(record, epoch=record.epoch + 1, joining=None)
            ready = self._ready.get(key)
            if ready is not None and ready.epoch == record.epoch and ready.member == joining:
                self._held_off.forget(key, joining.broker)
                return self._joined(record, joining)
            return None
        wanted = self._wanted_joiner(key, record, plan, load)
        return None if wanted is None else _replace(record, joining=wanted)

    def _joined(self, record: ChainRecord, joining: Member) -> ChainRecord:
        chain = (*record.chain, joining)
        eligible = record.eligible if len(chain) < record.min_replicas else ()
        return _replace(record, epoch=record.epoch + 1, chain=chain, joining=None, eligible=eligible)

    def _is_held_off(self, key: Key, broker: str) -> bool:
        held = self._held_off.is_held(key, broker, self.alive.get(broker), self._now_us)
        return held or self._slow.is_away(broker, self._now_us)

    def _is_reported(self, key: Key, record: ChainRecord, member: Member) -> bool:
        neighbours = (*record.chain, member)
        return any(
            said.complaint.member == member and not self._is_excused(neighbours, said)
            for said in self._complaints_now(key, record)
        )

    def _complaint(self, key: Key, record: ChainRecord) -> Complaint | None:
        """What is complained about now: the last of the chain, since those before it may only wait for it."""
        places = {member: place for place, member in enumerate(record.chain)}
        found = [
            said.complaint
            for said in self._complaints_now(key, record)
            if said.complaint.member in places and not self._is_excused(record.chain, said)
        ]
        return max(found, key=lambda complaint: places[complaint.member], default=None)

    def _is_excused(self, neighbours: tuple[Member, ...], said: _Heard) -> bool:
        """Return whether a member only stands still as all others do: where all disks are slow, nobody leaves (C14)."""
        for_us = self._now_us - said.since_us
        return said.complaint.stalls and is_as_slow_as_all(said.complaint.member, neighbours, self.paces, for_us=for_us)

    def _complaints_now(self, key: Key, record: ChainRecord) -> list[_Heard]:
        """Of this epoch, not long ago, and about brokers that somebody hears: all others are judged as silent (C15).

        One that has too much to do is not helped by others that have more to do, and its chains not by leaving it.
        """
        return [
            said
            for said in self._complaints.get(key, {}).values()
            if said.complaint.epoch == record.epoch
            and self._now_us - said.heard_us <= _COMPLAINT_US
            and said.complaint.member.broker in self.heard_somewhere
            and not (said.complaint.stalls and said.complaint.member.broker in self.overloaded)
        ]

    def _wanted_joiner(self, key: Key, record: ChainRecord, plan: TopicPlan, load: Load) -> Member | None:
        """Who should become the next tail: a replacement, or one more."""
        settled = [m for m in record.chain if not self._is_draining(m.broker)]
        if len(settled) >= plan.factor:
            return None
        members = {member.broker for member in record.chain}
        unheard = self.suspicions.get(record.chain[-1].broker, frozenset())  # by the tail, which would feed it
        candidates = [
            Candidate(broker.id, broker.zone)
            for broker in self.brokers.values()
            if self._is_candidate(broker) and broker.id not in members and broker.id not in unheard
        ]
        ready = [candidate for candidate in candidates if not self._is_held_off(key, candidate.broker)]
        if len(ready) < len(candidates):
            self._stale.later(key)
        if not ready:
            return None
        blamed = {member.broker for member in self._complaints.get(key, {})}
        blamed |= {broker for broker in self.brokers if self._witnesses.is_doubtful(key, broker, self._now_us)}
        ready = [candidate for candidate in ready if candidate.broker not in blamed] or ready
        holders = [candidate for candidate in ready if self._usable_log(key, candidate.broker) is not None]
        broker = next_member([m.broker for m in record.chain], holders or ready, load)
        load.replicas[broker] += 1
        log_id = self._usable_log(key, broker) or self._new_id()
        return Member(broker, log_id, self.alive[broker])

    def _is_candidate(self, broker: BrokerRecord) -> bool:
        """Alive, staying, and known to hold what it holds: else a good copy might be begun anew."""
        incarnation = self.alive.get(broker.id)
        known = incarnation is not None and self._reports.lives.get(broker.id) == incarnation
        return known and not broker.draining and broker.id not in self.unable

    def _usable_log(self, key: Key, broker: str) -> int | None:
        """Its log, if it need only be filled up; K2: one with damaged offsets is begun anew, since others have them."""
        report = self._reports.of(key, broker)
        if report is None or report.failed or report.incomplete or report.member.incarnation != self.alive.get(broker):
            return None
        return report.member.log_id

    def _is_draining(self, broker: str) -> bool:
        record = self.brokers.get(broker)
        return record is not None and record.draining

    # --- order ----------------------------------------------------------------------------------

    def _without_surplus(self, record: ChainRecord, plan: TopicPlan, load: Load) -> ChainRecord | None:
        """One member too many leaves: one on a draining broker, else on the one that holds most."""
        if len(record.chain) <= plan.factor:
            return None
        if any(self.alive.get(member.broker) != member.incarnation for member in record.chain):
            return None  # who was restarted has not said yet what it holds: it may hold nothing
        leaving = max(reversed(record.chain), key=lambda m: (self._is_draining(m.broker), load.replicas[m.broker]))
        chain = tuple(member for member in record.chain if member != leaving)
        return _replace(record, epoch=record.epoch + 1, chain=chain)

    def _rebalanced(self, key: Key, record: ChainRecord, plan: TopicPlan, load: Load) -> ChainRecord | None:
        """A permutation of the same members; C9 reconciles."""
        chain = [member.broker for member in record.chain]
        if not self._settled or self._complaint(key, record) is not None:
            return None  # heads move once, when everyone is back
        wanted = sorted(self.brokers)[key[1] % len(self.brokers)] if self.brokers else ""
        better = better_head(chain, load, mode=plan.mode, active=self.active, wanted=wanted)
        if better is None or self._is_draining(better):
            return None
        load.heads[chain[0]] -= 1
        load.heads[better] += 1
        members = sorted(record.chain, key=lambda member: member.broker != better)
        return _replace(record, epoch=record.epoch + 1, chain=tuple(members))

    def _moved(self, key: Key, record: ChainRecord, plan: TopicPlan, load: Load) -> ChainRecord | None:
        """New brokers get their share, a few replicas at a time: one more joins, then the surplus leaves."""
        if record.joining is not None or len(record.chain) != plan.factor or self._moves >= limits.MOVES_MAX:
            return None
        members = [member.broker for member in record.chain]
        free = [
            broker.id
            for broker in self.brokers.values()
            if self._is_candidate(broker)
            and broker.id not in members
            and not self._slow.is_away(broker.id, self._now_us)
        ]
        if not free:
            return None
        to = min(free, key=lambda broker: (load.replicas[broker], broker))
        if max(load.replicas[broker] for broker in members) - load.replicas[to] <= 1:
            return None
        load.replicas[to] += 1
        self._moves += 1
        return _replace(record, joining=Member(to, self._usable_log(key, to) or self._new_id(), self.alive[to]))

    def statistics(self) -> ControllerStatistics:
        lengths = Counter(len(held.record.chain) for held in self.records.values())
        return ControllerStatistics(
            partitions=len(self.records),
            short=sum(held.record.is_short for held in self.records.values()),
            joining=sum(held.record.joining is not None for held in self.records.values()),
            chain_lengths=dict(lengths),
            behind=len(self.behind),
            removals=self.removals,
            changes=self.changes,
        )


def _parts(changes: list[Change], size: int) -> Iterable[tuple[Change, ...]]:
    for start in range(0, len(changes), size):
        yield tuple(changes[start : start + size])
