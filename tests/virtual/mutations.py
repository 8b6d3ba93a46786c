"""Rules of the core and of what is around it, each switched off on purpose: a run must notice (`noticed.py`).

A mutation replaces methods of the product's own classes.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import msgspec
from tests.virtual import mutated_expiry, mutated_memory, mutated_queues, mutated_transactions

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, chain_key, encode
from stentor.broker.cluster import reporting
from stentor.broker.cluster.controlling import Controlling
from stentor.broker.cluster.hearsay import Hearsay
from stentor.broker.cluster.peer_links import Peers
from stentor.broker.cluster.store_rollback import StoreRollback
from stentor.broker.partitions.chain_desk import ChainDesk
from stentor.broker.partitions.epoch_store import EpochStore
from stentor.broker.partitions.expiring import Expiring
from stentor.broker.partitions.letting_go import LettingGo
from stentor.broker.partitions.log_sync import LogSync
from stentor.broker.partitions.partition import Partition
from stentor.broker.partitions.replicas import Replicas
from stentor.broker.partitions.resends import Resends
from stentor.broker.sessions.reader_stream import ReaderStream
from stentor.client.asking import Asking
from stentor.client.group_member import GroupTie
from stentor.client.group_progress import GroupProgress
from stentor.client.group_work import GroupSource
from stentor.client.job import Job
from stentor.client.transaction_copies import TransactionCopies
from stentor.client.transaction_core import MemberTransactions
from stentor.core import cluster_events as e
from stentor.core import controller, cursors, decisions, refusals, reservation, revival
from stentor.core import replica_events as r
from stentor.core.chain_messages import Linked
from stentor.core.chain_position import ChainPosition
from stentor.core.complaints import Complaints
from stentor.core.confirmations import Confirmations
from stentor.core.controller import Controller
from stentor.core.cursors import Cursors, Moved
from stentor.core.dedupe import Dedupe, Resend
from stentor.core.downstream import Downstream
from stentor.core.expiry import Expiry
from stentor.core.group_coordinator import GroupCoordinator
from stentor.core.group_member import GroupMembership
from stentor.core.groups import Groups
from stentor.core.horizon import Horizon
from stentor.core.linking import Linking
from stentor.core.membership import Membership
from stentor.core.queue import QueueState
from stentor.core.queue_head import QueueHead
from stentor.core.records import ChainRecord
from stentor.core.replica import Replica
from stentor.core.standing import Standing
from stentor.core.state_transfer import StateTransfer
from stentor.core.table import TableState
from stentor.errors import StentorError
from stentor.storage.compaction import Compaction, _Merger
from stentor.storage.log import PartitionLog
from stentor.wire import sparse, table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.wire.sparse import Rows

_replace = msgspec.structs.replace


class Mutation(NamedTuple):
    """A rule that is switched off."""

    rule: str
    changes: tuple[tuple[Any, str, Any], ...]  # a class or module, a name in it, and what replaces that


MUTATIONS: dict[str, Mutation] = {}


def mutation(name: str, rule: str, *changes: tuple[Any, str, Any]) -> None:
    MUTATIONS[name] = Mutation(rule, changes)


@contextmanager
def mutated(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for where, what, instead in MUTATIONS[name].changes:
            stack.enter_context(patch.object(where, what, instead))
        yield


def _none_removed(*_: Any) -> int:
    return 0


def _nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def _keep_the_first(self: Compaction, rows: Rows) -> list[bool]:
    return [False] * len(rows.offsets)


def _compact_everything(self: Compaction, state: Any, reader: Any, horizon: Horizon, *more: Any) -> None:
    _COMPACTION(self, state, reader, Horizon(state.end, state.end), *more)


_COMPACTION = Compaction.__init__


def _flush_without_gaps(self: _Merger) -> None:
    """What was emptied is left out, with the offsets that it covered."""
    if self._like is not None and not self._rows.offsets:
        self._like = None
    _FLUSH(self)


_FLUSH = _Merger.flush


def _nobody(*_: Any) -> None:
    return None


def _any_slow_one(members: Any, paces: Any) -> Any:
    return next((member for member in members if member.broker in paces and paces[member.broker].slow), None)


def _never(*_: Any, **__: Any) -> bool:
    return False


def _always(*_: Any, **__: Any) -> bool:
    return True


# --- C19, C20: cursors ------------------------------------------------------------------------------


def _commit_everything(self, end):
    """Whatever is in the log counts as committed."""
    COMMIT(self, max(end, 1 << 62))


def _fold_anything(view, record):
    """The last word counts, be it lower."""
    FOLD(view, _replace(record, back=True) if isinstance(record, Moved) else record)


COMMIT, FOLD = Cursors.commit, cursors._fold
ENDS_AT = GroupCoordinator.ends_at


def _ask_again(*_: Any) -> None:
    """Whatever went wrong, it is tried again."""


def _has_let_go(*_: Any) -> bool:
    return True


def _ends_early(self: GroupCoordinator, *about: Any, **more: Any) -> float:
    return ENDS_AT(self, *about, **more) - 3.0


def _position_of_taken(self: GroupSource, reader: Any) -> int:
    share = self._shares.get((reader.topic, reader.partition))
    return reader.taken if share is None or share.reader is not reader else share.next_offset


# --- C2, C3: epochs and incarnations ----------------------------------------------------------------


def _any_epoch(self, epoch):
    return self._adopting is None and self.record is not None and not self.failed


def _configure_at_once(self, event, now_us):
    """The epoch is on its way to the disk, and counts already."""
    effects = CONFIGURE(self, event, now_us)
    if any(isinstance(effect, r.StoreEpoch) for effect in effects):
        return [*effects, *self._epoch_stored(event.record.epoch, now_us)]
    return effects


def _configure_any(self, event, now_us):
    """Records of older epochs are followed too."""
    if event.revision == self.revision:
        return []
    self.epoch, self.revision = 0, -1
    return CONFIGURE(self, event, now_us)


def _find_any_incarnation(self, record, me):
    self.record = record
    self.index = next((index for index, member in enumerate(record.chain) if member.same_log(me)), None)
    self.joins = record.joining is not None and record.joining.same_log(me)


CONFIGURE = Replica._configure

# --- C4, C5: activation, commit ---------------------------------------------------------------------


def _link_before_linked(self, event, link, now_us):
    """Feeds from a log that may still be cut."""
    replica = self._replica
    linked, replica.linked = replica.linked, True
    try:
        return LINK(self, event, link, now_us)
    finally:
        replica.linked = linked


LINK = Linking._link


def _own_durable(self):
    return self.durable


def _remember_epoch(self, now_us):
    """What an older epoch said of the members above still counts."""
    self.linked = False
    self._told_up = None
    self.downstream.forget(now_us)


# --- C6, C10, C14, C15: heads that are replaced, members that die -----------------------------------


def _deposed_failed(self):
    return [r.Refuse(ticket, refusals.not_active()) for ticket in self._acks.give_up()]


def _dies_quietly(self, record, survivors):
    """The chain is shorter, and nobody links anew."""
    return _replace(SHRUNK(self, record, survivors), epoch=record.epoch)


def _tick_without_excuse(self, now_us):
    self._ticked_us = now_us


def _dead_by_lease(self, broker, now_us):
    return broker in self._expired or IS_DEAD(self, broker, now_us)


def _all_dead(self, now_us):
    return {broker for broker in self.registered if self.is_dead(broker, now_us)}


def _may_always(replica, ack):
    """Whoever hears this head, or does not."""
    standing, replica.standing = replica.standing, Standing()
    try:
        return MAY_PUBLISH(replica, ack)
    finally:
        replica.standing = standing


IS_DEAD, MAY_PUBLISH = Membership.is_dead, decisions.may_publish

# --- C23, C24: retention, readers -------------------------------------------------------------------


def _retain_all(self, partition):
    return partition.log.retain(self._environment.clock.now_us(), committed=partition.log.end)


def _retain_everywhere(self):
    """Every member lets go of what it finds too old or too much."""
    for partition in list(self._partitions.values()):
        before = partition.log.start
        if (start := self._retain(partition)) != before:
            self._environment.loop.call_soon_threadsafe(partition.step, r.Started(start))


def _retire_committed(self, partition, start):
    """Whoever is told of a start lets go of all that it can."""
    RETIRE(self, partition, partition.committed)


RETIRE = ChainDesk._retire
_SERVES = property(lambda self: self.linked and self._adopting is None and self.position.index is not None)

# --- C7, C8, C12, C13: levels, minimum, who may lead ------------------------------------------------


def _reached_at_head(self, ack):
    return self.committed if ack == 3 else self.durable


def _always_eligible(self, record, survivors):
    """Everyone who ever left may lead."""
    gone = tuple(m for m in record.chain if not any(m.same_log(s) for s in survivors))
    return _replace(SHRUNK(self, record, survivors), eligible=(*record.eligible, *gone))


def _joined_still_eligible(self, record, joining):
    return _replace(JOINED(self, record, joining), eligible=record.eligible)


def _revive_anyone(key, record, reports, alive):
    for broker in alive:
        report = reports.of(key, broker)
        if report is not None and alive.get(broker) == report.member.incarnation and not report.failed:
            return _replace(record, epoch=record.epoch + 1, chain=(report.member,), joining=None, eligible=())
    return None


def _renew_damaged(record, member, report):
    return report.member if report.member.same_log(member) and not report.failed else None


def _first_that_was_cut(key, record, reports, alive):
    """Any copy leads that was cut, whether the others are there or not."""
    for member in (*record.chain, *record.eligible):
        report = revival._present(key, member, reports, alive)
        if report is not None and not report.failed and report.end >= record.committed:
            return revival._led_by(record, report.member)
    return None


def _report_as_whole(copy):
    return copy.replica.report()


SHRUNK, JOINED = Controller._shrunk, Controller._joined

# --- C9: links ---------------------------------------------------------------------------------------


def _reconcile_by_length(self, link):
    """Compares ends, not epochs."""
    replica = self._replica
    if link.end < replica.start:
        return RECONCILE(self, link)
    return Linked(replica.epoch, link.attempt, min(replica.end, link.end))


RECONCILE = Linking._reconcile


def _offered_unchecked(self, event, now_us):
    """No check of what comes before."""
    if not self.is_from_predecessor(event.sender, event.epoch) or not self.linked or event.base != self.end:
        return OFFERED(self, event, now_us) if event.base > self.end else []
    self._above = max(self._above, event.durable)
    return [r.Take()]


OFFERED = Replica._offered

# --- C19: derived state -----------------------------------------------------------------------------


def _half_a_state(self, piece, now_us):
    """Begins anew with nothing."""
    linked = self._linked
    if linked is None:
        return []
    self.forget()
    return self._links.begin_anew(linked, None)


# --- C20: tables --------------------------------------------------------------------------------------


def _forget_refused(self, batch, _=b""):
    """Remembers that a batch was written, and not that it was refused."""
    name = batch.producer_id, batch.generation, batch.sequence, batch.body_checksum
    self.record(*name, batch.base_offset, batch.end_offset, batch.appended_at_us)


# --- C11: joiners -------------------------------------------------------------------------------------

_READY = property(lambda self: self.joint)


def _patient_with_joiners(self, now_us, wanted, *, unheard, joins):
    """A joiner gets as much time as a member."""
    joint, self.joint = self.joint, False
    try:
        return COMPLAINT(self, now_us, wanted, unheard=unheard, joins=joins)
    finally:
        self.joint = joint


COMPLAINT = Downstream.complaint

# --- C16, C17: the controller -------------------------------------------------------------------------


async def _propose_uncompared(self, propose):
    """As the controller that this broker believes to be, whoever is it now."""
    expect = {chain_key(change.key): change.revision for change in propose.changes}
    await _swap(self, propose, expect, unknown=None)


async def _propose_and_hope(self, propose):
    """What nobody has said to have failed has been done."""
    expect = {chain_key(change.key): change.revision for change in propose.changes}
    expect[CONTROLLER] = self._control.machine.office_revision
    await _swap(self, propose, expect, unknown=self._rollback.revision + 1)


async def _swap(self, propose, expect, *, unknown):
    put = {chain_key(change.key): encode(change.record) for change in propose.changes}
    revision = None
    try:
        swap = await self._store.swap(expect=expect, put=put)
        revision = swap.revision if swap.succeeded else None
    except StentorError:
        revision = unknown
        await asyncio.sleep(limits.PEER_HEARTBEAT_S)
    self._control.step(e.Proposed(propose, revision))


# --- C18, C32: producers ------------------------------------------------------------------------------


def _answer_at_once(self, event, resend):
    return r.Answer(event.ticket, resend.base_offset, self.epoch, resend.appended_at_us)


def _all_fresh(self, producer_id, generation, sequence, checksum):
    return None


def _found_something(self, find, epoch):
    """What a producer sends too late must be in the log, or so one would think."""
    found = list(self._result.found.values())
    if not found:
        self._refuse(find, refusals.not_found(find.error))
        return
    known = self._result.found.get(find.publish.sequence, found[-1])
    resend = Resend(known.base_offset, known.end_offset, known.appended_at_us)
    self._partition.step(_replace(find.publish, known=resend))


# --- C29, C30, C31: who can write, who reaches the store, where the messages end -----------------------


def _all_able(self, now_us):
    return frozenset(self.hearing(now_us)), frozenset()


def _enough_is_enough(self, record, rest, able, spare=0):
    return bool(rest) and len(rest) + spare >= record.min_replicas and self.may_remove


def _heard_by_all(self, now_us, wanted, *, unheard, joins):
    return COMPLAINT(self, now_us, wanted, unheard=False, joins=joins)


def _asks_nobody(self, now_us):
    self._missing = set()
    return self._finish(now_us)


def _knows_although_short(self):
    return self._replica.position.is_head and self._replica.serves


def _first_complaint(self, key, record):
    found = [said.complaint for said in self._complaints_now(key, record) if said.complaint.member in record.chain]
    return min(found, key=lambda complaint: record.chain.index(complaint.member), default=None)


# --- around the machines --------------------------------------------------------------------------------


def _pretend_to_sync(self):
    self._synced(self._partition.log.end, None)


def _pretend_to_store(self):
    asked, self._waiting = self._waiting, {}
    self._stored({partition: epoch for partition, epoch in asked.items() if self._holds(partition)}, None, None)


def _push_without_looking(self, chunks, next_offset, size):
    PUSH(self, chunks, next_offset, size)
    self.cursor.position += 1


PUSH = ReaderStream._push

SUCCESSOR = (Complaints, "of_successor", _nothing)
OWN_DISK = (Complaints, "of_own_disk", _nothing)
HELD = (Complaints, "_held", _nothing)
FIRST_BLAMED = (Controller, "_complaint", _first_complaint)
RECONCILED = (Linking, "_reconcile", _reconcile_by_length)
DAMAGED = (controller, "renewed", _renew_damaged)

mutation("epochs", "C2: messages of other epochs are refused", (Replica, "is_current", _any_epoch))
mutation("old-records", "C2: older records are refused", (Replica, "_configure", _configure_any))
mutation("epoch-stored", "C2: an epoch is on disk before it is acted on", (Replica, "_configure", _configure_at_once))
mutation(
    "incarnations",
    "C3: a restarted member waits until it is named anew",
    (ChainPosition, "find", _find_any_incarnation),
)
mutation("top-down", "C4: links are made from the head down", (Linking, "_link", _link_before_linked))
mutation("commit-minimum", "C5: committed is what every member has on disk", (Replica, "durable_here", _own_durable))
mutation("forget-epoch", "C5: older epochs' durable values are discarded", (Replica, "_forget_epoch", _remember_epoch))
mutation("deposed", "C6: what a deposed head took is unknown, never failed", (Replica, "_depose", _deposed_failed))
mutation(
    "confirmed",
    "C6: a head that is cut off takes nothing",
    (decisions, "may_publish", _may_always),
)
mutation(
    "mutual",
    "C6: who is not heard is cut off too (masked by links that are made anew: both off)",
    (Membership, "_is_deaf", _never),
    (Peers, "restart", _nothing),
)
mutation("told", "C6: a head that was replaced hears it from its successor", (Replica, "tell_replaced", _nothing))
mutation("quorum", "C7: quorum counts a majority of the factor", (Replica, "_reached", _reached_at_head))
mutation("minimum", "C8: a chain that is too short commits nothing", (ChainRecord, "is_short", property(_never)))
mutation(
    "eligible",
    "C8: only who left by the change that crossed the minimum may lead",
    (Controller, "_shrunk", _always_eligible),
    (Controller, "_joined", _joined_still_eligible),
)
mutation("reconcile", "C9: links compare epoch tables", RECONCILED)
mutation(
    "continues",
    "C9: what is taken continues this log (masked by `reconcile`: both off)",
    RECONCILED,
    (Replica, "_offered", _offered_unchecked),
)
mutation(
    "halt",
    "C9: a log is never cut below its commit point (masked by `damaged`: both off)",
    (Linking, "_loses_committed", _never),
    DAMAGED,
)
mutation("death", "C10: a death is a new epoch", (Controller, "_shrunk", _dies_quietly))
mutation("joint", "C11: in joint mode nothing is committed without the joiner", (Replica, "_own_durable", _own_durable))
mutation("ready", "C11: a joiner is ready when it holds all that is committed", (Downstream, "joiner_is_ready", _READY))
mutation("others-wait", "C12: with the last member gone, others wait", (controller, "revived", _revive_anyone))
mutation("damaged", "C13: a damaged copy does not keep its place", DAMAGED)
mutation(
    "cut-together",
    "C13: copies that were cut lead only when all are there",
    (revival, "_led_by_the_longest", _first_that_was_cut),
)
mutation("holes", "K2: a copy with damaged offsets is begun anew", (reporting, "_report", _report_as_whole))
mutation("cut-alone", "C13: one copy that was cut waits for an operator", (revival, "_CUT_COPIES_MIN", 1))
mutation(
    "grey", "C14: a member whose disk makes no progress leaves (masked by `own-disk`: both off)", SUCCESSOR, OWN_DISK
)
mutation("slow", "C14: a member that is slow while the others are not leaves", (controller, "slowest", _nobody))
mutation("all-slow", "C14: where all are slow, nobody leaves", (controller, "slowest", _any_slow_one))
mutation("all-stall", "C14: nor where all are so slow that they stall", (controller, "is_as_slow_as_all", _never))
mutation("hangs-among", "C14: but one that hangs leaves all the same", (limits, "STALL_TIMES", 1_000_000))
mutation(
    "passed-on", "C15: the controller hears of a cut also where it cuts itself off", (Membership, "_passes_on", _never)
)
mutation("own-lag", "C15: who stood still itself counts anew", (Membership, "tick", _tick_without_excuse))
mutation("second-observer", "C15: silence needs a second observer", (Membership, "_second_observer", _always))
mutation("leases", "C15: a lapsed lease alone is no death", (Membership, "is_dead", _dead_by_lease))
mutation("wave", "C15: few are given up at a time", (Membership, "dead", _all_dead))
mutation(
    "controller-key", "C16: every change compares the controller key", (Controlling, "propose", _propose_uncompared)
)
mutation("read-back", "C17: an unknown outcome is read back", (Controlling, "propose", _propose_and_hope))
mutation(
    "state", "C19: a copy that begins anew gets the state of what came before", (StateTransfer, "taken", _half_a_state)
)
mutation("resend-level", "C18: a resend is answered only at its level", (Replica, "_answer_resend", _answer_at_once))
mutation("dedupe", "C18: a batch is written once", (Dedupe, "check", _all_fresh))
mutation("found", "C32: only a batch that is in the log counts as written", (Resends, "_conclude", _found_something))
mutation("derived", "C19: derived state is made anew after a truncation", (PartitionLog, "derive", _nothing))
mutation("conditions", "C20: a change is made only if its conditions hold", (TableState, "allows", _always))
mutation(
    "applied",
    "C20: conditions are decided on the applied view, not on the committed one",
    (TableState, "version", TableState.committed_version),
)
mutation("outcome", "C20: a resend of what was refused is refused again", (Dedupe, "apply", _forget_refused))
mutation("undo", "C19: a table undoes what was cut off its log", (TableState, "cut", _nothing))
mutation(
    "in-full",
    "C21: whoever becomes the head begins all times in full",
    (Expiry, "lead", mutated_expiry.lead_on),
    (Expiry, "rest", mutated_expiry.rest_a_while),
)
mutation(
    "touch", "C21: a touch is promised only by who still leads", (Expiring, "_certain", mutated_expiry.unconfirmed)
)
mutation(
    "expired-version",
    "C21: only the version expires whose time is over (looked at, and written down: both off)",
    (Expiry, "_still_there", _always),
    (table_rows, "expired", mutated_expiry.expired_anyhow),
)
mutation("let-go", "a partition is given away once its owner let go", (GroupCoordinator, "_has_let_go", _has_let_go))
mutation("stale-commit", "C22: commits of an earlier owner are refused", (Groups, "stale", lambda *_: []))
mutation("member-leases", "a member's lease ends by its own clock", (GroupMembership, "has_ended", _never))
mutation("work-position", "positions move past finished work only", (GroupSource, "position", _position_of_taken))
mutation("group-leases", "a member keeps its whole lease", (GroupCoordinator, "ends_at", _ends_early))
mutation("ask-again", "what a handler may have seen is not asked again", (Asking, "_judge", _ask_again))
mutation(
    "memory-silence",
    "a memory topic waits for a broker that is not heard (C12, C15)",
    (reservation, "_is_lost", mutated_memory.silent_is_lost),
)
mutation(
    "memory-offsets",
    "a memory topic begins anew above all that was given out",
    (controller, "begun_anew", mutated_memory.begun_where_it_ended),
)
mutation(
    "memory-copy",
    "C3: a restarted member never passes for the copy in memory that it was",
    (Replicas, "open_all", mutated_memory.open_empty),
)
mutation("queue-renewal", "a lease that is renewed is not over", (QueueHead, "_hear", mutated_queues.hear_once))
mutation("queue-attempts", "an attempt that began counts", (QueueState, "_back", mutated_queues.back_uncounted))
mutation(
    "queue-holder",
    "only the attempt that counts, of who has it, ends a job (looked at by client and head: both off)",
    (QueueState, "holds", mutated_queues.holds_any),
    (QueueState, "holds_run", mutated_queues.holds_no_run),
    (Job, "settle", mutated_queues.settle_anyhow),
)
mutation(
    "queue-commit",
    "an attempt is committed before its job is handed out, an end before it is answered",
    (QueueHead, "_appended", mutated_queues.appended_and_told),
)
mutation(
    "queue-in-full", "C21: a new head begins all leases in full", (QueueHead, "__init__", mutated_queues.nobody_new)
)
mutation(
    "transaction-heir",
    "whoever owns a partition next finishes what was left",
    (MemberTransactions, "complete", mutated_transactions.leave_unfinished),
)
mutation(
    "transaction-number",
    "C18: what a transaction sends keeps its number",
    (TransactionCopies, "_publish", mutated_transactions.publish_as_another),
)
mutation(
    "transaction-held",
    "positions wait for the end of a transaction",
    (GroupProgress, "position", mutated_transactions.reached_already),
)
mutation(
    "transaction-doubt",
    "C22: who does not know whether a transaction counts asks where the group is",
    (GroupTie, "begin_anew", mutated_transactions.go_on),
)
mutation("cursor-cut", "C19: what was not committed is undone by a cut", (Cursors, "cut", _nothing))
mutation("cursor-commit", "C20: only what is committed is told", (Cursors, "commit", _commit_everything))
mutation("cursor-back", "a cursor never goes back by itself", (cursors, "_fold", _fold_anything))
mutation("retention", "C23: retention stops at the commit point", (LettingGo, "_retain", _retain_all))
mutation("own-retention", "C23: only the head chooses where a log begins", (LettingGo, "retain", _retain_everywhere))
mutation("own-start", "C23: a member's log begins where the head says", (ChainDesk, "_retire", _retire_committed))
mutation("latest", "C23: the last message of each key stays", (Compaction, "_wanted", _keep_the_first))
mutation("below", "C23: what is above the horizon stays", (Compaction, "__init__", _compact_everything))
mutation("informed", "C23: a reader that a compaction overtakes hears of it", (sparse, "removed", _none_removed))
mutation("covered", "C23: batches keep the offsets that they cover", (_Merger, "flush", _flush_without_gaps))
mutation("renewed", "C24: a member renews its commit point before it serves", (Replica, "serves", _SERVES))
mutation("blame", "C14: nobody is blamed for those after it (said, and judged: both off)", HELD, FIRST_BLAMED)
mutation("own-disk", "C31: a head reports that its own disk hangs", OWN_DISK)
mutation("unable", "C31: a member whose disk is full leaves", (Membership, "writers", _all_able))
mutation("able", "C31: those that stay can write", (Controller, "_may_go_on", _enough_is_enough))
mutation(
    "link-cut", "C15, C31: a cut between two neighbours is noticed as silence", (Downstream, "complaint", _heard_by_all)
)
mutation(
    "joint-stall", "C11: a joiner in joint mode gets little time", (Downstream, "complaint", _patient_with_joiners)
)
mutation(
    "hearsay", "C28: a chain that does without this member is looked up, not believed", (Hearsay, "_keeps", _always)
)
mutation("rollback", "C27: a store that went back is not followed", (StoreRollback, "follows", _always))
mutation("resign", "C29: a controller without the store gives the office up", (Membership, "should_resign", _never))
mutation(
    "confirm",
    "C30: the chain confirms its epoch before a reader is told the end",
    (Confirmations, "_send", _asks_nobody),
)
mutation(
    "short-end",
    "C30: a chain that is too short does not know its end",
    (Confirmations, "_knows_all", _knows_although_short),
)
mutation("no-sync", "the driver answers after the sync, not before", (LogSync, "start", _pretend_to_sync))
mutation("no-store", "the driver brings an epoch to disk", (EpochStore, "_store", _pretend_to_store))
mutation("no-retire", "the driver lets go of what the head let go", (ChainDesk, "_retire", _nothing))
mutation(
    "uncommitted",
    "the driver serves what is committed, and no more",
    (Partition, "committed", property(lambda self: self.log.end)),
)
mutation("skips", "the driver sends readers every message", (ReaderStream, "_push", _push_without_looking))
